//! Completion queues that tell what only EFA knows, and queues in memory of the caller.
#![expect(unsafe_code, reason = "calls efadv_create_cq")]

use std::{
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
    ptr::NonNull,
};

use ibverbs::{CompletionChannel, CompletionFields, CompletionQueue, Context, Parent};

use crate::{
    EfaCapabilities, Result,
    error::{efa_verb, with_remedy},
    length_of, query_device,
};

/// Begins a queue for at least `capacity` completions on a context, borrowed (`&context`) or shared
/// (`&Arc<Context>`).
///
/// Queue pairs take it as any other completion queue. What it tells besides is read by a
/// [`Poller`](crate::Poller) of this crate; [`CompletionQueue::poll`] leaves that out.
pub fn completion_queue<'a>(
    context: impl Into<Parent<'a, Context>>,
    capacity: u32,
) -> CompletionQueueBuilder<'a> {
    CompletionQueueBuilder {
        context: context.into(),
        capacity,
        channel: None,
        vector: 0,
        fields: CompletionFields::OPERATION
            | CompletionFields::BYTE_LENGTH
            | CompletionFields::IMMEDIATE
            | CompletionFields::QUEUE_PAIR
            | CompletionFields::SOURCE_QUEUE_PAIR
            | CompletionFields::SOURCE_LID,
        sender_gids: false,
        unsolicited: false,
        memory: None,
    }
}

/// How large a completion queue of EFA should be, and what its completions should tell.
#[derive(Debug)]
#[must_use = "nothing is made before `create`"]
pub struct CompletionQueueBuilder<'a> {
    context: Parent<'a, Context>,
    capacity: u32,
    channel: Option<Parent<'a, CompletionChannel<'a>>>,
    vector: u32,
    fields: CompletionFields,
    sender_gids: bool,
    unsolicited: bool,
    memory: Option<rdma_sys::efadv_cq_init_attr__bindgen_ty_1>,
}

/// A part of a dma-buf for a completion queue, and where this process has it mapped.
#[derive(Debug, Clone, Copy)]
pub struct QueueMemory<'fd> {
    /// The dma-buf. The kernel holds it while the queue exists, so that the descriptor may be closed.
    pub fd: BorrowedFd<'fd>,
    /// Where in the dma-buf the queue starts, in bytes.
    pub offset: u64,
    /// The length of the part in bytes.
    pub length: u64,
    /// Where the part is mapped.
    pub mapped: NonNull<u8>,
}

impl<'a> CompletionQueueBuilder<'a> {
    /// Where it raises its events, borrowed or shared. Without one it cannot be waited for.
    pub fn channel(mut self, channel: impl Into<Parent<'a, CompletionChannel<'a>>>) -> Self {
        self.channel = Some(channel.into());
        self
    }

    /// Which of the device's interrupt vectors its events use; 0 if not set.
    #[doc(alias = "comp_vector")]
    pub fn vector(mut self, vector: u32) -> Self {
        self.vector = vector;
        self
    }

    /// The fields of plain verbs that its poller reads. If not set: length, immediate, queue pair, and the sender's queue
    /// pair and [address handle number](crate::address_handle_number) (as source lid). EFA has no others but the
    /// service level.
    #[doc(alias = "wc_flags")]
    pub fn fields(mut self, fields: CompletionFields) -> Self {
        self.fields = fields | CompletionFields::QUEUE_PAIR | CompletionFields::OPERATION;
        self
    }

    /// Tells the GID of senders that have no address handle on the receiving side.
    #[doc(alias = "EFADV_WC_EX_WITH_SGID")]
    pub fn sender_gids(mut self) -> Self {
        self.sender_gids = true;
        self
    }

    /// Tells which receives were writes with immediate that took no posted receive, for queue pairs with
    /// [`unsolicited_write_receives`](crate::QueuePairBuilder::unsolicited_write_receives).
    #[doc(alias = "EFADV_WC_EX_WITH_IS_UNSOLICITED")]
    pub fn unsolicited(mut self) -> Self {
        self.unsolicited = true;
        self
    }

    /// Puts the queue into memory of the caller, such as that of a GPU. The device must reach it in one piece:
    /// physically contiguous, unless an IOMMU makes it so, and as long as the rounded capacity times the size of
    /// an entry, 32 bytes, times the parts that the device divides a queue into, usually 1.
    ///
    /// # Safety
    ///
    /// `mapped` maps the named part of the dma-buf until the queue is dropped, zeroed now, and nobody else
    /// writes to it meanwhile. The descriptor stays open until [`create`](Self::create) has returned.
    #[doc(alias = "EFADV_CQ_INIT_FLAGS_EXT_MEM_DMABUF")]
    pub unsafe fn memory(mut self, memory: QueueMemory<'_>) -> Self {
        let QueueMemory { fd, offset, length, mapped } = memory;
        self.memory = Some(rdma_sys::efadv_cq_init_attr__bindgen_ty_1 {
            buffer: mapped.as_ptr(),
            length,
            offset,
            fd: fd.as_raw_fd(),
            reserved: [0; 4],
        });
        self
    }

