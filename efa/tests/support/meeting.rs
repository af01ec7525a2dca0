//! Two ranks on two machines: how they find each other, and the queue pair that each has for the other.

use std::{
    env,
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use efa::{
    EndpointInfo, Peer, QueuePairBuilder, Srd,
    ibverbs::{Buffer, MemoryRegion, QueuePair, RemoteMemory},
};

use crate::support::{KEY, Lane, PATIENCE};

/// Meetings have the ports from here on.
const FIRST_PORT: u16 = 29_600;

/// A stream to the rank on the other machine.
pub(crate) struct Meeting {
    /// 0 or 1.
    pub(crate) rank: usize,
    stream: TcpStream,
}

impl Meeting {
    /// Meets the other rank at a place of this number; `None`, with the reason printed, where there is none.
    ///
    /// # Panics
    ///
    /// If there is no other rank, and the environment demands it.
    pub(crate) fn at(place: u16) -> Option<Self> {
        let variable = |name: &str| env::var(name).unwrap_or_default();
        let (rank, first) = (variable("RANK"), variable("MASTER_ADDR"));
        if first.is_empty() {
            assert_ne!(variable("RDMA_REQUIRE_DEVICE"), "1", "two machines are demanded");
            println!("skipped: no second machine; `cargo testbed test efa` has one");
            return None;
        }
        let rank = rank.parse().unwrap();
        let address = (first.as_str(), FIRST_PORT + place);
        let stream = if rank == 0 {
            let listener = TcpListener::bind(address).unwrap();
            listener.set_nonblocking(true).unwrap();
            patiently(|| listener.accept().map(|(stream, _)| stream))
        } else {
            patiently(|| TcpStream::connect(address))
        };
        stream.set_nonblocking(false).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Some(Self { rank, stream })
    }

    /// Gives bytes to the other rank, and takes as many of it.
    pub(crate) fn exchange<const N: usize>(&self, mine: [u8; N]) -> [u8; N] {
        (&self.stream).write_all(&mine).unwrap();
        let mut theirs = [0; N];
        (&self.stream).read_exact(&mut theirs).expect("the other rank gave up");
        theirs
    }

    /// Waits until the other rank is here too.
    pub(crate) fn barrier(&self) {
        self.exchange([0]);
    }

    /// The way from a queue pair of this rank to the one that the other rank has made for it.
    pub(crate) fn peer(&self, lane: &Lane, pair: &QueuePair<'static, Srd>) -> Peer<'static> {
        let theirs = self.exchange(lane.endpoint(pair).to_bytes());
        let peer = EndpointInfo::from_bytes(&theirs).unwrap().peer(&lane.domain, &lane.port);
        peer.unwrap()
    }

    /// Publishes a region, and hands out what the other rank has published.
    pub(crate) fn regions<B: Buffer>(&self, mine: &MemoryRegion<'static, B>) -> RemoteMemory {
        RemoteMemory::from_bytes(&self.exchange(mine.remote().to_bytes())).unwrap()
    }
}

/// A rank with one queue pair, and the way to that of the other rank.
pub(crate) struct Rank {
    pub(crate) meeting: Meeting,
    pub(crate) lane: Lane,
    pub(crate) pair: QueuePair<'static, Srd>,
    pub(crate) peer: Peer<'static>,
}

impl Rank {
    /// Meets the other rank, each with a queue pair of its first device.
    pub(crate) fn at(place: u16) -> Option<Self> {
        Self::with(place, Lane::open, |builder| builder)
    }

    /// The same with a lane of the caller's, and a queue pair made with what `options` adds.
    pub(crate) fn with(
        place: u16,
        lane: impl Fn(usize) -> Lane,
        options: impl Fn(QueuePairBuilder<'static, Srd>) -> QueuePairBuilder<'static, Srd>,
    ) -> Option<Self> {
        let meeting = Meeting::at(place)?;
        let lane = lane(0);
        let pair = options(lane.builder()).prepare(&lane.port, KEY).unwrap();
        let peer = meeting.peer(&lane, &pair);
        Some(Self { meeting, lane, pair, peer })
    }

    /// Whether this is the rank that begins.
    pub(crate) fn begins(&self) -> bool {
        self.meeting.rank == 0
    }
}

/// Tries until it works, or the time is up.
fn patiently<T>(attempt: impl Fn() -> std::io::Result<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Ok(done) => return done,
            Err(error) => {
                let kinds = [ErrorKind::WouldBlock, ErrorKind::ConnectionRefused];
                assert!(kinds.contains(&error.kind()), "{error}");
                assert!(Instant::now() < deadline, "the other rank did not come: {error}");
            }
        }
        thread::sleep(Duration::from_millis(20));
    }
}
