//! Whole Ethernet frames, past the network stack: rank 0 sends them, and flows at rank 1 say which of them its queue pair
//! gets, which are thrown away, and count both.
//!
//! A raw packet queue pair has no peer. What it sends is a frame with its header; what it receives is what a flow
//! leads to it, and nothing without one. On a real device this needs the capability `CAP_NET_RAW` and a port of Ethernet
//! whose device has such queue pairs (ConnectX, not the kernel's software devices).
//!
//! ```text
//! cargo run --example raw_packet
//! ```

use std::process::ExitCode;

use example_support::{AnyError, World, any_device, check_pattern, pattern, report, run, wait};
use ibverbs::{
    Access, Context, CounterKind, DeviceSelector, EthernetMatch, Flow, FlowCounters, FlowRule,
    MacAddress, PacketMatch, PortNumber, RawPacket, RecvWr, SendWr,
};

/// Types of frames that are free for experiments (IEEE 802).
const WANTED: u16 = 0x88b5;
const UNWANTED: u16 = 0x88b6;
/// How many frames of each type are sent.
const FRAMES: usize = 3;
/// The payload of a frame: with the header no shorter than frames are on the wire.
const PAYLOAD: usize = 500;
/// A frame: two addresses, a type, and the payload.
const LENGTH: usize = 14 + PAYLOAD;

fn main() -> ExitCode {
    report(run(2, rank))
}

fn rank(world: &World) -> Result<(), AnyError> {
    let selector = DeviceSelector::from_env()?;
    let context = any_device(world, &selector)?.open()?;
    let port = context.choose_port(&selector)?;
    let mine = address(&context, port)?;
    let theirs = world.exchange_with_peer(&mine.0)?;
    let theirs = MacAddress(theirs.as_slice().try_into()?);

    let domain = context.allocate_protection_domain()?;
    let queue = context.create_completion_queue(16)?;
    let pair = domain.queue_pair::<RawPacket>(&queue, &queue).create()?.start(port)?;

    if world.rank() == 0 {
        let frames: Vec<u8> = [WANTED, UNWANTED]
            .into_iter()
            .flat_map(|ether_type| (0..FRAMES).map(move |_| ether_type))
            .flat_map(|ether_type| frame(theirs, mine, ether_type))
            .collect();
        let memory = domain.register(frames, Access::READ_ONLY)?;
        // The flows are there once the other rank has passed this.
        world.barrier()?;
        let mut batch = Vec::new();
        for number in 0..2 * FRAMES {
            let bytes = memory.segment(number * LENGTH..(number + 1) * LENGTH)?;
            batch.push(SendWr::frame(bytes));
        }
        if let Some(last) = batch.pop() {
            batch.push(last.signaled());
        }
        pair.post_send(&mut batch)?;
        wait(world, "the last frame", &queue, |_| ())?;
        world.say(format!("sent {FRAMES} frames of each of two types from {mine} to {theirs}"));
        world.barrier()?;
    } else {
        let memory = domain.register(vec![0_u8; FRAMES * LENGTH], Access::LOCAL_WRITE)?;
        let mut receives = Vec::new();
        for number in 0..FRAMES {
            let place = memory.segment(number * LENGTH..(number + 1) * LENGTH)?;
            receives.push(RecvWr::to(number as u64, place));
        }
        pair.post_receive(&mut receives)?;

        let kinds = [CounterKind::PACKETS, CounterKind::BYTES];
        let taken = FlowCounters::create(&context, &kinds)?;
        let discarded = FlowCounters::create(&context, &kinds)?;
        let rule = |ether_type| {
            let header = EthernetMatch::new().destination(mine).ether_type(ether_type);
            FlowRule::new(PacketMatch::new().ethernet(header))
        };
        // In force until they are dropped.
        let _flows = [
            Flow::create(&pair, port, rule(WANTED).count(&taken))?,
            Flow::create(&pair, port, rule(UNWANTED).count(&discarded).discard())?,
        ];
        world.barrier()?;

        let mut bytes = vec![0; LENGTH];
        for _ in 0..FRAMES {
            let (place, length) =
                wait(world, "a frame", &queue, |work| (work.id(), work.byte_length()))?;
            if length as usize != LENGTH {
                return Err(format!("a frame of {length} bytes came, not of {LENGTH}").into());
            }
            memory.bytes().read(usize::try_from(place)? * LENGTH, &mut bytes)?;
            check_pattern(WANTED.into(), &bytes[14..])?;
        }
        world.barrier()?;
        for (counters, what) in [(&taken, "came by a flow"), (&discarded, "were thrown away")] {
            let mut values = [0; 2];
            counters.read(&mut values)?;
            let [packets, bytes] = values;
            world.say(format!("{packets} frames of {bytes} bytes in all {what}"));
        }
        world.say(format!("verified {FRAMES} frames"));
    }
    world.barrier()?;
    Ok(())
}

/// The Ethernet address of a port, of which the first entry of its GID table is made.
fn address(context: &Context, port: PortNumber) -> Result<MacAddress, AnyError> {
    let gid = context.query_gid(port, 0)?;
    let error = || format!("port {port} is not one of Ethernet: its first GID is {gid}");
    Ok(MacAddress::of_link_local(gid).ok_or_else(error)?)
}

fn frame(to: MacAddress, from: MacAddress, ether_type: u16) -> Vec<u8> {
    let payload = pattern(ether_type.into(), PAYLOAD);
    [&to.0[..], &from.0[..], &ether_type.to_be_bytes()[..], &payload[..]].concat()
}
