//! Dropping what an end is made of, in any order, while its work is in flight.

use std::{any::Any, mem};

use super::{End, Host};

/// What [`parts`] returns, in its order.
pub(crate) const PARTS: [&str; 6] =
    ["queue pair", "send queue", "receive queue", "memory region", "domain", "context"];

/// Every handle of an end and its host; dropping the last one of an object ends it.
pub(crate) fn parts(host: Host, end: End) -> [Option<Box<dyn Any>>; 6] {
    let End { pair, sends, receives, memory } = end;
    [
        Some(Box::new(pair)),
        Some(Box::new(sends)),
        Some(Box::new(receives)),
        Some(Box::new(memory)),
        Some(Box::new(host.domain)),
        Some(Box::new(host.context)),
    ]
}

/// Drops the parts in an order; what is to be forgotten is never dropped.
#[expect(clippy::mem_forget, reason = "safe code may, and nothing must break")]
pub(crate) fn drop_in(
    order: &[usize],
    mut parts: [Option<Box<dyn Any>>; 6],
    forgotten: Option<usize>,
) {
    for &part in order {
        let handle = parts[part].take();
        if forgotten == Some(part) {
            mem::forget(handle);
        } else {
            drop(handle);
        }
    }
}

/// Every order of six things.
pub(crate) fn orders() -> Vec<Vec<usize>> {
    fn extend(order: &[usize], all: &mut Vec<Vec<usize>>) {
        if order.len() == PARTS.len() {
            all.push(order.to_vec());
        }
        for next in (0..PARTS.len()).filter(|next| !order.contains(next)) {
            extend(&[order, &[next]].concat(), all);
        }
    }
    let mut all = Vec::new();
    extend(&[], &mut all);
    all
}
