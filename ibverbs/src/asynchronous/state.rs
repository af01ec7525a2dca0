//! What tasks that share a queue pair share, and the task that looks for completions.

use std::{
    borrow::Cow,
    collections::VecDeque,
    mem,
    sync::{Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Waker},
    time::Duration,
};

use slab::Slab;
use tokio::task::yield_now;

use super::{Watched, sleep, wake};
use crate::{
    Error, Finished, HostBuffer, OwnedBuffer, OwnedQueuePair, Result, Transport, Verb, WorkId,
};

/// How many completions are handed out before other tasks get a turn.
const TURN: usize = 64;

/// A queue pair that tasks share.
pub(super) struct Shared<T, B: HostBuffer> {
    state: Mutex<State<T, B>>,
}

pub(super) struct State<T, B: HostBuffer> {
    /// `None` once it was dropped or closed.
    pub(super) pair: Option<OwnedQueuePair<'static, T, B>>,
    /// Who waits for a request other than a receive, by ticket; until it was handed out or given up.
    waiting: Slab<Waiting<B>>,
    /// For each place among the requests that are outstanding, who waits for the one there.
    tickets: Vec<Option<Ticket>>,
    /// Receives that have finished, oldest first.
    received: VecDeque<Finished<'static, B>>,
    /// Other requests that have finished and nobody waits for any more.
    unclaimed: VecDeque<Finished<'static, B>>,
    /// Futures that wait for a receive, or for room to send; how to wake those that have not been woken.
    watchers: Slab<Option<Waker>>,
    /// Whether there are such.
    is_watched: bool,
    /// Why nothing finishes any more.
    broken: Option<Broken>,
    /// Completions with a number that no request had, which may have been those of requests that wait.
    unknown: usize,
}

/// Where a future's request is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket(usize);

/// The interest of a future in changes. Without it the wakers of futures that are given up would pile up.
pub(super) struct Watcher<'s, T: Transport, B: HostBuffer> {
    shared: &'s Shared<T, B>,
    place: Option<usize>,
}

/// What ended the look for completions, for good.
#[derive(Debug, Clone, Copy)]
enum Broken {
    /// A call failed with this errno.
    Failed(i32),
    /// Requests have lost their completions.
    Lost,
    /// The runtime has ended.
    Stopped,
}

