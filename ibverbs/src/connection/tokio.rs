//! Connecting, accepting and waiting as futures, on tokio.
//!
//! Each future waits for the descriptor of what it waits for. One that is dropped leaves nothing half done: it gives up the
//! route or the connection that it was making, and the peer is told; an event that it has not returned is left for the next.
#![expect(unsafe_code, reason = "lets the runtime watch a descriptor")]

use std::{
    future::{Future, IntoFuture},
    os::fd::AsFd,
    pin::Pin,
};

use ::tokio::{
    io::{Interest, unix::AsyncFd},
    runtime::Handle,
};

use super::{
    Connecting, Connection, DatagramListener, DatagramPeer, DatagramRequest, Event, EventChannel,
    EventKind, Listener, LookingUp, Request, Resolving, Route,
};
use crate::{Error, Result, Verb};

/// Waits until the object can be read.
///
/// Each wait watches a descriptor of its own, so that several tasks can wait for one object. The runtime looks at it when it
/// begins to watch, so that what came since the last look at the object is not missed.
async fn readable(object: &(impl AsFd + Sync)) -> Result<()> {
    // Without a runtime tokio panics.
    if Handle::try_current().is_err() {
        return Err(Error::Invalid {
            what: "there is no tokio runtime".into(),
            remedy: "call this from a task, or within `runtime.enter()`",
        });
    }
    let failed = |source| Verb::new("epoll_ctl").error(source);
    let descriptor = object.as_fd().try_clone_to_owned().map_err(failed)?;
    // SAFETY: the descriptor is constant, and open until it is dropped, which the result does.
    let watched = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
    let watched = watched.map_err(|refused| failed(refused.into_parts().1))?;
    watched.readable().await.map(drop).map_err(failed)
}

/// Looks until it finds something, and waits for the descriptor in between.
macro_rules! until {
    ($object:expr, $look:expr) => {
        loop {
            if let Some(found) = $look? {
                break Ok(found);
            }
            readable($object).await?;
        }
    };
}

/// What the objects that are under way become when they are awaited.
///
/// The time-outs of parameters and builders do not count then; wrap the future into `tokio::time::timeout`.
pub type Progress<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// `Route::to(peer).start()?.await?`
impl IntoFuture for Resolving {
    type Output = Result<Route>;
    type IntoFuture = Progress<'static, Route>;

    fn into_future(mut self) -> Self::IntoFuture {
        Box::pin(async move { until!(&self, self.try_finish()) })
    }
}

/// `route.start_connect(queue_pair, &parameters)?.await?`, `request.start_accept(queue_pair, &parameters)?.await?`
impl<'a> IntoFuture for Connecting<'a> {
    type Output = Result<Connection<'a>>;
    type IntoFuture = Progress<'a, Connection<'a>>;

    fn into_future(mut self) -> Self::IntoFuture {
        Box::pin(async move { until!(&self, self.try_finish()) })
    }
}

/// `route.start_look_up(b"")?.await?`
impl IntoFuture for LookingUp {
    type Output = Result<(DatagramPeer, Vec<u8>)>;
    type IntoFuture = Progress<'static, (DatagramPeer, Vec<u8>)>;

    fn into_future(mut self) -> Self::IntoFuture {
        Box::pin(async move { until!(&self, self.try_finish()) })
    }
}

impl Listener {
    /// The next request. Several tasks may wait at a time; one that is dropped takes none with it.
    ///
    /// # Errors
    ///
    /// As for [`try_accept`](Self::try_accept).
    pub async fn request(&self) -> Result<Request> {
        until!(self, self.try_accept())
    }
}

impl DatagramListener {
    /// The next request. Several tasks may wait at a time; one that is dropped takes none with it.
    ///
    /// # Errors
    ///
    /// As for [`try_next`](Self::try_next).
    pub async fn request(&self) -> Result<DatagramRequest> {
        until!(self, self.try_next())
    }
}

impl EventChannel {
    /// The next event. Several tasks may wait at a time; one that is dropped takes none with it.
    ///
    /// # Errors
    ///
    /// As for [`try_event`](Self::try_event).
    pub async fn event(&self) -> Result<Event> {
        until!(self, self.try_event())
    }
}

impl Connection<'_> {
    /// Waits until the connection has ended, whichever side ended it.
    ///
    /// # Errors
    ///
    /// [`Error::Connection`] if the device was removed.
    pub async fn disconnected(&self) -> Result<()> {
        loop {
            let event: Result<Event> = until!(self, self.try_event());
            let event = event?;
            match event.kind() {
                EventKind::DISCONNECTED | EventKind::TIME_WAIT_OVER => return Ok(()),
                EventKind::DEVICE_REMOVAL => return Err(event.into()),
                _ => {}
            }
        }
    }
}
