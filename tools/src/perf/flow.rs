//! One lane's stream of requests, and its stream of receives.

use std::sync::atomic::{AtomicU64, Ordering};

use example_support::AnyError;
use ibverbs::{PostError, QueuePair, RecvWr, SendWr};

use super::wire::Wire;

/// In the number of a request: it is the last one of its lane.
pub(crate) const LAST: u64 = 1 << 32;
/// In the number of a request: it tells the peer how much it may send.
pub(crate) const CREDIT: u64 = 1 << 33;

/// The lane of a request.
pub(crate) const fn lane_of(id: u64) -> usize {
    (id & 0xffff_ffff) as usize
}

/// How much of a lane's work is posted at a time and reports.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Requests behind one doorbell.
    pub(crate) list: u64,
    /// Requests from one that reports to the next: a multiple of `list`, or 1 where all report.
    pub(crate) step: u64,
    /// Requests that may be outstanding.
    pub(crate) depth: u64,
    /// Messages that the peer has room for before it says that there is more.
    pub(crate) room: u64,
}

/// Requests of one lane: `total` of them, all alike, prepared once and posted again and again.
pub(crate) struct Outlet<'m, 'a, T: Wire> {
    pair: &'m QueuePair<'a, T>,
    quiet: Vec<SendWr<'m, T>>,
    /// The last one of these reports.
    loud: Vec<SendWr<'m, T>>,
    /// The last ones of all.
    tail: Vec<SendWr<'m, T>>,
    pace: Pace,
    /// How many a report speaks for.
    cover: u64,
    lists_to_report: u64,
    lists_per_report: u64,
    /// Requests before the tail.
    body: u64,
    total: u64,
    sent: u64,
    /// How many were sent with the last one that reports.
    reporting: u64,
    done: u64,
    /// `sent` may come this far.
    limit: u64,
    /// How many messages the peer has taken, if it says so.
    credit: Option<&'m AtomicU64>,
    granted: u64,
}

impl<'m, 'a, T: Wire> Outlet<'m, 'a, T> {
    /// `request` makes one that does not report and has no number.
    pub(crate) fn new(
        pair: &'m QueuePair<'a, T>,
        lane: usize,
        total: u64,
        pace: Pace,
        credit: Option<&'m AtomicU64>,
        request: impl Fn() -> Result<SendWr<'m, T>, AnyError>,
    ) -> Result<Self, AnyError> {
        let lane = lane as u64;
        let last = if T::ORDERED { lane | LAST } else { lane };
        let list = |length: u64, reports: bool, id: u64| -> Result<Vec<_>, AnyError> {
            (1..=length)
                .map(|place| {
                    let request = request()?.id(id);
                    Ok(if reports && place == length { request.signaled() } else { request })
                })
                .collect()
        };
        let lists_per_report = (pace.step / pace.list).max(1);
        let tail = (total - 1) % pace.list + 1;
        let mut outlet = Self {
            pair,
            quiet: list(pace.list, false, lane)?,
            loud: list(pace.list, true, lane)?,
            tail: list(tail, true, last)?,
            pace,
            cover: if T::ORDERED { pace.step } else { 1 },
            lists_to_report: lists_per_report,
            lists_per_report,
            body: total - tail,
            total,
            sent: 0,
            reporting: 0,
            done: 0,
            limit: 0,
            credit,
            granted: if credit.is_some() { pace.room } else { u64::MAX },
        };
        outlet.renew_limit();
        Ok(outlet)
    }

    /// Posts as many as there is room for.
    #[inline(always)]
    pub(crate) fn fill(&mut self) -> Result<(), PostError> {
        while self.sent + self.pace.list <= self.limit {
            self.lists_to_report -= 1;
            let batch = if self.lists_to_report == 0 {
                self.lists_to_report = self.lists_per_report;
                self.reporting = self.sent + self.pace.list;
                &mut self.loud
            } else {
                &mut self.quiet
            };
            self.pair.post_send(batch)?;
            self.sent += self.pace.list;
        }
        if self.sent == self.body || self.sent + self.pace.list > self.granted {
            self.fill_otherwise()?;
        }
        Ok(())
    }

