//! What it costs to make requests, to cut transfers and lend memory, and to read and write what peers and targets
//! exchange. Nothing is posted.
//!
//! On a shared machine compare rows of one run, not runs.
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot be set up stops")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use efa::EndpointInfo;
use ibverbs::{
    Access, Address, Destination, DeviceSelector, Gid, Inline, Mtu, PacketSequence, PoolOptions,
    PortNumber, QpInfo, QueueKey, QueuePairNumber, Rc, RecvWr, RegionPool, RemoteKey, RemoteMemory,
    SendWr, Ud,
};
use nvmeof::wire::{
    Command, Completion, Descriptor,
    command::Opcode,
    nvm::{BlockCommand, BlockFlags},
};
use soft_device::SoftDevice;

fn making_requests(criterion: &mut Criterion) {
    let device = SoftDevice::new();
    let context = bench_support::open(&device);
    let domain = context.allocate_protection_domain().unwrap();
    let memory = domain.register(vec![0_u8; 4096], Access::LOCAL_WRITE).unwrap();
    let remote = RemoteMemory::new(0x1000, 4096, RemoteKey(7)).unwrap();
    let (part, to) = (memory.segment(..64).unwrap(), remote.at(0).unwrap());
    let word = memory.segment(..8).unwrap();
    let mut group = criterion.benchmark_group("make");
    group.bench_function("segment", |bencher| {
        bencher.iter(|| memory.segment(black_box(64..128)).unwrap());
    });
    group.bench_function("write", |bencher| {
        bencher.iter(|| SendWr::<Rc>::write(black_box(part), &black_box(to)).id(1).signaled());
    });
    group.bench_function("write with immediate", |bencher| {
        bencher.iter(|| SendWr::<Rc>::write_with_imm(black_box(part), &black_box(to), 7).id(1));
    });
    group.bench_function("read", |bencher| {
        bencher.iter(|| SendWr::<Rc>::read(black_box(part), &black_box(to)).id(1).signaled());
    });
    group.bench_function("fetch and add", |bencher| {
        bencher.iter(|| SendWr::<Rc>::fetch_and_add(black_box(word), &black_box(to), 1).signaled());
    });
    group.bench_function("send", |bencher| {
        bencher.iter(|| SendWr::<Rc>::send(black_box(part)).id(1).signaled());
    });
    group.bench_function("datagram", |bencher| {
        let port = context.local_port(&DeviceSelector::default()).unwrap();
        let address = Address::new(&port, port.gid.gid, 0);
        let handle = domain.create_address_handle(&address).unwrap();
        let number = QueuePairNumber::new(0x11).unwrap();
        let to = Destination::new(&handle, number, QueueKey(1));
        let datagram = |from| SendWr::<Ud>::send_to(from, to);
        bencher.iter(|| datagram(black_box(part)).id(1));
    });
    group.bench_function("receive", |bencher| {
        bencher.iter(|| RecvWr::to(black_box(1), black_box(part)));
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

/// A transfer of 64 MiB over SRD, in requests of 1 MiB.
fn cutting(criterion: &mut Criterion) {
    const LENGTH: usize = 64 << 20;
    let device = SoftDevice::builder().efa(|_| ()).build();
    let context = bench_support::open(&device);
    let port = context.local_port(&DeviceSelector::default()).unwrap();
    let domain = context.allocate_protection_domain().unwrap();
    let memory = domain.register(vec![0_u8; LENGTH], Access::LOCAL_WRITE).unwrap();
    let remote = RemoteMemory::new(0x1000, LENGTH as u64, RemoteKey(7)).unwrap();
    let mut endpoint = [0; 24];
    endpoint[..16].copy_from_slice(&port.gid.gid.0);
    endpoint[19] = 1;
    let peer = EndpointInfo::from_bytes(&endpoint).unwrap().peer(&domain, &port).unwrap();
    let mut group = criterion.benchmark_group("cut");
    group.bench_function("64 MiB into 64 writes", |bencher| {
        let to = remote.at(0).unwrap();
        bencher.iter(|| {
            let requests = efa::write_wrs(&memory, black_box(..), &to, &peer, 1 << 20).unwrap();
            requests.map(black_box).count()
        });
    });
    group.finish();
}

fn lending(criterion: &mut Criterion) {
    let device = SoftDevice::new();
    let context = bench_support::open(&device);
    let domain = context.allocate_protection_domain().unwrap();
    let pool = RegionPool::new(&domain, PoolOptions::new(Access::LOCAL_WRITE));
    let mut group = criterion.benchmark_group("memory");
    group.bench_function("lend 4 KiB of a pool and take it back", |bencher| {
        bencher.iter(|| pool.lend(black_box(4096)).unwrap());
    });
    group.bench_function("register 4 KiB and deregister", |bencher| {
        bencher.iter(|| domain.register(vec![0_u8; black_box(4096)], Access::LOCAL_WRITE).unwrap());
    });
    group.finish();
}

/// NVMe's commands and completions.
fn commands(criterion: &mut Criterion) {
    let read = BlockCommand {
        opcode: Opcode::READ,
        namespace: 1,
        first_block: 0x1_0000_0001,
        blocks: 8,
        flags: BlockFlags::empty(),
        reference_tag: 0,
    };
    let data = Descriptor::Keyed { address: 0x1000, length: 4096, key: 7 };
    let command = read.to_command(data).id(5);
    let completion = [0; Completion::BYTES];
    let mut group = criterion.benchmark_group("NVMe");
    group.bench_function("read command", |bencher| {
        bencher.iter(|| black_box(read).to_command(black_box(data)).id(5));
    });
    group.bench_function("parse a command", |bencher| {
        bencher.iter(|| Command::parse(black_box(command.as_bytes())).unwrap());
    });
    group.bench_function("parse a completion", |bencher| {
        bencher.iter(|| Completion::parse(black_box(&completion)).unwrap());
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

criterion_group!(benches, making_requests, cutting, lending, wire_formats, commands);
criterion_main!(benches);
