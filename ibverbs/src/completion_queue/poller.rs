//! Polling extended completion queues: the fields that were asked for, timestamps among them.
//!
//! C's poller keeps the provider's lock from `ibv_start_poll` to `ibv_end_poll`, while its user looks at each completion.
//! A user who forgets the end, polls again or destroys a queue pair in between hangs for ever. So here the lock is
//! taken and given back inside of one call, which copies what it finds into room that the queue keeps.
#![expect(unsafe_code, reason = "calls the functions of an ibv_cq_ex")]

mod vendor;

use std::{
    fmt,
    ptr::{self, NonNull},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rdma_sys::ibv_cq_ex;

use super::CompletionQueue;
use crate::{CompletionFields, Error, ExtendedCompletion, Parent, Result, Verb};

/// How many completions are copied under one lock.
const ROOM: usize = 64;

/// What an extended queue has besides.
#[derive(Debug)]
pub(super) struct Extended {
    fields: CompletionFields,
    /// One completion for each start and end.
    one_by_one: bool,
    /// Here while nobody polls.
    found: Mutex<Option<Box<Found>>>,
}

/// Completions that were copied and not handed out yet.
#[derive(Debug)]
struct Found {
    fields: CompletionFields,
    entries: [ExtendedCompletion; ROOM],
    /// `entries[next..filled]` are still to be handed out.
    next: usize,
    filled: usize,
    /// What ended the last round, to be told when its completions are handed out; 0 if nothing did.
    failure: i32,
}

impl Extended {
    /// Looks once at what the provider filled, so that no entry that is null is ever called.
    pub(super) fn new(
        queue: &CompletionQueue<'_>,
        raw: NonNull<ibv_cq_ex>,
        fields: CompletionFields,
    ) -> Result<Self> {
        // SAFETY: a live extended queue, whose table does not change after creation.
        if !has_all(unsafe { raw.as_ref() }, fields) {
            return Err(Verb::new("ibv_create_cq_ex").unsupported());
        }
        // The software RoCE device of rdma-core 44 loses the completion that comes right after
        // ibv_next_poll has found none, so it is never asked for a next one. Nothing is lost by that:
        // what costs time there is the kernel.
        let one_by_one = queue.context().query_device()?.vendor_id() == SOFTWARE_ROCE;
        let entries = [ExtendedCompletion::new(fields); ROOM];
        let found = Box::new(Found { fields, entries, next: 0, filled: 0, failure: 0 });
        Ok(Self { fields, one_by_one, found: Mutex::new(Some(found)) })
    }
}

/// The vendor that the driver `rdma_rxe` gives its devices; no hardware has it.
const SOFTWARE_ROCE: u32 = 0x00ff_ffff;

/// Whether a queue has the entries that every one needs, and those of the fields asked for.
fn has_all(table: &ibv_cq_ex, fields: CompletionFields) -> bool {
    let always = table.start_poll.is_some()
        && table.next_poll.is_some()
        && table.end_poll.is_some()
        && table.read_opcode.is_some()
        && table.read_vendor_err.is_some()
        && table.read_wc_flags.is_some()
        && table.read_qp_num.is_some();
    let each = [
        (CompletionFields::BYTE_LENGTH, table.read_byte_len.is_some()),
        (CompletionFields::IMMEDIATE, table.read_imm_data.is_some()),
        (CompletionFields::SOURCE_QUEUE_PAIR, table.read_src_qp.is_some()),
        (CompletionFields::SOURCE_LID, table.read_slid.is_some()),
        (CompletionFields::SERVICE_LEVEL, table.read_sl.is_some()),
        (CompletionFields::PATH_BITS, table.read_dlid_path_bits.is_some()),
        (CompletionFields::TIMESTAMP, table.read_completion_ts.is_some()),
        (CompletionFields::WALL_CLOCK, table.read_completion_wallclock_ns.is_some()),
        (CompletionFields::VLAN, table.read_cvlan.is_some()),
        (CompletionFields::FLOW_TAG, table.read_flow_tag.is_some()),
    ];
    always && each.iter().all(|(field, there)| *there || !fields.contains(*field))
}

/// The poller of an extended completion queue. There is one at a time.
///
/// Dropping it leaves what it has not handed out for the next one.
pub struct Poller<'q> {
    /// An extended queue.
    queue: Parent<'q, CompletionQueue<'q>>,
    /// Of `queue`, to be put back; `None` never outside of drop.
    found: Option<Box<Found>>,
    one_by_one: bool,
}

