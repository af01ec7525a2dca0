//! A queue pair in two halves, so that one thread posts sends and another refills receives.

use std::{fmt, sync::Arc};

use super::{QueuePair, post::PostError};
use crate::{CompletionQueue, QueuePairNumber, Receiving, RecvWr, Result, SendWr, Transport};

/// The half of a queue pair that sends. Nobody else posts to its send queue.
pub struct SendHalf<'a, T>(Arc<QueuePair<'a, T>>);

/// The half of a queue pair that receives. Nobody else posts to its receive queue.
pub struct ReceiveHalf<'a, T>(Arc<QueuePair<'a, T>>);

impl<'a, T: Transport> QueuePair<'a, T> {
    /// Splits it into two halves that can go to two threads. They share no lock of this crate; the provider
    /// has one for each queue. Allocates once.
    ///
    /// The queue pair is destroyed when both halves are dropped; [`SendHalf::reunite`] puts it together again.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::thread;
    ///
    /// use ibverbs::{PostError, QueuePair, Rc, RecvWr, Segment, SendWr};
    ///
    /// fn both_ways(
    ///     pair: QueuePair<'_, Rc>,
    ///     out: Segment<'_>,
    ///     into: Segment<'_>,
    /// ) -> Result<(), PostError> {
    ///     let (mut sends, mut receives) = pair.split();
    ///     thread::scope(|threads| {
    ///         let refill = threads.spawn(move || receives.post_receive(&mut [RecvWr::to(1, into)]));
    ///         sends.post_send(&mut [SendWr::send(out).signaled()])?;
    ///         refill.join().expect("the thread does not panic")
    ///     })
    /// }
    /// ```
    #[must_use]
    pub fn split(self) -> (SendHalf<'a, T>, ReceiveHalf<'a, T>)
    where
        T: Receiving,
    {
        let pair = Arc::new(self);
        (SendHalf(Arc::clone(&pair)), ReceiveHalf(pair))
    }
}

impl<'a, T: Transport> SendHalf<'a, T> {
    /// Posts requests to the send queue, as [`QueuePair::post_send`].
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::post_send`].
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub fn post_send(&mut self, batch: &mut [SendWr<'_, T>]) -> Result<(), PostError> {
        self.0.post_send(batch)
    }

    /// The queue where its requests complete.
    #[must_use]
    pub fn completion_queue(&self) -> &CompletionQueue<'a> {
        self.0.send_queue()
    }

    /// The queue pair's number.
    #[must_use]
    pub fn number(&self) -> QueuePairNumber {
        self.0.number()
    }

    /// Moves the queue pair to its error state, as [`QueuePair::fail`]: what both halves posted completes as flushed.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::fail`].
    pub fn fail(&self) -> Result<()> {
        self.0.fail()
    }

    /// Puts the queue pair together again.
    ///
    /// # Errors
    ///
    /// Both halves, if they are not of one queue pair.
    pub fn reunite(
        self,
        other: ReceiveHalf<'a, T>,
    ) -> Result<QueuePair<'a, T>, (Self, ReceiveHalf<'a, T>)> {
        if !Arc::ptr_eq(&self.0, &other.0) {
            return Err((self, other));
        }
        drop(other);
        // The two halves are the only owners, so that one is left.
        Arc::try_unwrap(self.0).map_err(|pair| (Self(Arc::clone(&pair)), ReceiveHalf(pair)))
    }
}

impl<'a, T: Receiving> ReceiveHalf<'a, T> {
    /// Posts requests to the receive queue, as [`QueuePair::post_receive`].
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::post_receive`].
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post_receive(&mut self, batch: &mut [RecvWr<'_>]) -> Result<(), PostError> {
        self.0.post_receive(batch)
    }

    /// The queue where its requests complete.
    #[must_use]
    pub fn completion_queue(&self) -> &CompletionQueue<'a> {
        self.0.receive_queue()
    }

    /// The queue pair's number.
    #[must_use]
    pub fn number(&self) -> QueuePairNumber {
        self.0.number()
    }
}

impl<T: Transport> fmt::Debug for SendHalf<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SendHalf").field(&self.0).finish()
    }
}

impl<T: Transport> fmt::Debug for ReceiveHalf<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReceiveHalf").field(&self.0).finish()
    }
}
