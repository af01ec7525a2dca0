//! Messages back and forth over many reliable connections whose receives come from one shared queue. Speaks to
//! `ibv_srq_pingpong` of rdma-core.
//!
//! ```text
//! cargo run --example srq_pingpong -- --ib-dev mlx5_0 --gid-idx 3            the server
//! cargo run --example srq_pingpong -- --ib-dev mlx5_0 --gid-idx 3 SERVER     the client
//! ```

#[path = "pingpong/connection.rs"]
mod connection;
mod pingpong;

use std::{process::ExitCode, time::Instant};

use connection::check;
use ibverbs::{
    Access, Completion, ConnectOptions, Gid, PacketSequence, QueuePair, QueuePairNumber, Rc,
    RecvWr, SendWr, SharedReceiveQueueOptions,
};
use pingpong::{AnyError, Endpoint, Options, Peer, RECEIVE, SEND, print_report};

fn main() -> ExitCode {
    pingpong::run(run)
}

/// How many queue pairs each end tells of, whether or not it has them.
const TOLD: usize = 256;

/// A connection and what it still waits for.
struct Lane<'a> {
    pair: QueuePair<'a, Rc>,
    pending: u64,
}

fn run(options: &Options) -> Result<(), AnyError> {
    let count = options.num_qp;
    let lanes = u32::try_from(count)?;
    if count == 0 || count > TOLD || lanes > options.rx_depth {
        return Err(format!("1 to {TOLD} queue pairs, and a receive for each, not {count}").into());
    }
    let (context, port) = options.open()?;
    let domain = context.allocate_protection_domain()?;
    let channel = context.create_completion_channel()?;
    let queue = options.queue(&context, &channel, options.rx_depth + lanes)?;
    let length = options.size(4096);
    let fill = if options.is_client() { 0_u8 } else { 0x7c };
    let memory = domain.register(vec![fill; length as usize], Access::LOCAL_WRITE)?;
    let segment = memory.segment(..)?;
    let shared =
        domain.create_shared_receive_queue(SharedReceiveQueueOptions::new(options.rx_depth))?;

    let connect = ConnectOptions::new(&port)
        .mtu(options.mtu()?)
        .service_level(options.sl)
        .incoming_reads(1)
        .outgoing_reads(1);
    let mut pairs = Vec::new();
    for _ in 0..count {
        let builder = domain.queue_pair::<Rc>(&queue, &queue);
        pairs.push(builder.max_send_requests(1).shared_receive_queue(&shared).create()?);
    }
    let mut receives: Vec<_> =
        (0..options.rx_depth).map(|_| RecvWr::to(RECEIVE, segment)).collect();
    shared.post_receive(&mut receives)?;
    let mut posted = options.rx_depth;

    let mut local: Vec<_> = pairs.iter().map(|pair| Endpoint::of(&pair.endpoint(&port))).collect();
    let none = Endpoint {
        lid: 0,
        number: QueuePairNumber::new(0)?,
        first_packet: PacketSequence::new(0)?,
        gid: Gid::default(),
    };
    local.resize(TOLD, none);
    let peer = Peer::meet(options, local)?;
    let mut lanes = Vec::new();
    for (pair, remote) in pairs.into_iter().zip(peer.remote()) {
        let pair = pair.connect(&remote.to_info(options.mtu()?), &connect)?;
        lanes.push(Lane { pair, pending: RECEIVE });
    }
    peer.start()?;

    let start = Instant::now();
    let mut message = [SendWr::send(segment).id(SEND).signaled()];
    if options.is_client() {
        for lane in &mut lanes {
            lane.pair.post_send(&mut message)?;
            lane.pending |= SEND;
        }
    }
    let (mut sent, mut received) = (0, 0);
    let mut slots = Completion::slots::<20>();
    while sent < options.iters || received < options.iters {
        for completion in options.wait(&queue, &mut slots)? {
            let work = completion.outcome()?;
            let number = work.queue_pair();
            let lane = lanes.iter_mut().find(|lane| lane.pair.number() == number);
            let lane = lane.ok_or_else(|| format!("queue pair {number} is not ours"))?;
            if work.id() == SEND {
                sent += 1;
            } else {
                received += 1;
                posted -= 1;
                if posted as usize <= count {
                    let more = (options.rx_depth - posted) as usize;
                    shared.post_receive(&mut receives[..more])?;
                    posted = options.rx_depth;
                }
            }
            lane.pending &= !work.id();
            if sent < options.iters && lane.pending == 0 {
                lane.pair.post_send(&mut message)?;
                lane.pending = RECEIVE | SEND;
            }
        }
    }
    print_report(options, length, start.elapsed());
    if options.chk && !options.is_client() {
        check(&memory.bytes())?;
    }
    Ok(())
}
