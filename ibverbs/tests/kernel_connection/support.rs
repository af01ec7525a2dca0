//! What the tests share: a server and a client on one device, and messages between them.

use std::{
    net::{IpAddr, SocketAddr},
    os::fd::AsRawFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use ibverbs::{
    Access, Completion, CompletionQueue, Context, MemoryRegion, Posting, ProtectionDomain,
    QueuePair, Rc, RecvWr, Reset, Result, SendWr,
    connection::{Connection, Listener, Parameters, Request, Route},
};

/// Far more than anything here takes, on a machine that does much else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The address of the device whose packets loop back, in the testbed's guest.
pub(crate) const IPV4: &str = "10.99.0.1:0";
pub(crate) const IPV6: &str = "[fd00:99::1]:0";

/// Whether a test can run here. Where a device is demanded, it must.
pub(crate) fn device_is_there() -> bool {
    let demanded = std::env::var("RDMA_REQUIRE_DEVICE").is_ok_and(|value| value == "1");
    let there = Listener::bind(IPV4.parse().unwrap());
    match there {
        Ok(_) => true,
        Err(error) if demanded => panic!("a device is demanded: {error}"),
        Err(error) => {
            println!("skipped: no RDMA device has the address {IPV4}: {error}");
            false
        }
    }
}

/// Returns from a test that has no device.
macro_rules! require_device {
    () => {
        if !$crate::support::device_is_there() {
            return;
        }
    };
}
pub(crate) use require_device;

pub(crate) fn listen(address: &str) -> (Listener, SocketAddr) {
    let listener = Listener::bind(address.parse().unwrap()).unwrap();
    let address = listener.local_address().unwrap();
    assert_ne!(address.port(), 0);
    (listener, address)
}

pub(crate) fn route(to: SocketAddr) -> Route {
    Route::to(to).timeout(PATIENCE).resolve().unwrap()
}

pub(crate) fn parameters() -> Parameters {
    Parameters::new().timeout(PATIENCE)
}

/// What one end of a connection needs, shared so that it can be stored beside it.
#[derive(Debug, Clone)]
pub(crate) struct End {
    pub(crate) domain: Arc<ProtectionDomain<'static>>,
    pub(crate) queue: Arc<CompletionQueue<'static>>,
}

impl End {
    pub(crate) fn on(context: &Arc<Context>) -> Self {
        Self {
            domain: Arc::new(ProtectionDomain::allocate(context).unwrap()),
            queue: Arc::new(CompletionQueue::create(context, 64).unwrap()),
        }
    }

    pub(crate) fn pair(&self) -> QueuePair<'static, Rc, Reset> {
        self.pair_posting(None)
    }

    pub(crate) fn pair_posting(&self, posting: Option<Posting>) -> QueuePair<'static, Rc, Reset> {
        let builder = QueuePair::builder(&self.domain, &self.queue, &self.queue);
        match posting {
            Some(posting) => builder.posting(posting).create(),
            None => builder.create(),
        }
        .unwrap()
    }

    pub(crate) fn memory(&self, length: usize) -> MemoryRegion<'static, Vec<u8>> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        MemoryRegion::register(&self.domain, vec![0; length], access).unwrap()
    }

    /// Waits for one completion, whatever it says.
    pub(crate) fn completion(&self) -> Completion {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut slots = Completion::slots::<1>();
            if let [completion] = self.queue.poll(&mut slots).unwrap() {
                return *completion;
            }
            assert!(Instant::now() < deadline, "no completion came");
            thread::yield_now();
        }
    }
}

/// Both ends of one connection.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) server: (Connection<'static>, End),
    pub(crate) client: (Connection<'static>, End),
}

pub(crate) fn accept(request: Request, parameters: &Parameters) -> (Connection<'static>, End) {
    let end = End::on(&request.context().unwrap());
    let pair = request.initialize(end.pair()).unwrap();
    (request.accept(pair, parameters).unwrap(), end)
}

pub(crate) fn connect(
    to: SocketAddr,
    parameters: &Parameters,
) -> Result<(Connection<'static>, End)> {
    let route = Route::to(to).timeout(PATIENCE).resolve()?;
    let end = End::on(&route.context()?);
    let pair = route.initialize(end.pair())?;
    Ok((route.connect(pair, parameters)?, end))
}

/// Connects both ends, with the same parameters.
pub(crate) fn pair(address: &str, parameters: &Parameters) -> Pair {
    let (listener, address) = listen(address);
    thread::scope(|scope| {
        let server = scope.spawn(|| accept(listener.accept(PATIENCE).unwrap(), parameters));
        let client = connect(address, parameters).unwrap();
        Pair { server: server.join().unwrap(), client }
    })
}

/// Sends a message from one end to the other and checks it there.
pub(crate) fn send(
    from: &(Connection<'static>, End),
    to: &(Connection<'static>, End),
    message: &[u8],
) {
    let (source, target) = (from.1.memory(message.len()), to.1.memory(message.len()));
    source.bytes().write(0, message).unwrap();
    let receive = RecvWr::to(1, target.segment(..).unwrap());
    to.0.queue_pair().post_receive(&mut [receive]).unwrap();
    let send = SendWr::send(source.segment(..).unwrap()).id(2).signaled();
    from.0.queue_pair().post_send(&mut [send]).unwrap();
    from.1.completion().outcome().unwrap();
    let received = to.1.completion();
    assert_eq!(received.outcome().unwrap().byte_length() as usize, message.len());
    assert_eq!(target.bytes().to_vec(), message);
}

pub(crate) fn is_loopback_device(ip: IpAddr) -> bool {
    [IPV4, IPV6].iter().any(|known| known.parse::<SocketAddr>().unwrap().ip() == ip)
}

/// Runs `work` on one of the testbed's two hosts, which are network namespaces.
#[expect(unsafe_code, reason = "moves a thread into a network namespace")]
pub(crate) fn on_host<T: Send>(host: &str, work: impl FnOnce() -> T + Send) -> T {
    let namespace = std::fs::File::open(format!("/run/netns/{host}")).unwrap();
    let moved = || {
        // SAFETY: the descriptor is open; only this thread moves, and it ends with the work.
        let returned = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(returned, 0, "the namespace of host {host}");
        work()
    };
    thread::scope(|scope| scope.spawn(moved).join().unwrap())
}
