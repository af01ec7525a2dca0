//! What the threads of one controller share: which association is live, and who needs to know.
//!
//! Associations are numbered from 1. Each queue belongs to the association it was connected in.
//! Whoever notices that an association is lost says so once, with [`Shared::lose`]; the
//! controller's thread then makes the next one, and each queue takes its new channel when it is
//! used again, having dropped the old one before.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    Error, Options, Result,
    association::{Association, Limits},
    error::Whole,
    namespace::{Opened, Openings},
    session::Identity,
    sync_queue::SyncQueue,
    transport::{Channel, Transport},
    wire::{event::AsynchronousEvent, identify::IdentifyController},
};

/// Stands for an association that will never be.
const NEVER: u64 = u64::MAX;

/// Events that nobody asked for are kept up to this many; then the oldest go.
const MAX_EVENTS: usize = 64;

/// The common ground of one controller.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) identity: Identity,
    pub(crate) options: Options,
    /// The association that is live; 0 when none is, [`NEVER`] when none will be.
    live: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
    /// The admin queue of the live association. Locked for as long as a command takes.
    admin: Mutex<Option<SyncQueue>>,
}

#[derive(Debug)]
struct State {
    /// The number of the latest association.
    latest: u64,
    /// Channels that their queues have not taken yet.
    channels: Vec<Option<Box<dyn Channel>>>,
    limits: Limits,
    identify: Arc<IdentifyController>,
    openings: Openings,
    /// Openings whose namespace is not what it was.
    stale: Vec<u32>,
    /// Why the latest association, or attempt at one, came to nothing.
    cause: Arc<Error>,
    /// Commands that took too long: queue and identifier.
    aborts: Vec<(u16, u16)>,
    events: VecDeque<AsynchronousEvent>,
    is_closed: bool,
}

impl State {
    /// The limits with the entries of this queue, which the target may have made fewer than those of all.
    fn limits_of(&self, queue: usize) -> Limits {
        match self.channels.get(queue) {
            Some(Some(channel)) => Limits { queue_entries: channel.entries(), ..self.limits },
            _ => self.limits,
        }
    }
}

/// What a queue gets when it follows to a new association.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) channel: Box<dyn Channel>,
    pub(crate) limits: Limits,
    /// Openings whose namespace is not what it was.
    pub(crate) stale: Vec<u32>,
}

/// What came of asking for the channel of a queue.
#[derive(Debug)]
pub(crate) enum Taken {
    Channel(Connected),
    /// The association has fewer queues.
    Missing,
    /// The association is not live any more.
    Outdated,
}

/// Whether there is an association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    /// This one.
    Live(u64),
    /// None now, and one may come.
    Waiting,
    /// None, for good.
    Over,
}

impl Shared {
    pub(crate) fn new(
        transport: Arc<dyn Transport>,
        identity: Identity,
        options: Options,
        first: Association,
    ) -> Self {
        let Association { admin, channels, limits, identify } = first;
        Self {
            transport,
            identity,
            options,
            live: AtomicU64::new(1),
            state: Mutex::new(State {
                latest: 1,
                channels: channels.into_iter().map(Some).collect(),
                limits,
                identify: Arc::new(identify),
                openings: Openings::default(),
                stale: Vec::new(),
                cause: Arc::new(Error::Closed),
                aborts: Vec::new(),
                events: VecDeque::new(),
                is_closed: false,
            }),
            changed: Condvar::new(),
            admin: Mutex::new(Some(admin)),
        }
    }

    /// Whether there is an association. One atomic load.
    pub(crate) fn liveness(&self) -> Liveness {
        match self.live.load(Ordering::Acquire) {
            0 => Liveness::Waiting,
            NEVER => Liveness::Over,
            number => Liveness::Live(number),
        }
    }

    /// Says that an association is lost; only the first to say so is heard.
    pub(crate) fn lose(&self, association: u64, cause: Error) {
        if association == 0 {
            // Whoever says so has let go of it already.
            return;
        }
        let mut state = self.state();
        let lost = self.live.compare_exchange(association, 0, Ordering::AcqRel, Ordering::Acquire);
        if lost.is_ok() {
            log::warn!("association {association} is lost: {}", Whole(&cause));
            state.cause = Arc::new(cause);
            state.aborts.clear();
            self.changed.notify_all();
        }
    }

