//! The pingpong over one connection, reliable or not.

use std::time::Instant;

use ibverbs::{
    Access, Completion, ConnectOptions, Connected, QueuePair, ReadyToSend, Receiving, RecvWr,
    SendWr,
};

use crate::{
    connection::check,
    pingpong::{AnyError, Endpoint, Options, Peer, RECEIVE, SEND, print_report},
};

/// Runs it over a transport whose queue pairs allow the peer `access`.
pub(crate) fn pingpong<T: Connected + Receiving>(
    options: &Options,
    access: Access,
) -> Result<(), AnyError> {
    let (context, port) = options.open()?;
    let domain = context.allocate_protection_domain()?;
    let channel = context.create_completion_channel()?;
    let queue = options.queue(&context, &channel, options.rx_depth + 1)?;
    let length = options.size(4096);
    let fill = if options.is_client() { 0_u8 } else { 0x7c };
    let memory = domain.register(vec![fill; length as usize], Access::LOCAL_WRITE)?;
    let segment = memory.segment(..)?;

    let pair = domain
        .queue_pair::<T>(&queue, &queue)
        .max_send_requests(1)
        .max_receive_requests(options.rx_depth)
        .create()?;
    let connect = ConnectOptions::new(&port)
        .access(access)
        .mtu(options.mtu()?)
        .service_level(options.sl)
        .incoming_reads(1)
        .outgoing_reads(1);
    let local = Endpoint::of(&pair.endpoint(&port));
    let pair = pair.initialize(&connect)?;
    let mut receives: Vec<_> =
        (0..options.rx_depth).map(|_| RecvWr::to(RECEIVE, segment)).collect();
    pair.post_receive(&mut receives)?;
    let mut posted = options.rx_depth;

    let peer = Peer::meet(options, vec![local])?;
    let remote = peer.remote()[0].to_info(options.mtu()?);
    let pair: QueuePair<'_, T, ReadyToSend> = pair.connect(&remote, &connect)?;
    peer.start()?;

    let start = Instant::now();
    let mut message = [SendWr::send(segment).id(SEND).signaled()];
    let (mut sent, mut received, mut pending) = (0, 0, RECEIVE);
    if options.is_client() {
        pair.post_send(&mut message)?;
        pending |= SEND;
    }
    let mut slots = Completion::slots::<2>();
    while sent < options.iters || received < options.iters {
        for completion in options.wait(&queue, &mut slots)? {
            let work = completion.outcome()?;
            if work.id() == SEND {
                sent += 1;
            } else {
                received += 1;
                posted -= 1;
                if posted <= 1 {
                    let more = (options.rx_depth - posted) as usize;
                    pair.post_receive(&mut receives[..more])?;
                    posted = options.rx_depth;
                }
            }
            pending &= !work.id();
            if sent < options.iters && pending == 0 {
                pair.post_send(&mut message)?;
                pending = RECEIVE | SEND;
            }
        }
    }
    print_report(options, length, start.elapsed());
    if options.chk && !options.is_client() {
        check(&memory.bytes())?;
    }
    Ok(())
}
