//! How the target reaches memory that is registered with a device: over a connection of its own, as real ones do.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use ibverbs::{
    Access, Completion, CompletionQueue, ConnectOptions, DeviceSelector, Devices, MemoryRegion,
    ProtectionDomain, QueuePair, Rc, RemoteKey, RemoteMemory, SendWr,
};
use soft_device::SoftDevice;

/// Two connected queue pairs of a device in software.
#[derive(Debug)]
pub(crate) struct Nic {
    /// What the host registers its memory in.
    pub(super) host: Arc<ProtectionDomain<'static>>,
    target: Arc<ProtectionDomain<'static>>,
    queue: Arc<CompletionQueue<'static>>,
    near: QueuePair<'static, Rc>,
    _far: QueuePair<'static, Rc>,
}

impl Nic {
    pub(crate) fn new(device: &SoftDevice) -> Self {
        let devices = Devices::of(soft_device::library()).unwrap();
        let context = Arc::new(devices.by_name(device.name()).unwrap().open().unwrap());
        let port = context.local_port(&DeviceSelector::default()).unwrap();
        let queue = Arc::new(CompletionQueue::create(&context, 16).unwrap());
        let domain = || Arc::new(ProtectionDomain::allocate(&context).unwrap());
        let (host, target) = (domain(), domain());
        let pair = |domain| QueuePair::builder(domain, &queue, &queue).create().unwrap();
        let (far, near) = (pair(&host), pair(&target));
        let (far_info, near_info) = (far.endpoint(&port), near.endpoint(&port));
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let options = ConnectOptions::new(&port).access(access);
        let near = near.connect(&far_info, &options).unwrap();
        let far = far.connect(&near_info, &options).unwrap();
        Self { host, target, queue, near, _far: far }
    }

    /// Reads memory of the host; nothing if its key does not reach there.
    pub(super) fn read(&self, key: u32, address: u64, length: usize) -> Option<Vec<u8>> {
        self.transfer(key, address, vec![0; length], false)
    }

    /// Writes memory of the host, and tells whether its key reaches there.
    pub(super) fn write(&self, key: u32, address: u64, bytes: &[u8]) -> bool {
        self.transfer(key, address, bytes.to_vec(), true).is_some()
    }

    fn transfer(&self, key: u32, address: u64, bytes: Vec<u8>, is_write: bool) -> Option<Vec<u8>> {
        let length = u64::try_from(bytes.len()).unwrap();
        let here = MemoryRegion::register(&self.target, bytes, Access::LOCAL_WRITE).unwrap();
        let there = RemoteMemory::new(address, length, RemoteKey(key)).unwrap().at(0).unwrap();
        let segment = here.segment(..).unwrap();
        let request =
            if is_write { SendWr::write(segment, &there) } else { SendWr::read(segment, &there) };
        self.near.post_send(&mut [request.signaled()]).unwrap();
        let mut slots = Completion::slots::<1>();
        let begin = Instant::now();
        let completion = loop {
            if let [completion] = self.queue.poll(&mut slots).unwrap() {
                break *completion;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "no completion came");
            thread::yield_now();
        };
        completion.outcome().ok()?;
        Some(here.into_buffer().unwrap())
    }
}
