//! What can go wrong outside the guest.

use std::io;
use std::path::PathBuf;

/// An error of the model or of the server around it.
///
/// What a guest does wrong is never one of these: it is answered in the interface's own terms.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting does not fit the device interface.
    #[error("{what} is {asked}, the model allows {min} to {max}")]
    OutOfRange {
        /// The setting.
        what: &'static str,
        /// Its value.
        asked: u64,
        /// The least value.
        min: u64,
        /// The greatest value.
        max: u64,
    },
    /// The memory behind the send queue BAR could not be made.
    #[error("cannot make {bytes} bytes of send queue memory")]
    SendQueueMemory {
        /// Size of the BAR.
        bytes: u64,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The socket could not be opened for QEMU.
    #[error("cannot listen on {}; is another server using it?", path.display())]
    Listen {
        /// The socket.
        path: PathBuf,
        /// What the vfio-user server said.
        #[source]
        source: vfio_user::Error,
    },
    /// The conversation with QEMU broke.
    #[error("the conversation on {} broke", path.display())]
    Conversation {
        /// The socket.
        path: PathBuf,
        /// What the vfio-user server said.
        #[source]
        source: vfio_user::Error,
    },
    /// A thread could not be started.
    #[error("cannot start a thread for {what}")]
    Thread {
        /// What it is for.
        what: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// The error of the system call that just failed.
#[expect(clippy::disallowed_methods, reason = "the one place of this crate that reads errno")]
pub(crate) fn last_os_error() -> io::Error {
    io::Error::last_os_error()
}
