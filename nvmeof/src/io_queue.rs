//! An I/O queue with one owner, who polls.

use std::{
    fmt,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crate::{
    Error, Memory, Namespace, Result,
    controller::Inner,
    engine::Engine,
    namespace::Geometry,
    ranges::Deallocation,
    request::{Kind, Operation},
    wire::nvm::{BlockFlags, Range},
};

/// An I/O queue of a controller that belongs to one owner.
///
/// Requests own their buffers, and give them back when they end. Neither submitting nor polling
/// waits, allocates, or takes a lock while the connection stands.
///
/// Dropping a queue with requests in flight gives up the controller's connection, since the
/// target could otherwise reach their buffers still; it is made anew for the others.
pub struct IoQueue<B> {
    inner: Arc<Inner>,
    index: usize,
    /// Always there, until the queue is given back.
    engine: Option<Engine>,
    requests: Vec<Option<(Ticket, Kind, Option<B>)>>,
    next_ticket: u64,
}

/// Names a request of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

/// A request that can be submitted.
#[derive(Debug)]
#[must_use]
pub struct Request<B> {
    geometry: Geometry,
    kind: Kind,
    first_block: u64,
    blocks: u64,
    buffer: Option<B>,
    ranges: Vec<Range>,
    flags: BlockFlags,
}

/// A request that ended.
#[derive(Debug)]
pub struct Finished<B> {
    /// Which one.
    pub ticket: Ticket,
    /// How.
    pub result: Result<()>,
    /// Its buffer, if it had one. Nothing reaches it any more.
    pub buffer: Option<B>,
}

#[cfg(feature = "tokio")]
impl<B> Finished<B> {
    /// What became of a request whose driver was dropped: nobody knows.
    pub(crate) fn lost() -> Self {
        let cause = Arc::new(Error::Closed);
        let result = Err(Error::OutcomeUnknown { operation: "a request", cause });
        Self { ticket: Ticket(u64::MAX), result, buffer: None }
    }
}

/// A request that was not taken, and why.
#[derive(Debug, thiserror::Error)]
#[error("a request was refused")]
pub struct Refused<B> {
    /// Why.
    #[source]
    pub error: Error,
    /// The request, unchanged.
    pub request: Request<B>,
}

impl<B> From<Refused<B>> for Error {
    fn from(refused: Refused<B>) -> Self {
        refused.error
    }
}

impl<B> Request<B> {
    /// Reads blocks from `first_block` on until `buffer` is full.
    pub fn read(namespace: &Namespace, first_block: u64, buffer: B) -> Self {
        Self { buffer: Some(buffer), ..Self::new(namespace, Kind::Read, first_block, 0) }
    }

    /// Writes all of `buffer` to the blocks from `first_block` on.
    pub fn write(namespace: &Namespace, first_block: u64, buffer: B) -> Self {
        Self { buffer: Some(buffer), ..Self::new(namespace, Kind::Write, first_block, 0) }
    }

    /// Compares all of `buffer` with the blocks from `first_block` on, and fails with
    /// [`Status::COMPARE_FAILURE`](crate::Status::COMPARE_FAILURE) if they differ.
    pub fn compare(namespace: &Namespace, first_block: u64, buffer: B) -> Self {
        Self { buffer: Some(buffer), ..Self::new(namespace, Kind::Compare, first_block, 0) }
    }

    /// Makes `blocks` blocks from `first_block` on read as zeros.
    pub fn write_zeroes(namespace: &Namespace, first_block: u64, blocks: u64) -> Self {
        Self::new(namespace, Kind::WriteZeroes, first_block, blocks)
    }

    /// Puts everything that was acknowledged before on non-volatile media.
    pub fn flush(namespace: &Namespace) -> Self {
        Self::new(namespace, Kind::Flush, 0, 0)
    }

    /// Tells the target that these ranges, 1 to 256, are not needed any more. Registers a page of
    /// memory when it is submitted; becomes several commands one after the other if the controller
    /// takes fewer ranges or blocks in one.
    pub fn deallocate(namespace: &Namespace, ranges: &[Range]) -> Self {
        Self { ranges: ranges.to_vec(), ..Self::new(namespace, Kind::Deallocate, 0, 0) }
    }

    /// Asks for the data to be on non-volatile media when the request ends (FUA); for writes, and
    /// for reads that must not come from a volatile cache.
    pub fn force_unit_access(mut self) -> Self {
        self.flags |= BlockFlags::FORCE_UNIT_ACCESS;
        self
    }

    /// The buffer of a request that is not wanted any more.
    pub fn into_buffer(self) -> Option<B> {
        self.buffer
    }

    fn new(namespace: &Namespace, kind: Kind, first_block: u64, blocks: u64) -> Self {
        Self {
            geometry: *namespace.geometry(),
            kind,
            first_block,
            blocks,
            buffer: None,
            ranges: Vec::new(),
            flags: BlockFlags::empty(),
        }
    }
}

impl<B: Memory> Request<B> {
    /// Checks the request against its namespace, and finds memory for what it brings along.
    fn prepare(&self, inner: &Inner) -> Result<(Operation, Option<Deallocation>)> {
        if let Some(buffer) = &self.buffer {
            let operation =
                self.geometry.with_data(self.kind, self.first_block, buffer, self.flags)?;
            if self.kind.sends_data() {
                inner.check_readable(buffer)?;
                buffer.before_device_reads()?;
            } else {
                inner.check_writable(buffer)?;
                buffer.before_device_writes()?;
            }
            return Ok((operation, None));
        }
        if self.kind == Kind::Deallocate {
            let (operation, ranges) = self.geometry.deallocation(&self.ranges, self.flags)?;
            let (operation, own) = inner.with_memory(operation, ranges)?;
            return Ok((operation, Some(own)));
        }
        let operation =
            self.geometry.without_data(self.kind, self.first_block, self.blocks, self.flags)?;
        Ok((operation, None))
    }
}

impl<B: Memory> IoQueue<B> {
    pub(crate) fn new(inner: Arc<Inner>, index: usize, engine: Engine) -> Self {
        let requests = std::iter::repeat_with(|| None).take(engine.places()).collect();
        Self { inner, index, engine: Some(engine), requests, next_ticket: 0 }
    }

    /// Commands that can be in flight at once; more requests wait their turn in the queue.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.engine.as_ref().map_or(0, Engine::depth)
    }

    /// Requests that were submitted and have not ended.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.engine.as_ref().map_or(0, Engine::pending)
    }

    /// Takes a request. Its commands leave with the next [`poll`](Self::poll) or
    /// [`wait`](Self::wait), so that several requests can leave together. Never waits.
    ///
    /// Requests are carried out in any order; one that depends on another is submitted when the
    /// other has ended.
    ///
    /// # Errors
    ///
    /// [`Refused`] with the request and [`Error::QueueFull`] if there is no place for it now,
    /// [`Error::Disconnected`] if there is no connection and never will be,
    /// [`Error::InvalidArgument`], [`Error::OutOfRange`] or [`Error::Unsupported`] if it does not
    /// fit its namespace, or its buffer is not registered for this controller.
    #[expect(clippy::result_large_err, reason = "the request goes back to its owner")]
    pub fn submit(&mut self, mut request: Request<B>) -> Result<Ticket, Refused<B>> {
        let Some(engine) = &mut self.engine else {
            return Err(Refused { error: Error::Closed, request });
        };
        let submitted = request.prepare(&self.inner).and_then(|(operation, own)| {
            let memory = request.buffer.as_ref().map(|buffer| -> &dyn Memory { buffer });
            engine.submit(operation, memory, own)
        });
        match submitted {
            Ok(slot) => {
                let ticket = Ticket(self.next_ticket);
                self.next_ticket += 1;
                if let Some(place) = self.requests.get_mut(slot) {
                    *place = Some((ticket, request.kind, request.buffer.take()));
                }
                Ok(ticket)
            }
            Err(error) => Err(Refused { error, request }),
        }
    }

    /// Sends what was submitted, and takes one request that ended, if there is one. Never waits.
    ///
    /// Requests end, in bounded time, only while somebody polls or waits.
    pub fn poll(&mut self) -> Option<Finished<B>> {
        let engine = self.engine.as_mut()?;
        if !engine.has_finished() {
            engine.poll();
        }
        let (slot, mut result) = engine.next_finished()?;
        let (ticket, kind, buffer) = self.requests.get_mut(slot)?.take()?;
        if kind == Kind::Read
            && let (Ok(()), Some(buffer)) = (&result, &buffer)
        {
            result = buffer.after_device_writes();
        }
        Some(Finished { ticket, result, buffer })
    }

    /// As [`poll`](Self::poll), and waits up to `at_most` for a request to end: polling for a while
    /// ([`Options::spin`](crate::Options::spin)), then asleep, which costs three system calls.
    /// Returns at once when nothing is pending.
    pub fn wait(&mut self, at_most: Duration) -> Option<Finished<B>> {
        // Looking at the clock can cost a system call, which what has come already saves.
        if let Some(finished) = self.poll() {
            return Some(finished);
        }
        let started = Instant::now();
        loop {
            let elapsed = started.elapsed();
            let left = at_most.checked_sub(elapsed)?;
            let engine = self.engine.as_mut()?;
            if engine.pending() == 0 {
                return None;
            }
            if elapsed < engine.spin() {
                thread::yield_now();
            } else {
                engine.wait(left);
            }
            if let Some(finished) = self.poll() {
                return Some(finished);
            }
        }
    }
}

#[cfg(feature = "tokio")]
impl<B: Memory> IoQueue<B> {
    /// Whether a request can be submitted now.
    pub(crate) fn has_room(&self) -> bool {
        self.engine.as_ref().is_some_and(Engine::has_room)
    }

    /// What waits for the next response; nothing while there is no connection.
    pub(crate) fn arm(&mut self) -> Option<Arc<dyn crate::transport::Waiter>> {
        self.engine.as_mut().and_then(Engine::arm)
    }

    /// How long to wait at most before the next poll.
    pub(crate) fn patience(&self) -> Duration {
        self.engine.as_ref().map_or(Duration::ZERO, Engine::patience)
    }
}

impl<B> Drop for IoQueue<B> {
    fn drop(&mut self) {
        let Some(mut engine) = self.engine.take() else { return };
        if engine.pending() > 0 {
            engine.abandon(engine.dropped());
        }
        // What is left is without a connection, or waits for one; nobody waits for its end.
        engine.forget_requests();
        self.inner.give_back(self.index, engine);
    }
}

impl<B> fmt::Debug for IoQueue<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoQueue").field("index", &self.index).finish_non_exhaustive()
    }
}
