//! The `static inline` verbs of `verbs.h` and `efadv.h`, which no library exports.
//!
//! Each is a jump through a table that the provider filled: `context->ops`, `verbs_context`, `qp_ex`
//! or `cq_ex`. A function that goes through an optional entry returns `None` where the provider has
//! none; C sets `EOPNOTSUPP` there.
#![expect(clippy::missing_safety_doc, reason = "the manual page of each verb is its contract")]

use std::{ffi::c_int, mem::offset_of, ptr};

use crate::bindings::*;

/// `__VERBS_ABI_IS_EXTENDED`: the value of `abi_compat` that says a `verbs_context` is around it.
pub const VERBS_ABI_IS_EXTENDED: usize = usize::MAX;

/// The extended context around a context, null if there is none.
#[inline]
pub unsafe fn verbs_get_ctx(context: *mut ibv_context) -> *mut verbs_context {
    unsafe {
        if (*context).abi_compat as usize != VERBS_ABI_IS_EXTENDED {
            return ptr::null_mut();
        }
        context.byte_sub(offset_of!(verbs_context, context)).cast()
    }
}

/// An entry of the extended context, `None` if the library is too old for it or the provider left
/// it out. The struct grows at its front, so that `sz` and `context` at its end never move.
macro_rules! verbs_get_ctx_op {
    ($context:expr, $op:ident) => {{
        let extended = verbs_get_ctx($context);
        let needed = size_of::<verbs_context>() - offset_of!(verbs_context, $op);
        if extended.is_null() || (*extended).sz < needed { None } else { (*extended).$op }
    }};
}

macro_rules! extended {
    ($($verb:ident = $op:ident($($name:ident: $type:ty),*) -> $result:ty, via $context:expr;)*) => {
        $(
            #[inline]
            pub unsafe fn $verb($($name: $type),*) -> Option<$result> {
                unsafe { verbs_get_ctx_op!($context, $op).map(|op| op($($name),*)) }
            }
        )*
    };
}