    /// Puts a new association in place of the lost one.
    ///
    /// `stale` are the openings of namespaces that are not what they were.
    pub(crate) fn revive(&self, association: Association, stale: Vec<u32>) {
        let Association { admin, channels, limits, identify } = association;
        *self.admin() = Some(admin);
        let mut state = self.state();
        if state.is_closed {
            return;
        }
        state.latest += 1;
        state.channels = channels.into_iter().map(Some).collect();
        state.limits = limits;
        state.stale = stale;
        state.identify = Arc::new(identify);
        self.live.store(state.latest, Ordering::Release);
        self.changed.notify_all();
    }

    /// Says that an attempt at a new association failed.
    pub(crate) fn note_failure(&self, cause: Error) {
        self.state().cause = Arc::new(cause);
    }

    /// Gives up for good.
    pub(crate) fn end(&self) {
        let _state = self.state();
        self.live.store(NEVER, Ordering::Release);
        self.changed.notify_all();
    }

    /// Says that the user wants no more; the controller's thread ends.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        state.cause = Arc::new(Error::Closed);
        state.channels.clear();
        self.changed.notify_all();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    /// Takes the channel of a queue, counted from 0, if this association is the one that is live.
    pub(crate) fn take_channel(&self, queue: usize, association: u64) -> Taken {
        let mut state = self.state();
        if state.is_closed || self.liveness() != Liveness::Live(association) {
            return Taken::Outdated;
        }
        let (limits, stale) = (state.limits_of(queue), state.stale.clone());
        match state.channels.get_mut(queue).and_then(Option::take) {
            Some(channel) => Taken::Channel(Connected { channel, limits, stale }),
            None => Taken::Missing,
        }
    }

    /// What holds for one queue, counted from 0, that has not taken its channel yet.
    pub(crate) fn limits_of(&self, queue: usize) -> Limits {
        self.state().limits_of(queue)
    }

    /// Numbers what was opened through an association, if that is still live. The next one looks at the openings that
    /// there are by then, so that one that came later would never be looked at.
    pub(crate) fn number_opening(&self, association: u64, opened: Opened) -> Option<Opened> {
        let mut state = self.state();
        let is_live = self.liveness() == Liveness::Live(association);
        is_live.then(|| state.openings.number(opened))
    }

    /// The namespaces that were opened.
    pub(crate) fn opened_namespaces(&self) -> Vec<u32> {
        self.state().openings.namespaces()
    }

    /// The openings of a namespace that do not fit what it is now.
    pub(crate) fn stale_openings(&self, namespace: u32, now: Option<&Opened>) -> Vec<u32> {
        self.state().openings.stale(namespace, now)
    }

    /// How many associations there were, the latest one included.
    pub(crate) fn associations(&self) -> u64 {
        self.state().latest
    }

    /// How many queues the latest association has.
    pub(crate) fn queue_count(&self) -> usize {
        self.state().channels.len()
    }

    pub(crate) fn limits(&self) -> Limits {
        self.state().limits
    }

    pub(crate) fn identify(&self) -> Arc<IdentifyController> {
        Arc::clone(&self.state().identify)
    }

    /// Why there is no association.
    pub(crate) fn cause(&self) -> Arc<Error> {
        Arc::clone(&self.state().cause)
    }

    /// Asks the controller's thread to abort a command of this association. In another one the
    /// same identifier may be that of another command.
    pub(crate) fn ask_abort(&self, association: u64, queue: u16, command_id: u16) {
        let mut state = self.state();
        if self.liveness() == Liveness::Live(association) {
            state.aborts.push((queue, command_id));
            self.changed.notify_all();
        }
    }

    /// Commands to be aborted.
    pub(crate) fn take_aborts(&self) -> Vec<(u16, u16)> {
        std::mem::take(&mut self.state().aborts)
    }

    /// Keeps an event for whoever asks.
    pub(crate) fn add_event(&self, event: AsynchronousEvent) {
        let mut state = self.state();
        if state.events.len() == MAX_EVENTS {
            state.events.pop_front();
        }
        state.events.push_back(event);
        self.changed.notify_all();
    }

    pub(crate) fn take_event(&self) -> Option<AsynchronousEvent> {
        self.state().events.pop_front()
    }

