//! The extended back end: filling requests through `ibv_wr_*`.

use std::{
    ffi::{CStr, c_int, c_void},
    mem::MaybeUninit,
    ptr::{self, NonNull},
};

use rdma_sys::{ibv_context, ibv_qp_ex, ibv_send_wr};

use crate::{Addressing, Operations, SendWr, Transport};

/// The `ibv_wr_*` functions of a queue pair, each called with its lock held.
#[derive(Clone, Copy)]
pub(super) struct Extended(pub(super) *mut ibv_qp_ex);

impl Extended {
    #[inline]
    pub(super) fn start(self) {
        // SAFETY: every extended queue pair has this entry; `has_all` saw it.
        unsafe { rdma_sys::ibv_wr_start(self.0) };
    }

    #[inline]
    pub(super) fn complete(self) -> c_int {
        // SAFETY: as for `start`, which came before.
        unsafe { rdma_sys::ibv_wr_complete(self.0) }
    }

    #[cold]
    pub(super) fn abort(self) {
        // SAFETY: as for `start`, which came before.
        unsafe { rdma_sys::ibv_wr_abort(self.0) };
    }

    /// Gives a request its number and flags.
    #[inline(always)]
    fn begin(self, wr: &ibv_send_wr) {
        let qp = self.0;
        // SAFETY: the queue pair is live, and its lock, which `start` took, is held.
        unsafe { (*qp).wr_id = wr.wr_id };
        // SAFETY: as above.
        unsafe { (*qp).wr_flags = wr.send_flags };
    }

    /// Only for a connected queue pair whose path is `ExtendedInPlace`.
    #[inline(always)]
    pub(super) fn write(self, wr: &ibv_send_wr) {
        self.begin(wr);
        let to = rdma(wr);
        // SAFETY: the path says that the table has this entry; between start and complete.
        unsafe { rdma_sys::ibv_wr_rdma_write(self.0, to.rkey, to.remote_addr) };
    }

    /// Only for a connected queue pair whose path is `ExtendedInPlace`.
    #[inline(always)]
    pub(super) fn write_with_imm(self, wr: &ibv_send_wr) {
        self.begin(wr);
        let (to, immediate) = (rdma(wr), immediate(wr));
        // SAFETY: as for `write`.
        unsafe { rdma_sys::ibv_wr_rdma_write_imm(self.0, to.rkey, to.remote_addr, immediate) };
    }

    /// Only for a connected queue pair whose table has the entry.
    #[inline(always)]
    pub(super) fn send(self, wr: &ibv_send_wr) {
        self.begin(wr);
        // SAFETY: the table has this entry; between start and complete.
        unsafe { rdma_sys::ibv_wr_send(self.0) };
    }

    /// Only for a connected queue pair whose table has the entry.
    #[inline(always)]
    pub(super) fn send_with_imm(self, wr: &ibv_send_wr) {
        self.begin(wr);
        // SAFETY: as for `send`.
        unsafe { rdma_sys::ibv_wr_send_imm(self.0, immediate(wr)) };
    }

    /// Only for a datagram queue pair whose table has the entry, to an address handle of its context.
    #[inline(always)]
    pub(super) fn send_to(self, wr: &ibv_send_wr) {
        self.begin(wr);
        // SAFETY: the table has this entry; between start and complete.
        unsafe { rdma_sys::ibv_wr_send(self.0) };
        self.destination(wr);
    }

    /// Only for a datagram queue pair whose table has the entry, to an address handle of its context.
    #[inline(always)]
    pub(super) fn send_with_imm_to(self, wr: &ibv_send_wr) {
        self.begin(wr);
        // SAFETY: as for `send_to`.
        unsafe { rdma_sys::ibv_wr_send_imm(self.0, immediate(wr)) };
        self.destination(wr);
    }

    /// Only for a datagram queue pair with writes whose path is `ExtendedInPlace`, to an address handle of its context.
    #[inline(always)]
    pub(super) fn write_to(self, wr: &ibv_send_wr) {
        self.begin(wr);
        let to = behind_datagram(wr);
        // SAFETY: the path says that the table has this entry; between start and complete.
        unsafe { rdma_sys::ibv_wr_rdma_write(self.0, to.rkey, to.remote_addr) };
        self.destination(wr);
    }

