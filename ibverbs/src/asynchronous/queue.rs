//! Completion queues that a task can wait for.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use tokio::sync::{Notify, futures::Notified};

use super::{Watched, sleep, watch};
use crate::{
    Completion, CompletionChannel, CompletionQueue, Context, Notification, Parent, Result,
};

/// A completion queue with a channel of its own that the runtime watches.
///
/// Taken by reference wherever a completion queue is: `domain.queue_pair::<Rc>(&queue, &queue)`. What is made with it shares
/// the queue, so that either may be dropped first.
///
/// For requests on shared memory; see [`AsyncQueuePair`](crate::AsyncQueuePair) for buffers that are moved.
///
/// # Examples
///
/// ```
/// use ibverbs::{AsyncCompletionQueue, Completion, QueuePair, Rc, Segment, SendWr};
///
/// /// `pair` was made with `queue`: `domain.queue_pair::<Rc>(&queue, &queue)`.
/// async fn send(
///     queue: &AsyncCompletionQueue,
///     pair: &QueuePair<'_, Rc>,
///     bytes: Segment<'_>,
/// ) -> Result<(), Box<dyn std::error::Error>> {
///     pair.post_send(&mut [SendWr::send(bytes).signaled()])?;
///     let mut slots = Completion::slots::<1>();
///     for completion in queue.wait(&mut slots).await? {
///         completion.outcome()?;
///     }
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct AsyncCompletionQueue {
    queue: Arc<CompletionQueue<'static>>,
    /// Of `queue`, and of no other.
    channel: Watched,
    /// Tells those who wait that one of them took events, which the runtime may not tell the others about.
    taken: Notify,
}

impl AsyncCompletionQueue {
    /// Makes a queue for at least `capacity` completions. Enters the kernel, allocates.
    ///
    /// # Errors
    ///
    /// As for [`CompletionQueue::create`] and [`CompletionChannel::create`];
    /// [`Error::Invalid`](crate::Error::Invalid) outside of a runtime.
    ///
    /// # Panics
    ///
    /// If the runtime was built without `enable_io`.
    pub fn create(context: impl Into<Parent<'static, Context>>, capacity: u32) -> Result<Self> {
        let context = context.into();
        let channel = Arc::new(CompletionChannel::create(context.again())?);
        let queue = CompletionQueue::builder(context, capacity).channel(&channel).create()?;
        let channel = watch(&channel)?;
        Ok(Self { queue: Arc::new(queue), channel, taken: Notify::new() })
    }

    /// The queue, to be polled as usual. Waiting for it in a thread ([`CompletionQueue::wait`]) takes the events that tasks
    /// sleep for.
    #[must_use]
    pub fn queue(&self) -> &Arc<CompletionQueue<'static>> {
        &self.queue
    }

    /// Takes up to `slots.len()` completions off the queue, and waits for the first. Never returns none if
    /// there are slots.
    ///
    /// Dropping the future loses nothing: completions leave the queue only in the step that returns them. Several tasks
    /// may wait; each completion goes to one of them.
    ///
    /// # Errors
    ///
    /// As for [`CompletionQueue::wait`].
    pub async fn wait<'s>(&self, slots: &'s mut [Completion]) -> Result<&'s [Completion]> {
        // A look at the start of each round, one after arming: as in `CompletionQueue::wait`.
        let filled = loop {
            let filled = self.queue.fill(slots)?;
            if filled > 0 || slots.is_empty() {
                break filled;
            }
            // Before arming, so that the event ends the sleep whoever takes it.
            let taken = self.taken.notified();
            self.queue.request_notification(Notification::Any)?;
            let filled = self.queue.fill(slots)?;
            if filled > 0 {
                break filled;
            }
            self.sleep(taken).await?;
        };
        Ok(&slots[..filled])
    }

    /// Waits until there are events, and takes them, or until another task took some.
    async fn sleep(&self, taken: Notified<'_>) -> Result<()> {
        let (mut asleep, mut taken) = (pin!(sleep(&self.channel)), pin!(taken));
        poll_fn(|context| match asleep.as_mut().poll(context) {
            Poll::Ready(Ok(0)) => Poll::Ready(Ok(())),
            // A failure too may come after some were taken.
            Poll::Ready(outcome) => {
                self.taken.notify_waiters();
                Poll::Ready(outcome.map(|_| ()))
            }
            Poll::Pending => taken.as_mut().poll(context).map(Ok),
        })
        .await
    }
}

impl<'a> From<&AsyncCompletionQueue> for Parent<'a, CompletionQueue<'a>> {
    fn from(queue: &AsyncCompletionQueue) -> Self {
        Self::Shared(Arc::clone(&queue.queue))
    }
}

impl<'a> From<&Arc<AsyncCompletionQueue>> for Parent<'a, CompletionQueue<'a>> {
    fn from(queue: &Arc<AsyncCompletionQueue>) -> Self {
        Self::from(&**queue)
    }
}
