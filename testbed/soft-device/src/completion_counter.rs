//! Completion counters: how much work of a queue pair ended, without a completion for each.
#![expect(unsafe_code, reason = "the verbs of completion counters, called from C")]

use std::{ffi::c_int, ptr};

use rdma_sys as c;

use crate::{
    errno::{Outcome, object, status},
    fabric::{Fabric, fabric},
    handle::{ContextRef, Handle},
    pair::PairRef,
    verb::Verb,
};

/// A completion counter.
#[derive(Debug)]
pub(crate) struct CompletionCounter {
    pub(crate) context: u32,
    counts_bytes: bool,
    good: u64,
    failed: u64,
    /// Queue pairs that it counts for, with the operations that it counts.
    attached: Vec<(u32, u32)>,
}

/// Which count of a counter.
#[derive(Debug, Clone, Copy)]
enum Which {
    Good,
    Failed,
}

const OPERATIONS: u32 = c::IBV_QP_ATTACH_COMP_CNTR_OP_SEND
    | c::IBV_QP_ATTACH_COMP_CNTR_OP_RECV
    | c::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ
    | c::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE;

/// See `ibv_query_comp_cntr_caps(3)`.
pub(crate) unsafe extern "C" fn _ibv_query_comp_cntr_caps(
    context: *mut c::ibv_context,
    caps: *mut c::ibv_comp_cntr_caps,
    size: usize,
) -> c_int {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    let whole = c::ibv_comp_cntr_caps {
        max_value: u64::MAX,
        max_counters: 1 << 16,
        supported_qp_attach_ops: OPERATIONS,
    };
    status(fabric().enter(context.device, Verb::ibv_query_comp_cntr_caps).map(|()| {
        let known = size.min(size_of_val(&whole));
        // SAFETY: the caller has room for `size` bytes.
        unsafe { caps.cast::<u8>().write_bytes(0, size) };
        // SAFETY: `known` bytes are in `whole`, and the caller has room for `size`.
        unsafe { ptr::copy_nonoverlapping((&raw const whole).cast::<u8>(), caps.cast(), known) };
    }))
}

/// See `ibv_create_comp_cntr(3)`.
pub(crate) unsafe extern "C" fn ibv_create_comp_cntr(
    context: *mut c::ibv_context,
    attr: *mut c::ibv_comp_cntr_init_attr,
) -> *mut c::ibv_comp_cntr {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    // SAFETY: the caller gives a readable struct.
    let attr = unsafe { *attr };
    let mut fabric = fabric();
    object(fabric.enter(context.device, Verb::ibv_create_comp_cntr).and_then(|()| {
        let known =
            attr.type_ == c::IBV_COMP_CNTR_TYPE_WRS || attr.type_ == c::IBV_COMP_CNTR_TYPE_BYTES;
        if attr.comp_mask != 0 || attr.flags != 0 || !known {
            return Err(libc::EINVAL);
        }
        let number = fabric.counters.insert_with(|_| CompletionCounter {
            context: context.number,
            counts_bytes: attr.type_ == c::IBV_COMP_CNTR_TYPE_BYTES,
            good: 0,
            failed: 0,
            attached: Vec::new(),
        });
        Ok(Handle::make(c::ibv_comp_cntr { context: context.raw, handle: number }, number))
    }))
}

/// A counter as a caller names it.
///
/// # Safety
///
/// `counter` is a live counter of this library.
unsafe fn named(counter: *mut c::ibv_comp_cntr) -> (ContextRef, u32) {
    // SAFETY: live, by the contract above.
    let raw = unsafe { (*counter).context };
    // SAFETY: it does not outlive its context.
    let context = unsafe { ContextRef::of(raw) };
    // SAFETY: live, by the contract above.
    (context, unsafe { Handle::number(counter) })
}

/// See `ibv_create_comp_cntr(3)`: `EBUSY` while a queue pair is attached.
pub(crate) unsafe extern "C" fn ibv_destroy_comp_cntr(counter: *mut c::ibv_comp_cntr) -> c_int {
    // SAFETY: the caller gives a live counter.
    let (context, number) = unsafe { named(counter) };
    let mut fabric = fabric();
    let outcome = fabric.enter(context.device, Verb::ibv_destroy_comp_cntr).and_then(|()| {
        if !fabric.counters.get(number).ok_or(libc::EINVAL)?.attached.is_empty() {
            return Err(libc::EBUSY);
        }
        fabric.counters.remove(number);
        Ok(())
    });
    if outcome.is_ok() {
        // SAFETY: the counter is gone and the caller gives it up.
        unsafe { Handle::free(counter) };
    }
    status(outcome)
}

/// Runs `act` on one count of a counter.
fn count<T>(
    context: ContextRef,
    number: u32,
    (verb, which): (Verb, Which),
    act: impl FnOnce(&mut u64) -> T,
) -> Outcome<T> {
    let mut fabric = fabric();
    fabric.enter(context.device, verb)?;
    let counter = fabric.counters.get_mut(number).ok_or(libc::EINVAL)?;
    Ok(act(match which {
        Which::Good => &mut counter.good,
        Which::Failed => &mut counter.failed,
    }))
}

