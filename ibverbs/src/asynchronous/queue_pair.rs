//! A queue pair that tasks share.

use std::{fmt, future::poll_fn, ops::RangeBounds, sync::Arc};

use tokio::task::AbortHandle;

use super::{
    state::{self, Driver, FLUSH, Shared, State, Watcher},
    transfer::Transfer,
    watch,
};
use crate::{
    Closed, Connected, Finished, HostBuffer, OwnedBuffer, OwnedQueuePair, QueuePairNumber,
    Receiving, RejectReason, Rejected, RemoteRead, RemoteSegment, RemoteWrite, Result, Segment,
    SendWr, Transport, WorkId,
};

/// A queue pair whose requests own their buffers, and finish as futures.
///
/// Tasks on any thread share it, usually in an [`Arc`]. A task of its own, spawned when it is made, looks for
/// completions when the device says that there are some. Dropping it destroys the queue pair and frees the buffers of
/// what is outstanding, at once; transfers that are waited for then end with an error.
///
/// # Examples
///
/// ```no_run
/// # use ibverbs::*;
/// # async fn echo(
/// #     pair: OwnedQueuePair<'static, Rc, Vec<u8>>,
/// #     buffers: Vec<OwnedBuffer<'static, Vec<u8>>>,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let pair = AsyncQueuePair::new(pair)?;
/// for buffer in buffers {
///     pair.post_receive(buffer)?;
/// }
/// loop {
///     let message = pair.receive().await?;
///     let length = message.received()?.len();
///     let answer = pair.post(message.buffer, ..length, |segment| SendWr::send(segment))?.await?;
///     answer.outcome()?;
///     pair.post_receive(answer.buffer)?;
/// }
/// # }
/// ```
pub struct AsyncQueuePair<T: Transport, B: HostBuffer> {
    shared: Arc<Shared<T, B>>,
    driver: AbortHandle,
}

impl<T: Transport, B: HostBuffer + 'static> AsyncQueuePair<T, B>
where
    B::Raw: Send,
{
    /// Takes over a connected queue pair; requests may be outstanding. Spawns a task, with whose runtime everything ends.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) outside of a runtime; [`Error::Verb`](crate::Error::Verb) if the
    /// runtime does not take its descriptor. It is dropped then.
    ///
    /// # Panics
    ///
    /// If the runtime was built without `enable_io`.
    pub fn new(pair: OwnedQueuePair<'static, T, B>) -> Result<Self> {
        let channel = watch(pair.channel())?;
        let shared = Arc::new(Shared::new(pair));
        let driver = Driver(Arc::downgrade(&shared));
        let driver = tokio::spawn(state::drive(driver, channel)).abort_handle();
        Ok(Self { shared, driver })
    }
}

