//! Extended completion queues: one completion at a time, and only the fields asked for.
#![expect(unsafe_code, reason = "the functions of an ibv_cq_ex, called from C")]

use std::{ffi::c_int, mem::offset_of};

use rdma_sys as c;

use super::{Completion, QueueHandle, Request, channel_number, create};
use crate::{
    device::LinkLayer, errno::object, fabric::fabric, handle::ContextRef, owner_lock::Reentered,
    verb::Verb,
};

/// See `ibv_create_cq_ex(3)`.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut c::ibv_context,
    attr: *mut c::ibv_cq_init_attr_ex,
) -> *mut c::ibv_cq_ex {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    // SAFETY: the caller gives a readable struct.
    let attr = unsafe { &*attr };
    // SAFETY: the channel in the struct is live or null.
    unsafe { make(context, attr, Verb::ibv_create_cq_ex, c::efadv_cq::default()) }
}

/// Makes an extended queue.
///
/// # Safety
///
/// The channel in `attr` is live or null.
unsafe fn make(
    context: ContextRef,
    attr: &c::ibv_cq_init_attr_ex,
    verb: Verb,
    efa: c::efadv_cq,
) -> *mut c::ibv_cq_ex {
    // SAFETY: by the contract above.
    let channel_number = unsafe { channel_number(attr.channel) };
    let known = c::IBV_CQ_INIT_ATTR_MASK_FLAGS;
    let flags = if attr.comp_mask & known == 0 { 0 } else { attr.flags };
    let known_flags = c::IBV_CREATE_CQ_ATTR_SINGLE_THREADED | c::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    let (link, efa_caps) = match fabric().device(context.device) {
        Some(device) => {
            let caps = device.description.efa.as_ref().map(|limits| limits.device_caps);
            (Some(device.description.link_layer), caps)
        }
        None => (None, None),
    };
    let unsolicited = c::EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV;
    let efa = match efa_caps {
        // As of a library that does not know the capability, whose table is shorter.
        Some(caps) if caps & unsolicited == 0 => {
            c::efadv_cq { wc_is_unsolicited: Some(beyond_the_table), ..efa }
        }
        _ => efa,
    };
    let of_frames = c::IBV_WC_EX_WITH_CVLAN | c::IBV_WC_EX_WITH_FLOW_TAG;
    let unsupported = u64::from(
        c::IBV_WC_EX_WITH_TM_INFO | if link == Some(LinkLayer::Ethernet) { 0 } else { of_frames },
    );
    let wanted = attr.wc_flags;
    if attr.comp_mask & !known != 0 || flags & !known_flags != 0 {
        return object(Err(libc::EINVAL));
    }
    if wanted & !(u64::from(c::IBV_CREATE_CQ_SUP_WC_FLAGS) & !unsupported) != 0 {
        return object(Err(libc::EOPNOTSUPP));
    }
    let clocks =
        c::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | c::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
    let request = Request {
        context,
        capacity: attr.cqe,
        user_data: attr.cq_context,
        channel: attr.channel,
        channel_number,
        vector: attr.comp_vector,
        ignores_overrun: flags & c::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0,
        has_clocks: wanted & u64::from(clocks) != 0,
        efa,
    };
    object(create(&request, verb, |ex| fill(ex, wanted)))
}

/// See `efadv_create_cq(3)`.
pub(crate) unsafe extern "C" fn efadv_create_cq(
    context: *mut c::ibv_context,
    attr: *mut c::ibv_cq_init_attr_ex,
    efa: *mut c::efadv_cq_init_attr,
    length: u32,
) -> *mut c::ibv_cq_ex {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    let needed = offset_of!(c::efadv_cq_init_attr, wc_flags) + size_of::<u64>();
    if usize::try_from(length).is_ok_and(|length| length < needed) {
        return object(Err(libc::EINVAL));
    }
    // SAFETY: the caller gives a struct that has this field.
    let wanted = unsafe { (*efa).wc_flags };
    // SAFETY: the caller gives a struct that has this field.
    let mask = unsafe { (*efa).comp_mask };
    let known = u64::from(c::EFADV_WC_EX_WITH_SGID | c::EFADV_WC_EX_WITH_IS_UNSOLICITED);
    let sgid = wanted & u64::from(c::EFADV_WC_EX_WITH_SGID) != 0;
    let unsolicited = wanted & u64::from(c::EFADV_WC_EX_WITH_IS_UNSOLICITED) != 0;
    let checked = fabric().efa(context.device, Verb::efadv_create_cq).map(|limits| {
        let has = |cap: u32| limits.device_caps & cap != 0;
        (!sgid || has(c::EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID))
            && (!unsolicited || has(c::EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV))
    });
    match checked {
        Err(code) => return object(Err(code)),
        Ok(false) => return object(Err(libc::EOPNOTSUPP)),
        Ok(true) if mask != 0 || wanted & !known != 0 => return object(Err(libc::EINVAL)),
        Ok(true) => {}
    }
    let entries = c::efadv_cq {
        comp_mask: 0,
        wc_read_sgid: sgid.then_some(wc_read_sgid),
        wc_is_unsolicited: unsolicited.then_some(wc_is_unsolicited),
    };
    // SAFETY: the caller gives a readable struct.
    let attr = unsafe { &*attr };
    // SAFETY: the channel in the struct is live or null.
    unsafe { make(context, attr, Verb::ibv_create_cq_ex, entries) }
}

