//! Streams that the device cuts into packets.

use ibverbs::{
    Access, Completion, Error, FlowRule, MacAddress, MemoryRegion, Operation, Posting, QueuePair,
    RawPacket, Reset, SegmentedFrames,
};

use crate::support::{Bench, frame};

const FIN: u8 = 1;
const PUSH: u8 = 8;
const ACK: u8 = 16;
const WINDOW_REDUCED: u8 = 128;
/// Where TCP begins in a frame of IPv4, and in one of IPv6.
const PLACES: [usize; 2] = [34, 54];

/// The headers of the first packet, of IPv4 or of IPv6; lengths and checksums are the device's to fill in.
fn headers(to: MacAddress, v6: bool) -> Vec<u8> {
    let tcp = [
        &[0x03, 0xe8, 0, 80][..],
        &0xffff_ff00_u32.to_be_bytes(),
        &[0, 0, 0, 1, 0x50, FIN | PUSH | ACK | WINDOW_REDUCED, 1, 0, 0, 0, 0, 0],
    ];
    let v4 = [0x45, 0, 0, 0, 0xff, 0xff, 0x40, 0, 64, 6, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2];
    let mut network = v4.to_vec();
    if v6 {
        network = vec![0x60, 0, 0, 0, 0, 0, 6, 64];
        network.extend([0x20; 32]);
    }
    let packet = [network, tcp.concat()].concat();
    frame(to, MacAddress([2, 0, 0, 0, 0, 7]), if v6 { 0x86dd } else { 0x0800 }, &packet)
}

fn sender(bench: &Bench, posting: Posting) -> QueuePair<'static, RawPacket> {
    let queue = bench.queue();
    let builder = QueuePair::<RawPacket, Reset>::builder(&bench.domain, &queue, &queue);
    let builder = builder.posting(posting).max_send_segments(2).max_segmented_header(80);
    let pair = builder.create().unwrap().start(bench.port).unwrap();
    assert_eq!((pair.posting(), pair.capabilities().segmented_header), (posting, 80));
    pair
}

#[test]
fn a_stream_comes_in_packets_with_headers_of_their_own() {
    for (posting, v6) in
        [(Posting::Extended, false), (Posting::Classic, false), (Posting::Classic, true)]
    {
        let bench = Bench::new();
        assert!(bench.context.query_device().unwrap().max_segmented_length() >= 250);
        let receiver = bench.station();
        let flow = bench.flow(&receiver, FlowRule::new(bench.mine()));
        let pair = sender(&bench, posting);
        let stream: Vec<u8> = (0..250).collect();
        let memory = stream.clone();
        let memory = MemoryRegion::register(&bench.domain, memory, Access::READ_ONLY).unwrap();
        let parts = [memory.segment(..30).unwrap(), memory.segment(30..).unwrap()];
        let header = headers(bench.mac, v6);
        pair.post_segmented(&SegmentedFrames::new(&header, &parts, 100).id(9).signaled()).unwrap();
        let mut slots = Completion::slots::<2>();
        let found = pair.send_queue().poll(&mut slots).unwrap();
        let work = found[0].outcome().unwrap();
        assert_eq!((found.len(), work.id(), work.operation()), (1, 9, Operation::SEGMENTED_SEND));
        let tcp = PLACES[usize::from(v6)];
        for (number, bytes) in (0_u16..).zip(stream.chunks(100)) {
            let came = receiver.received().unwrap();
            assert_eq!(&came[tcp + 20..], bytes);
            assert_eq!(came[..12], header[..12]);
            let word = |at: usize| u16::from_be_bytes([came[at], came[at + 1]]);
            let length = u16::try_from(20 + bytes.len()).unwrap();
            if v6 {
                assert_eq!(word(18), length);
            } else {
                assert_eq!((word(16), word(18)), (20 + length, 0xffff_u16.wrapping_add(number)));
            }
            let sequence = u32::from_be_bytes(came[tcp + 4..tcp + 8].try_into().unwrap());
            assert_eq!(sequence, 0xffff_ff00_u32.wrapping_add(100 * u32::from(number)));
            let flags = ACK
                | if number == 0 { WINDOW_REDUCED } else { 0 }
                | if number == 2 { FIN | PUSH } else { 0 };
            assert_eq!(came[tcp + 13], flags, "{number}");
            assert_ne!(word(tcp + 16), 0, "the checksum is filled in");
        }
        assert_eq!(receiver.received(), None);
        drop((flow, receiver, pair, memory));
        bench.end();
    }
}

#[test]
fn a_stream_that_cannot_be_cut_is_refused() {
    let bench = Bench::new();
    let pair = sender(&bench, Posting::Extended);
    let memory = MemoryRegion::register(&bench.domain, vec![0; 64], Access::READ_ONLY).unwrap();
    let part = [memory.segment(..).unwrap()];
    let header = headers(bench.mac, false);
    let refused = |frames: SegmentedFrames<'_>, asked: u64| {
        let error = pair.post_segmented(&frames).unwrap_err();
        assert_eq!((error.refused(), error.posted()), (Some(0), 0));
        match error.error() {
            Error::OutOfRange { asked: found, .. } => assert_eq!(*found, asked),
            other => panic!("{other}"),
        }
    };
    refused(SegmentedFrames::new(&[0; 81], &part, 100), 81);
    refused(SegmentedFrames::new(&[], &part, 100), 0);
    refused(SegmentedFrames::new(&header, &part, 0), 0);
    refused(SegmentedFrames::new(&header, &[], 100), 0);
    refused(SegmentedFrames::new(&header, &[part[0]; 3], 100), 3);
    assert_eq!(bench.device.calls("ibv_post_send"), 0);
    // What only the device knows.
    let mut other = header.clone();
    other[23] = 17;
    let error = pair.post_segmented(&SegmentedFrames::new(&other, &part, 100)).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EINVAL));
    let plain = bench.station();
    let error = plain.pair.post_segmented(&SegmentedFrames::new(&header, &part, 100)).unwrap_err();
    assert!(error.error().to_string().contains("max_segmented_header"), "{}", error.error());
}