impl CompletionQueue<'_> {
    /// Takes the poller of an extended queue. Takes a lock for a moment.
    ///
    /// Use [`Poller::of`] with an `Arc` for one that can be stored beside its queue.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the queue was made without [`fields`](crate::CompletionQueueBuilder::fields), and while
    /// somebody else has the poller.
    pub fn poller(&self) -> Result<Poller<'_>> {
        Poller::of(self)
    }

    /// What the poller of an extended queue reads; `None` for a classic queue.
    #[must_use]
    pub fn fields(&self) -> Option<CompletionFields> {
        self.extended.as_ref().map(|extended| extended.fields)
    }
}

impl<'q> Poller<'q> {
    /// Takes the poller of an extended queue, borrowed or shared.
    ///
    /// # Errors
    ///
    /// As for [`CompletionQueue::poller`].
    pub fn of(queue: impl Into<Parent<'q, CompletionQueue<'q>>>) -> Result<Self> {
        let queue = queue.into();
        let Some(extended) = &queue.extended else {
            return Err(Error::Invalid {
                what: "the completion queue is not an extended one".into(),
                remedy: "make it with `fields`, or take completions with `poll`",
            });
        };
        let one_by_one = extended.one_by_one;
        let found = extended.found.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(found) = found else {
            return Err(Error::Invalid {
                what: "somebody else has the poller of the completion queue".into(),
                remedy: "drop that first, or share it",
            });
        };
        Ok(Self { queue, found: Some(found), one_by_one })
    }

    /// The next completion, lent until the next call; `None` if nothing has finished.
    ///
    /// Never waits, never allocates. No lock is held when it returns, so that anything may be done with the
    /// queue and its queue pairs meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] if the queue itself broke. See `ibv_create_cq_ex(3)`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn wait(queue: &ibverbs::CompletionQueue<'_>) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut poller = queue.poller()?;
    /// while let Some(completion) = poller.next()? {
    ///     let work = completion.outcome()?;
    ///     println!("request {} finished at {:?}", completion.id(), work.wall_clock());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "ibv_start_poll")]
    #[doc(alias = "ibv_next_poll")]
    #[doc(alias = "ibv_end_poll")]
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot lend its items")]
    pub fn next(&mut self) -> Result<Option<&ExtendedCompletion>> {
        let Some(found) = self.found.as_mut() else { return Ok(None) };
        if found.next == found.filled {
            (found.next, found.filled) = (0, 0);
            found.filled = found.refill(&self.queue, self.one_by_one)?;
        }
        let entry = found.entries[..found.filled].get(found.next);
        found.next += usize::from(entry.is_some());
        Ok(entry)
    }

    /// As [`next`](Self::next), but hands out all that one look finds, at most 64, as a slice.
    ///
    /// # Errors
    ///
    /// As for [`next`](Self::next).
    #[inline]
    pub fn poll(&mut self) -> Result<&[ExtendedCompletion]> {
        let Some(found) = self.found.as_mut() else { return Ok(&[]) };
        if found.next < found.filled {
            return Ok(found.left());
        }
        let filled = found.refill(&self.queue, self.one_by_one)?;
        Ok(found.entries.get(..filled).unwrap_or_default())
    }

    /// As [`poll`](Self::poll), but waits for the first completion for up to `timeout`, in the way of
    /// [`CompletionQueue::wait`].
    ///
    /// # Errors
    ///
    /// As for [`next`](Self::next) and [`CompletionQueue::request_notification`].
    pub fn wait(&mut self, timeout: Duration) -> Result<&[ExtendedCompletion]> {
        let Some(found) = self.found.as_mut() else { return Ok(&[]) };
        if found.next == found.filled {
            (found.next, found.filled) = (0, 0);
            self.queue.wait_until(timeout, || {
                found.filled = found.refill(&self.queue, self.one_by_one)?;
                Ok(found.filled > 0)
            })?;
        }
        Ok(found.left())
    }

    /// The queue.
    #[must_use]
    pub fn queue(&self) -> &CompletionQueue<'q> {
        &self.queue
    }
}

impl Found {
    /// Hands out what is left of an earlier round.
    fn left(&mut self) -> &[ExtendedCompletion] {
        let from = std::mem::replace(&mut self.next, self.filled);
        self.entries.get(from..self.filled).unwrap_or_default()
    }

