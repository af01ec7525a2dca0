//! Extended reliable connections: one connection per pair of processes and host, instead of one per pair of
//! processes. The receiving end delivers to any shared receive queue of its XRC domain.
#![expect(unsafe_code, reason = "owns an ibv_xrcd")]

use std::{
    ops::Deref,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::NonNull,
};

use crate::{
    CompletionQueue, Context, Error, Parent, ProtectionDomain, Result, SharedReceiveQueue,
    SharedReceiveQueueNumber, SharedReceiveQueueOptions, Verb,
};

/// What the shared receive queues and the receiving ends of extended connections have in common. Processes can
/// share one.
#[derive(Debug)]
pub struct XrcDomain<'a> {
    /// From `ibv_open_xrcd` on `context`; freed only by drop.
    raw: NonNull<rdma_sys::ibv_xrcd>,
    context: Parent<'a, Context>,
}

impl<'a> XrcDomain<'a> {
    /// Opens a domain of this process alone. Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`], or [`Error::Verb`] with `EOPNOTSUPP` or `ENOSYS`, if the device has no extended connections. See
    /// `ibv_open_xrcd(3)`.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open(context: impl Into<Parent<'a, Context>>) -> Result<Self> {
        Self::open_with(context.into(), -1)
    }

    /// Opens the domain that belongs to a file, and makes it if nobody has yet. Processes that open it by the same file
    /// share it; the file may be closed afterwards. Enters the kernel.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open_shared(
        context: impl Into<Parent<'a, Context>>,
        file: BorrowedFd<'_>,
    ) -> Result<Self> {
        Self::open_with(context.into(), file.as_raw_fd())
    }

    fn open_with(context: Parent<'a, Context>, fd: i32) -> Result<Self> {
        let verb = Verb::new("ibv_open_xrcd");
        let mut attributes = rdma_sys::ibv_xrcd_init_attr {
            comp_mask: rdma_sys::IBV_XRCD_INIT_ATTR_FD | rdma_sys::IBV_XRCD_INIT_ATTR_OFLAGS,
            fd,
            oflags: libc::O_CREAT,
        };
        // SAFETY: the context is held, and the struct is read in this call only.
        let raw = unsafe { rdma_sys::ibv_open_xrcd(context.as_raw(), &raw mut attributes) };
        Ok(Self { raw: verb.object(verb.find(raw)?)?, context })
    }

    /// The device it belongs to.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The C object, valid as long as this is.
    #[must_use]
    pub fn as_raw(&self) -> *mut rdma_sys::ibv_xrcd {
        self.raw.as_ptr()
    }
}

impl Drop for XrcDomain<'_> {
    fn drop(&mut self) {
        // SAFETY: `raw` is live, and nothing reads it after this. While a leaked child is left the call is
        // refused, ibv_open_xrcd(3).
        if let Some(returned) = unsafe { rdma_sys::ibv_close_xrcd(self.as_raw()) } {
            Verb::new("ibv_close_xrcd").log_refusal(returned);
        }
    }
}

// SAFETY: verbs objects are by default safe to use from many threads, ibv_alloc_td(3).
unsafe impl Send for XrcDomain<'_> {}
// SAFETY: as for `Send`; nothing is changed through `&self`.
unsafe impl Sync for XrcDomain<'_> {}

/// A shared receive queue of an XRC domain: initiators name it in each message.
///
/// Dereferences to [`SharedReceiveQueue`] for posting. Its receives complete in a queue of its own.
#[derive(Debug)]
pub struct XrcReceiveQueue<'a> {
    /// Dropped before what it was made from.
    queue: SharedReceiveQueue<'a>,
    number: SharedReceiveQueueNumber,
    completion_queue: Parent<'a, CompletionQueue<'a>>,
    xrc_domain: Parent<'a, XrcDomain<'a>>,
}

impl<'a> XrcReceiveQueue<'a> {
    /// Makes a queue in an XRC domain, whose memory is of a protection domain, each borrowed or shared (`&Arc<…>`). Enters the
    /// kernel, allocates.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the device has none; [`Error::Invalid`] if the objects are of different contexts;
    /// [`Error::OutOfRange`] for receives without segments; [`Error::Verb`]
    /// otherwise. See `ibv_create_srq_ex(3)`.
    #[doc(alias = "ibv_create_srq_ex")]
    #[doc(alias = "ibv_get_srq_num")]
    pub fn create(
        domain: impl Into<Parent<'a, ProtectionDomain<'a>>>,
        xrc_domain: impl Into<Parent<'a, XrcDomain<'a>>>,
        completion_queue: impl Into<Parent<'a, CompletionQueue<'a>>>,
        options: SharedReceiveQueueOptions,
    ) -> Result<Self> {
        let domain = domain.into();
        let (xrc_domain, completion_queue) = (xrc_domain.into(), completion_queue.into());
        let context = domain.context().as_raw();
        if [xrc_domain.context().as_raw(), completion_queue.context().as_raw()] != [context; 2] {
            return Err(Error::Invalid {
                what: "the domains and the completion queue are of different contexts".into(),
                remedy: "make all of them from one `Context`",
            });
        }
        let verb = Verb::new("ibv_create_srq_ex");
        let mut attributes = rdma_sys::ibv_srq_init_attr_ex {
            attr: options.to_raw()?,
            comp_mask: rdma_sys::IBV_SRQ_INIT_ATTR_TYPE
                | rdma_sys::IBV_SRQ_INIT_ATTR_PD
                | rdma_sys::IBV_SRQ_INIT_ATTR_XRCD
                | rdma_sys::IBV_SRQ_INIT_ATTR_CQ,
            srq_type: rdma_sys::IBV_SRQT_XRC,
            pd: domain.as_raw(),
            xrcd: xrc_domain.as_raw(),
            cq: completion_queue.as_raw(),
            ..Default::default()
        };
        // SAFETY: everything that the struct names is held.
        let raw = unsafe { rdma_sys::ibv_create_srq_ex(context, &raw mut attributes) };
        let raw = verb.object(verb.find(raw)?)?;
        // SAFETY: just made in this domain.
        let queue = unsafe { SharedReceiveQueue::from_new(raw, attributes.attr.max_sge, domain) }?;
        let verb = Verb::new("ibv_get_srq_num");
        let mut number = 0;
        // SAFETY: the queue is live, and `number` is a valid place.
        let returned = unsafe { rdma_sys::ibv_get_srq_num(queue.as_raw(), &raw mut number) };
        verb.status(verb.find(returned)?)?;
        let number = SharedReceiveQueueNumber(number);
        Ok(Self { queue, number, completion_queue, xrc_domain })
    }

    /// Its number, which peers name in their messages.
    #[must_use]
    pub fn number(&self) -> SharedReceiveQueueNumber {
        self.number
    }

    /// The queue where its receives complete.
    #[must_use]
    pub fn completion_queue(&self) -> &CompletionQueue<'a> {
        &self.completion_queue
    }

    /// The XRC domain it belongs to.
    #[must_use]
    pub fn xrc_domain(&self) -> &XrcDomain<'a> {
        &self.xrc_domain
    }
}

impl<'a> Deref for XrcReceiveQueue<'a> {
    type Target = SharedReceiveQueue<'a>;

    fn deref(&self) -> &SharedReceiveQueue<'a> {
        &self.queue
    }
}
