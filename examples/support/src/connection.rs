//! One stream to another rank: whole frames in and out, each with a deadline.
//!
//! Streams never block. A caller that waits for several ranks looks at each in turn and pauses
//! between rounds, so that one silent rank does not hide another's death.

use std::{
    collections::VecDeque,
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use crate::frame::{Frame, LONGEST_GREETING, LONGEST_PAYLOAD, Malformed, Parsed, parse};

/// Why a connection is of no more use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    /// Closed, reset, or refused by the system.
    #[error("{0}")]
    Gone(io::Error),
    /// It carries something else than our frames.
    #[error("{0}")]
    Garbage(Malformed),
    /// The deadline passed while sending.
    #[error("it takes no more bytes")]
    Slow,
}

#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    /// The other end.
    pub(crate) address: SocketAddr,
    /// Bytes that have come and are no whole frame yet.
    incoming: Vec<u8>,
    /// Frames that were looked at and not taken, at most two.
    ready: VecDeque<Frame>,
    /// Longest payload that is taken.
    limit: usize,
}

impl Connection {
    /// Takes over a stream whose other end is not known yet: only short frames are taken from it.
    pub(crate) fn new(stream: TcpStream, address: SocketAddr) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            address,
            incoming: Vec::new(),
            ready: VecDeque::new(),
            limit: LONGEST_GREETING,
        })
    }

    /// The other end is a rank of this job: messages may be long.
    pub(crate) fn trust(&mut self) {
        self.limit = LONGEST_PAYLOAD;
    }

    /// Sends all of `frame`, waiting for room until `deadline`.
    pub(crate) fn send(&mut self, frame: &Frame, deadline: Instant) -> Result<(), Broken> {
        self.send_while(frame, deadline, || ())
    }

    /// [`send`](Self::send) that calls `waiting` while there is no room.
    pub(crate) fn send_while(
        &mut self,
        frame: &Frame,
        deadline: Instant,
        mut waiting: impl FnMut(),
    ) -> Result<(), Broken> {
        let bytes = frame.to_bytes();
        let mut rest = bytes.as_slice();
        let mut pause = Pause::new();
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(0) => return Err(Broken::Gone(ErrorKind::WriteZero.into())),
                Ok(count) => {
                    rest = &rest[count..];
                    pause = Pause::new();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if Instant::now() >= deadline {
                        return Err(Broken::Slow);
                    }
                    waiting();
                    pause.rest();
                }
                Err(error) => return Err(Broken::Gone(error)),
            }
        }
        Ok(())
    }

    /// Takes the next frame, `None` if it is not all there yet.
    pub(crate) fn receive(&mut self) -> Result<Option<Frame>, Broken> {
        self.fetch(1)?;
        Ok(self.ready.pop_front())
    }

    /// Looks at the next frame and leaves it where it is.
    pub(crate) fn look(&mut self) -> Result<Option<&Frame>, Broken> {
        self.fetch(1)?;
        Ok(self.ready.front())
    }

    /// Looks at the frame behind the next one, which tells of a rank that did its part and then died or gave up.
    pub(crate) fn look_behind(&mut self) -> Result<Option<&Frame>, Broken> {
        self.fetch(2)?;
        Ok(self.ready.get(1))
    }

    /// Reads until there are so many frames or nothing more has come.
    fn fetch(&mut self, frames: usize) -> Result<(), Broken> {
        while self.ready.len() < frames {
            let missing = match parse(&self.incoming, self.limit).map_err(Broken::Garbage)? {
                Parsed::Frame(frame, taken) => {
                    self.incoming.drain(..taken);
                    self.ready.push_back(frame);
                    continue;
                }
                Parsed::Needs(total) => total - self.incoming.len(),
            };
            // Never past the frame, so that what is taken from the system is what is believed.
            let mut chunk = [0; 16 << 10];
            let room = missing.min(chunk.len());
            match self.stream.read(&mut chunk[..room]) {
                Ok(0) => {
                    let words = if self.incoming.is_empty() {
                        "the connection was closed"
                    } else {
                        "the connection was closed in the middle of a message"
                    };
                    return Err(Broken::Gone(io::Error::new(ErrorKind::UnexpectedEof, words)));
                }
                Ok(count) => self.incoming.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(Broken::Gone(error)),
            }
        }
        Ok(())
    }

    /// Sleeps until something comes, the other end goes, or `limit` passes. A look tells which.
    fn await_bytes(&self, limit: Duration) {
        let stream = &self.stream;
        let blocking =
            stream.set_read_timeout(Some(limit)).and_then(|()| stream.set_nonblocking(false));
        // What is wrong with the stream is told by the look that follows.
        drop(blocking.and_then(|()| stream.peek(&mut [0])));
        drop(stream.set_nonblocking(true));
    }
}

/// Waiting between looks: short at first, then one millisecond.
pub(crate) struct Pause {
    rounds: u32,
}

impl Pause {
    pub(crate) fn new() -> Self {
        Self { rounds: 0 }
    }

    /// Rests until one of the ranks says something, which wakes it at once, or a while is over in which others may have
    /// died: a rank whose peer works for long takes no part of the processor from it.
    pub(crate) fn rest_until(&mut self, connection: &Connection) {
        const WHILE: Duration = Duration::from_millis(50);
        self.rounds = self.rounds.saturating_add(1);
        match self.rounds {
            0..=20 => thread::yield_now(),
            _ => connection.await_bytes(WHILE),
        }
    }

    pub(crate) fn rest(&mut self) {
        self.rounds = self.rounds.saturating_add(1);
        match self.rounds {
            0..=20 => thread::yield_now(),
            21..=100 => thread::sleep(Duration::from_micros(50)),
            _ => thread::sleep(Duration::from_millis(1)),
        }
    }
}