    /// Only for a datagram queue pair with writes whose path is `ExtendedInPlace`, to an address handle of its context.
    #[inline(always)]
    pub(super) fn write_with_imm_to(self, wr: &ibv_send_wr) {
        self.begin(wr);
        let (to, immediate) = (behind_datagram(wr), immediate(wr));
        // SAFETY: as for `write_to`.
        unsafe { rdma_sys::ibv_wr_rdma_write_imm(self.0, to.rkey, to.remote_addr, immediate) };
        self.destination(wr);
    }

    /// Only for a datagram queue pair, after a request to an address handle of its context was begun.
    #[inline(always)]
    fn destination(self, wr: &ibv_send_wr) {
        let to = datagram(wr);
        // SAFETY: every datagram queue pair has this entry; the request borrows its address handle, which is one of
        // this provider, and is copied.
        unsafe { rdma_sys::ibv_wr_set_ud_addr(self.0, to.ah, to.remote_qpn, to.remote_qkey) };
    }

    /// Begins a request of any operation to an address handle of the same context, if to any; `false` if it is none
    /// of `operations`, those that the queue pair was made for: providers size its send queue by them, even where
    /// they have others.
    pub(super) fn operation<T: Transport>(
        self,
        wr: &SendWr<'_, T>,
        operations: Operations,
    ) -> bool {
        let (own, wr) = (&wr.own, &wr.raw);
        let qp = self.0;
        let to = if T::ADDRESSING == Addressing::Datagram { behind_datagram(wr) } else { rdma(wr) };
        self.begin(wr);
        match wr.opcode {
            rdma_sys::IBV_WR_RDMA_WRITE if operations.contains(Operations::WRITE) => {
                // SAFETY: made for this operation, so that `has_all` saw its entry; between start and complete.
                unsafe { rdma_sys::ibv_wr_rdma_write(qp, to.rkey, to.remote_addr) };
            }
            rdma_sys::IBV_WR_RDMA_WRITE_WITH_IMM
                if operations.contains(Operations::WRITE_WITH_IMMEDIATE) =>
            {
                let (key, address) = (to.rkey, to.remote_addr);
                // SAFETY: as above.
                unsafe { rdma_sys::ibv_wr_rdma_write_imm(qp, key, address, immediate(wr)) };
            }
            rdma_sys::IBV_WR_SEND if operations.contains(Operations::SEND) => {
                // SAFETY: as above.
                unsafe { rdma_sys::ibv_wr_send(qp) };
            }
            rdma_sys::IBV_WR_SEND_WITH_IMM
                if operations.contains(Operations::SEND_WITH_IMMEDIATE) =>
            {
                // SAFETY: as above.
                unsafe { rdma_sys::ibv_wr_send_imm(qp, immediate(wr)) };
            }
            rdma_sys::IBV_WR_SEND_WITH_INV
                if operations.contains(Operations::SEND_WITH_INVALIDATE) =>
            {
                // SAFETY: as above.
                unsafe { rdma_sys::ibv_wr_send_inv(qp, invalidated(wr)) };
            }
            rdma_sys::IBV_WR_RDMA_READ if operations.contains(Operations::READ) => {
                // SAFETY: as above.
                unsafe { rdma_sys::ibv_wr_rdma_read(qp, to.rkey, to.remote_addr) };
            }
            rdma_sys::IBV_WR_ATOMIC_CMP_AND_SWP
                if operations.contains(Operations::COMPARE_AND_SWAP) =>
            {
                let word = atomic(wr);
                let (key, address) = (word.rkey, word.remote_addr);
                let (compare, swap) = (word.compare_add, word.swap);
                // SAFETY: as above.
                unsafe { rdma_sys::ibv_wr_atomic_cmp_swp(qp, key, address, compare, swap) };
            }
            rdma_sys::IBV_WR_ATOMIC_FETCH_AND_ADD
                if operations.contains(Operations::FETCH_AND_ADD) =>
            {
                let word = atomic(wr);
                let (key, address, add) = (word.rkey, word.remote_addr, word.compare_add);
                // SAFETY: as above.
                unsafe { rdma_sys::ibv_wr_atomic_fetch_add(qp, key, address, add) };
            }
            rdma_sys::IBV_WR_LOCAL_INV if operations.contains(Operations::LOCAL_INVALIDATE) => {
                // SAFETY: as above.
                unsafe { rdma_sys::ibv_wr_local_inv(qp, invalidated(wr)) };
            }
            rdma_sys::IBV_WR_BIND_MW if operations.contains(Operations::BIND_WINDOW) => {
                let window = window(wr);
                let (object, key, info) = (window.mw, window.rkey, &raw const window.bind_info);
                // SAFETY: as above; whoever posts a bind holds the window and the region.
                unsafe { rdma_sys::ibv_wr_bind_mw(qp, object, key, info) };
            }
            rdma_sys::IBV_WR_FLUSH if operations.contains(Operations::FLUSH) => {
                let (key, address) = (to.rkey, to.remote_addr);
                let length = usize::try_from(own.addr).unwrap_or(usize::MAX);
                let [placement, ..] = own.length.to_le_bytes();
                let [scope, ..] = own.lkey.to_le_bytes();
                // SAFETY: as above.
                unsafe { rdma_sys::ibv_wr_flush(qp, key, address, length, placement, scope) };
            }
            rdma_sys::IBV_WR_ATOMIC_WRITE if operations.contains(Operations::ATOMIC_WRITE) => {
                let (key, address) = (to.rkey, to.remote_addr);
                let value = (&raw const own.addr).cast();
                // SAFETY: as above; the eight bytes of the value are copied in this call.
                unsafe { rdma_sys::ibv_wr_atomic_write(qp, key, address, value) };
            }
            _ => return false,
        }
        match T::ADDRESSING {
            Addressing::Peer => {}
            Addressing::Datagram => self.destination(wr),
            Addressing::SharedQueue => {
                // SAFETY: every queue pair of such a transport has this entry; a request was begun.
                unsafe { rdma_sys::ibv_wr_set_xrc_srqn(qp, shared_queue(wr)) };
            }
        }
        true
    }

