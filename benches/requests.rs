//! What it costs to make requests and to read and write what peers exchange. Nothing is posted.
//!
//! On a shared machine compare rows of one run, not runs.
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot be set up stops")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use ibverbs::{
    Access, Gid, Inline, Mtu, PacketSequence, PortNumber, QpInfo, QueuePairNumber, Rc, RemoteKey,
    RemoteMemory, SendWr,
};
use soft_device::SoftDevice;

fn making_requests(criterion: &mut Criterion) {
    let device = SoftDevice::new();
    let context = bench_support::open(&device);
    let domain = context.allocate_protection_domain().unwrap();
    let memory = domain.register(vec![0_u8; 4096], Access::READ_ONLY).unwrap();
    let remote = RemoteMemory::new(0x1000, 4096, RemoteKey(7)).unwrap();
    let mut group = criterion.benchmark_group("make");
    group.bench_function("segment", |bencher| {
        bencher.iter(|| memory.segment(black_box(64..128)).unwrap());
    });
    group.bench_function("write", |bencher| {
        let (from, to) = (memory.segment(..64).unwrap(), remote.at(0).unwrap());
        bencher.iter(|| SendWr::<Rc>::write(black_box(from), &black_box(to)).id(1).signaled());
    });
    group.bench_function("write with its segments", |bencher| {
        bencher.iter(|| {
            let from = memory.segment(black_box(64..128)).unwrap();
            SendWr::<Rc>::write(from, &remote.at(black_box(64)).unwrap()).id(1).signaled()
        });
    });
    group.bench_function("inline send", |bencher| {
        let bytes = [1_u8; 32];
        bencher.iter(|| SendWr::<Rc>::send(Inline(black_box(&bytes))).id(1));
    });
    group.finish();
}

fn wire_formats(criterion: &mut Criterion) {
    let info = QpInfo {
        number: QueuePairNumber::new(0x11).unwrap(),
        first_packet: PacketSequence::new(0x22).unwrap(),
        lid: 0,
        gid: Gid([0xfe; 16]),
        port: PortNumber::FIRST,
        mtu: Mtu::BYTES_4096,
    };
    let remote = RemoteMemory::new(0x1000, 4096, RemoteKey(7)).unwrap();
    let (info_bytes, remote_bytes) = (info.to_bytes(), remote.to_bytes());
    let mut group = criterion.benchmark_group("wire");
    group.bench_function("QpInfo to bytes", |bencher| {
        bencher.iter(|| black_box(&info).to_bytes());
    });
    group.bench_function("QpInfo from bytes", |bencher| {
        bencher.iter(|| QpInfo::from_bytes(black_box(&info_bytes)).unwrap());
    });
    group.bench_function("RemoteMemory to bytes", |bencher| {
        bencher.iter(|| black_box(&remote).to_bytes());
    });
    group.bench_function("RemoteMemory from bytes", |bencher| {
        bencher.iter(|| RemoteMemory::from_bytes(black_box(&remote_bytes)).unwrap());
    });
    group.finish();
}

mod bench_support;

criterion_group!(benches, making_requests, wire_formats);
criterion_main!(benches);
