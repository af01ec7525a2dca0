//! How two ends talk to each other beside the connection that is tested.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
};

use super::PATIENCE;

/// A stream between the two ends, in one process or in two.
pub(crate) struct Link(UnixStream);

impl Link {
    /// Both ends of a new one.
    pub(crate) fn pair() -> (Self, Self) {
        let (a, b) = UnixStream::pair().unwrap();
        (Self::over(a), Self::over(b))
    }

    pub(crate) fn over(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    /// Tells the peer something short and hears what it tells.
    pub(crate) fn exchange<const N: usize>(&mut self, bytes: [u8; N]) -> [u8; N] {
        self.0.write_all(&bytes).unwrap();
        let mut heard = [0; N];
        self.0.read_exact(&mut heard).unwrap();
        heard
    }

    /// Waits until the peer is here too.
    pub(crate) fn meet(&mut self) {
        self.exchange([0]);
    }
}