    #[inline(always)]
    pub(super) fn segment(self, segment: &rdma_sys::ibv_sge) {
        // SAFETY: every extended queue pair has this entry; a request was begun.
        unsafe { rdma_sys::ibv_wr_set_sge(self.0, segment.lkey, segment.addr, segment.length) };
    }

    #[inline(always)]
    pub(super) fn list(self, wr: &ibv_send_wr) {
        let count = wr.num_sge.cast_unsigned() as usize;
        // SAFETY: as for `segment`; the request borrows its list of `count` segments.
        unsafe { rdma_sys::ibv_wr_set_sge_list(self.0, count, wr.sg_list) };
    }

    #[inline(always)]
    pub(super) fn inline(self, bytes: &rdma_sys::ibv_sge) {
        let address = ptr::with_exposed_provenance_mut(usize::try_from(bytes.addr).unwrap_or(0));
        // SAFETY: as for `segment`; the request borrows its bytes, which are copied in this call.
        unsafe { rdma_sys::ibv_wr_set_inline_data(self.0, address, bytes.length as usize) };
    }
}

/// How requests of one queue pair reach the provider.
#[derive(Debug, Clone, Copy)]
pub(in crate::queue_pair) enum Path {
    /// Through `ibv_post_send`.
    Classic,
    /// Through `ibv_wr_*`, whose table has the entries that every request of the transport needs.
    Extended(NonNull<ibv_qp_ex>),
    /// The same for a queue pair that was made for the most common requests: both kinds of write, for transports
    /// without writes both kinds of message.
    ExtendedInPlace(NonNull<ibv_qp_ex>),
    /// The same for a connected queue pair that was made for both kinds of message, and not for writes.
    MessagesInPlace(NonNull<ibv_qp_ex>),
    /// As `Extended`, but for batches with a list of segments, which this provider miscounts there.
    ExtendedButLists(NonNull<ibv_qp_ex>),
}

/// Both kinds of message.
pub(super) const MESSAGES: Operations = Operations::SEND.union(Operations::SEND_WITH_IMMEDIATE);

