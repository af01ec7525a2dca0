//! A connection on its way.

use std::os::fd::{AsFd, BorrowedFd};

use super::{
    Connection, EventChannel, EventKind, Identifier, Parameters,
    channel::{Deadline, PEER_IS_SILENT},
};
use crate::{Error, Initialized, QueuePair, Rc, ReadyToReceive, Result};

/// A connection for which the peer has been asked, or has asked and was accepted.
///
/// As a file descriptor it becomes readable when [`try_finish`](Self::try_finish) has something to do. Dropping it gives
/// the connection up, and the peer is told.
#[derive(Debug)]
#[must_use = "the connection is given up when this is dropped; finish it with `try_finish` or `finish`"]
pub struct Connecting<'a> {
    state: Option<State<'a>>,
    channel: EventChannel,
    deadline: Deadline,
}

#[derive(Debug)]
struct State<'a> {
    side: Side<'a>,
    identifier: Identifier,
    parameters: Parameters,
    /// What came with the peer's request; for the side that asks it comes with the answer.
    private_data: Vec<u8>,
}

#[derive(Debug)]
enum Side<'a> {
    Asked(QueuePair<'a, Rc, Initialized>),
    Accepted(QueuePair<'a, Rc, ReadyToReceive>),
}

impl<'a> Connecting<'a> {
    /// Asks the peer whose route the identifier knows.
    pub(super) fn ask(
        identifier: Identifier,
        channel: EventChannel,
        queue_pair: QueuePair<'a, Rc, Initialized>,
        parameters: &Parameters,
    ) -> Result<Self> {
        identifier.connect(&queue_pair, parameters)?;
        let (side, parameters) = (Side::Asked(queue_pair), parameters.clone());
        let deadline = Deadline::after(parameters.timeout);
        let state = Some(State { side, identifier, parameters, private_data: Vec::new() });
        Ok(Self { state, channel, deadline })
    }

    /// Accepts the request that the identifier came with.
    pub(super) fn accept(
        identifier: Identifier,
        channel: EventChannel,
        queue_pair: QueuePair<'a, Rc, Initialized>,
        parameters: &Parameters,
        private_data: Vec<u8>,
    ) -> Result<Self> {
        let queue_pair = identifier.accept(queue_pair, parameters)?;
        let (side, parameters) = (Side::Accepted(queue_pair), parameters.clone());
        let deadline = Deadline::after(parameters.timeout);
        let state = Some(State { side, identifier, parameters, private_data });
        Ok(Self { state, channel, deadline })
    }

    /// The connection if it stands now, `None` if the peer has not answered yet. Never waits.
    ///
    /// # Errors
    ///
    /// [`Error::Rejected`], [`Error::Connection`] with what the connection manager reports; [`Error::Transition`] if the
    /// device refuses what was agreed on; [`Error::Invalid`] after it has finished. The connection is given up then.
    pub fn try_finish(&mut self) -> Result<Option<Connection<'a>>> {
        loop {
            let Some(event) = self.channel.try_event()? else {
                return Ok(None);
            };
            if matches!(event.kind(), EventKind::ADDRESS_CHANGED | EventKind::TIME_WAIT_OVER) {
                continue;
            }
            let Some(state) = self.state.take() else {
                return Err(finished());
            };
            let State { side, identifier, parameters, mut private_data } = state;
            let queue_pair = match side {
                Side::Asked(queue_pair) => {
                    private_data = event.private_data().to_vec();
                    identifier.establish(queue_pair, &parameters, event)?
                }
                Side::Accepted(queue_pair) => identifier.establish_accepted(queue_pair, event)?,
            };
            // The channel's own is left without identifiers, and goes with this.
            let channel = self.channel.again();
            return Ok(Some(Connection { queue_pair, identifier, channel, private_data }));
        }
    }

    /// Waits for the peer's answer, at most the time-out of the parameters.
    ///
    /// # Errors
    ///
    /// As for [`try_finish`](Self::try_finish), and [`Error::TimedOut`].
    pub fn finish(mut self) -> Result<Connection<'a>> {
        loop {
            if let Some(connection) = self.try_finish()? {
                return Ok(connection);
            }
            if !self.channel.wait(&self.deadline)? {
                return Err(self
                    .deadline
                    .missed("the peer's answer to the connection", PEER_IS_SILENT));
            }
        }
    }
}

impl AsFd for Connecting<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

#[cold]
pub(super) fn finished() -> Error {
    Error::Invalid {
        what: "this has finished already".into(),
        remedy: "do not call `try_finish` after it returned its result",
    }
}