    /// Copies what has finished in the queue that this is of over the entries, all of which were handed out; how many it were.
    #[inline]
    fn refill(&mut self, queue: &CompletionQueue<'_>, one_by_one: bool) -> Result<usize> {
        self.tell_failure()?;
        let (cq, fields) = (queue.as_raw().cast::<ibv_cq_ex>(), self.fields);
        let copy = |entry: &mut ExtendedCompletion| {
            // SAFETY: on a completion, by the contract of `take`, and `has_all` saw the entries for `fields`.
            unsafe { entry.read(cq, fields) };
        };
        // SAFETY: a live extended queue, which `has_all` looked at.
        let (filled, ended) = unsafe { take(cq, one_by_one, &mut self.entries, copy) };
        self.note_end(filled, ended)?;
        Ok(filled)
    }

    /// The error that ended an earlier round after some completions.
    #[inline]
    fn tell_failure(&mut self) -> Result<()> {
        if self.failure == 0 { Ok(()) } else { failed(std::mem::take(&mut self.failure)) }
    }

    /// Tells what ended a round that found nothing, and keeps what ended another one too soon.
    #[inline]
    fn note_end(&mut self, filled: usize, ended: i32) -> Result<()> {
        if ended == 0 || ended == libc::ENOENT {
            return Ok(());
        }
        if filled == 0 {
            return failed(ended);
        }
        self.failure = ended;
        Ok(())
    }
}

#[cold]
fn failed(code: i32) -> Result<()> {
    Verb::new("ibv_start_poll").status(code)
}

/// Goes through what has finished, and lets `copy` fill a place of `room` from each: how many it were, and what start or next
/// returned last.
///
/// # Safety
///
/// `cq` is a live extended queue with the entries that every one needs. `copy` does nothing with it but read the
/// completion that it is on, by entries that it has, and does not panic: the provider's lock is held meanwhile.
#[inline]
unsafe fn take<T>(
    cq: *mut ibv_cq_ex,
    one_by_one: bool,
    room: &mut [T],
    copy: impl Fn(&mut T),
) -> (usize, i32) {
    if one_by_one {
        // SAFETY: by this function's contract.
        return unsafe { take_one_by_one(cq, room, copy) };
    }
    let Some((first, rest)) = room.split_first_mut() else { return (0, 0) };
    let mut attributes = rdma_sys::ibv_poll_cq_attr::default();
    // SAFETY: by this function's contract; no thread has it locked for longer than such a call.
    let started = unsafe { rdma_sys::ibv_start_poll(cq, &raw mut attributes) };
    if started != 0 {
        return (0, started);
    }
    copy(first);
    // SAFETY: by this function's contract, between start and end.
    let (more, ended) = unsafe { take_more(cq, rest, copy) };
    // SAFETY: by this function's contract, after a start that succeeded.
    unsafe { rdma_sys::ibv_end_poll(cq) };
    (1 + more, ended)
}

/// The completions after the one that the queue is on.
///
/// # Safety
///
/// As for [`take`], between start and end.
#[inline]
unsafe fn take_more<T>(cq: *mut ibv_cq_ex, room: &mut [T], copy: impl Fn(&mut T)) -> (usize, i32) {
    let size = room.len();
    let mut places = room.iter_mut();
    while let Some(place) = places.next() {
        // SAFETY: by this function's contract, on a completion.
        let ended = unsafe { rdma_sys::ibv_next_poll(cq) };
        if ended != 0 {
            return (size - places.len() - 1, ended);
        }
        copy(place);
    }
    (size, 0)
}

/// As [`take`], with a start and an end for each completion.
///
/// # Safety
///
/// As for [`take`].
#[inline(never)]
unsafe fn take_one_by_one<T>(
    cq: *mut ibv_cq_ex,
    room: &mut [T],
    copy: impl Fn(&mut T),
) -> (usize, i32) {
    let mut attributes = rdma_sys::ibv_poll_cq_attr::default();
    for (filled, place) in room.iter_mut().enumerate() {
        // SAFETY: by this function's contract; no thread has it locked for longer than such a call.
        let ended = unsafe { rdma_sys::ibv_start_poll(cq, &raw mut attributes) };
        if ended != 0 {
            return (filled, ended);
        }
        copy(place);
        // SAFETY: as above, after a start that succeeded.
        unsafe { rdma_sys::ibv_end_poll(cq) };
    }
    (room.len(), 0)
}