/// Both kinds of write.
pub(super) const WRITES: Operations = Operations::WRITE.union(Operations::WRITE_WITH_IMMEDIATE);

impl Path {
    /// The path of a queue pair that was made for `operations`, if its table has them.
    pub(in crate::queue_pair) fn extended<T: Transport>(
        qp: NonNull<ibv_qp_ex>,
        operations: Operations,
    ) -> Option<Self> {
        let common = match T::ADDRESSING {
            Addressing::Datagram if !T::OPERATIONS.contains(Operations::WRITE) => MESSAGES,
            _ => WRITES,
        };
        if !has_all::<T>(qp, operations) {
            None
        } else if miscounts_lists(qp) {
            Some(Self::ExtendedButLists(qp))
        } else if operations.contains(common) {
            Some(Self::ExtendedInPlace(qp))
        } else if T::ADDRESSING == Addressing::Peer && operations.contains(MESSAGES) {
            Some(Self::MessagesInPlace(qp))
        } else {
            Some(Self::Extended(qp))
        }
    }
}

/// Whether a queue pair has the entries that every one of its transport needs, and those of the operations
/// asked for.
fn has_all<T: Transport>(qp: NonNull<ibv_qp_ex>, operations: Operations) -> bool {
    // SAFETY: a live extended queue pair, whose table does not change after creation.
    let table = unsafe { qp.as_ref() };
    let always = table.wr_start.is_some()
        && table.wr_complete.is_some()
        && table.wr_abort.is_some()
        && table.wr_set_sge.is_some()
        && table.wr_set_sge_list.is_some()
        && table.wr_set_inline_data.is_some();
    let addressing = match T::ADDRESSING {
        Addressing::Peer => true,
        Addressing::Datagram => table.wr_set_ud_addr.is_some(),
        Addressing::SharedQueue => table.wr_set_xrc_srqn.is_some(),
    };
    let each = [
        (Operations::SEND, table.wr_send.is_some()),
        (Operations::SEND_WITH_IMMEDIATE, table.wr_send_imm.is_some()),
        (Operations::WRITE, table.wr_rdma_write.is_some()),
        (Operations::WRITE_WITH_IMMEDIATE, table.wr_rdma_write_imm.is_some()),
        (Operations::READ, table.wr_rdma_read.is_some()),
        (Operations::COMPARE_AND_SWAP, table.wr_atomic_cmp_swp.is_some()),
        (Operations::FETCH_AND_ADD, table.wr_atomic_fetch_add.is_some()),
        (Operations::LOCAL_INVALIDATE, table.wr_local_inv.is_some()),
        (Operations::BIND_WINDOW, table.wr_bind_mw.is_some()),
        (Operations::SEND_WITH_INVALIDATE, table.wr_send_inv.is_some()),
        (Operations::FLUSH, table.wr_flush.is_some()),
        (Operations::ATOMIC_WRITE, table.wr_atomic_write.is_some()),
    ];
    let asked =
        |(operation, there): &(Operations, bool)| *there || !operations.contains(*operation);
    always && addressing && each.iter().all(asked)
}

/// Whether the provider takes the length of a list of segments for that of its first one, times their number:
/// rxe before rdma-core pull request 1744, which nothing tells apart from later ones.
fn miscounts_lists(qp: NonNull<ibv_qp_ex>) -> bool {
    // SAFETY: as for `has_all`.
    let Some(function) = (unsafe { qp.as_ref() }).wr_set_sge_list else {
        return false;
    };
    let mut place = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the place is as large as the struct; any address may be asked about, dladdr(3).
    let found = unsafe { libc::dladdr(function as *const c_void, place.as_mut_ptr()) };
    // SAFETY: null pointers and zeros are such a struct.
    let file = unsafe { place.assume_init() }.dli_fname;
    if found == 0 || file.is_null() {
        return false;
    }
    // SAFETY: dladdr(3) gives the name of a loaded file, which the provider is as long as its device is open.
    let file = unsafe { CStr::from_ptr(file) }.to_bytes();
    let name = file.rsplit(|byte| *byte == b'/').next().unwrap_or(file);
    name.starts_with(b"librxe")
}

