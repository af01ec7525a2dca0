//! What tasks that share a queue pair share, and the task that looks for completions.

use std::{
    borrow::Cow,
    collections::{HashMap, VecDeque},
    mem,
    sync::{Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::task::yield_now;

use super::{Watched, sleep};
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
    /// Requests other than receives that are outstanding, or finished and not handed out.
    waiting: HashMap<WorkId, Waiting<B>>,
    /// Receives that have finished, oldest first.
    received: VecDeque<Finished<'static, B>>,
    /// Other requests that have finished and nobody waits for any more.
    unclaimed: VecDeque<Finished<'static, B>>,
    /// Tasks that wait for a receive, or for room to send.
    wakers: Vec<Waker>,
    /// The errno that polling failed with, which it does for good.
    broken: Option<i32>,
}

pub(super) enum Waiting<B: HostBuffer> {
    /// Somebody waits, and has said how to wake them.
    Somebody(Option<Waker>),
    Nobody,
    Done(Finished<'static, B>),
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
        Self {
            state: Mutex::new(State {
                pair: Some(pair),
                waiting: HashMap::new(),
                received: VecDeque::new(),
                unclaimed: VecDeque::new(),
                wakers: Vec::new(),
                broken: None,
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
        wakers.into_iter().for_each(Waker::wake);
        (pair, finished)
    }

    /// Hands out what has finished.
    fn look(&self) -> Look {
        let mut wakers = Vec::new();
        let mut excess = Vec::new();
        let outcome = self.state().look(&mut wakers, &mut excess);
        // Without the lock (law 4).
        drop(excess);
        wakers.into_iter().for_each(Waker::wake);
        outcome
    }
}

impl<T: Transport, B: HostBuffer> State<T, B> {
    fn look(&mut self, wakers: &mut Vec<Waker>, excess: &mut Vec<Finished<'static, B>>) -> Look {
        let mut armed = false;
        for _ in 0..TURN {
            let Some(pair) = &mut self.pair else { return Look::Over };
            match pair.poll() {
                Ok(Some(work)) => self.hand_out(work, wakers, excess),
                Ok(None) if armed => return Look::Armed,
                Ok(None) => match pair.request_notification() {
                    Ok(()) => armed = true,
                    Err(error) => return self.break_off(&error, wakers),
                },
                Err(error @ Error::UnknownWork { .. }) => {
                    log::warn!("{error}; queue pair {} is moved to its error state", pair.number());
                    if let Err(error) = pair.fail() {
                        return self.break_off(&error, wakers);
                    }
                }
                Err(error) => return self.break_off(&error, wakers),
            }
        }
        Look::More
    }

    fn hand_out(
        &mut self,
        work: Finished<'static, B>,
        wakers: &mut Vec<Waker>,
        excess: &mut Vec<Finished<'static, B>>,
    ) {
        if work.is_receive() {
            self.received.push_back(work);
        } else if let Some(Waiting::Somebody(waker)) = self.waiting.remove(&work.id) {
            self.waiting.insert(work.id, Waiting::Done(work));
            wakers.extend(waker);
        } else {
            // Given up, or posted before tasks shared the queue pair.
            excess.extend(self.keep(work));
        }
        wakers.append(&mut self.wakers);
    }

    /// Keeps what nobody waits for; returns what there is no room for.
    fn keep(&mut self, work: Finished<'static, B>) -> Option<Finished<'static, B>> {
        let room = self.pair.as_ref().map_or(0, OwnedQueuePair::room_for_sends);
        self.unclaimed.push_back(work);
        if self.unclaimed.len() > room { self.unclaimed.pop_front() } else { None }
    }

    fn break_off(&mut self, error: &Error, wakers: &mut Vec<Waker>) -> Look {
        log::warn!("{error}; nothing of this queue pair finishes any more");
        self.broken = Some(error.errno().unwrap_or(libc::EIO));
        wakers.append(&mut self.everybody());
        Look::Over
    }

    /// How to wake everybody who waits.
    fn everybody(&mut self) -> Vec<Waker> {
        let mut wakers = mem::take(&mut self.wakers);
        wakers.extend(self.waiting.values_mut().filter_map(|waiting| match waiting {
            Waiting::Somebody(waker) => waker.take(),
            Waiting::Nobody | Waiting::Done(_) => None,
        }));
        wakers
    }

    /// Why nothing will finish any more.
    fn check(&self) -> Result<()> {
        match (&self.pair, self.broken) {
            (None, _) => Err(GONE),
            (Some(_), Some(libc::ECANCELED)) => Err(STOPPED),
            (Some(_), Some(errno)) => {
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
    pub(super) fn keep_for(&mut self, id: WorkId, buffer: OwnedBuffer<'static, B>) {
        if let Some(pair) = &mut self.pair {
            pair.keep(buffer);
        }
        self.waiting.insert(id, Waiting::Somebody(None));
    }

    /// What became of a request, and what is to be dropped without the lock.
    pub(super) fn poll_finished(
        &mut self,
        id: WorkId,
        context: &Context<'_>,
    ) -> (Poll<Result<Finished<'static, B>>>, Option<Waiting<B>>) {
        if let Some(Waiting::Done(_)) = self.waiting.get(&id)
            && let Some(Waiting::Done(work)) = self.waiting.remove(&id)
        {
            return (Poll::Ready(Ok(work)), None);
        }
        if let Err(error) = self.check() {
            return (Poll::Ready(Err(error)), None);
        }
        let somebody = Waiting::Somebody(Some(context.waker().clone()));
        (Poll::Pending, self.waiting.insert(id, somebody))
    }

    /// The future of a request is gone; what is to be dropped without the lock.
    pub(super) fn give_up(&mut self, id: WorkId) -> Option<Waiting<B>> {
        match self.waiting.insert(id, Waiting::Nobody) {
            Some(Waiting::Done(work)) => {
                self.waiting.remove(&id);
                self.keep(work).map(Waiting::Done)
            }
            other => other,
        }
    }

    fn wake_on_change(&mut self, context: &Context<'_>) {
        let waker = context.waker();
        if !self.wakers.iter().any(|known| known.will_wake(waker)) {
            self.wakers.push(waker.clone());
        }
    }

    /// The oldest receive that has finished.
    pub(super) fn poll_received(
        &mut self,
        context: &Context<'_>,
    ) -> Poll<Result<Finished<'static, B>>> {
        match (self.received.pop_front(), self.check()) {
            (Some(work), _) => Poll::Ready(Ok(work)),
            (None, Err(error)) => Poll::Ready(Err(error)),
            (None, Ok(())) => {
                self.wake_on_change(context);
                Poll::Pending
            }
        }
    }

    /// Whether there is room for another send.
    pub(super) fn poll_room(&mut self, context: &Context<'_>) -> Poll<Result<()>> {
        match self.pair() {
            Err(error) => Poll::Ready(Err(error)),
            Ok(pair) if pair.sends_in_flight() < pair.room_for_sends() => Poll::Ready(Ok(())),
            Ok(_) => {
                self.wake_on_change(context);
                Poll::Pending
            }
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
            state.broken = Some(libc::ECANCELED);
            state.everybody()
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Looks for completions until the queue pair is gone. Holds it only while it looks, so that dropping it elsewhere
/// ends it there and then.
pub(super) async fn drive<T: Transport, B: HostBuffer>(driver: Driver<T, B>, channel: Watched) {
    let shared = &driver.0;
    loop {
        let Some(look) = shared.upgrade().map(|shared| shared.look()) else { return };
        match look {
            Look::Over => return,
            Look::More => yield_now().await,
            Look::Armed => {
                let slept = sleep(&channel).await;
                if let (Err(error), Some(shared)) = (slept, shared.upgrade()) {
                    let mut wakers = Vec::new();
                    shared.state().break_off(&error, &mut wakers);
                    wakers.into_iter().for_each(Waker::wake);
                    return;
                }
            }
        }
    }
}

/// How long closing waits for the flush of what is outstanding: not at all, since a task must not sleep.
pub(super) const FLUSH: Duration = Duration::ZERO;