/// See `efadv_create_cq(3)`.
pub(crate) unsafe extern "C" fn efadv_cq_from_ibv_cq_ex(cq: *mut c::ibv_cq_ex) -> *mut c::efadv_cq {
    // SAFETY: the place is inside the handle of a live queue; nothing is read.
    unsafe { &raw mut (*cq.cast::<QueueHandle>()).efa }
}

/// The completion that an EFA queue shows.
///
/// # Safety
///
/// `cq` is the EFA part of a live queue, and the caller is between start and end of a poll.
unsafe fn shown<'a>(cq: *mut c::efadv_cq) -> &'a Completion {
    let handle: *mut QueueHandle = cq.wrapping_byte_sub(offset_of!(QueueHandle, efa)).cast();
    // SAFETY: by the contract above, nobody changes the current completion.
    unsafe { &(*handle).current }
}

/// See `efadv_create_cq(3)`: `ENOENT` if the sender has an address handle, which `slid` then names.
unsafe extern "C" fn wc_read_sgid(cq: *mut c::efadv_cq, sgid: *mut c::ibv_gid) -> c_int {
    // SAFETY: the caller polls a live queue.
    let completion = unsafe { shown(cq) };
    if completion.slid != u16::MAX {
        return -libc::ENOENT;
    }
    // SAFETY: the caller gives a place for the GID.
    unsafe { sgid.write(c::ibv_gid { raw: completion.sgid }) };
    0
}

/// See `efadv_create_cq(3)`.
unsafe extern "C" fn wc_is_unsolicited(cq: *mut c::efadv_cq) -> bool {
    // SAFETY: the caller polls a live queue.
    unsafe { shown(cq) }.unsolicited
}

/// What is in the place of [`wc_is_unsolicited`] where the table ends before it. In rdma-core 44 that is the number of the
/// queue, so that calling it ends the process.
unsafe extern "C" fn beyond_the_table(cq: *mut c::efadv_cq) -> bool {
    let handle: *mut QueueHandle = cq.wrapping_byte_sub(offset_of!(QueueHandle, efa)).cast();
    // SAFETY: the caller polls a live queue.
    let device = unsafe { (*handle).device };
    fabric().violation(device, "efadv_wc_is_unsolicited: beyond the end of the table".into());
    false
}