/// What a request does, in words.
pub(super) fn operation(wr: &ibv_send_wr) -> &'static str {
    match wr.opcode {
        rdma_sys::IBV_WR_RDMA_WRITE => "a write",
        rdma_sys::IBV_WR_RDMA_WRITE_WITH_IMM => "a write with immediate",
        rdma_sys::IBV_WR_SEND => "a send",
        rdma_sys::IBV_WR_SEND_WITH_IMM => "a send with immediate",
        rdma_sys::IBV_WR_SEND_WITH_INV => "a send with invalidate",
        rdma_sys::IBV_WR_RDMA_READ => "a read",
        rdma_sys::IBV_WR_ATOMIC_CMP_AND_SWP => "a compare and swap",
        rdma_sys::IBV_WR_ATOMIC_FETCH_AND_ADD => "a fetch and add",
        rdma_sys::IBV_WR_LOCAL_INV => "a local invalidate",
        rdma_sys::IBV_WR_BIND_MW => "a bind of a memory window",
        rdma_sys::IBV_WR_FLUSH => "a flush",
        rdma_sys::IBV_WR_ATOMIC_WRITE => "an atomic write",
        _ => "a request of this kind",
    }
}

/// Whether C has no classic request for an operation.
pub(super) fn extended_only(wr: &ibv_send_wr) -> bool {
    matches!(wr.opcode, rdma_sys::IBV_WR_FLUSH | rdma_sys::IBV_WR_ATOMIC_WRITE)
}

#[inline]
fn immediate(wr: &ibv_send_wr) -> u32 {
    // SAFETY: both members are a u32, and the struct is zeroed before it is filled.
    unsafe { wr.__bindgen_anon_1.imm_data }
}

#[inline]
fn rdma(wr: &ibv_send_wr) -> rdma_sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
    // SAFETY: every member is plain numbers, and the struct is zeroed before it is filled.
    unsafe { wr.wr.rdma }
}

#[inline]
fn atomic(wr: &ibv_send_wr) -> rdma_sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
    // SAFETY: every member is plain numbers, and the struct is zeroed before it is filled.
    unsafe { wr.wr.atomic }
}

#[inline]
fn datagram(wr: &ibv_send_wr) -> rdma_sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
    // SAFETY: the struct is zeroed before it is filled, and requests of datagram transports have this member set.
    unsafe { wr.wr.ud }
}

/// The context that the address handle of a request of a datagram transport was made on. The provider of another context
/// would take its struct for one of its own.
///
/// Not for a request that was refused when it was made.
#[inline(always)]
pub(super) fn context_of_address(wr: &ibv_send_wr) -> *mut ibv_context {
    // SAFETY: the request borrows its address handle, which is live; the field is constant.
    unsafe { (*datagram(wr).ah).context }
}

/// The memory that a request of a datagram transport names, which is kept where a bind would be.
#[inline]
fn behind_datagram(wr: &ibv_send_wr) -> rdma_sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
    let kept = window(wr);
    let (remote_addr, rkey) = (kept.bind_info.addr, kept.rkey);
    rdma_sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey }
}

#[inline]
fn window(wr: &ibv_send_wr) -> rdma_sys::ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
    // SAFETY: every member is plain numbers and pointers, and the struct is zeroed before it is filled.
    unsafe { wr.__bindgen_anon_2.bind_mw }
}

#[inline]
fn invalidated(wr: &ibv_send_wr) -> u32 {
    // SAFETY: both members are a u32, and the struct is zeroed before it is filled.
    unsafe { wr.__bindgen_anon_1.invalidate_rkey }
}

#[inline]
fn shared_queue(wr: &ibv_send_wr) -> u32 {
    // SAFETY: the only member is a u32, and the struct is zeroed before it is filled.
    unsafe { wr.qp_type.xrc.remote_srqn }
}

/// The two operands of an atomic, where a refused request keeps its numbers.
pub(crate) fn atomic_operands(wr: &ibv_send_wr) -> (u64, u64) {
    let word = atomic(wr);
    (word.compare_add, word.swap)
}
