//! Polling queues that tell what only EFA knows.
#![expect(unsafe_code, reason = "reads the current completion of an efadv_cq")]

use std::{fmt, ptr::NonNull, time::Duration};

use ibverbs::{
    CompletionQueue, CompletionStatus, ExtendedCompletion, ExtendedWork, Gid, Operation, Parent,
};

use crate::{EfaCapabilities, Failure, Result, error::efa_verb, query_device};

/// How many completions one look copies at most.
const ROOM: usize = 32;

/// One finished work request of a queue of this crate, copied out.
#[derive(Clone, Copy, Default)]
pub struct EfaCompletion {
    common: ExtendedCompletion,
    sender: Option<Gid>,
    unsolicited: Option<bool>,
}

impl EfaCompletion {
    /// The number that the request was given; none that says anything for an
    /// [unsolicited](Self::is_unsolicited) one.
    #[must_use]
    #[inline]
    pub const fn id(&self) -> u64 {
        self.common.id()
    }

    /// How it went.
    #[must_use]
    #[inline]
    pub const fn status(&self) -> CompletionStatus {
        self.common.status()
    }

    /// What the request did, or why it failed.
    ///
    /// # Errors
    ///
    /// [`Failure`] with EFA's own status.
    #[inline]
    pub fn outcome(&self) -> Result<ExtendedWork<'_>, Failure> {
        self.common.outcome().map_err(Failure::from)
    }

    /// The GID of the sender, for a receive whose sender has no address handle on this side. `None` for a sender that
    /// has one, which the [source lid](ExtendedWork::source_lid) names then, for everything else, and for a queue
    /// without [`sender_gids`](crate::CompletionQueueBuilder::sender_gids).
    #[must_use]
    #[doc(alias = "efadv_wc_read_sgid")]
    pub const fn sender_gid(&self) -> Option<Gid> {
        self.sender
    }

    /// Whether this is a write with immediate that took no posted receive; `None` for a queue without
    /// [`unsolicited`](crate::CompletionQueueBuilder::unsolicited).
    #[must_use]
    #[doc(alias = "efadv_wc_is_unsolicited")]
    pub const fn is_unsolicited(&self) -> Option<bool> {
        self.unsolicited
    }
}

impl fmt::Debug for EfaCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EfaCompletion")
            .field("outcome", &self.outcome())
            .field("sender_gid", &self.sender)
            .field("is_unsolicited", &self.unsolicited)
            .finish()
    }
}

/// The poller of a queue of this crate. There is one at a time, and none of plain verbs beside it.
pub struct Poller<'q> {
    inner: ibverbs::Poller<'q>,
    own: Own,
    found: Box<[EfaCompletion; ROOM]>,
}

/// The queue of `inner`, as libefa sees it.
#[derive(Clone, Copy)]
struct Own {
    queue: NonNull<rdma_sys::efadv_cq>,
    /// Whether the library's table has the entry for unsolicited writes. That of rdma-core 44 ends before it, and other
    /// things are in its place; a library that knows of the capability has it.
    knows_unsolicited: bool,
}

impl<'q> Poller<'q> {
    /// Takes the poller of an extended queue of an EFA device, borrowed or shared (`&Arc<…>`). Allocates.
    ///
    /// # Errors
    ///
    /// [`Error::NotEfa`](crate::Error::NotEfa) for a device of another vendor; [`Error::Verbs`](crate::Error::Verbs) with
    /// [`Invalid`](ibverbs::Error::Invalid) if the queue is not an extended one, and while somebody else has the poller.
    #[doc(alias = "efadv_cq_from_ibv_cq_ex")]
    pub fn of(queue: impl Into<Parent<'q, CompletionQueue<'q>>>) -> Result<Self> {
        let inner = ibverbs::Poller::of(queue)?;
        let context = inner.queue().context();
        let capabilities = query_device(context)?.capabilities();
        let (verb, view) = efa_verb!(context.library(), efadv_cq_from_ibv_cq_ex)?;
        // SAFETY: an extended queue, of a device of libefa's.
        let queue = verb.object(unsafe { view(inner.queue().as_raw().cast()) })?;
        let knows_unsolicited = capabilities.contains(EfaCapabilities::UNSOLICITED_WRITE_RECV);
        let own = Own { queue, knows_unsolicited };
        Ok(Self { inner, own, found: Box::new([EfaCompletion::default(); ROOM]) })
    }

