//! A device in software, and pairs of connected queue pairs on it.

use std::sync::Arc;

use ibverbs::{
    Access, CompletionQueue, ConnectOptions, Context, DeviceSelector, Devices, LocalPort,
    ProtectionDomain, QueuePair, Rc, RecvWr, SendWr,
};
use soft_device::{Builder, SoftDevice};

/// An open device with a domain.
pub(crate) struct Bench {
    pub(crate) domain: Arc<ProtectionDomain<'static>>,
    pub(crate) context: Arc<Context>,
    pub(crate) device: SoftDevice,
    pub(crate) port: LocalPort,
}

/// Two connected queue pairs.
pub(crate) type Pair = [QueuePair<'static, Rc>; 2];

impl Bench {
    pub(crate) fn new() -> Self {
        Self::of(SoftDevice::builder())
    }

    pub(crate) fn of(builder: Builder) -> Self {
        let device = builder.build();
        let devices = Devices::of(soft_device::library()).unwrap();
        let context = Arc::new(devices.by_name(device.name()).unwrap().open().unwrap());
        let port = context.local_port(&DeviceSelector::default()).unwrap();
        let domain = Arc::new(ProtectionDomain::allocate(&context).unwrap());
        Self { domain, context, device, port }
    }

    pub(crate) fn queue(&self) -> Arc<CompletionQueue<'static>> {
        Arc::new(CompletionQueue::create(&self.context, 256).unwrap())
    }

    /// The first reports all its work to `first`, the second to `second`.
    pub(crate) fn pair(
        &self,
        first: &Arc<CompletionQueue<'static>>,
        second: &Arc<CompletionQueue<'static>>,
    ) -> Pair {
        let [a, b] = [first, second].map(|queue| {
            let builder = QueuePair::<Rc, _>::builder(&self.domain, queue, queue);
            builder.max_send_requests(64).max_receive_requests(64).create().unwrap()
        });
        let (to_a, to_b) = (a.endpoint(&self.port), b.endpoint(&self.port));
        [a.connect(&to_b, &self.options()).unwrap(), b.connect(&to_a, &self.options()).unwrap()]
    }

    pub(crate) fn options(&self) -> ConnectOptions {
        ConnectOptions::new(&self.port).access(Access::REMOTE_READ | Access::REMOTE_WRITE)
    }

    /// Drops everything, and looks whether anything is left or was done wrong.
    pub(crate) fn end(self) {
        let Self { domain, context, device, port: _ } = self;
        drop((domain, context));
        assert_eq!(device.leaks(), [""; 0]);
        assert_eq!(device.violations(), [""; 0]);
    }
}

/// Posts receives without memory, with ids from 0 on.
pub(crate) fn post_credits(pair: &QueuePair<'_, Rc>, count: u64) {
    for id in 0..count {
        pair.post_receive(&mut [RecvWr::new(id)]).unwrap();
    }
}

/// Sends an empty message that reports only if it fails.
pub(crate) fn send_empty(pair: &QueuePair<'_, Rc>) {
    pair.post_send(&mut [SendWr::send(&[])]).unwrap();
}

/// Sends an empty message that reports under `id`.
pub(crate) fn send_signaled(pair: &QueuePair<'_, Rc>, id: u64) {
    pair.post_send(&mut [SendWr::send(&[]).id(id).signaled()]).unwrap();
}