/// Fills the entries that were asked for; the others stay null, as in every provider.
fn fill(ex: &mut c::ibv_cq_ex, wanted: u64) {
    let asked = |flag: u32| wanted & u64::from(flag) != 0;
    ex.start_poll = Some(start_poll);
    ex.next_poll = Some(next_poll);
    ex.end_poll = Some(end_poll);
    ex.read_opcode = Some(read_opcode);
    ex.read_vendor_err = Some(read_vendor_err);
    ex.read_wc_flags = Some(read_wc_flags);
    ex.read_byte_len = asked(c::IBV_WC_EX_WITH_BYTE_LEN).then_some(read_byte_len);
    ex.read_imm_data = asked(c::IBV_WC_EX_WITH_IMM).then_some(read_imm_data);
    ex.read_qp_num = asked(c::IBV_WC_EX_WITH_QP_NUM).then_some(read_qp_num);
    ex.read_src_qp = asked(c::IBV_WC_EX_WITH_SRC_QP).then_some(read_src_qp);
    ex.read_slid = asked(c::IBV_WC_EX_WITH_SLID).then_some(read_slid);
    ex.read_sl = asked(c::IBV_WC_EX_WITH_SL).then_some(read_sl);
    ex.read_dlid_path_bits = asked(c::IBV_WC_EX_WITH_DLID_PATH_BITS).then_some(read_dlid_path_bits);
    ex.read_cvlan = asked(c::IBV_WC_EX_WITH_CVLAN).then_some(read_cvlan);
    ex.read_flow_tag = asked(c::IBV_WC_EX_WITH_FLOW_TAG).then_some(read_flow_tag);
    ex.read_completion_ts =
        asked(c::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP).then_some(read_completion_ts);
    ex.read_completion_wallclock_ns = asked(c::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
        .then_some(read_completion_wallclock_ns);
}

/// See `ibv_create_cq_ex(3)`: 0, `ENOENT` if the queue is empty, or another errno. The queue is
/// locked after 0 only.
unsafe extern "C" fn start_poll(cq: *mut c::ibv_cq_ex, attr: *mut c::ibv_poll_cq_attr) -> c_int {
    // SAFETY: the caller gives null or a readable struct.
    if unsafe { attr.as_ref() }.is_some_and(|attr| attr.comp_mask != 0) {
        return libc::EINVAL;
    }
    let handle: *mut QueueHandle = cq.cast();
    // SAFETY: the caller gives a live queue, and the lock is made to be shared.
    let lock = unsafe { &(*handle).lock };
    // SAFETY: the caller gives a live queue, and no call changes this field.
    let device = unsafe { (*handle).device };
    if let Err(Reentered) = lock.acquire() {
        fabric().violation(device, "ibv_start_poll: twice without ibv_end_poll".into());
        return libc::EDEADLK;
    }
    // SAFETY: the queue is live and locked by this thread.
    let code = unsafe { step(handle, Verb::ibv_start_poll) };
    if code != 0 {
        lock.release();
    }
    code
}

/// See `ibv_create_cq_ex(3)`: 0, `ENOENT` if there is no more, or another errno. The queue stays
/// locked.
unsafe extern "C" fn next_poll(cq: *mut c::ibv_cq_ex) -> c_int {
    let handle: *mut QueueHandle = cq.cast();
    // SAFETY: the caller gives a live queue, and the lock is made to be shared.
    if !unsafe { &(*handle).lock }.is_mine() {
        return libc::EINVAL;
    }
    // SAFETY: the queue is live and locked by this thread.
    unsafe { step(handle, Verb::ibv_next_poll) }
}

/// Takes the next completion and shows it.
///
/// # Safety
///
/// The queue is live and locked by this thread.
unsafe fn step(handle: *mut QueueHandle, verb: Verb) -> c_int {
    // SAFETY: the queue is live, and no call changes this field.
    let number = unsafe { (*handle).number };
    // SAFETY: the queue is live, and no call changes this field.
    let device = unsafe { (*handle).device };
    let mut fabric = fabric();
    if let Err(code) = fabric.enter(device, verb) {
        return code;
    }
    fabric.expire(Some(device));
    let Some(completion) = fabric.take(number) else { return libc::ENOENT };
    drop(fabric);
    // SAFETY: only the thread that has the lock writes or reads the current completion.
    unsafe { (*handle).current = completion };
    // SAFETY: as above; the caller reads it in the same thread.
    unsafe { (*handle).ex.wr_id = completion.wr_id };
    // SAFETY: as above.
    unsafe { (*handle).ex.status = completion.status };
    0
}

/// See `ibv_create_cq_ex(3)`.
unsafe extern "C" fn end_poll(cq: *mut c::ibv_cq_ex) {
    // SAFETY: the caller gives a live queue, and the lock is made to be shared.
    unsafe { &(*cq.cast::<QueueHandle>()).lock }.release();
}

/// Makes a function that reads one field of the current completion.
macro_rules! readers {
    ($($name:ident -> $type:ty = |$completion:ident| $value:expr;)*) => {
        $(
            /// See `ibv_create_cq_ex(3)`.
            unsafe extern "C" fn $name(cq: *mut c::ibv_cq_ex) -> $type {
                // SAFETY: the caller is between start and end of a poll of a live queue, so that
                // nobody changes the current completion.
                let $completion: &Completion = unsafe { &(*cq.cast::<QueueHandle>()).current };
                $value
            }
        )*
    };
}

readers! {
    read_opcode -> c::ibv_wc_opcode = |completion| completion.opcode;
    read_vendor_err -> u32 = |completion| completion.vendor_err;
    read_byte_len -> u32 = |completion| completion.byte_len;
    read_imm_data -> c::__be32 = |completion| completion.imm_data;
    read_qp_num -> u32 = |completion| completion.qp_num;
    read_src_qp -> u32 = |completion| completion.src_qp;
    read_wc_flags -> u32 = |completion| completion.wc_flags;
    read_slid -> u32 = |completion| completion.slid.into();
    read_sl -> u8 = |completion| completion.sl;
    read_dlid_path_bits -> u8 = |_completion| 0;
    read_cvlan -> u16 = |completion| completion.vlan;
    read_flow_tag -> u32 = |completion| completion.flow_tag;
    read_completion_ts -> u64 = |completion| completion.timestamp;
    read_completion_wallclock_ns -> u64 = |completion| completion.wallclock;
}