pub(super) enum Waiting<B: HostBuffer> {
    /// The request is outstanding, and its future may have said how to wake it.
    Outstanding(Option<Waker>),
    Done(Finished<'static, B>),
}

/// What a look for completions brings to be done without the lock. Kept from one look to the next for its room.
struct News<B: HostBuffer> {
    wakers: Vec<Waker>,
    /// What nobody waits for, and there is no room for.
    excess: Vec<Finished<'static, B>>,
}

/// What a look for completions has led to.
enum Look {
    /// There may be more.
    More,
    /// The queue is armed and empty.
    Armed,
    /// The queue pair is gone, or broken.
    Over,
}

impl<T: Transport, B: HostBuffer> Shared<T, B> {
    pub(super) fn new(pair: OwnedQueuePair<'static, T, B>) -> Self {
        let room = pair.room_for_sends();
        Self {
            state: Mutex::new(State {
                pair: Some(pair),
                waiting: Slab::with_capacity(room),
                tickets: vec![None; room],
                received: VecDeque::new(),
                unclaimed: VecDeque::new(),
                watchers: Slab::new(),
                is_watched: false,
                broken: None,
                unknown: 0,
            }),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State<T, B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the queue pair out, with what has finished and was not handed out, and tells everybody who waits.
    pub(super) fn end(&self) -> (Option<OwnedQueuePair<'static, T, B>>, Vec<Finished<'static, B>>) {
        let (pair, finished, wakers) = {
            let mut state = self.state();
            (state.pair.take(), state.take_finished(), state.everybody())
        };
        wake(wakers);
        (pair, finished)
    }

    /// Hands out what has finished.
    fn look(&self, news: &mut News<B>) -> Look {
        let outcome = self.state().look(news);
        // Without the lock (law 4).
        wake(news.wakers.drain(..));
        news.excess.clear();
        outcome
    }
}

impl<'s, T: Transport, B: HostBuffer> Watcher<'s, T, B> {
    pub(super) fn new(shared: &'s Shared<T, B>) -> Self {
        Self { shared, place: None }
    }

    /// Looks whether it is time, and has the task woken at the next change if not.
    pub(super) fn poll<V>(
        &mut self,
        context: &Context<'_>,
        look: impl FnOnce(&mut State<T, B>) -> Poll<V>,
    ) -> Poll<V> {
        let mut state = self.shared.state();
        let outcome = look(&mut state);
        let left = match outcome {
            Poll::Ready(_) => state.forget(&mut self.place),
            Poll::Pending => state.watch(&mut self.place, context),
        };
        drop(state);
        drop(left);
        outcome
    }
}

impl<T: Transport, B: HostBuffer> Drop for Watcher<'_, T, B> {
    fn drop(&mut self) {
        if self.place.is_some() {
            let left = self.shared.state().forget(&mut self.place);
            drop(left);
        }
    }
}

impl<T: Transport, B: HostBuffer> State<T, B> {
    fn look(&mut self, news: &mut News<B>) -> Look {
        let mut armed = false;
        for _ in 0..TURN {
            let Some(pair) = &mut self.pair else { return Look::Over };
            match pair.poll() {
                Ok(Some(work)) => self.hand_out(work, news),
                Ok(None) if armed => {
                    // Those that are left have lost their completions, and would wait for ever.
                    let lost = (1..=self.unknown).contains(&pair.in_flight());
                    if lost {
                        log::warn!("queue pair {}: {LOST}", pair.number());
                        return self.end_looking(Broken::Lost, &mut news.wakers);
                    }
                    return Look::Armed;
                }
                Ok(None) => match pair.request_notification() {
                    Ok(()) => armed = true,
                    Err(error) => return self.break_off(&error, &mut news.wakers),
                },
                Err(error @ Error::UnknownWork { .. }) => {
                    self.unknown += 1;
                    log::warn!("{error}; queue pair {} is moved to its error state", pair.number());
                    if let Err(error) = pair.fail() {
                        return self.break_off(&error, &mut news.wakers);
                    }
                }
                Err(error) => return self.break_off(&error, &mut news.wakers),
            }
        }
        Look::More
    }

    fn hand_out(&mut self, work: Finished<'static, B>, news: &mut News<B>) {
        self.wake_watchers(&mut news.wakers);
        if work.is_receive() {
            self.received.push_back(work);
            return;
        }
        let ticket = self.tickets.get_mut(work.id.place()).and_then(Option::take);
        match ticket.and_then(|ticket| self.waiting.get_mut(ticket.0)) {
            Some(waiting) => {
                if let Waiting::Outstanding(Some(waker)) =
                    mem::replace(waiting, Waiting::Done(work))
                {
                    news.wakers.push(waker);
                }
            }
            // Given up, or posted before tasks shared the queue pair.
            None => news.excess.extend(self.keep(work)),
        }
    }

