//! The states of a queue pair, as types and as what the device says.

use std::fmt;

use super::QueuePair;
use crate::{Error, Result, Transport};

/// Just made, or reset: it neither sends nor receives.
#[derive(Debug, Clone, Copy)]
pub enum Reset {}
/// Receives can be posted; nothing is sent or taken yet.
#[derive(Debug, Clone, Copy)]
pub enum Initialized {}
/// It takes what its peer sends.
#[derive(Debug, Clone, Copy)]
pub enum ReadyToReceive {}
/// It sends and receives.
#[derive(Debug, Clone, Copy)]
pub enum ReadyToSend {}

/// A state in which receives can be posted.
#[diagnostic::on_unimplemented(
    message = "receives cannot be posted to a queue pair in state `{Self}`",
    label = "needs `Initialized`, `ReadyToReceive` or `ReadyToSend`",
    note = "bring it there first: `initialize` is enough for receives, and `connect`, `activate` or `start` go all the way"
)]
pub trait PostsReceives {}
impl PostsReceives for Initialized {}
impl PostsReceives for ReadyToReceive {}
impl PostsReceives for ReadyToSend {}

/// A state in which sends can be posted.
#[diagnostic::on_unimplemented(
    message = "sends cannot be posted to a queue pair in state `{Self}`",
    label = "needs `ReadyToSend`",
    note = "`connect` gives the queue pair that sends; for `Ud` it is `activate`, for `RawPacket` `start`, for `efa::Srd` `prepare`"
)]
pub trait PostsSends {}
impl PostsSends for ReadyToSend {}

/// A state as a type.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no state of a queue pair",
    label = "not a state",
    note = "the states are `Reset`, `Initialized`, `ReadyToReceive` and `ReadyToSend`"
)]
pub trait State {
    /// What the device calls it.
    const STATE: QueuePairState;
}
impl State for Reset {
    const STATE: QueuePairState = QueuePairState::RESET;
}
impl State for Initialized {
    const STATE: QueuePairState = QueuePairState::INITIALIZED;
}
impl State for ReadyToReceive {
    const STATE: QueuePairState = QueuePairState::READY_TO_RECEIVE;
}
impl State for ReadyToSend {
    const STATE: QueuePairState = QueuePairState::READY_TO_SEND;
}

impl<'a, T: Transport, S> QueuePair<'a, T, S> {
    /// The same queue pair as one in state `N`, if the device says that it is: after
    /// [`modify`](Self::modify), or after somebody else changed it. Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] if the device is gone, [`Error::Transition`] if the state is another. The queue pair is dropped then.
    pub fn into_state<N: State>(self) -> Result<QueuePair<'a, T, N>> {
        let state = self.query()?.state();
        if state == N::STATE {
            return Ok(self.in_state());
        }
        Err(Error::Transition {
            number: self.number().get(),
            from: state.name(),
            to: N::STATE.name(),
            reason: format!(
                "the device says that its state is \"{state}\"; change that with `modify` first"
            ),
            source: std::io::Error::from_raw_os_error(libc::EINVAL),
        })
    }
}

/// The state of a queue pair in the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QueuePairState(pub u32);

impl QueuePairState {
    /// See [`Reset`].
    pub const RESET: Self = Self(rdma_sys::IBV_QPS_RESET);
    /// See [`Initialized`].
    pub const INITIALIZED: Self = Self(rdma_sys::IBV_QPS_INIT);
    /// See [`ReadyToReceive`].
    pub const READY_TO_RECEIVE: Self = Self(rdma_sys::IBV_QPS_RTR);
    /// See [`ReadyToSend`].
    pub const READY_TO_SEND: Self = Self(rdma_sys::IBV_QPS_RTS);
    /// The send queue is drained.
    pub const SEND_QUEUE_DRAINED: Self = Self(rdma_sys::IBV_QPS_SQD);
    /// A request of the send queue failed; receives go on.
    pub const SEND_QUEUE_ERROR: Self = Self(rdma_sys::IBV_QPS_SQE);
    /// Broken: every request completes as flushed.
    pub const ERROR: Self = Self(rdma_sys::IBV_QPS_ERR);

    /// In words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RESET => "reset",
            Self::INITIALIZED => "initialized",
            Self::READY_TO_RECEIVE => "ready to receive",
            Self::READY_TO_SEND => "ready to send",
            Self::SEND_QUEUE_DRAINED => "send queue drained",
            Self::SEND_QUEUE_ERROR => "send queue error",
            Self::ERROR => "error",
            _ => "unknown",
        }
    }
}

impl fmt::Display for QueuePairState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
