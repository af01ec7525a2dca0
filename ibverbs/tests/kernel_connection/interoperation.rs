//! Our connections against rdma-core's own programs, in both roles and between two hosts.

use std::{
    net::SocketAddr,
    process::{Child, Command, Stdio},
    thread,
    time::Instant,
};

use ibverbs::{
    Access, MemoryRegion, PostsReceives, QueuePair, Rc, RecvWr, RemoteKey, RemoteMemory, Result,
    SendWr,
    connection::{Connection, Listener, RejectReason, Request, Route},
};

use crate::support::{End, PATIENCE, on_host, parameters, require_device};

const ROUNDS: usize = 10;

/// A program on a host of the testbed, killed if it does not end.
pub(crate) struct Program {
    child: Child,
    name: String,
}

impl Program {
    pub(crate) fn start(host: &str, words: &[&str]) -> Self {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", host]).args(words);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Self { child, name: words.join(" ") }
    }

    /// Waits for its end, which must be a good one; returns what it wrote.
    pub(crate) fn end(mut self) -> String {
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                self.child.kill().unwrap();
                let output = self.child.wait_with_output().unwrap();
                panic!("`{}` did not end: {output:?}", self.name);
            }
            thread::sleep(std::time::Duration::from_millis(20));
        }
        let output = self.child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "`{}`: {}: {text}", self.name, output.status);
        text
    }
}

/// Connects to a program that may not listen yet.
fn connect_to(address: SocketAddr, attempt: impl Fn(Route) -> Result<Peer>) -> Peer {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt(Route::to(address).resolve().unwrap()) {
            Err(ibverbs::Error::Rejected { reason: RejectReason::NOT_LISTENING, .. })
                if Instant::now() < deadline => {}
            other => return other.unwrap(),
        }
    }
}

/// A connection, and one receive and one send buffer of a fixed length.
struct Peer {
    connection: Connection<'static>,
    received: MemoryRegion<'static, Vec<u8>>,
    sent: MemoryRegion<'static, Vec<u8>>,
    end: End,
}

impl Peer {
    /// Accepts, with receives posted beforehand.
    fn accept(request: Request, length: usize, receives: usize) -> Self {
        let end = End::on(&request.context().unwrap());
        let (received, sent) = (end.memory(length), end.memory(length));
        let queue_pair = request.initialize(end.pair()).unwrap();
        post_receives(&queue_pair, &received, receives);
        let connection = request.accept(queue_pair, &parameters()).unwrap();
        Self { connection, received, sent, end }
    }

    /// Connects, with receives posted beforehand.
    fn connect(route: Route, length: usize, receives: usize, access: Access) -> Result<Self> {
        let end = End::on(&route.context()?);
        let (received, sent) = (end.memory(length), end.memory(length));
        let queue_pair = route.initialize(end.pair())?;
        post_receives(&queue_pair, &received, receives);
        let connection = route.connect(queue_pair, &parameters().access(access))?;
        Ok(Self { connection, received, sent, end })
    }

    fn post(&self, wr: SendWr<'_, Rc>) {
        self.connection.queue_pair().post_send(&mut [wr.signaled()]).unwrap();
    }

    fn send(&self) {
        self.post(SendWr::send(self.sent.segment(..).unwrap()));
    }

    fn post_receive(&self) {
        post_receives(self.connection.queue_pair(), &self.received, 1);
    }

    /// Waits for as many sends and receives; they come in any order.
    fn completions(&self, count: usize) {
        for _ in 0..count {
            self.end.completion().outcome().unwrap();
        }
    }
}

fn post_receives<S: PostsReceives>(
    queue_pair: &QueuePair<'static, Rc, S>,
    memory: &MemoryRegion<'static, Vec<u8>>,
    count: usize,
) {
    for _ in 0..count {
        let receive = RecvWr::to(0, memory.segment(..).unwrap());
        queue_pair.post_receive(&mut [receive]).unwrap();
    }
}

/// What rping sends: address (64 bits), key and length (32 bits each), all in network order.
const ADVERTISEMENT: usize = 16;

fn advertised(message: &[u8]) -> RemoteMemory {
    let word = |at: usize| u32::from_be_bytes(message[at..at + 4].try_into().unwrap());
    let address = u64::from_be_bytes(message[..8].try_into().unwrap());
    RemoteMemory::new(address, word(12).into(), RemoteKey(word(8))).unwrap()
}

fn advertise(memory: &MemoryRegion<'static, Vec<u8>>) -> [u8; ADVERTISEMENT] {
    let mut message = [0; ADVERTISEMENT];
    message[..8].copy_from_slice(&memory.address().to_be_bytes());
    message[8..12].copy_from_slice(&memory.remote_key().0.to_be_bytes());
    message[12..].copy_from_slice(&u32::try_from(memory.len()).unwrap().to_be_bytes());
    message
}