extended! {
    ibv_advise_mr = advise_mr(pd: *mut ibv_pd, advice: ib_uverbs_advise_mr_advice, flags: u32, list: *mut ibv_sge, count: u32) -> c_int, via (*pd).context;
    ibv_alloc_dm = alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm, via context;
    ibv_free_dm = free_dm(dm: *mut ibv_dm) -> c_int, via (*dm).context;
    ibv_reg_dm_mr = reg_dm_mr(pd: *mut ibv_pd, dm: *mut ibv_dm, offset: u64, length: usize, access: u32) -> *mut ibv_mr, via (*pd).context;
    ibv_alloc_null_mr = alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr, via (*pd).context;
    ibv_alloc_td = alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td, via context;
    ibv_dealloc_td = dealloc_td(td: *mut ibv_td) -> c_int, via (*td).context;
    ibv_alloc_parent_domain = alloc_parent_domain(context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr) -> *mut ibv_pd, via context;
    ibv_create_cq_ex = create_cq_ex(context: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex, via context;
    ibv_modify_cq = modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int, via (*cq).context;
    ibv_get_srq_num = get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int, via (*srq).context;
    ibv_post_srq_ops = post_srq_ops(srq: *mut ibv_srq, op: *mut ibv_ops_wr, bad: *mut *mut ibv_ops_wr) -> c_int, via (*srq).context;
    ibv_open_xrcd = open_xrcd(context: *mut ibv_context, attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd, via context;
    ibv_close_xrcd = close_xrcd(xrcd: *mut ibv_xrcd) -> c_int, via (*xrcd).context;
    ibv_open_qp = open_qp(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp, via context;
    ibv_modify_qp_rate_limit = modify_qp_rate_limit(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int, via (*qp).context;
    ibv_query_rt_values_ex = query_rt_values(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int, via context;
    ibv_create_flow = ibv_create_flow(qp: *mut ibv_qp, attr: *mut ibv_flow_attr) -> *mut ibv_flow, via (*qp).context;
    ibv_destroy_flow = ibv_destroy_flow(flow: *mut ibv_flow) -> c_int, via (*flow).context;
    ibv_create_counters = create_counters(context: *mut ibv_context, attr: *mut ibv_counters_init_attr) -> *mut ibv_counters, via context;
    ibv_destroy_counters = destroy_counters(counters: *mut ibv_counters) -> c_int, via (*counters).context;
    ibv_attach_counters_point_flow = attach_counters_point_flow(counters: *mut ibv_counters, attr: *mut ibv_counter_attach_attr, flow: *mut ibv_flow) -> c_int, via (*counters).context;
    ibv_read_counters = read_counters(counters: *mut ibv_counters, values: *mut u64, count: u32, flags: u32) -> c_int, via (*counters).context;
    ibv_create_wq = create_wq(context: *mut ibv_context, attr: *mut ibv_wq_init_attr) -> *mut ibv_wq, via context;
    ibv_modify_wq = modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int, via (*wq).context;
    ibv_destroy_wq = destroy_wq(wq: *mut ibv_wq) -> c_int, via (*wq).context;
    ibv_create_rwq_ind_table = create_rwq_ind_table(context: *mut ibv_context, attr: *mut ibv_rwq_ind_table_init_attr) -> *mut ibv_rwq_ind_table, via context;
    ibv_destroy_rwq_ind_table = destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int, via (*table).context;
}

/// `create_qp_ex` of the extended context. Unlike C it never falls back to `ibv_create_qp`, which is
/// another symbol.
#[inline]
pub unsafe fn ibv_create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> Option<*mut ibv_qp> {
    unsafe { verbs_get_ctx_op!(context, create_qp_ex).map(|op| op(context, attr)) }
}

/// `create_srq_ex` of the extended context, without C's fall-back to `ibv_create_srq`.
#[inline]
pub unsafe fn ibv_create_srq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> Option<*mut ibv_srq> {
    unsafe { verbs_get_ctx_op!(context, create_srq_ex).map(|op| op(context, attr)) }
}

/// `query_port` of the extended context, which fills at most `length` bytes of `attr`; without C's
/// fall-back to the exported function, which knows a shorter struct.
#[inline]
pub unsafe fn ibv_query_port_ex(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    length: usize,
) -> Option<c_int> {
    unsafe { verbs_get_ctx_op!(context, query_port).map(|op| op(context, port, attr, length)) }
}

/// `query_device_ex` of the extended context, without C's fall-back to `ibv_query_device`.
#[inline]
pub unsafe fn ibv_query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
) -> Option<c_int> {
    unsafe {
        verbs_get_ctx_op!(context, query_device_ex)
            .map(|op| op(context, input, attr, size_of::<ibv_device_attr_ex>()))
    }
}

/// `alloc_mw` of the context.
#[inline]
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> Option<*mut ibv_mw> {
    unsafe { (*(*pd).context).ops.alloc_mw.map(|op| op(pd, kind)) }
}

/// `bind_mw` of the context; C's checks of type and domain are the caller's.
#[inline]
pub unsafe fn ibv_bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> Option<c_int> {
    unsafe { (*(*mw).context).ops.bind_mw.map(|op| op(qp, mw, bind)) }
}

/// `dealloc_mw` of the context.
#[inline]
pub unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> Option<c_int> {
    unsafe { (*(*mw).context).ops.dealloc_mw.map(|op| op(mw)) }
}

/// The next key of a type 2 window or of a region: its low eight bits count up.
#[inline]
#[must_use]
pub const fn ibv_inc_rkey(rkey: u32) -> u32 {
    (rkey & 0xffff_ff00) | (rkey.wrapping_add(1) & 0xff)
}

/// Jumps through an entry that every provider fills, or that was asked for when the object was made.
macro_rules! jump {
    ($($verb:ident = $table:ident . $op:ident($($name:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        $(
            /// # Safety
            ///
            /// The entry is not null: the provider always has it, or the object was made for it.
            #[inline]
            pub unsafe fn $verb($table: *mut jump!(@ $table) $(, $name: $type)*) $(-> $result)? {
                unsafe {
                    debug_assert!((*$table).$op.is_some());
                    (*$table).$op.unwrap_unchecked()($table $(, $name)*)
                }
            }
        )*
    };
    (@ qp) => { ibv_qp_ex };
    (@ cq) => { ibv_cq_ex };
    (@ efa_cq) => { efadv_cq };
    (@ efa_qp) => { efadv_qp };
}

jump! {
    ibv_wr_start = qp.wr_start();
    ibv_wr_complete = qp.wr_complete() -> c_int;
    ibv_wr_abort = qp.wr_abort();
    ibv_wr_send = qp.wr_send();
    ibv_wr_send_imm = qp.wr_send_imm(imm_data: __be32);
    ibv_wr_send_inv = qp.wr_send_inv(invalidate_rkey: u32);
    ibv_wr_rdma_write = qp.wr_rdma_write(rkey: u32, remote_addr: u64);
    ibv_wr_rdma_write_imm = qp.wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm_data: __be32);
    ibv_wr_rdma_read = qp.wr_rdma_read(rkey: u32, remote_addr: u64);
    ibv_wr_atomic_cmp_swp = qp.wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64);
    ibv_wr_atomic_fetch_add = qp.wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64);
    ibv_wr_atomic_write = qp.wr_atomic_write(rkey: u32, remote_addr: u64, value: *const std::ffi::c_void);
    ibv_wr_flush = qp.wr_flush(rkey: u32, remote_addr: u64, length: usize, kind: u8, level: u8);
    ibv_wr_bind_mw = qp.wr_bind_mw(mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info);
    ibv_wr_local_inv = qp.wr_local_inv(invalidate_rkey: u32);
    ibv_wr_send_tso = qp.wr_send_tso(header: *mut std::ffi::c_void, header_length: u16, segment_size: u16);
    ibv_wr_set_ud_addr = qp.wr_set_ud_addr(ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32);
    ibv_wr_set_xrc_srqn = qp.wr_set_xrc_srqn(remote_srqn: u32);
    ibv_wr_set_sge = qp.wr_set_sge(lkey: u32, addr: u64, length: u32);
    ibv_wr_set_sge_list = qp.wr_set_sge_list(count: usize, list: *const ibv_sge);
    ibv_wr_set_inline_data = qp.wr_set_inline_data(addr: *mut std::ffi::c_void, length: usize);
    ibv_wr_set_inline_data_list = qp.wr_set_inline_data_list(count: usize, list: *const ibv_data_buf);
    ibv_start_poll = cq.start_poll(attr: *mut ibv_poll_cq_attr) -> c_int;
    ibv_next_poll = cq.next_poll() -> c_int;
    ibv_end_poll = cq.end_poll();
    ibv_wc_read_opcode = cq.read_opcode() -> ibv_wc_opcode;
    ibv_wc_read_vendor_err = cq.read_vendor_err() -> u32;
    ibv_wc_read_byte_len = cq.read_byte_len() -> u32;
    ibv_wc_read_imm_data = cq.read_imm_data() -> __be32;
    ibv_wc_read_qp_num = cq.read_qp_num() -> u32;
    ibv_wc_read_src_qp = cq.read_src_qp() -> u32;
    ibv_wc_read_wc_flags = cq.read_wc_flags() -> u32;
    ibv_wc_read_slid = cq.read_slid() -> u32;
    ibv_wc_read_sl = cq.read_sl() -> u8;
    ibv_wc_read_dlid_path_bits = cq.read_dlid_path_bits() -> u8;
    ibv_wc_read_completion_ts = cq.read_completion_ts() -> u64;
    ibv_wc_read_completion_wallclock_ns = cq.read_completion_wallclock_ns() -> u64;
    ibv_wc_read_cvlan = cq.read_cvlan() -> u16;
    ibv_wc_read_flow_tag = cq.read_flow_tag() -> u32;
    ibv_wc_read_tm_info = cq.read_tm_info(info: *mut ibv_wc_tm_info);
    efadv_wc_read_sgid = efa_cq.wc_read_sgid(sgid: *mut ibv_gid) -> c_int;
    efadv_wc_is_unsolicited = efa_cq.wc_is_unsolicited() -> bool;
    efadv_wr_set_processing_hints = efa_qp.wr_set_processing_hints(hints: u32);
}

/// # Safety
///
/// The context of `cq` has `poll_cq`; see `ibv_poll_cq(3)`.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    unsafe { (*(*cq).context).ops.poll_cq.unwrap_unchecked()(cq, count, wc) }
}

/// # Safety
///
/// The context of `cq` has `req_notify_cq`; see `ibv_req_notify_cq(3)`.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    unsafe { (*(*cq).context).ops.req_notify_cq.unwrap_unchecked()(cq, solicited_only) }
}

/// # Safety
///
/// The context of `qp` has `post_send`; see `ibv_post_send(3)`.
#[inline]
pub unsafe fn ibv_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    unsafe { (*(*qp).context).ops.post_send.unwrap_unchecked()(qp, wr, bad) }
}

/// # Safety
///
/// The context of `qp` has `post_recv`; see `ibv_post_recv(3)`.
#[inline]
pub unsafe fn ibv_post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    unsafe { (*(*qp).context).ops.post_recv.unwrap_unchecked()(qp, wr, bad) }
}

/// # Safety
///
/// `wq` has `post_recv`; see `ibv_post_wq_recv(3)`.
#[inline]
pub unsafe fn ibv_post_wq_recv(
    wq: *mut ibv_wq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    unsafe { (*wq).post_recv.unwrap_unchecked()(wq, wr, bad) }
}

/// # Safety
///
/// The context of `srq` has `post_srq_recv`; see `ibv_post_srq_recv(3)`.
#[inline]
pub unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    unsafe { (*(*srq).context).ops.post_srq_recv.unwrap_unchecked()(srq, wr, bad) }
}
