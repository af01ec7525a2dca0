//! Requests that cannot be done yet: the receiver is not ready, or does not answer.

use std::time::{Duration, Instant};

use rdma_sys as c;

use super::QueuePair;
use crate::fabric::Fabric;

/// Why a request waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The peer has no receive posted and asks to be tried again after this time.
    NotReady(Duration),
    /// The peer does not answer.
    Silence,
}

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Waiting {
    reason: Reason,
    position: u64,
    /// When the retries are used up; `None` if they never are.
    pub(crate) ends: Option<Instant>,
}

impl Waiting {
    /// Any of several requests that wait for different peers.
    pub(super) fn for_any(ends: Option<Instant>) -> Self {
        Self { reason: Reason::Silence, position: 0, ends }
    }
}

impl Fabric {
    /// Lets the oldest request of a pair wait. Returns the status with which it fails if it may not.
    pub(super) fn wait(
        &mut self,
        number: u32,
        position: u64,
        reason: Reason,
    ) -> Result<(), c::ibv_wc_status> {
        let Some(pair) = self.pairs.get_mut(number) else { return Ok(()) };
        let same = pair.waiting.as_ref().is_some_and(|waiting| {
            waiting.position == position
                && (waiting.reason == Reason::Silence) == (reason == Reason::Silence)
        });
        if same {
            return Ok(());
        }
        let patience = patience(pair, reason);
        if patience == Some(Duration::ZERO) {
            return Err(failure(reason, pair.kind));
        }
        let ends = patience.and_then(|patience| Instant::now().checked_add(patience));
        pair.waiting = Some(Waiting { reason, position, ends });
        if !self.waiting.contains(&number) {
            self.waiting.push(number);
        }
        if ends.is_some() {
            self.watch_the_clock();
        }
        Ok(())
    }

    /// The oldest request of a pair does not wait any more.
    pub(super) fn stop_waiting(&mut self, number: u32) {
        if let Some(pair) = self.pairs.get_mut(number)
            && pair.waiting.take().is_some()
        {
            self.waiting.retain(|&each| each != number);
        }
    }

    /// Tries every request that waits once more, since a peer changed.
    pub(crate) fn wake(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let mut woken = std::mem::take(&mut self.scratch.woken);
        woken.clear();
        woken.extend(&self.waiting);
        for &number in &woken {
            self.progress(number);
        }
        self.scratch.woken = woken;
    }

    /// Fails the requests whose retries are used up.
    pub(crate) fn end_waits(&mut self, now: Instant) {
        while let Some(number) = self.waiting.iter().copied().find(|&number| {
            self.pairs.get(number).and_then(QueuePair::wait_ends).is_some_and(|ends| ends <= now)
        }) {
            let Some(pair) = self.pairs.get(number) else { continue };
            let (reason, kind) = (pair.waiting.as_ref().map(|waiting| waiting.reason), pair.kind);
            self.stop_waiting(number);
            if let Some(reason) = reason
                && kind != c::IBV_QPT_DRIVER
            {
                self.finish(number, failure(reason, kind), 0);
            }
            self.progress(number);
        }
    }
}

/// How long a pair retries; `None` for ever.
pub(super) fn patience(pair: &QueuePair, reason: Reason) -> Option<Duration> {
    match reason {
        // 7 is written for infinity.
        Reason::NotReady(_) if pair.attr.rnr_retry >= 7 => None,
        Reason::NotReady(pause) => Some(pause * u32::from(pair.attr.rnr_retry)),
        Reason::Silence if pair.kind == c::IBV_QPT_DRIVER => Some(Duration::from_millis(200)),
        Reason::Silence if pair.attr.timeout == 0 => None,
        Reason::Silence => {
            let once = Duration::from_nanos(4096 << pair.attr.timeout.min(31));
            Some(once * (u32::from(pair.attr.retry_cnt) + 1))
        }
    }
}

pub(super) fn failure(reason: Reason, kind: c::ibv_qp_type) -> c::ibv_wc_status {
    match reason {
        Reason::Silence if kind == c::IBV_QPT_DRIVER => c::IBV_WC_RESP_TIMEOUT_ERR,
        Reason::NotReady(_) => c::IBV_WC_RNR_RETRY_EXC_ERR,
        Reason::Silence => c::IBV_WC_RETRY_EXC_ERR,
    }
}

/// How long a receiver that is not ready asks a sender to pause, by its `min_rnr_timer`
/// (InfiniBand specification, table 46).
pub(super) fn pause(code: u8) -> Duration {
    const TENS_OF_MICROSECONDS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    let tens = TENS_OF_MICROSECONDS.get(usize::from(code % 32)).copied().unwrap_or(65536);
    Duration::from_micros(10) * tens
}