#[test]
fn rping_as_the_client_is_served() {
    require_device!();
    for (ours, theirs) in [("10.99.1.1:0", "10.99.1.1"), ("[fd00:99:1::1]:0", "fd00:99:1::1")] {
        on_host("a", || {
            let listener = Listener::bind(ours.parse().unwrap()).unwrap();
            let port = listener.local_address().unwrap().port().to_string();
            let rounds = ROUNDS.to_string();
            let client = Program::start(
                "b",
                &["rping", "-c", "-V", "-v", "-a", theirs, "-p", &port, "-C", &rounds],
            );
            let request = listener.accept(PATIENCE).unwrap();
            assert_eq!((request.wanted_reads(), request.offered_reads()), (1, 1));
            let peer = Peer::accept(request, ADVERTISEMENT, 2);
            for _ in 0..ROUNDS {
                // It says where its message is; this side reads it, and says so.
                peer.completions(1);
                let source = advertised(&peer.received.bytes().to_vec());
                peer.post_receive();
                let copy = peer.end.memory(usize::try_from(source.len()).unwrap());
                peer.post(SendWr::read(copy.segment(..).unwrap(), &source.at(0).unwrap()));
                peer.completions(1);
                assert!(copy.bytes().to_vec().starts_with(b"rdma-ping-"));
                peer.send();
                // It says where it wants the message back. That may come before the send has completed.
                peer.completions(2);
                let target = advertised(&peer.received.bytes().to_vec());
                peer.post_receive();
                peer.post(SendWr::write(copy.segment(..).unwrap(), &target.at(0).unwrap()));
                peer.completions(1);
                peer.send();
                peer.completions(1);
            }
            peer.connection.wait_disconnected(PATIENCE).unwrap();
            let text = client.end();
            assert_eq!(text.matches("ping data: rdma-ping-").count(), ROUNDS, "{text}");
        });
    }
}

#[test]
fn rping_as_the_server_serves() {
    require_device!();
    let rounds = ROUNDS.to_string();
    let server =
        Program::start("a", &["rping", "-s", "-v", "-a", "10.99.1.1", "-p", "7174", "-C", &rounds]);
    on_host("b", || {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let peer = connect_to("10.99.1.1:7174".parse().unwrap(), |route| {
            Peer::connect(route, ADVERTISEMENT, 2, access)
        });
        let (source, back) = (peer.end.memory(64), peer.end.memory(64));
        for round in 0..ROUNDS {
            let mut message = format!("rdma-ping-{round}: from another program").into_bytes();
            message.resize(64, 0);
            source.bytes().write(0, &message).unwrap();
            for advertised in [&source, &back] {
                peer.sent.bytes().write(0, &advertise(advertised)).unwrap();
                peer.send();
                // Its answer, and the completion of the send.
                peer.completions(2);
                peer.post_receive();
            }
            assert_eq!(back.bytes().to_vec(), message);
        }
        peer.connection.disconnect().unwrap();
        peer.connection.wait_disconnected(PATIENCE).unwrap();
    });
    let text = server.end();
    assert_eq!(text.matches("from another program").count(), ROUNDS, "{text}");
}

#[test]
fn ucmatose_as_the_client_is_served() {
    require_device!();
    on_host("a", || {
        let listener = Listener::bind("10.99.1.1:0".parse().unwrap()).unwrap();
        let port = listener.local_address().unwrap().port().to_string();
        let client = Program::start(
            "b",
            &["ucmatose", "-s", "10.99.1.1", "-p", &port, "-C", "10", "-S", "100"],
        );
        let peer = Peer::accept(listener.accept(PATIENCE).unwrap(), 100, ROUNDS);
        for _ in 0..ROUNDS {
            peer.send();
        }
        peer.completions(2 * ROUNDS);
        peer.connection.disconnect().unwrap();
        peer.connection.wait_disconnected(PATIENCE).unwrap();
        let text = client.end();
        assert!(text.contains("data transfers complete"), "{text}");
        assert!(text.contains("return status 0"), "{text}");
    });
}

#[test]
fn ucmatose_as_the_server_serves() {
    require_device!();
    let server = Program::start(
        "a",
        &["ucmatose", "-b", "10.99.1.1", "-p", "7175", "-C", "10", "-S", "100"],
    );
    on_host("b", || {
        let peer = connect_to("10.99.1.1:7175".parse().unwrap(), |route| {
            Peer::connect(route, 100, ROUNDS, Access::empty())
        });
        peer.completions(ROUNDS);
        for _ in 0..ROUNDS {
            peer.send();
        }
        peer.completions(ROUNDS);
        peer.connection.wait_disconnected(PATIENCE).unwrap();
    });
    let text = server.end();
    assert!(text.contains("data transfers complete"), "{text}");
    assert!(text.contains("return status 0"), "{text}");
}