    /// The tail, and what the peer has room for meanwhile.
    #[inline(never)]
    fn fill_otherwise(&mut self) -> Result<(), PostError> {
        if let Some(credit) = self.credit {
            self.granted = self.pace.room + credit.load(Ordering::Acquire);
            self.renew_limit();
        }
        let fits = (self.done + self.pace.depth).min(self.granted) >= self.total;
        if self.sent == self.body && fits {
            self.pair.post_send(&mut self.tail)?;
            (self.sent, self.reporting) = (self.total, self.total);
        }
        Ok(())
    }

    #[inline(always)]
    fn renew_limit(&mut self) {
        self.limit = (self.done + self.pace.depth).min(self.granted).min(self.body);
    }

    /// Takes note of a request that reported; `true` when all have.
    #[inline(always)]
    pub(crate) fn complete(&mut self, id: u64) -> bool {
        self.done = if id & LAST == 0 { self.done + self.cover } else { self.total };
        self.renew_limit();
        self.done == self.total
    }

    /// Whether it waits for nothing but credit, which raises no event: what is under way does not report.
    pub(crate) const fn is_starved(&self) -> bool {
        self.done == self.reporting && self.sent < self.total
    }

    /// How many are done.
    pub(crate) const fn done(&self) -> u64 {
        self.done
    }
}

/// Receives of one lane. All are posted whenever no message is under way.
pub(crate) struct Inlet<'m, 'a, T: Wire> {
    pair: &'m QueuePair<'a, T>,
    batch: Vec<RecvWr<'m>>,
    /// Taken, and not posted again.
    missing: usize,
    /// Messages of this round.
    pub(crate) taken: u64,
    credit: Option<Credit<'m, T>>,
}

/// How a receiver tells its sender that there is room.
pub(crate) struct Credit<'m, T> {
    /// Writes the word to the sender.
    pub(crate) request: SendWr<'m, T>,
    /// How many messages there is room for again.
    pub(crate) word: &'m AtomicU64,
    /// Messages from one telling to the next.
    pub(crate) every: u64,
    pub(crate) told: u64,
    /// Under way.
    pub(crate) outstanding: u32,
}

impl<T> Credit<'_, T> {
    /// How many may be under way; a send queue has room for more.
    const MOST: u32 = 4;
}

impl<'m, 'a, T: Wire> Inlet<'m, 'a, T> {
    /// Receives that are posted again in batches like this one.
    pub(crate) fn new(
        pair: &'m QueuePair<'a, T>,
        batch: Vec<RecvWr<'m>>,
        credit: Option<Credit<'m, T>>,
    ) -> Self {
        Self { pair, batch, missing: 0, taken: 0, credit }
    }

    /// Takes note of a message.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Result<(), PostError> {
        self.taken += 1;
        self.missing += 1;
        if self.missing < self.batch.len() {
            return Ok(());
        }
        self.refill()?;
        self.tell()
    }

    /// Posts what is missing. After a round that is all: a credit would complete when nobody looks any more.
    pub(crate) fn refill(&mut self) -> Result<(), PostError> {
        let missing = std::mem::take(&mut self.missing);
        self.pair.post_receive(&mut self.batch[..missing])
    }

    /// Tells the sender that there is room, if that is due.
    fn tell(&mut self) -> Result<(), PostError> {
        if let Some(credit) = &mut self.credit
            && self.taken - credit.told >= credit.every
            && credit.outstanding < Credit::<T>::MOST
        {
            let room = self.taken - self.missing as u64;
            credit.word.store(room, Ordering::Release);
            self.pair.post_send(std::slice::from_mut(&mut credit.request))?;
            credit.told = room;
            credit.outstanding += 1;
        }
        Ok(())
    }

    /// Takes note of a credit that arrived at the sender.
    pub(crate) fn credited(&mut self) -> Result<(), PostError> {
        if let Some(credit) = &mut self.credit {
            credit.outstanding -= 1;
        }
        self.tell()
    }

    /// Whether credits are under way.
    #[inline(always)]
    pub(crate) fn is_telling(&self) -> bool {
        self.credit.as_ref().is_some_and(|credit| credit.outstanding > 0)
    }
}