    /// Keeps what nobody waits for; returns what there is no room for.
    fn keep(&mut self, work: Finished<'static, B>) -> Option<Finished<'static, B>> {
        let room = self.pair.as_ref().map_or(0, OwnedQueuePair::room_for_sends);
        self.unclaimed.push_back(work);
        if self.unclaimed.len() > room { self.unclaimed.pop_front() } else { None }
    }

    fn break_off(&mut self, error: &Error, wakers: &mut Vec<Waker>) -> Look {
        log::warn!("{error}; nothing of this queue pair finishes any more");
        self.end_looking(Broken::Failed(error.errno().unwrap_or(libc::EIO)), wakers)
    }

    fn end_looking(&mut self, broken: Broken, wakers: &mut Vec<Waker>) -> Look {
        self.broken = Some(broken);
        wakers.append(&mut self.everybody());
        Look::Over
    }

    #[inline]
    fn wake_watchers(&mut self, wakers: &mut Vec<Waker>) {
        if mem::take(&mut self.is_watched) {
            wakers.extend(self.watchers.iter_mut().filter_map(|(_, waker)| waker.take()));
        }
    }

    /// How to wake everybody who waits.
    fn everybody(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        self.wake_watchers(&mut wakers);
        wakers.extend(self.waiting.iter_mut().filter_map(|(_, waiting)| match waiting {
            Waiting::Outstanding(waker) => waker.take(),
            Waiting::Done(_) => None,
        }));
        wakers
    }

    /// Why nothing will finish any more.
    fn check(&self) -> Result<()> {
        match (&self.pair, self.broken) {
            (None, _) => Err(GONE),
            (Some(_), Some(Broken::Stopped)) => Err(STOPPED),
            (Some(_), Some(Broken::Lost)) => Err(LOST),
            (Some(_), Some(Broken::Failed(errno))) => {
                let source = std::io::Error::from_raw_os_error(errno);
                Err(Verb::new("ibv_poll_cq").error(source))
            }
            (Some(_), None) => Ok(()),
        }
    }

    /// The queue pair, to post on.
    pub(super) fn pair(&mut self) -> Result<&mut OwnedQueuePair<'static, T, B>> {
        self.check()?;
        self.pair.as_mut().ok_or(GONE)
    }

    /// Keeps the buffer of a request that was posted under this lock, for the future that waits for it.
    pub(super) fn keep_for(&mut self, id: WorkId, buffer: OwnedBuffer<'static, B>) -> Ticket {
        if let Some(pair) = &mut self.pair {
            pair.keep(buffer);
        }
        let ticket = Ticket(self.waiting.insert(Waiting::Outstanding(None)));
        if let Some(place) = self.tickets.get_mut(id.place()) {
            *place = Some(ticket);
        }
        ticket
    }

    /// What became of a request, and what is to be dropped without the lock. Once it is ready, the ticket is spent.
    pub(super) fn poll_finished(
        &mut self,
        ticket: Ticket,
        context: &Context<'_>,
    ) -> (Poll<Result<Finished<'static, B>>>, Option<Waiting<B>>) {
        if let Some(Waiting::Done(_)) = self.waiting.get(ticket.0)
            && let Some(Waiting::Done(work)) = self.waiting.try_remove(ticket.0)
        {
            return (Poll::Ready(Ok(work)), None);
        }
        if let Err(error) = self.check() {
            return (Poll::Ready(Err(error)), self.waiting.try_remove(ticket.0));
        }
        let replaced = match self.waiting.get_mut(ticket.0) {
            Some(Waiting::Outstanding(Some(known))) if known.will_wake(context.waker()) => None,
            Some(Waiting::Outstanding(known)) => known.replace(context.waker().clone()),
            Some(Waiting::Done(_)) | None => None,
        };
        (Poll::Pending, replaced.map(|waker| Waiting::Outstanding(Some(waker))))
    }

    /// The future of a request is gone; what is to be dropped without the lock.
    pub(super) fn give_up(&mut self, id: WorkId, ticket: Ticket) -> Option<Waiting<B>> {
        match self.waiting.try_remove(ticket.0)? {
            Waiting::Done(work) => self.keep(work).map(Waiting::Done),
            outstanding @ Waiting::Outstanding(_) => {
                if let Some(place) = self.tickets.get_mut(id.place()) {
                    *place = None;
                }
                Some(outstanding)
            }
        }
    }

