//! The I/O queues of a controller: shared by whoever blocks, or taken by one owner.
//!
//! Threads that block on one queue take turns. Whoever has the lock polls for all; when there is
//! nothing to poll, one thread waits for the device with the lock released, and the others wait
//! for that thread.

use std::{
    cell::Cell,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use crate::{
    Error, Memory, Result, engine::Engine, ranges::Deallocation, request::Operation, shared::Shared,
};

/// All I/O queues of one controller.
#[derive(Debug)]
pub(crate) struct Pool {
    queues: Vec<Queue>,
}

#[derive(Debug)]
struct Queue {
    state: Mutex<State>,
    /// Told when a request ended, or when the thread that waits came back.
    arrived: Condvar,
}

#[derive(Debug)]
struct State {
    /// Away while it has an owner.
    engine: Option<Engine>,
    /// Whether a thread waits for the device.
    is_waited_for: bool,
}

impl Pool {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        let queues = (0..shared.queue_count())
            .map(|index| Queue {
                state: Mutex::new(State {
                    engine: Some(Engine::new(Arc::clone(shared), index)),
                    is_waited_for: false,
                }),
                arrived: Condvar::new(),
            })
            .collect();
        Self { queues }
    }

    /// How many queues there are, taken ones included.
    pub(crate) fn len(&self) -> usize {
        self.queues.len()
    }

    /// Takes the first queue that nobody else took and nobody blocks on. Gives its index too.
    pub(crate) fn take(&self) -> Option<(usize, Engine)> {
        self.queues.iter().enumerate().find_map(|(index, queue)| {
            let mut state = queue.lock();
            // A request that ended is its thread's until that has come for the result.
            let is_usable = |engine: &mut Engine| engine.is_unused() && engine.is_granted();
            let is_usable = state.engine.as_mut().is_some_and(is_usable);
            (is_usable && !state.is_waited_for)
                .then(|| state.engine.take())
                .flatten()
                .map(|engine| (index, engine))
        })
    }

    /// Gives a queue back.
    pub(crate) fn give_back(&self, index: usize, engine: Engine) {
        if let Some(queue) = self.queues.get(index) {
            queue.lock().engine = Some(engine);
            queue.arrived.notify_all();
        }
    }

    /// Runs one request to its end, on a queue that belongs to this thread as far as possible.
    pub(crate) fn run(
        &self,
        operation: Operation,
        memory: Option<&dyn Memory>,
        own: Option<Deallocation>,
    ) -> Result<()> {
        let start = thread_number() % self.queues.len().max(1);
        let order = self.queues.iter().cycle().skip(start).take(self.queues.len());
        for queue in order {
            if let Some(state) = queue.wait_for_room() {
                return queue.run(state, operation, memory, own);
            }
        }
        if self.queues.is_empty() {
            return Err(no_queues());
        }
        Err(Error::Unsupported {
            what: "a blocking call",
            reason: "every I/O queue that the controller has is taken; ask for more with \
                     Options::io_queues, or submit to one that was taken",
        })
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The engine keeps its own laws at every point where a thread could have panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a request can be submitted; nothing if the queue has an owner by then, or is not
    /// there since the connection was made anew.
    fn wait_for_room(&self) -> Option<MutexGuard<'_, State>> {
        let since = Instant::now();
        let mut state = self.lock();
        loop {
            let engine = state.engine.as_mut()?;
            if !engine.is_granted() {
                return None;
            }
            if engine.has_room() {
                return Some(state);
            }
            state = self.make_progress(state, since);
        }
    }

    fn run<'queue>(
        &'queue self,
        mut state: MutexGuard<'queue, State>,
        operation: Operation,
        memory: Option<&dyn Memory>,
        own: Option<Deallocation>,
    ) -> Result<()> {
        // An engine with a request on it is not given away, so it is here.
        let gone = || Error::Closed;
        let slot = state.engine.as_mut().ok_or_else(gone)?.submit(operation, memory, own)?;
        let since = Instant::now();
        loop {
            let engine = state.engine.as_mut().ok_or_else(gone)?;
            if let Some(result) = engine.take(slot) {
                drop(state);
                self.arrived.notify_all();
                return result;
            }
            state = self.make_progress(state, since);
        }
    }

    /// Polls, and waits if there is nothing and the time to spin, counted from `since`, is over.
    /// Returns when a request may have ended.
    fn make_progress<'queue>(
        &'queue self,
        mut state: MutexGuard<'queue, State>,
        since: Instant,
    ) -> MutexGuard<'queue, State> {
        let is_waited_for = state.is_waited_for;
        let Some(engine) = state.engine.as_mut() else { return state };
        if engine.has_finished() {
            // Somebody else's: let them have the lock.
            drop(state);
            self.arrived.notify_all();
            thread::yield_now();
            return self.lock();
        }
        engine.poll();
        if engine.has_finished() {
            return state;
        }
        if since.elapsed() < engine.spin() {
            drop(state);
            thread::yield_now();
            return self.lock();
        }
        let patience = engine.patience();
        if is_waited_for {
            let waited = self.arrived.wait_timeout(state, patience);
            return waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let waiter = engine.arm();
        engine.poll();
        if engine.has_finished() {
            return state;
        }
        let shared = Arc::clone(engine.shared());
        state.is_waited_for = true;
        drop(state);
        let waited = match waiter {
            Some(waiter) => waiter.wait(patience),
            None => {
                shared.wait_while(shared.liveness(), patience);
                Ok(())
            }
        };
        let mut state = self.lock();
        state.is_waited_for = false;
        if let (Err(error), Some(engine)) = (waited, state.engine.as_mut()) {
            engine.abandon(error);
        }
        self.arrived.notify_all();
        state
    }
}

/// Why there is nothing to send a request on.
pub(crate) fn no_queues() -> Error {
    Error::Unsupported {
        what: "an I/O request",
        reason: "the controller has no I/O queue: none was asked for (Options::io_queues), or it is one for \
                 discovery or administration",
    }
}

/// A number that stays with a thread, so that threads spread over the queues evenly.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
    }
    NUMBER.with(|number| match number.get() {
        Some(number) => number,
        None => {
            let new = NEXT.fetch_add(1, Ordering::Relaxed);
            number.set(Some(new));
            new
        }
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        Host, Options, association,
        fake::{FakeTarget, subsystem},
        request::{Kind, tests::operation},
        session::Identity,
    };

    #[test]
    fn a_queue_with_a_result_that_its_thread_did_not_take_is_not_given_away() {
        let target = FakeTarget::new(16);
        let identity = Identity {
            host: Host::random().unwrap(),
            subsystem: subsystem(),
            secret: None,
            controller_secret: None,
        };
        let options = Options::new().io_queues(1);
        let transport = target.transport();
        let first = association::establish(&*transport, &identity, &options).unwrap();
        let shared = Arc::new(Shared::new(transport, identity, options, first));
        let pool = Pool::new(&shared);
        let flush = operation(Kind::Flush, 0);
        let slot = {
            let mut state = pool.queues[0].lock();
            let engine = state.engine.as_mut().unwrap();
            let slot = engine.submit(flush, None, None).unwrap();
            // As when another thread polls for the one that waits.
            let started = Instant::now();
            while !engine.has_finished() {
                engine.poll();
                assert!(started.elapsed() < Duration::from_secs(20));
            }
            assert_eq!(engine.pending(), 0);
            slot
        };
        assert!(pool.take().is_none());
        pool.queues[0].lock().engine.as_mut().unwrap().take(slot).unwrap().unwrap();
        assert!(pool.take().is_some());
    }
}
