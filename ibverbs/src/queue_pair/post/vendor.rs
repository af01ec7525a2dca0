//! Posting requests that carry what only their vendor knows.
#![expect(unsafe_code, reason = "runs code of the caller between start and complete")]

use rdma_sys::ibv_qp_ex;

use super::{Extended, Path, PostError, refused_whole};
use crate::{QueuePair, SendWr, Transport, Verb};

impl<T: Transport> QueuePair<'_, T> {
    /// As [`post_send`](Self::post_send), and calls `set` with the index of each request that was filled, so that setters
    /// of the device's vendor can add to it. Extended posting only.
    ///
    /// # Errors
    ///
    /// As for [`post_send`](Self::post_send); [`Error::Unsupported`](crate::Error::Unsupported) with classic posting.
    ///
    /// # Safety
    ///
    /// `set` does nothing with the queue pair but call setters of the present request, and does not panic: the
    /// provider's lock is held.
    #[doc(alias = "ibv_wr_start")]
    pub unsafe fn post_send_with(
        &self,
        batch: &mut [SendWr<'_, T>],
        set: impl Fn(usize, *mut ibv_qp_ex),
    ) -> Result<(), PostError> {
        let (Path::Extended(extended)
        | Path::ExtendedInPlace(extended)
        | Path::MessagesInPlace(extended)) = self.handle.path
        else {
            return Err(PostError::alone(Verb::new("ibv_wr_start").unsupported()));
        };
        if batch.is_empty() {
            return Ok(());
        }
        let poster = Extended(extended.as_ptr());
        poster.start();
        for (index, wr) in batch.iter().enumerate() {
            if !self.handle.fill(poster, wr) {
                let behind = batch.len() - index - 1;
                return Err(self.handle.give_up(poster, batch, wr, behind));
            }
            set(index, extended.as_ptr());
        }
        match poster.complete() {
            0 => Ok(()),
            returned => Err(refused_whole(returned)),
        }
    }
}
