//! Destroying a queue pair and knowing whether it worked.
#![expect(unsafe_code, reason = "destroys an ibv_qp")]

use std::{mem::ManuallyDrop, ptr};

use super::QueuePair;
use crate::{CloseError, Result, Transport, error::verb};

impl<T: Transport, S> QueuePair<'_, T, S> {
    /// Destroys it, as dropping does, but tells when that is refused. After an `Ok` the device touches no
    /// memory for its requests any more. Enters the kernel.
    ///
    /// # Errors
    ///
    /// The queue pair as it was, with the reason. See `ibv_destroy_qp(3)`.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn close(self) -> Result<(), Box<CloseError<Self>>> {
        let destroyed = verb!(self.handle.library(), ibv_destroy_qp).and_then(|(verb, destroy)| {
            // SAFETY: `raw` is live; after a success nothing reads it any more.
            verb.status(unsafe { destroy(self.as_raw()) })
        });
        if let Err(error) = destroyed {
            return Err(Box::new(CloseError { object: self, error }));
        }
        let handle = ManuallyDrop::new(self.handle);
        // SAFETY: `handle` is not used after this, nor dropped.
        drop(unsafe { ptr::read(&raw const handle.queues) });
        // SAFETY: as above.
        drop(unsafe { ptr::read(&raw const handle.shared) });
        // SAFETY: as above.
        drop(unsafe { ptr::read(&raw const handle.domain) });
        Ok(())
    }
}