    /// All that one look finds, at most 32, lent until the next call; empty if nothing has finished.
    ///
    /// Never waits, never allocates. No lock is held when it returns.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`](crate::Error::Verbs) if the queue itself broke. See `efadv_create_cq(3)`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn look(queue: &efa::ibverbs::CompletionQueue<'_>) -> efa::Result<()> {
    /// let mut poller = efa::Poller::of(queue)?;
    /// for completion in poller.poll()? {
    ///     let work = completion.outcome()?;
    ///     println!("{:?} bytes from {:?}", work.byte_length(), completion.sender_gid());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn poll(&mut self) -> Result<&[EfaCompletion]> {
        let own = self.own;
        // SAFETY: `read` only reads the completion that the queue is on, and does not panic.
        let filled = unsafe {
            self.inner
                .poll_with(self.found.as_mut_slice(), |common, on| own.read(common, on.is_some()))
        }?;
        Ok(self.found.get(..filled).unwrap_or_default())
    }

    /// As [`poll`](Self::poll), but waits for the first completion for up to `timeout`, in the way of
    /// [`CompletionQueue::wait`].
    ///
    /// # Errors
    ///
    /// As for [`poll`](Self::poll), and if the queue has no channel.
    pub fn wait(&mut self, timeout: Duration) -> Result<&[EfaCompletion]> {
        let own = self.own;
        let room = self.found.as_mut_slice();
        // SAFETY: as for `poll`.
        let filled = unsafe {
            self.inner.wait_with(timeout, room, |common, on| own.read(common, on.is_some()))
        }?;
        Ok(self.found.get(..filled).unwrap_or_default())
    }

    /// The queue.
    #[must_use]
    pub fn queue(&self) -> &CompletionQueue<'q> {
        self.inner.queue()
    }
}

impl Own {
    /// Adds what EFA tells of a completion, if the queue is on it.
    #[inline]
    fn read(self, common: ExtendedCompletion, is_on: bool) -> EfaCompletion {
        let mut completion = EfaCompletion { common, ..EfaCompletion::default() };
        let received =
            common.outcome().is_ok_and(|work| work.operation().is_some_and(Operation::is_receive));
        if is_on && received {
            completion.sender = self.sender();
            completion.unsolicited = self.unsolicited();
        }
        completion
    }

    /// Only while the queue is on a receive: of a send the provider would read past its entry.
    fn sender(self) -> Option<Gid> {
        // SAFETY: the queue is held by the poller; its table does not change after creation.
        unsafe { self.queue.as_ref() }.wc_read_sgid?;
        let mut gid = rdma_sys::ibv_gid { raw: [0; 16] };
        // SAFETY: the entry is there, the queue is on a receive, and `gid` is a valid place.
        let returned = unsafe { rdma_sys::efadv_wc_read_sgid(self.queue.as_ptr(), &raw mut gid) };
        // SAFETY: every member of the union is plain bytes, all of them set.
        let gid = Gid(unsafe { gid.raw });
        (returned == 0).then_some(gid)
    }

    /// Only while the queue is on a completion.
    fn unsolicited(self) -> Option<bool> {
        if !self.knows_unsolicited {
            return None;
        }
        // SAFETY: the queue is held by the poller; its table has this entry and does not change after creation.
        unsafe { self.queue.as_ref() }.wc_is_unsolicited?;
        // SAFETY: the entry is there, and the queue is on a completion.
        Some(unsafe { rdma_sys::efadv_wc_is_unsolicited(self.queue.as_ptr()) })
    }
}

impl fmt::Debug for Poller<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Poller").field(&self.inner).finish()
    }
}

// SAFETY: the pointer leads to the queue, which may be used from many threads, ibv_alloc_td(3).
unsafe impl Send for Own {}
// SAFETY: as for `Send`; nothing is changed through `&self`.
unsafe impl Sync for Own {}
