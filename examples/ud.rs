//! Datagrams between two ranks: a question, and an answer that finds its way by the question's header.
//!
//! A datagram queue pair has no peer; each request names its destination. A receive has 40 bytes more than the
//! payload, where the device puts the header that says who sent it. A datagram that is lost is not sent again.
//!
//! ```text
//! cargo run --example ud
//! ```

use std::process::ExitCode;

use example_support::{AnyError, World, any_device, check_pattern, pattern, report, run, wait};
use ibverbs::{
    Access, AddressHandle, DatagramInfo, DatagramOptions, Destination, DeviceSelector, QueueKey,
    RecvWr, RoutingHeader, SendWr, Ud,
};

/// How many bytes a datagram carries: at most one packet.
const LENGTH: usize = 1024;
/// The key that both ranks accept; others' datagrams are dropped.
const KEY: QueueKey = QueueKey(0x1234_5678);

fn main() -> ExitCode {
    report(run(2, rank))
}

fn rank(world: &World) -> Result<(), AnyError> {
    let selector = DeviceSelector::from_env()?;
    let context = any_device(world, &selector)?.open()?;
    let port = context.local_port(&selector)?;
    let domain = context.allocate_protection_domain()?;
    let sends = context.create_completion_queue(4)?;
    let receives = context.create_completion_queue(4)?;
    let options = DatagramOptions::new(&port, KEY);
    let pair = domain.queue_pair::<Ud>(&sends, &receives).create()?.activate(&options)?;

    let room = vec![0_u8; RoutingHeader::LENGTH + LENGTH];
    let inbox = domain.register(room, Access::LOCAL_WRITE)?;
    pair.post_receive(&mut [RecvWr::to(0, inbox.segment(..)?)])?;
    let outbox = domain.register(pattern(world.rank() as u64, LENGTH), Access::READ_ONLY)?;

    if world.rank() == 0 {
        // Once rank 1 says where it is, its receive is there.
        let there = DatagramInfo::from_bytes(&world.broadcast(1, &[])?)?;
        let handle = domain.create_address_handle(&there.address(&port))?;
        let to = there.destination(&handle);
        let question = SendWr::send_with_imm_to(outbox.segment(..)?, to, 0xA5C);
        pair.post_send(&mut [question.signaled()])?;
        wait(world, "the completion of the question", &sends, |_| ())?;

        let answer = wait(world, "the answer", &receives, |work| work.datagram(&inbox.bytes(), 0))?;
        let answer = answer?;
        if answer.queue_pair != there.number {
            return Err(format!("queue pair {} answered", answer.queue_pair).into());
        }
        check_pattern(1, &inbox.into_buffer()?[answer.payload()])?;
        world.say(format!("verified the answer of {} bytes", answer.payload_length));
    } else {
        world.broadcast(1, &pair.datagram_endpoint(&options).to_bytes())?;

        // The header is parsed, and the way back made from it, without knowing rank 0.
        let question = wait(world, "the question", &receives, |work| {
            let arrived = work.datagram(&inbox.bytes(), 0)?;
            let back = AddressHandle::reply(&domain, &work, arrived.header.as_ref(), port.port)?;
            Ok::<_, ibverbs::Error>((arrived, back, work.immediate()))
        })?;
        let (arrived, back, immediate) = question?;
        check_pattern(0, &inbox.into_buffer()?[arrived.payload()])?;
        let number = immediate.ok_or("the question came without its number")?;
        let sender = arrived.queue_pair;
        world.say(match arrived.header {
            Some(header) => {
                format!("{number:#X} came from {}, queue pair {sender}", header.source())
            }
            None => format!("{number:#X} came from queue pair {sender}, without a header"),
        });

        let to = Destination::new(&back, arrived.queue_pair, KEY);
        let answer = SendWr::send_to(outbox.segment(..)?, to);
        pair.post_send(&mut [answer.signaled()])?;
        wait(world, "the completion of the answer", &sends, |_| ())?;
    }
    world.barrier()?;
    Ok(())
}
