//! The seam between what is said and how it gets there.
//!
//! A transport opens one channel for each queue and registers memory. A channel moves capsules;
//! the data of commands is moved by the target, which reaches registered memory by itself.

#[cfg(feature = "tokio")]
use std::os::fd::BorrowedFd;
use std::{fmt, sync::Arc, time::Duration};

use ibverbs::ProtectionDomain;

use crate::{Buffer, Result, wire::Command};

/// Opens the channels of one controller, and registers memory that they can all use.
pub(crate) trait Transport: Send + Sync + fmt::Debug {
    /// Opens a channel; waits at most `parameters.timeout`.
    fn open(&self, parameters: &ChannelParameters) -> Result<Box<dyn Channel>>;

    /// Allocates and registers zeroed memory that the target may read and write.
    fn allocate(&self, length: usize) -> Result<Buffer>;

    /// Where memory has to be registered for the target to reach it, once there is a connection.
    fn protection_domain(&self) -> Option<Arc<ProtectionDomain<'static>>>;
}

/// What a channel has to be good for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChannelParameters {
    /// 0 for the admin queue.
    pub(crate) queue: u16,
    /// The controller that the queue joins; 0 for the admin queue, which makes one.
    pub(crate) controller_id: u16,
    /// Entries of the submission queue; one command less can be in flight. The target may have
    /// room for fewer: see [`Channel::entries`].
    pub(crate) entries: u16,
    /// Bytes of data that a command capsule can carry.
    pub(crate) in_capsule_bytes: usize,
    /// How long opening may take.
    pub(crate) timeout: Duration,
}

/// The two directions of one queue. After an error a channel is good for nothing but to be
/// dropped; dropping it ends every access that the target has through it.
pub(crate) trait Channel: Send + fmt::Debug {
    /// Entries of the submission queue that host and target agreed on: as many as were asked for,
    /// or as few as the target has room for.
    fn entries(&self) -> u16;

    /// Takes a command capsule to be sent; it may stay here until [`Channel::flush`].
    ///
    /// `place` is below the entries of the queue, and belongs to this command until its response
    /// came. `data` follows the command in its capsule; both are copied.
    fn send(&mut self, place: u16, command: &Command, data: &[u8]) -> Result<()>;

    /// Sends whatever was taken and not yet sent.
    fn flush(&mut self) -> Result<()>;

    /// Takes a response capsule that has come, if there is one. Never waits.
    fn poll(&mut self) -> Result<Option<Response>>;

    /// Asks to be woken by the next response, and gives what waits for it. Whoever asks polls once
    /// more before it waits, since a response may have come between.
    fn arm(&mut self) -> Result<Arc<dyn Waiter>>;
}

/// Waits for a channel without having it in hand.
pub(crate) trait Waiter: Send + Sync {
    /// Waits until a response may have come, or this time has passed.
    fn wait(&self, at_most: Duration) -> Result<()>;

    /// What becomes readable when a response may have come; [`Waiter::wait`] makes it unreadable
    /// again.
    #[cfg(feature = "tokio")]
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

/// A response capsule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    /// The completion, if the capsule is as long as one.
    pub(crate) bytes: [u8; 16],
    /// Bytes that came.
    pub(crate) length: u32,
}
