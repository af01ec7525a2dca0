//! What the pingpongs over connections have in common besides.

use ibverbs::{Mtu, PortNumber, QpInfo, SharedBytes};

use crate::pingpong::{AnyError, Endpoint, Options};

impl Options {
    pub(crate) fn mtu(&self) -> Result<Mtu, AnyError> {
        let mut codes = (1..=5).filter_map(|code| Mtu::from_code(code).ok());
        let fits = codes.find(|mtu| mtu.bytes() == self.mtu);
        fits.ok_or_else(|| format!("{} bytes is no MTU", self.mtu).into())
    }
}

impl Endpoint {
    pub(crate) fn of(info: &QpInfo) -> Self {
        let QpInfo { lid, number, first_packet, gid, .. } = *info;
        Self { lid, number, first_packet, gid }
    }

    /// What a queue pair needs to connect to it; the other end does not tell its port and MTU.
    pub(crate) fn to_info(self, mtu: Mtu) -> QpInfo {
        let Self { lid, number, first_packet, gid } = self;
        QpInfo { number, first_packet, lid, gid, port: PortNumber::FIRST, mtu }
    }
}

/// What a client fills its memory with: zeros at the start of each page, which a server with `--chk` looks at.
const PAGE: usize = 4096;

/// Whether each page starts as a client of rdma-core starts it.
pub(crate) fn check(memory: &SharedBytes<'_>) -> Result<(), AnyError> {
    for page in (0..memory.len()).step_by(PAGE) {
        if memory.get::<u8>(page)? != 0 {
            return Err(format!("invalid data in page {}", page / PAGE).into());
        }
    }
    Ok(())
}