impl Drop for Poller<'_> {
    fn drop(&mut self) {
        if let Some(extended) = &self.queue.extended {
            let mut place = extended.found.lock().unwrap_or_else(PoisonError::into_inner);
            *place = self.found.take();
        }
    }
}

impl fmt::Debug for Poller<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller")
            .field("queue", &ptr::from_ref(self.queue()))
            .field("fields", &self.queue.fields())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use soft_device::SoftDevice;

    use super::*;
    use crate::{
        ConnectOptions, Context, DeviceSelector, Devices, ProtectionDomain, QueuePair, Rc, RecvWr,
        SendWr,
    };

    /// A device, a domain, an extended queue, and two queue pairs that report to it, the first of which sends.
    fn connected<V>(test: impl FnOnce(&SoftDevice, &mut Poller<'_>, &dyn Fn(u64)) -> V) -> V {
        let device = SoftDevice::new();
        let devices = Devices::of(soft_device::library()).unwrap();
        let context: Context = devices.by_name(device.name()).unwrap().open().unwrap();
        let port = context.local_port(&DeviceSelector::default()).unwrap();
        let domain: ProtectionDomain<'_> = context.allocate_protection_domain().unwrap();
        let fields = CompletionFields::empty();
        let queue = context.completion_queue(256).fields(fields).create().unwrap();
        let silent = context.create_completion_queue(256).unwrap();
        let pair = |queue| {
            let builder = domain.queue_pair::<Rc>(queue, queue);
            builder.max_send_requests(128).max_receive_requests(128).create().unwrap()
        };
        let (a, b) = (pair(&queue), pair(&silent));
        let (to_a, to_b) = (a.endpoint(&port), b.endpoint(&port));
        let a: QueuePair<'_, Rc> = a.connect(&to_b, &ConnectOptions::new(&port)).unwrap();
        let b = b.connect(&to_a, &ConnectOptions::new(&port)).unwrap();
        let send = |count| {
            for id in 0..count {
                b.post_receive(&mut [RecvWr::new(0)]).unwrap();
                a.post_send(&mut [SendWr::send(&[]).id(id).signaled()]).unwrap();
            }
        };
        test(&device, &mut queue.poller().unwrap(), &send)
    }

    #[test]
    fn a_queue_that_is_asked_for_one_at_a_time_gives_as_many_and_no_next_one() {
        for count in [1, 63, 64, 65, 128] {
            connected(|device, poller, send| {
                poller.one_by_one = true;
                send(count);
                for expected in 0..count {
                    assert_eq!(poller.next().unwrap().unwrap().id(), expected);
                }
                assert!(poller.next().unwrap().is_none());
                assert_eq!(device.calls("ibv_next_poll"), 0);
            });
        }
    }

    #[test]
    fn a_failure_after_some_is_told_once_behind_them() {
        for one_by_one in [false, true] {
            connected(|device, poller, send| {
                poller.one_by_one = one_by_one;
                send(4);
                let verb = if one_by_one { "ibv_start_poll" } else { "ibv_next_poll" };
                device.refuse(verb, 3 - u64::from(!one_by_one), libc::EIO);
                assert_eq!(poller.poll().unwrap().len(), 2);
                assert_eq!(poller.poll().unwrap_err().errno(), Some(libc::EIO));
                assert_eq!(poller.poll().unwrap().len(), 2);
                assert!(poller.poll().unwrap().is_empty());
            });
        }
    }

    #[test]
    fn what_was_left_fills_the_room_of_a_vendor_first() {
        connected(|_, poller, send| {
            send(5);
            assert_eq!(poller.next().unwrap().unwrap().id(), 0);
            let make =
                |entry: ExtendedCompletion, on: Option<*mut ibv_cq_ex>| (entry.id(), on.is_some());
            let mut room = [(0, true); 3];
            // SAFETY: `make` looks at what was copied.
            assert_eq!(unsafe { poller.poll_with(&mut room, make) }.unwrap(), 3);
            assert_eq!(room, [(1, false), (2, false), (3, false)]);
            send(2);
            // SAFETY: as above.
            assert_eq!(unsafe { poller.poll_with(&mut room, make) }.unwrap(), 1);
            assert_eq!(room[0], (4, false));
            // SAFETY: as above.
            assert_eq!(unsafe { poller.poll_with(&mut room, make) }.unwrap(), 2);
            assert_eq!(room[..2], [(0, true), (1, true)]);
        });
    }
}
