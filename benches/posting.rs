//! Posting and polling on the software device, which does each transfer while it is posted, under a lock.
//!
//! What this shows is the difference between rows of one run: the two ways of posting, one request or a
//! batch. Most of each row is the device. The crate's own part, in instructions, is what the example
//! `data_path_cost` is for.
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot be set up stops")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ibverbs::{
    Access, Completion, CompletionQueue, ConnectOptions, DeviceSelector, Inline, MemoryRegion,
    Posting, ProtectionDomain, QueuePair, Rc, RecvWr, SendWr,
};
use soft_device::SoftDevice;

mod bench_support;

const BATCH: usize = 64;

/// Takes completions until there were `count`.
fn drain(queue: &CompletionQueue<'_>, mut count: usize) {
    let mut slots = Completion::slots::<16>();
    while count > 0 {
        let found = queue.poll(&mut slots).unwrap();
        assert!(found.iter().all(|completion| completion.outcome().is_ok()));
        count -= found.len();
    }
}

/// Two queue pairs of one domain, connected.
fn connect<'a>(
    domain: &'a ProtectionDomain<'a>,
    (sends, receives): (&'a CompletionQueue<'a>, &'a CompletionQueue<'a>),
    posting: Posting,
) -> [QueuePair<'a, Rc>; 2] {
    let port = domain.context().local_port(&DeviceSelector::default()).unwrap();
    let create = || {
        let builder = domain.queue_pair::<Rc>(sends, receives).posting(posting).max_inline(32);
        builder.max_send_requests(128).max_receive_requests(128).create().unwrap()
    };
    let (a, b) = (create(), create());
    let (to_a, to_b) = (a.endpoint(&port), b.endpoint(&port));
    let options = ConnectOptions::new(&port).access(Access::REMOTE_WRITE);
    [a.connect(&to_b, &options).unwrap(), b.connect(&to_a, &options).unwrap()]
}

/// Writes of eight bytes, of which the last of each batch is signaled.
fn writes<'a>(memory: &'a MemoryRegion<'_, Vec<u8>>, count: usize) -> Vec<SendWr<'a, Rc>> {
    let to = memory.remote().at(8).unwrap();
    let write = || SendWr::write(memory.segment(..8).unwrap(), &to);
    (1..count).map(|_| write()).chain([write().signaled()]).collect()
}

fn posting(criterion: &mut Criterion) {
    let device = SoftDevice::new();
    let context = bench_support::open(&device);
    let domain = context.allocate_protection_domain().unwrap();
    let sends = context.create_completion_queue(256).unwrap();
    let receives = context.create_completion_queue(256).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let memory = domain.register(vec![0_u8; 4096], access).unwrap();
    let mut group = criterion.benchmark_group("post and poll");
    for posting in [Posting::Extended, Posting::Classic] {
        let [a, b] = connect(&domain, (&sends, &receives), posting);
        let row = |what: &str| BenchmarkId::new(what, format!("{posting:?}"));
        let mut one = writes(&memory, 1);
        group.throughput(Throughput::Elements(1));
        group.bench_function(row("write"), |bencher| {
            bencher.iter(|| {
                a.post_send(&mut one).unwrap();
                drain(&sends, 1);
            });
        });
        group.bench_function(row("inline send and its receive"), |bencher| {
            let bytes = [1_u8; 8];
            bencher.iter(|| {
                b.post_receive(&mut [RecvWr::to(1, memory.segment(64..128).unwrap())]).unwrap();
                a.post_send(&mut [SendWr::send(Inline(&bytes)).signaled()]).unwrap();
                drain(&sends, 1);
                drain(&receives, 1);
            });
        });
        let mut batch = writes(&memory, BATCH);
        group.throughput(Throughput::Elements(BATCH as u64));
        group.bench_function(row("batch of 64 writes"), |bencher| {
            bencher.iter(|| {
                a.post_send(&mut batch).unwrap();
                drain(&sends, 1);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, posting);
criterion_main!(benches);
