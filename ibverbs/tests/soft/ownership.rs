//! Shared parents: objects that are stored beside what they were made from, moved and returned.

use std::{sync::Arc, thread};

use ibverbs::{
    Access, Completion, CompletionQueue, ConnectOptions, Context, Device, DeviceSelector,
    LocalPort, MemoryRegion, ProtectionDomain, QpInfo, QueuePair, Rc, RecvWr, RemoteMemory, Reset,
    SendWr,
};
use soft_device::SoftDevice;

use crate::{
    common::{ALL, pattern},
    support::{assert_clean, listed},
};

/// A service as users write it: a plain struct, no lifetime, fields in no special order.
struct Service {
    context: Arc<Context>,
    queue: Arc<CompletionQueue<'static>>,
    domain: Arc<ProtectionDomain<'static>>,
    memory: MemoryRegion<'static, Vec<u8>>,
    port: LocalPort,
    pair: Connection,
}

enum Connection {
    Fresh(QueuePair<'static, Rc, Reset>),
    Ready(QueuePair<'static, Rc>),
    Broken,
}

impl Service {
    fn start(device: &Device) -> ibverbs::Result<Self> {
        let context = Arc::new(device.open()?);
        let domain = Arc::new(ProtectionDomain::allocate(&context)?);
        let queue = Arc::new(CompletionQueue::create(&context, 16)?);
        let pair = QueuePair::builder(&domain, &queue, &queue).create()?;
        let memory = MemoryRegion::register(&domain, vec![0; 4096], ALL)?;
        let port = context.local_port(&DeviceSelector::default())?;
        Ok(Self { context, queue, domain, memory, port, pair: Connection::Fresh(pair) })
    }

    fn endpoint(&self) -> QpInfo {
        match &self.pair {
            Connection::Fresh(pair) => pair.endpoint(&self.port),
            Connection::Ready(pair) => pair.endpoint(&self.port),
            Connection::Broken => unreachable!("connecting succeeded"),
        }
    }

    fn connect(&mut self, remote: &QpInfo) -> ibverbs::Result<()> {
        if let Connection::Fresh(pair) = std::mem::replace(&mut self.pair, Connection::Broken) {
            let options = ConnectOptions::new(&self.port).access(ALL);
            self.pair = Connection::Ready(pair.connect(remote, &options)?);
        }
        Ok(())
    }

    fn ready(&self) -> &QueuePair<'static, Rc> {
        match &self.pair {
            Connection::Ready(pair) => pair,
            _ => unreachable!("connecting succeeded"),
        }
    }

    fn write(&self, bytes: &[u8], to: &RemoteMemory) {
        self.memory.bytes().write(0, bytes).unwrap();
        let from = self.memory.segment(..bytes.len()).unwrap();
        let request = SendWr::write_with_imm(from, &to.at(0).unwrap(), 1).signaled();
        self.ready().post_send(&mut [request]).unwrap();
        self.wait();
    }

    fn wait(&self) {
        let mut slots = Completion::slots::<1>();
        loop {
            if let [completion] = self.queue.poll(&mut slots).unwrap() {
                completion.outcome().unwrap();
                return;
            }
            thread::yield_now();
        }
    }
}

fn services(device: &SoftDevice) -> (Service, Service) {
    let start = || Service::start(&listed(device)).unwrap();
    let (mut a, mut b) = (start(), start());
    let (to_a, to_b) = (a.endpoint(), b.endpoint());
    a.connect(&to_b).unwrap();
    b.connect(&to_a).unwrap();
    (a, b)
}

#[test]
fn a_plain_struct_holds_everything_and_moves_to_other_threads() {
    let device = SoftDevice::new();
    let (a, b) = services(&device);
    b.ready().post_receive(&mut [RecvWr::new(1)]).unwrap();
    let remote = b.memory.remote();
    let sender = thread::spawn(move || {
        a.write(&pattern(1, 1000), &remote);
        a
    });
    let receiver = thread::spawn(move || {
        b.wait();
        b
    });
    let (a, b) = (sender.join().unwrap(), receiver.join().unwrap());
    assert_eq!(b.memory.bytes().to_vec()[..1000], pattern(1, 1000));
    assert_eq!(a.context.device().name(), device.name());
    assert!(Arc::strong_count(&a.domain) > 1);
    drop((a, b));
    assert_clean(&device);
}

#[test]
fn parts_of_a_struct_outlive_it() {
    let device = SoftDevice::new();
    let (a, b) = services(&device);
    let Service { context, queue, domain, memory, pair, .. } = a;
    let Connection::Ready(pair) = pair else { unreachable!("both are connected") };
    drop((b, context, queue, domain));
    // Context, domain and queue live on in what is left.
    assert_eq!(pair.protection_domain().context().device().name(), device.name());
    assert_eq!(pair.query().unwrap().state(), ibverbs::QueuePairState::READY_TO_SEND);
    drop(pair);
    assert_eq!(memory.into_buffer().unwrap().len(), 4096);
    assert_clean(&device);
}

#[test]
fn a_function_returns_a_queue_pair_whose_parents_it_made() {
    fn make(device: &Device) -> ibverbs::Result<QueuePair<'static, Rc, Reset>> {
        let context = Arc::new(device.open()?);
        let domain = Arc::new(ProtectionDomain::allocate(context.clone())?);
        let queue = Arc::new(CompletionQueue::create(context, 4)?);
        QueuePair::builder(domain, queue.clone(), queue).create()
    }
    let device = SoftDevice::new();
    let pair = make(&listed(&device)).unwrap();
    assert_eq!(device.leaks().len(), 4, "{:?}", device.leaks());
    assert!(format!("{pair:?}").contains("reliable connected"), "{pair:?}");
    drop(pair);
    assert_clean(&device);
}

#[test]
fn borrowed_and_shared_parents_can_be_mixed() {
    let device = SoftDevice::new();
    let context = listed(&device).open().unwrap();
    let domain = Arc::new(context.allocate_protection_domain().unwrap());
    let queue = context.create_completion_queue(4).unwrap();
    let pair = QueuePair::<Rc, Reset>::builder(&domain, &queue, &queue).create().unwrap();
    let memory = MemoryRegion::register(&domain, vec![0_u8; 8], Access::READ_ONLY).unwrap();
    drop(domain);
    assert_eq!(memory.protection_domain().as_raw(), pair.protection_domain().as_raw());
    drop((pair, memory));
    drop(queue);
    drop(context);
    assert_clean(&device);
}

#[test]
fn every_handle_is_send_and_sync() {
    fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<Device>();
    shared_between_threads::<Context>();
    shared_between_threads::<ProtectionDomain<'_>>();
    shared_between_threads::<CompletionQueue<'_>>();
    shared_between_threads::<QueuePair<'_, Rc, Reset>>();
    shared_between_threads::<QueuePair<'_, Rc>>();
    shared_between_threads::<MemoryRegion<'_, Vec<u8>>>();
    shared_between_threads::<MemoryRegion<'_, Box<[f32]>>>();
    shared_between_threads::<MemoryRegion<'_, ibverbs::PageAligned>>();
    shared_between_threads::<ibverbs::Region>();
    shared_between_threads::<ibverbs::SharedBytes<'_>>();
    shared_between_threads::<ibverbs::Error>();
    shared_between_threads::<ibverbs::PostError>();
}