    /// Makes the queue; the device rounds its capacity up to a power of two. Enters the kernel, allocates.
    ///
    /// # Errors
    ///
    /// [`Error::MissingCapability`](crate::Error::MissingCapability) if the device lacks what was asked for;
    /// [`Error::Verbs`](crate::Error::Verbs) with [`Unsupported`](ibverbs::Error::Unsupported) before rdma-core 43, and with `EOPNOTSUPP` for a
    /// channel on a device without events or a field that EFA does not have. See `efadv_create_cq(3)`.
    #[doc(alias = "efadv_create_cq")]
    pub fn create(self) -> Result<CompletionQueue<'a>> {
        let (verb, create) = efa_verb!(self.context.library(), efadv_create_cq)?;
        query_device(&self.context)?.require(self.wanted())?;
        let channel = self.channel.as_ref();
        if channel.is_some_and(|channel| channel.context().as_raw() != self.context.as_raw()) {
            return Err(ibverbs::Error::Invalid {
                what: "a completion queue and its channel are of different contexts".into(),
                remedy: "make both of them from one `Context`",
            }
            .into());
        }
        let mut common = rdma_sys::ibv_cq_init_attr_ex {
            cqe: self.capacity,
            cq_context: ptr::null_mut(),
            channel: channel.map_or(ptr::null_mut(), |channel| channel.as_raw()),
            comp_vector: self.vector,
            wc_flags: self.fields.difference(CompletionFields::OPERATION).bits(),
            comp_mask: 0,
            flags: 0,
            parent_domain: ptr::null_mut(),
        };
        let mut own = self.own_attributes();
        let context = self.context.as_raw();
        // A library that does not know the last field refuses to be told of it.
        let length = if self.memory.is_some() { length_of(&own) } else { LENGTH_WITHOUT_MEMORY };
        // SAFETY: context and channel are held; both structs are valid, and the second is at least of the
        // length that is passed on.
        let raw = unsafe { create(context, &raw mut common, &raw mut own, length) };
        let raw = verb.object(raw).map_err(|error| match error.errno() {
            Some(libc::EINVAL) if self.memory.is_some() => with_remedy(error, TOO_SHORT),
            _ => error,
        })?;
        // SAFETY: just made on this context, with this channel and these fields, and not armed.
        let queue =
            unsafe { CompletionQueue::from_raw(raw, self.fields, self.channel, self.context) };
        Ok(queue?)
    }

    /// What the device must have for this.
    fn wanted(&self) -> EfaCapabilities {
        [
            (self.sender_gids, EfaCapabilities::CQ_WITH_SGID),
            (self.unsolicited, EfaCapabilities::UNSOLICITED_WRITE_RECV),
            (self.memory.is_some(), EfaCapabilities::CQ_WITH_EXT_MEM_DMABUF),
        ]
        .into_iter()
        .filter_map(|(needed, capability)| needed.then_some(capability))
        .collect()
    }

    fn own_attributes(&self) -> rdma_sys::efadv_cq_init_attr {
        let fields = [
            (self.sender_gids, rdma_sys::EFADV_WC_EX_WITH_SGID),
            (self.unsolicited, rdma_sys::EFADV_WC_EX_WITH_IS_UNSOLICITED),
        ];
        let fields = fields.into_iter().filter_map(|(set, flag)| set.then_some(flag)).sum::<u32>();
        let external = u64::from(rdma_sys::EFADV_CQ_INIT_FLAGS_EXT_MEM_DMABUF);
        rdma_sys::efadv_cq_init_attr {
            comp_mask: 0,
            wc_flags: fields.into(),
            flags: if self.memory.is_some() { external } else { 0 },
            ext_mem_dmabuf: self.memory.unwrap_or(NO_MEMORY),
        }
    }
}

const TOO_SHORT: &str = "the memory of the queue is shorter than its entries, or not in one piece for the device; \
                         hugepages, or the memory of a GPU, are";

/// The struct as it was before queues could lie in memory of the caller.
const LENGTH_WITHOUT_MEMORY: u32 = 16;
const _: () = assert!(std::mem::offset_of!(rdma_sys::efadv_cq_init_attr, flags) == 16);

const NO_MEMORY: rdma_sys::efadv_cq_init_attr__bindgen_ty_1 =
    rdma_sys::efadv_cq_init_attr__bindgen_ty_1 {
        buffer: ptr::null_mut(),
        length: 0,
        offset: 0,
        fd: 0,
        reserved: [0; 4],
    };
