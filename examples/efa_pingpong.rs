//! Messages back and forth over SRD between two processes, hosts or virtual machines.
//!
//! Each message is checked, and the time of a round trip is told. On emulated devices that time means nothing.
//!
//! ```text
//! cargo run --example efa_pingpong                        both ranks here
//! RANK=0 WORLD_SIZE=2 MASTER_ADDR=host0 MASTER_PORT=4711 efa_pingpong     on host0
//! RANK=1 WORLD_SIZE=2 MASTER_ADDR=host0 MASTER_PORT=4711 efa_pingpong     on host1
//! ```

use std::{process::ExitCode, time::Instant};

use efa::Srd;
use example_support::{
    AnyError, World, check_pattern, efa_devices, efa_peer, pattern, report, run,
};
use ibverbs::{Access, Completion, CompletionQueue, DeviceSelector, QueueKey, RecvWr, SendWr};

/// How many bytes a message has; at most the MTU of the device.
const LENGTH: usize = 4096;
/// How often a message goes there and back.
const ROUNDS: u32 = 200;
/// The numbers of requests.
const RECEIVE: u64 = 1;
const SEND: u64 = 2;
/// What both queue pairs accept.
const KEY: QueueKey = QueueKey(0x1234);

fn main() -> ExitCode {
    report(run(2, rank))
}

fn rank(world: &World) -> Result<(), AnyError> {
    let devices = efa_devices(world)?;
    let context = devices[0].open()?;
    let port = context.local_port(&DeviceSelector::default())?;
    let domain = context.allocate_protection_domain()?;
    let queue = context.create_completion_queue(16)?;
    let pair = efa::queue_pair::<Srd>(&domain, &queue, &queue).prepare(&port, KEY)?;
    let outbox = domain.register(vec![0_u8; LENGTH], Access::LOCAL_WRITE)?;
    let inbox = domain.register(vec![0_u8; LENGTH], Access::LOCAL_WRITE)?;
    let receive = || -> Result<(), AnyError> {
        Ok(pair.post_receive(&mut [RecvWr::to(RECEIVE, inbox.segment(..)?)])?)
    };
    // Before the other rank may send.
    receive()?;
    let peer = efa_peer(world, &domain, &port, &pair, KEY)?;
    let send = |round: u32| -> Result<(), AnyError> {
        outbox.bytes().write(0, &pattern(round.into(), LENGTH))?;
        let from = outbox.segment(..)?;
        let send = SendWr::<Srd>::send_with_imm_to(from, peer.destination(), round).id(SEND);
        Ok(pair.post_send(&mut [send])?)
    };

    let check = |round: u32| -> Result<(), AnyError> {
        let mut message = vec![0; LENGTH];
        inbox.bytes().read(0, &mut message)?;
        Ok(check_pattern(round.into(), &message)?)
    };

    let mut done = Done::default();
    let begin = Instant::now();
    for round in 0..ROUNDS {
        if world.rank() == 0 {
            send(round)?;
            // The answer may come before the send completes: SRD has no order.
            done.wait(world, &queue, |done| done.sent > round && done.received > round)?;
            check(round)?;
            receive()?;
        } else {
            done.wait(world, &queue, |done| done.received > round)?;
            check(round)?;
            receive()?;
            send(round)?;
            done.wait(world, &queue, |done| done.sent > round)?;
        }
    }
    let each = begin.elapsed() / ROUNDS;
    world.say(format!("{ROUNDS} messages of {LENGTH} bytes there and back, {each:?} each"));
    world.barrier()?;
    Ok(())
}

/// How many requests of each kind have completed.
#[derive(Default)]
struct Done {
    sent: u32,
    received: u32,
}

impl Done {
    /// Takes completions until there are enough.
    fn wait(
        &mut self,
        world: &World,
        queue: &CompletionQueue<'_>,
        enough: impl Fn(&Self) -> bool,
    ) -> Result<(), AnyError> {
        let mut slots = Completion::slots::<4>();
        world.wait_for("the other rank's message", || -> Result<_, AnyError> {
            for completion in queue.poll(&mut slots)? {
                let work = completion.outcome().map_err(efa::Failure::from)?;
                match work.id() {
                    SEND => self.sent += 1,
                    _ if work.immediate() == Some(self.received) => self.received += 1,
                    _ => return Err(format!("{work:?} came as message {}", self.received).into()),
                }
            }
            Ok(enough(self).then_some(()))
        })
    }
}