impl<T: Transport, B: HostBuffer> AsyncQueuePair<T, B> {
    /// Waits for the next receive that finishes, well or not, in the order in which they do.
    ///
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`](crate::Error::Verb) if the completion queue broke.
    pub async fn receive(&self) -> Result<Finished<'static, B>> {
        let mut watcher = Watcher::new(&self.shared);
        poll_fn(|context| watcher.poll(context, State::received)).await
    }

    /// Posts a request on a part of a buffer, as [`OwnedQueuePair::post`]; it is posted when this returns, whether or not
    /// the future is ever looked at. Does not wait.
    ///
    /// # Errors
    ///
    /// As for [`OwnedQueuePair::post`]; [`room`](Self::room) waits until there is some.
    #[doc(alias = "ibv_post_send")]
    pub fn post(
        &self,
        buffer: OwnedBuffer<'static, B>,
        range: impl RangeBounds<usize>,
        request: impl for<'s> FnOnce(Segment<'s>) -> SendWr<'s, T>,
    ) -> Result<Transfer<T, B>, Rejected<'static, B>> {
        // The caller's code, so that it runs without the lock.
        let made = buffer.request(range, request).map_err(RejectReason::Check);
        let posted = made.and_then(|request| {
            let mut state = self.shared.state();
            let pair = state.pair().map_err(RejectReason::Check);
            pair.and_then(|pair| pair.post_request(request)).map(|id| (state, id))
        });
        match posted {
            Ok((mut state, id)) => {
                let ticket = state.keep_for(id, buffer);
                drop(state);
                Ok(Transfer::new(Arc::clone(&self.shared), id, ticket))
            }
            Err(reason) => Err(Rejected::new(buffer, reason)),
        }
    }

    /// Waits until there is room for a send. Another task may take it before this one does.
    ///
    /// # Errors
    ///
    /// As for [`receive`](Self::receive).
    pub async fn room(&self) -> Result<()> {
        let mut watcher = Watcher::new(&self.shared);
        poll_fn(|context| watcher.poll(context, State::room)).await
    }

    /// What became of a request whose [`Transfer`] was dropped, or that was posted before [`new`](Self::new), oldest
    /// first; `None` if there is none.
    ///
    /// As many as there is room for sends are kept, the oldest are dropped.
    #[must_use]
    pub fn claim(&self) -> Option<Finished<'static, B>> {
        self.shared.state().take_unclaimed()
    }

    /// How many requests are outstanding.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.state().pair.as_ref().map_or(0, OwnedQueuePair::in_flight)
    }

    /// Its number, which peers need.
    #[must_use]
    pub fn number(&self) -> Option<QueuePairNumber> {
        self.shared.state().pair.as_ref().map(OwnedQueuePair::number)
    }

    /// Moves it to its error state: what is outstanding finishes as flushed. Enters the kernel.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::fail`](crate::QueuePair::fail).
    pub fn fail(&self) -> Result<()> {
        self.shared.state().pair()?.fail()
    }

    /// Ends it at once and gives back the buffers of what is outstanding, as [`OwnedQueuePair::close`] without a wait,
    /// and of what has finished and nobody has asked for.
    /// Enters the kernel.
    ///
    /// # Errors
    ///
    /// As for [`OwnedQueuePair::close`].
    pub fn close(self) -> Result<Closed<'static, B>> {
        let (pair, mut finished) = self.shared.end();
        let Some(pair) = pair else { return Ok(Closed { finished, unfinished: Vec::new() }) };
        let closed = pair.close(FLUSH)?;
        finished.extend(closed.finished);
        Ok(Closed { finished, unfinished: closed.unfinished })
    }

    /// Posts a receive into a whole buffer. Does not wait.
    ///
    /// # Errors
    ///
    /// As for [`OwnedQueuePair::post_receive`].
    #[doc(alias = "ibv_post_recv")]
    pub fn post_receive(
        &self,
        buffer: OwnedBuffer<'static, B>,
    ) -> Result<WorkId, Rejected<'static, B>>
    where
        T: Receiving,
    {
        let mut state = self.shared.state();
        match state.pair() {
            Ok(pair) => pair.post_receive(buffer),
            Err(error) => Err(Rejected::new(buffer, RejectReason::Check(error))),
        }
    }

    /// Sends a whole buffer into the peer's next receive.
    ///
    /// # Errors
    ///
    /// As for [`post`](Self::post).
    pub fn send(
        &self,
        buffer: OwnedBuffer<'static, B>,
    ) -> Result<Transfer<T, B>, Rejected<'static, B>>
    where
        T: Connected + Receiving,
    {
        self.post(buffer, .., |segment| SendWr::send(segment))
    }

    /// Writes a whole buffer into the peer's memory.
    ///
    /// # Errors
    ///
    /// As for [`post`](Self::post).
    pub fn write(
        &self,
        buffer: OwnedBuffer<'static, B>,
        to: &RemoteSegment,
    ) -> Result<Transfer<T, B>, Rejected<'static, B>>
    where
        T: RemoteWrite + Connected + Receiving,
    {
        self.post(buffer, .., |segment| SendWr::write(segment, to))
    }

    /// Fills a whole buffer from the peer's memory; see [`OwnedQueuePair::post_read`].
    ///
    /// # Errors
    ///
    /// As for [`post`](Self::post).
    pub fn read(
        &self,
        buffer: OwnedBuffer<'static, B>,
        from: &RemoteSegment,
    ) -> Result<Transfer<T, B>, Rejected<'static, B>>
    where
        T: RemoteRead + Connected + Receiving,
    {
        self.post(buffer, .., |segment| SendWr::read(segment, from))
    }
}

impl<T: Transport, B: HostBuffer> Drop for AsyncQueuePair<T, B> {
    fn drop(&mut self) {
        let ended = self.shared.end();
        self.driver.abort();
        drop(ended);
    }
}

impl<T: Transport, B: HostBuffer> fmt::Debug for AsyncQueuePair<T, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncQueuePair").field("pair", &self.shared.state().pair).finish()
    }
}
