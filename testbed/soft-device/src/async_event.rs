//! Asynchronous events of a context.
#![expect(unsafe_code, reason = "the verbs of asynchronous events, called from C")]

use std::{collections::VecDeque, ffi::c_int, os::fd::RawFd, ptr};

use rdma_sys as c;

use crate::{
    errno::{Outcome, minus_one},
    fabric::{Fabric, fabric},
    handle::ContextRef,
    signal::{self, Signal},
    verb::Verb,
};

/// What an event is about. Objects come with the address of their C struct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    Queue(u32, usize),
    Pair(u32, usize),
    Shared(u32, usize),
    Work(u32, usize),
    Port(u8),
}

/// The events that a context has not fetched.
#[derive(Debug)]
pub(crate) struct AsyncQueue {
    signal: Signal,
    events: VecDeque<(c::ibv_event_type, Element)>,
    cut_off: bool,
}

/// How many events of one object were handed out, and how many of them acknowledged.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Acknowledgements {
    handed_out: u32,
    acknowledged: u32,
}

impl Acknowledgements {
    pub(crate) fn hand_out(&mut self) {
        self.handed_out = self.handed_out.wrapping_add(1);
    }

    pub(crate) fn acknowledge(&mut self, count: u32) {
        self.acknowledged = self.acknowledged.wrapping_add(count);
    }

    /// How many are still to be acknowledged.
    pub(crate) fn open(self) -> u32 {
        self.handed_out.wrapping_sub(self.acknowledged)
    }
}

impl AsyncQueue {
    pub(crate) fn new() -> Outcome<Self> {
        Ok(Self { signal: Signal::new()?, events: VecDeque::new(), cut_off: false })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.signal.fd()
    }

    pub(crate) fn is_cut_off(&self) -> bool {
        self.cut_off
    }

    /// The context is closed: no event any more.
    pub(crate) fn cut_off(&mut self) {
        self.cut_off = true;
        self.events.clear();
    }

    fn push(&mut self, kind: c::ibv_event_type, element: Element) {
        if !self.cut_off {
            self.events.push_back((kind, element));
            self.signal.raise();
        }
    }

    /// Drops the events about an object that is being destroyed.
    fn forget(&mut self, element: Element) {
        let before = self.events.len();
        self.events.retain(|&(_, each)| each != element);
        for _ in self.events.len()..before {
            self.signal.lower();
        }
    }
}

impl Fabric {
    /// Queues an event on a context.
    pub(crate) fn raise(&mut self, context: u32, kind: c::ibv_event_type, element: Element) {
        if let Some(context) = self.contexts.get_mut(context) {
            context.events.push(kind, element);
        }
    }

    /// Queues an event on every context of a device.
    pub(crate) fn raise_on_all(&mut self, device: u32, kind: c::ibv_event_type, element: Element) {
        for (_, context) in self.contexts.iter_mut().filter(|(_, each)| each.device == device) {
            context.events.push(kind, element);
        }
    }

    /// Drops the events about an object that is being destroyed.
    pub(crate) fn forget_events(&mut self, context: u32, element: Element) {
        if let Some(context) = self.contexts.get_mut(context) {
            context.events.forget(element);
        }
    }

    /// The count of acknowledgements of an object.
    fn acknowledgements(&mut self, element: Element) -> Option<&mut Acknowledgements> {
        match element {
            Element::Queue(number, _) => Some(&mut self.queues.get_mut(number)?.async_events),
            Element::Pair(number, _) => Some(&mut self.pairs.get_mut(number)?.async_events),
            Element::Shared(number, _) => Some(&mut self.shared.get_mut(number)?.async_events),
            Element::Work(number, _) => Some(&mut self.work_queues.get_mut(number)?.async_events),
            Element::Port(_) => None,
        }
    }
}