    /// Wakes a future at the next change; what is to be dropped without the lock.
    fn watch(&mut self, place: &mut Option<usize>, context: &Context<'_>) -> Option<Waker> {
        let at = *place.get_or_insert_with(|| self.watchers.insert(None));
        let known = self.watchers.get_mut(at)?;
        if known.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
            return None;
        }
        self.is_watched = true;
        known.replace(context.waker().clone())
    }

    /// The opposite of [`watch`](Self::watch).
    fn forget(&mut self, place: &mut Option<usize>) -> Option<Waker> {
        self.watchers.try_remove(place.take()?).flatten()
    }

    /// The oldest receive that has finished.
    pub(super) fn received(&mut self) -> Poll<Result<Finished<'static, B>>> {
        match (self.received.pop_front(), self.check()) {
            (Some(work), _) => Poll::Ready(Ok(work)),
            (None, Err(error)) => Poll::Ready(Err(error)),
            (None, Ok(())) => Poll::Pending,
        }
    }

    /// Whether there is room for another send.
    pub(super) fn room(&mut self) -> Poll<Result<()>> {
        match self.pair() {
            Err(error) => Poll::Ready(Err(error)),
            Ok(pair) if pair.sends_in_flight() < pair.room_for_sends() => Poll::Ready(Ok(())),
            Ok(_) => Poll::Pending,
        }
    }

    /// What nobody can ask for any more: transfers that are waited for keep theirs.
    fn take_finished(&mut self) -> Vec<Finished<'static, B>> {
        self.received.drain(..).chain(self.unclaimed.drain(..)).collect()
    }

    pub(super) fn take_unclaimed(&mut self) -> Option<Finished<'static, B>> {
        self.unclaimed.pop_front()
    }
}

const LOST: Error = Error::Invalid {
    what: Cow::Borrowed(
        "the device reported requests that were not outstanding in place of those that are",
    ),
    remedy: "close the `AsyncQueuePair`, which gives their buffers back",
};

const GONE: Error = Error::Invalid {
    what: Cow::Borrowed("the queue pair was dropped before the request had finished"),
    remedy: "keep the `AsyncQueuePair` until its transfers have finished",
};

const STOPPED: Error = Error::Invalid {
    what: Cow::Borrowed(
        "the tokio runtime that looked for completions of the queue pair has ended",
    ),
    remedy: "keep the runtime in which `AsyncQueuePair::new` was called",
};

/// What the task that looks for completions holds. Its runtime may end at any time, and drop it.
pub(super) struct Driver<T: Transport, B: HostBuffer>(pub(super) Weak<Shared<T, B>>);

impl<T: Transport, B: HostBuffer> Drop for Driver<T, B> {
    fn drop(&mut self) {
        let Some(shared) = self.0.upgrade() else { return };
        let wakers = {
            let mut state = shared.state();
            if state.check().is_err() {
                return;
            }
            state.broken = Some(Broken::Stopped);
            state.everybody()
        };
        wake(wakers);
    }
}

/// Looks for completions until the queue pair is gone. Holds it only while it looks, so that dropping it elsewhere
/// ends it there and then.
pub(super) async fn drive<T: Transport, B: HostBuffer>(driver: Driver<T, B>, channel: Watched) {
    let shared = &driver.0;
    let mut news = News { wakers: Vec::new(), excess: Vec::new() };
    loop {
        let Some(look) = shared.upgrade().map(|shared| shared.look(&mut news)) else { return };
        match look {
            Look::Over => return,
            Look::More => yield_now().await,
            Look::Armed => {
                let slept = sleep(&channel).await;
                if let (Err(error), Some(shared)) = (slept, shared.upgrade()) {
                    let mut wakers = Vec::new();
                    shared.state().break_off(&error, &mut wakers);
                    wake(wakers);
                    return;
                }
            }
        }
    }
}

/// How long closing waits for the flush of what is outstanding: not at all, since a task must not sleep.
pub(super) const FLUSH: Duration = Duration::ZERO;