    /// Waits until something changed, or this time has passed.
    pub(crate) fn wait(&self, at_most: Duration) {
        let state = self.state();
        let waited = self.changed.wait_timeout(state, at_most);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until something changed while there is nothing in `live` to do, or this time has
    /// passed; for whoever saw `expected` before.
    pub(crate) fn wait_while(&self, expected: Liveness, at_most: Duration) {
        let state = self.state();
        if self.liveness() == expected && !state.is_closed && state.aborts.is_empty() {
            let waited = self.changed.wait_timeout(state, at_most);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// The admin queue, once whoever uses it is done.
    pub(crate) fn admin(&self) -> MutexGuard<'_, Option<SyncQueue>> {
        self.admin.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The admin queue, if nobody uses it.
    pub(crate) fn try_admin(&self) -> Option<MutexGuard<'_, Option<SyncQueue>>> {
        match self.admin.try_lock() {
            Ok(guard) => Some(guard),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    /// Uses the admin queue of the live association; a failure of the connection ends it.
    pub(crate) fn with_admin<T>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&mut SyncQueue) -> Result<T>,
    ) -> Result<T> {
        let mut guard = self.admin();
        let (Liveness::Live(association), Some(admin)) = (self.liveness(), guard.as_mut()) else {
            return Err(self.no_association(operation));
        };
        match work(admin) {
            Err(error) if error.is_connection() => {
                // The answer to a command that took too long would be taken for another's.
                *guard = None;
                drop(guard);
                self.lose(association, error);
                Err(Error::ConnectionLost { operation, cause: self.cause() })
            }
            other => other,
        }
    }

    /// What to say of something that needs an association that is live.
    pub(crate) fn no_association(&self, operation: &'static str) -> Error {
        match self.liveness() {
            Liveness::Over => Error::Disconnected { cause: self.cause() },
            Liveness::Live(_) | Liveness::Waiting => {
                Error::ConnectionLost { operation, cause: self.cause() }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A thread that panicked left the state whole: every change is one assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Host, association,
        fake::{FakeTarget, subsystem},
        wire::{
            admin::IdentifyStructure, block_format::ProtectionType, identify::OptionalCommands,
        },
    };

    fn connected(target: &FakeTarget) -> (Shared, impl Fn() -> Association) {
        let identity = Identity {
            host: Host::random().unwrap(),
            subsystem: subsystem(),
            secret: None,
            controller_secret: None,
        };
        let (transport, options) = (target.transport(), Options::new());
        let establish = {
            let (transport, identity, options) =
                (Arc::clone(&transport), identity.clone(), options.clone());
            move || association::establish(&*transport, &identity, &options).unwrap()
        };
        (Shared::new(transport, identity, options, establish()), establish)
    }

    #[test]
    fn nothing_of_an_association_is_mistaken_for_that_of_the_next() {
        let target = FakeTarget::new(16);
        let (shared, establish) = connected(&target);
        shared.ask_abort(1, 1, 7);
        assert_eq!(shared.take_aborts(), [(1, 7)]);
        assert!(matches!(shared.take_channel(0, 1), Taken::Channel(_)));
        assert!(matches!(shared.take_channel(0, 1), Taken::Missing));

        shared.ask_abort(1, 1, 8);
        shared.lose(1, Error::Closed);
        shared.ask_abort(1, 1, 9);
        assert!(matches!(shared.take_channel(0, 1), Taken::Outdated));
        shared.revive(establish(), Vec::new());
        // A queue that did not look meanwhile.
        shared.ask_abort(1, 1, 10);
        shared.lose(1, Error::Closed);
        assert_eq!(shared.take_aborts(), []);
        assert!(matches!(shared.take_channel(0, 1), Taken::Outdated));
        assert!(matches!(shared.take_channel(0, 2), Taken::Channel(_)));
    }

    #[test]
    fn a_namespace_that_was_opened_through_a_lost_association_is_not_taken_for_one_of_the_next() {
        let target = FakeTarget::new(16);
        let (shared, establish) = connected(&target);
        let page = crate::fake::namespace(16, 9, 0, ProtectionType::NONE).to_bytes();
        let opened = Opened::read(1, OptionalCommands(0), &shared.limits(), |_, structure| {
            Ok(match structure {
                IdentifyStructure::NAMESPACE => page.clone(),
                _ => vec![0; 4096],
            })
        })
        .unwrap();
        assert!(shared.number_opening(1, opened.clone()).is_some());
        shared.lose(1, Error::Closed);
        assert!(shared.number_opening(1, opened.clone()).is_none());
        shared.revive(establish(), Vec::new());
        assert!(shared.number_opening(1, opened.clone()).is_none());
        assert!(shared.number_opening(2, opened).is_some());
        assert_eq!(shared.associations(), 2);
    }

    #[test]
    fn a_queue_that_follows_while_the_controller_is_closed_misses_nothing() {
        let (shared, _) = connected(&FakeTarget::new(16));
        shared.close();
        assert!(matches!(shared.take_channel(0, 1), Taken::Outdated));
    }
}