/// Makes the functions that change one count.
macro_rules! changes {
    ($($name:ident = $which:ident, |$count:ident, $value:ident| $new:expr;)*) => {
        $(
            /// See `ibv_create_comp_cntr(3)`.
            pub(crate) unsafe extern "C" fn $name(
                counter: *mut c::ibv_comp_cntr,
                $value: u64,
            ) -> c_int {
                // SAFETY: the caller gives a live counter.
                let (context, number) = unsafe { named(counter) };
                let which = (Verb::$name, Which::$which);
                status(count(context, number, which, |$count| *$count = $new))
            }
        )*
    };
}

changes! {
    ibv_set_comp_cntr = Good, |count, value| value;
    ibv_set_err_comp_cntr = Failed, |count, value| value;
    ibv_inc_comp_cntr = Good, |count, value| count.wrapping_add(value);
    ibv_inc_err_comp_cntr = Failed, |count, value| count.wrapping_add(value);
}

/// Makes the functions that read one count.
macro_rules! reads {
    ($($name:ident = $which:ident;)*) => {
        $(
            /// See `ibv_create_comp_cntr(3)`.
            pub(crate) unsafe extern "C" fn $name(
                counter: *mut c::ibv_comp_cntr,
                value: *mut u64,
            ) -> c_int {
                // SAFETY: the caller gives a live counter.
                let (context, number) = unsafe { named(counter) };
                let which = (Verb::$name, Which::$which);
                status(count(context, number, which, |count| *count).map(|count| {
                    // SAFETY: the caller gives a place for the count.
                    unsafe { value.write(count) };
                }))
            }
        )*
    };
}

reads! {
    ibv_read_comp_cntr = Good;
    ibv_read_err_comp_cntr = Failed;
}

/// See `ibv_qp_attach_comp_cntr(3)`: before the pair leaves the state RESET.
pub(crate) unsafe extern "C" fn ibv_qp_attach_comp_cntr(
    qp: *mut c::ibv_qp,
    counter: *mut c::ibv_comp_cntr,
    attr: *mut c::ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    // SAFETY: the caller gives a live pair.
    let pair = unsafe { PairRef::of(qp) };
    // SAFETY: the caller gives a live counter.
    let (_, number) = unsafe { named(counter) };
    // SAFETY: the caller gives a readable struct.
    let attr = unsafe { *attr };
    status(attach(pair, number, attr))
}

fn attach(pair: PairRef, number: u32, attr: c::ibv_qp_attach_comp_cntr_attr) -> Outcome {
    let mut fabric = fabric();
    fabric.enter(pair.device, Verb::ibv_qp_attach_comp_cntr)?;
    let state = fabric.pairs.get(pair.number).ok_or(libc::EINVAL)?.state;
    let operations = attr.op_mask;
    if attr.comp_mask != 0 || operations == 0 || state != c::IBV_QPS_RESET {
        return Err(libc::EINVAL);
    }
    if operations & !OPERATIONS != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let twice = |counter: &CompletionCounter| {
        counter.attached.iter().any(|&(other, mask)| other == pair.number && mask & operations != 0)
    };
    if fabric.counters.iter().any(|(_, counter)| twice(counter)) {
        return Err(libc::EBUSY);
    }
    let counter = fabric.counters.get_mut(number).ok_or(libc::EINVAL)?;
    counter.attached.push((pair.number, operations));
    Ok(())
}

impl Fabric {
    /// Counts the end of an operation of a pair.
    pub(crate) fn count_end(&mut self, pair: u32, operation: u32, good: bool, bytes: u64) {
        if self.counters.is_empty() {
            return;
        }
        for (_, counter) in self.counters.iter_mut() {
            let counts = |&(other, mask): &(u32, u32)| other == pair && mask & operation != 0;
            if counter.attached.iter().any(counts) {
                let step = if counter.counts_bytes { bytes } else { 1 };
                let count = if good { &mut counter.good } else { &mut counter.failed };
                *count = count.wrapping_add(if good { step } else { 1 });
            }
        }
    }

    /// Takes a pair that is destroyed off every counter.
    pub(crate) fn detach_counters(&mut self, pair: u32) {
        for (_, counter) in self.counters.iter_mut() {
            counter.attached.retain(|&(other, _)| other != pair);
        }
    }
}

/// What a send is called to counters, 0 if they do not count it.
pub(crate) fn operation_of(opcode: c::ibv_wr_opcode) -> u32 {
    match opcode {
        c::IBV_WR_SEND | c::IBV_WR_SEND_WITH_IMM | c::IBV_WR_SEND_WITH_INV => {
            c::IBV_QP_ATTACH_COMP_CNTR_OP_SEND
        }
        c::IBV_WR_RDMA_WRITE | c::IBV_WR_RDMA_WRITE_WITH_IMM => {
            c::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE
        }
        c::IBV_WR_RDMA_READ => c::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ,
        _ => 0,
    }
}