/// See `ibv_get_async_event(3)`: waits unless the descriptor was made non-blocking.
pub(crate) unsafe extern "C" fn ibv_get_async_event(
    context: *mut c::ibv_context,
    event: *mut c::ibv_async_event,
) -> c_int {
    // SAFETY: the caller gives an open context.
    let of = unsafe { ContextRef::of(context) };
    // SAFETY: the caller gives an open context.
    let fd = unsafe { (*context).async_fd };
    minus_one(next(of, fd).map(|next| {
        // SAFETY: the caller gives a place for the event.
        unsafe { event.write(next) };
    }))
}

fn next(context: ContextRef, fd: RawFd) -> Outcome<c::ibv_async_event> {
    fabric().enter(context.device, Verb::ibv_get_async_event)?;
    loop {
        signal::wait(fd)?;
        let mut fabric = fabric();
        let queue = &mut fabric.contexts.get_mut(context.number).ok_or(libc::EBADF)?.events;
        let Some((event_type, element)) = queue.events.pop_front() else { continue };
        if let Some(count) = fabric.acknowledgements(element) {
            count.hand_out();
        }
        return Ok(c::ibv_async_event { event_type, element: element_in_c(element) });
    }
}

fn element_in_c(element: Element) -> c::ibv_async_event__bindgen_ty_1 {
    match element {
        Element::Queue(_, raw) => {
            c::ibv_async_event__bindgen_ty_1 { cq: ptr::with_exposed_provenance_mut(raw) }
        }
        Element::Pair(_, raw) => {
            c::ibv_async_event__bindgen_ty_1 { qp: ptr::with_exposed_provenance_mut(raw) }
        }
        Element::Shared(_, raw) => {
            c::ibv_async_event__bindgen_ty_1 { srq: ptr::with_exposed_provenance_mut(raw) }
        }
        Element::Work(_, raw) => {
            c::ibv_async_event__bindgen_ty_1 { wq: ptr::with_exposed_provenance_mut(raw) }
        }
        Element::Port(port) => c::ibv_async_event__bindgen_ty_1 { port_num: port.into() },
    }
}

/// See `ibv_get_async_event(3)`.
pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut c::ibv_async_event) {
    // SAFETY: the caller gives an event that it got from here.
    let event = unsafe { &*event };
    // SAFETY: the address of any kind of object; a port number is read below only.
    let raw = unsafe { event.element.cq }.addr();
    let mut fabric = fabric();
    let element = match event.event_type {
        c::IBV_EVENT_CQ_ERR => fabric
            .queues
            .iter()
            .find(|(_, each)| each.raw == raw)
            .map(|(number, _)| Element::Queue(number, raw)),
        c::IBV_EVENT_QP_FATAL
        | c::IBV_EVENT_QP_REQ_ERR
        | c::IBV_EVENT_QP_ACCESS_ERR
        | c::IBV_EVENT_COMM_EST
        | c::IBV_EVENT_SQ_DRAINED
        | c::IBV_EVENT_PATH_MIG
        | c::IBV_EVENT_PATH_MIG_ERR
        | c::IBV_EVENT_QP_LAST_WQE_REACHED => fabric
            .pairs
            .iter()
            .find(|(_, each)| each.raw == raw)
            .map(|(number, _)| Element::Pair(number, raw)),
        c::IBV_EVENT_SRQ_ERR | c::IBV_EVENT_SRQ_LIMIT_REACHED => fabric
            .shared
            .iter()
            .find(|(_, each)| each.raw == raw)
            .map(|(number, _)| Element::Shared(number, raw)),
        c::IBV_EVENT_WQ_FATAL => fabric
            .work_queues
            .iter()
            .find(|(_, each)| each.raw == raw)
            .map(|(number, _)| Element::Work(number, raw)),
        // Events of ports and of the device are counted nowhere.
        _ => None,
    };
    if let Some(count) = element.and_then(|element| fabric.acknowledgements(element)) {
        count.acknowledge(1);
    }
}
