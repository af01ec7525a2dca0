//! Datagrams back and forth. Speaks to `ibv_ud_pingpong` of rdma-core.
//!
//! Each receive has 40 bytes more than the message, for the routing header. A datagram that is lost is not sent
//! again: then both ends wait in vain, and give up.
//!
//! ```text
//! cargo run --example ud_pingpong -- --ib-dev mlx5_0 --gid-idx 3            the server
//! cargo run --example ud_pingpong -- --ib-dev mlx5_0 --gid-idx 3 SERVER     the client
//! ```

mod pingpong;

use std::{process::ExitCode, time::Instant};

use ibverbs::{
    Access, Address, Completion, DatagramOptions, Destination, PacketSequence, QueueKey, RecvWr,
    RoutingHeader, SendWr, Ud,
};
use pingpong::{AnyError, Endpoint, Options, Peer, RECEIVE, SEND, print_report};

/// The key that both ends accept.
const KEY: QueueKey = QueueKey(0x1111_1111);

fn main() -> ExitCode {
    pingpong::run(run)
}

fn run(options: &Options) -> Result<(), AnyError> {
    let (context, port) = options.open()?;
    let domain = context.allocate_protection_domain()?;
    let channel = context.create_completion_channel()?;
    let queue = options.queue(&context, &channel, options.rx_depth + 1)?;
    let length = options.size(1024);
    let most = port.attributes.active_mtu().bytes();
    if length as usize > most {
        return Err(format!("{length} bytes do not fit a packet of {most}").into());
    }
    let room = RoutingHeader::LENGTH + length as usize;
    let memory = domain.register(vec![0_u8; room], Access::LOCAL_WRITE)?;
    let payload = memory.segment(RoutingHeader::LENGTH..)?;

    let pair = domain
        .queue_pair::<Ud>(&queue, &queue)
        .max_send_requests(1)
        .max_receive_requests(options.rx_depth)
        .create()?;
    let ready = DatagramOptions::new(&port, KEY);
    let own = pair.datagram_endpoint(&ready);
    let pair = pair.activate(&ready)?;
    let whole = memory.segment(..)?;
    let mut receives: Vec<_> = (0..options.rx_depth).map(|_| RecvWr::to(RECEIVE, whole)).collect();
    pair.post_receive(&mut receives)?;
    let mut posted = options.rx_depth;

    let first_packet = PacketSequence::random();
    let local = Endpoint { lid: own.lid, number: own.number, first_packet, gid: own.gid };
    let peer = Peer::meet(options, vec![local])?;
    let remote = peer.remote()[0];
    let address = Address::new(&port, remote.gid, remote.lid).service_level(options.sl);
    let handle = domain.create_address_handle(&address)?;
    peer.start()?;

    let start = Instant::now();
    let to = Destination::new(&handle, remote.number, KEY);
    let mut datagram = [SendWr::send_to(payload, to).id(SEND).signaled()];
    let (mut sent, mut received, mut pending) = (0, 0, RECEIVE);
    if options.is_client() {
        pair.post_send(&mut datagram)?;
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
                if options.chk {
                    let arrived = work.datagram(&memory.bytes(), 0)?;
                    if arrived.payload_length != length as usize
                        || arrived.queue_pair != remote.number
                        || arrived.header.is_some_and(|header| header.source() != remote.gid)
                    {
                        return Err(format!("a stranger's datagram came: {arrived:?}").into());
                    }
                }
                posted -= 1;
                if posted <= 1 {
                    let more = (options.rx_depth - posted) as usize;
                    pair.post_receive(&mut receives[..more])?;
                    posted = options.rx_depth;
                }
            }
            pending &= !work.id();
            if sent < options.iters && pending == 0 {
                pair.post_send(&mut datagram)?;
                pending = RECEIVE | SEND;
            }
        }
    }
    print_report(options, length, start.elapsed());
    Ok(())
}
