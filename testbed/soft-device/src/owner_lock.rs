//! The lock that a provider holds between two calls, such as `ibv_wr_start` and `ibv_wr_complete`.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

/// A lock that is taken in one call and released in another of the same thread.
///
/// Providers deadlock when a thread takes theirs twice; this one notices and tells.
#[derive(Debug, Default)]
pub(crate) struct OwnerLock(AtomicU64);

/// The calling thread has the lock already.
#[derive(Debug)]
pub(crate) struct Reentered;

impl OwnerLock {
    /// Waits until no other thread has the lock, then takes it.
    pub(crate) fn acquire(&self) -> Result<(), Reentered> {
        let me = token();
        loop {
            match self.0.compare_exchange_weak(0, me, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(owner) if owner == me => return Err(Reentered),
                Err(_) => thread::yield_now(),
            }
        }
    }

    /// Whether the calling thread has the lock.
    pub(crate) fn is_mine(&self) -> bool {
        self.0.load(Ordering::Relaxed) == token()
    }

    /// Gives the lock back, if the calling thread has it.
    pub(crate) fn release(&self) {
        if self.is_mine() {
            self.0.store(0, Ordering::Release);
        }
    }
}

/// A number of the calling thread that no other has, never 0.
fn token() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static TOKEN: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    TOKEN.with(|token| *token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_of_the_same_thread_is_told_instead_of_hanging() {
        let lock = OwnerLock::default();
        lock.acquire().unwrap();
        lock.acquire().unwrap_err();
        lock.release();
        assert!(!lock.is_mine());
        lock.acquire().unwrap();
    }
}
