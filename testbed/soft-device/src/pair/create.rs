//! Making queue pairs.
#![expect(unsafe_code, reason = "verbs, called from C")]

use std::ptr;

use rdma_sys as c;

use super::{
    PairHandle, QueuePair,
    extended::{Building, fill, supported, wr_set_processing_hints},
    work::{ReceiveQueue, SendQueue},
};
use crate::{
    async_event::Acknowledgements,
    completion_queue::QueueRef,
    device::LinkLayer,
    domain::DomainRef,
    efa::EfaLimits,
    errno::{Outcome, object},
    ethernet::hash::Spreading,
    fabric::{Fabric, fabric},
    handle::{ContextRef, Handle},
    owner_lock::OwnerLock,
    verb::Verb,
};

/// What a pair is made with, by whichever verb: pointers that came with it, and their numbers.
pub(crate) struct Creation {
    verb: Verb,
    context: ContextRef,
    pd: Option<DomainRef>,
    xrc_domain: Option<u32>,
    send_cq: Option<u32>,
    receive_cq: Option<u32>,
    srq: Option<u32>,
    blocks_loopback: bool,
    strips_vlan: bool,
    /// The longest headers of a stretch that is to be cut into packets.
    max_header: u16,
    spreading: Option<Spreading>,
    /// The operations that were asked for, `None` for a pair without extended posting.
    operations: Option<u64>,
    /// What was asked for beyond the verbs.
    efa: Option<Efa>,
}

/// What is special about a scalable reliable datagram pair.
#[derive(Debug, Clone, Copy)]
struct Efa {
    unsolicited: bool,
    inline_writes: bool,
    hints: bool,
}

/// See `ibv_create_qp(3)`. The capacities are not rounded up.
pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut c::ibv_pd,
    attr: *mut c::ibv_qp_init_attr,
) -> *mut c::ibv_qp {
    // SAFETY: the caller gives a struct of its own.
    let init = unsafe { &mut *attr };
    // SAFETY: the caller gives a live domain.
    let pd = unsafe { DomainRef::of(pd) };
    let creation = Creation {
        verb: Verb::ibv_create_qp,
        context: pd.context,
        pd: Some(pd),
        xrc_domain: None,
        // SAFETY: the caller gives null or a live queue.
        send_cq: unsafe { queue(init.send_cq) },
        // SAFETY: the caller gives null or a live queue.
        receive_cq: unsafe { queue(init.recv_cq) },
        // SAFETY: the caller gives null or a live shared queue.
        srq: unsafe { number(init.srq) },
        blocks_loopback: false,
        strips_vlan: false,
        max_header: 0,
        spreading: None,
        operations: None,
        efa: None,
    };
    object(create(&creation, init))
}

/// See `ibv_create_qp_ex(3)`.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut c::ibv_context,
    attr: *mut c::ibv_qp_init_attr_ex,
) -> *mut c::ibv_qp {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    // SAFETY: the caller gives a struct of its own.
    let attr = unsafe { &mut *attr };
    // SAFETY: the objects in the struct are live or null.
    let creation = match unsafe { extended_creation(context, attr) } {
        Ok(creation) => creation,
        Err(code) => return object(Err(code)),
    };
    let mut init = c::ibv_qp_init_attr {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
    };
    let made = object(create(&creation, &mut init));
    attr.cap = init.cap;
    made
}

/// Makes a scalable reliable datagram pair; see `efadv_create_qp_ex(3)`.
///
/// # Safety
///
/// The objects in `attr` are live or null.
pub(crate) unsafe fn create_scalable(
    context: ContextRef,
    attr: &mut c::ibv_qp_init_attr_ex,
    wanted: &c::efadv_qp_init_attr,
) -> *mut c::ibv_qp {
    // SAFETY: by the contract above.
    let creation = unsafe { extended_creation(context, attr) }.and_then(|creation| {
        let efa = efa_options(context, attr, wanted)?;
        Ok(Creation { verb: Verb::efadv_create_qp_ex, efa: Some(efa), ..creation })
    });
    let mut init = c::ibv_qp_init_attr {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
    };
    object(creation.and_then(|creation| create(&creation, &mut init)))
}

/// Checks what was asked for beyond the verbs.
fn efa_options(
    context: ContextRef,
    attr: &c::ibv_qp_init_attr_ex,
    wanted: &c::efadv_qp_init_attr,
) -> Outcome<Efa> {
    let fabric = fabric();
    let device = fabric.device(context.device).ok_or(libc::ENODEV)?;
    let limits = device.description.efa.as_ref().ok_or(libc::EOPNOTSUPP)?;
    if attr.qp_type != c::IBV_QPT_DRIVER || wanted.comp_mask != 0 || wanted.reserved != 0 {
        return Err(libc::EINVAL);
    }
    if wanted.driver_qp_type != c::EFADV_QP_DRIVER_TYPE_SRD {
        return Err(libc::EOPNOTSUPP);
    }
    let flags = u32::from(wanted.flags);
    let has = |cap: u32| limits.device_caps & cap != 0;
    let asks = |operations: u32| attr.send_ops_flags & u64::from(operations) != 0;
    let known = c::EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV | c::EFADV_QP_FLAGS_INLINE_WRITE;
    let unsolicited = flags & c::EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV != 0;
    let writes = c::IBV_QP_EX_WITH_RDMA_WRITE | c::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    let lacks = (unsolicited && !has(c::EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV))
        || (asks(writes) && !has(c::EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE))
        || (asks(c::IBV_QP_EX_WITH_RDMA_READ) && !has(c::EFADV_DEVICE_ATTR_CAPS_RDMA_READ));
    let hints = u64::from(c::EFADV_WR_EX_WITH_PROCESSING_HINTS);
    if flags & !known != 0 || wanted.wr_flags & !hints != 0 || lacks {
        return Err(libc::EOPNOTSUPP);
    }
    Ok(Efa {
        unsolicited,
        inline_writes: flags & c::EFADV_QP_FLAGS_INLINE_WRITE != 0,
        hints: wanted.wr_flags & hints != 0,
    })
}

/// Reads the extended struct.
///
/// # Safety
///
/// The objects in the struct are live or null.
unsafe fn extended_creation(
    context: ContextRef,
    attr: &c::ibv_qp_init_attr_ex,
) -> Outcome<Creation> {
    let known = c::IBV_QP_INIT_ATTR_PD
        | c::IBV_QP_INIT_ATTR_XRCD
        | c::IBV_QP_INIT_ATTR_CREATE_FLAGS
        | c::IBV_QP_INIT_ATTR_MAX_TSO_HEADER
        | c::IBV_QP_INIT_ATTR_IND_TABLE
        | c::IBV_QP_INIT_ATTR_RX_HASH
        | c::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let given = |flag: u32| attr.comp_mask & flag != 0;
    let flags = if given(c::IBV_QP_INIT_ATTR_CREATE_FLAGS) { attr.create_flags } else { 0 };
    let known_flags = c::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB | c::IBV_QP_CREATE_CVLAN_STRIPPING;
    let strips_vlan = flags & c::IBV_QP_CREATE_CVLAN_STRIPPING != 0;
    let raw = attr.qp_type == c::IBV_QPT_RAW_PACKET;
    if attr.comp_mask & !known != 0
        || flags & !known_flags != 0
        || ((strips_vlan || given(c::IBV_QP_INIT_ATTR_MAX_TSO_HEADER)) && !raw)
    {
        return Err(libc::EINVAL);
    }
    let extended = given(c::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS);
    if extended && attr.send_ops_flags & !supported(attr.qp_type) != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let pd = given(c::IBV_QP_INIT_ATTR_PD) && !attr.pd.is_null();
    let xrc = given(c::IBV_QP_INIT_ATTR_XRCD) && !attr.xrcd.is_null();
    Ok(Creation {
        verb: Verb::ibv_create_qp_ex,
        context,
        // SAFETY: a domain that is not null is live, by the contract above.
        pd: pd.then(|| unsafe { DomainRef::of(attr.pd) }),
        // SAFETY: an XRC domain that is not null is live, by the contract above.
        xrc_domain: xrc.then(|| unsafe { Handle::number(attr.xrcd) }),
        // SAFETY: by the contract above.
        send_cq: unsafe { queue(attr.send_cq) },
        // SAFETY: by the contract above.
        receive_cq: unsafe { queue(attr.recv_cq) },
        // SAFETY: by the contract above.
        srq: unsafe { number(attr.srq) },
        blocks_loopback: flags & c::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0,
        strips_vlan,
        max_header: if given(c::IBV_QP_INIT_ATTR_MAX_TSO_HEADER) { attr.max_tso_header } else { 0 },
        // SAFETY: by the contract above.
        spreading: unsafe { Spreading::asked(attr) }?,
        operations: extended.then_some(attr.send_ops_flags),
        efa: None,
    })
}

/// The number of a completion queue, `None` for null.
///
/// # Safety
///
/// `raw` is null or a live completion queue of this library.
unsafe fn queue(raw: *mut c::ibv_cq) -> Option<u32> {
    // SAFETY: a queue that is not null is live, by the contract above.
    (!raw.is_null()).then(|| unsafe { QueueRef::of(raw) }.number)
}

/// The number of an object with a plain handle, `None` for null.
///
/// # Safety
///
/// `raw` is null or a live object of this library.
unsafe fn number<T>(raw: *mut T) -> Option<u32> {
    // SAFETY: an object that is not null is live, by the contract above.
    (!raw.is_null()).then(|| unsafe { Handle::number(raw) })
}

impl Creation {
    /// Whether everything is there that the kind needs, and nothing that it cannot have.
    fn check(&self, kind: c::ibv_qp_type) -> Outcome {
        let (pd, xrc) = (self.pd.is_some(), self.xrc_domain.is_some());
        let (send, receive) = (self.send_cq.is_some(), self.receive_cq.is_some());
        let fits = match kind {
            c::IBV_QPT_RC | c::IBV_QPT_UD => pd && send && receive && !xrc,
            c::IBV_QPT_UC => pd && send && receive && !xrc && self.srq.is_none(),
            c::IBV_QPT_RAW_PACKET if self.spreading.is_some() => {
                pd && !send && !receive && !xrc && self.srq.is_none() && self.operations.is_none()
            }
            c::IBV_QPT_RAW_PACKET => pd && send && receive && !xrc,
            c::IBV_QPT_XRC_SEND => pd && send && !xrc && self.srq.is_none(),
            c::IBV_QPT_DRIVER if self.efa.is_some() => {
                pd && send && receive && !xrc && self.srq.is_none()
            }
            c::IBV_QPT_XRC_RECV => xrc && self.operations.is_none() && self.srq.is_none(),
            _ => return Err(libc::EOPNOTSUPP),
        };
        if fits { Ok(()) } else { Err(libc::EINVAL) }
    }
}

fn create(creation: &Creation, init: &mut c::ibv_qp_init_attr) -> Outcome<*mut c::ibv_qp> {
    let context = creation.context;
    let mut fabric = fabric();
    fabric.enter(context.device, creation.verb)?;
    if let Some(efa) = fabric.device(context.device).and_then(|it| it.description.efa.as_ref()) {
        check_efa(efa, init)?;
    }
    let link = fabric.device(context.device).map(|device| device.description.link_layer);
    if init.qp_type == c::IBV_QPT_RAW_PACKET && link != Some(LinkLayer::Ethernet) {
        return Err(libc::EOPNOTSUPP);
    }
    let limits = fabric.limits(context.device)?;
    if init.cap.max_send_wr > limits.max_qp_wr
        || init.cap.max_recv_wr > limits.max_qp_wr
        || init.cap.max_send_sge > limits.max_sge
        || init.cap.max_recv_sge > limits.max_sge
        || init.cap.max_inline_data > limits.max_inline_data
    {
        return Err(libc::EINVAL);
    }
    creation.check(init.qp_type)?;
    let most = limits.max_qp;
    fabric.within(most, fabric.pairs.iter().map(|(_, each)| each.context), context.device)?;
    for queue in [creation.send_cq, creation.receive_cq].into_iter().flatten() {
        let owner = fabric.queues.get(queue).map(|queue| queue.context);
        if owner != Some(context.number) {
            return Err(libc::EINVAL);
        }
    }
    if creation.srq.is_some_and(|srq| fabric.shared.get(srq).is_none_or(|it| it.xrc.is_some())) {
        return Err(libc::EINVAL);
    }
    let receives = init.qp_type != c::IBV_QPT_XRC_SEND && creation.srq.is_none();
    if init.qp_type == c::IBV_QPT_XRC_RECV {
        init.cap = c::ibv_qp_cap::default();
    } else if !receives {
        init.cap = c::ibv_qp_cap { max_recv_wr: 0, max_recv_sge: 0, ..init.cap };
    }
    if creation.spreading.is_some() {
        init.cap = c::ibv_qp_cap::default();
    }
    if let Some(domain) = creation.xrc_domain {
        fabric.xrc_domains.get_mut(domain).ok_or(libc::EINVAL)?.users += 1;
    }
    if let Some(pd) = creation.pd {
        fabric.join(pd)?;
    }
    for queue in [creation.send_cq, creation.receive_cq].into_iter().flatten() {
        if let Some(queue) = fabric.queues.get_mut(queue) {
            queue.users += 1;
        }
    }
    if let Some(shared) = creation.srq.and_then(|srq| fabric.shared.get_mut(srq)) {
        shared.users += 1;
    }
    if let Some(table) = creation.spreading.and_then(|it| fabric.tables.get_mut(it.table)) {
        table.users += 1;
    }
    Ok(ptr::with_exposed_provenance_mut(add(&mut fabric, creation, init)))
}

/// What an EFA device can make: datagrams only, within its limits.
fn check_efa(limits: &EfaLimits, init: &c::ibv_qp_init_attr) -> Outcome {
    if init.qp_type != c::IBV_QPT_UD && init.qp_type != c::IBV_QPT_DRIVER {
        return Err(libc::EOPNOTSUPP);
    }
    let cap = &init.cap;
    let fits = cap.max_send_wr <= limits.max_sq_wr
        && cap.max_recv_wr <= limits.max_rq_wr
        && cap.max_send_sge <= limits.max_sq_sge.into()
        && cap.max_recv_sge <= limits.max_rq_sge.into()
        && cap.max_inline_data <= limits.inline_buf_size_ex.max(limits.inline_buf_size).into();
    if fits { Ok(()) } else { Err(libc::EINVAL) }
}

/// The attributes of a new pair. Unless told otherwise, scalable reliable datagrams wait for a
/// receiver for ever.
pub(super) fn initial_attr(kind: c::ibv_qp_type, cap: c::ibv_qp_cap) -> c::ibv_qp_attr {
    let rnr_retry = if kind == c::IBV_QPT_DRIVER { 7 } else { 0 };
    c::ibv_qp_attr { cap, rnr_retry, ..c::ibv_qp_attr::default() }
}

/// Adds the pair; the address of its C struct.
fn add(fabric: &mut Fabric, creation: &Creation, init: &c::ibv_qp_init_attr) -> usize {
    let context = creation.context;
    let cap = init.cap;
    let number = fabric.pairs.insert_with(|number| QueuePair {
        context: context.number,
        device: context.device,
        raw: handle(creation, init, number),
        kind: init.qp_type,
        domain: creation.pd.map_or(0, |pd| pd.number),
        holder: creation.pd.map_or(0, |pd| pd.holder),
        send_cq: creation.send_cq,
        receive_cq: creation.receive_cq,
        srq: creation.srq,
        xrc_domain: creation.xrc_domain,
        state: c::IBV_QPS_RESET,
        attr: initial_attr(init.qp_type, cap),
        signals_all: init.sq_sig_all != 0,
        blocks_loopback: creation.blocks_loopback,
        send: SendQueue::new(&cap, creation.max_header),
        receive: ReceiveQueue::new(cap.max_recv_wr, cap.max_recv_sge),
        async_events: Acknowledgements::default(),
        send_psn: 0,
        receive_psn: 0,
        waiting: None,
        handles: 1,
        ece: c::ibv_ece::default(),
        flows: 0,
        spreading: creation.spreading,
        strips_vlan: creation.strips_vlan,
        unsolicited: creation.efa.is_some_and(|efa| efa.unsolicited),
        inline_writes: creation.efa.is_some_and(|efa| efa.inline_writes),
    });
    fabric.pairs.get(number).map_or(0, |pair| pair.raw)
}

/// Moves the C struct of a pair to the heap; its address.
fn handle(creation: &Creation, init: &c::ibv_qp_init_attr, number: u32) -> usize {
    let mut ex = c::ibv_qp_ex {
        qp_base: c::ibv_qp {
            context: creation.context.raw,
            qp_context: init.qp_context,
            pd: creation.pd.map_or(ptr::null_mut(), |pd| pd.raw),
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            handle: number,
            qp_num: number,
            qp_type: init.qp_type,
            state: c::IBV_QPS_RESET,
            ..c::ibv_qp::default()
        },
        ..c::ibv_qp_ex::default()
    };
    let nothing = c::ibv_qp_cap::default();
    let mut room = &nothing;
    if creation.operations.is_some() {
        fill(&mut ex, init.qp_type);
        room = &init.cap;
    }
    let handle = PairHandle {
        ex,
        number,
        device: creation.context.device,
        operations: creation.operations,
        lock: OwnerLock::default(),
        building: Building::new(room),
        efa: c::efadv_qp {
            comp_mask: 0,
            wr_set_processing_hints: creation
                .efa
                .is_some_and(|efa| efa.hints)
                .then_some(wr_set_processing_hints),
        },
    };
    Box::into_raw(Box::new(handle)).expose_provenance()
}

/// See `ibv_open_qp(3)`: one more struct for the target of an XRC connection.
pub(crate) unsafe extern "C" fn open_qp(
    context: *mut c::ibv_context,
    attr: *mut c::ibv_qp_open_attr,
) -> *mut c::ibv_qp {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    // SAFETY: the caller gives a readable struct.
    let attr = unsafe { &*attr };
    let needed = c::IBV_QP_OPEN_ATTR_NUM | c::IBV_QP_OPEN_ATTR_XRCD | c::IBV_QP_OPEN_ATTR_TYPE;
    let known = needed | c::IBV_QP_OPEN_ATTR_CONTEXT;
    if attr.comp_mask & needed != needed || attr.comp_mask & !known != 0 || attr.xrcd.is_null() {
        return object(Err(libc::EINVAL));
    }
    // SAFETY: the caller gives a live XRC domain, which is not null.
    let domain = unsafe { Handle::number(attr.xrcd) };
    object(open(context, attr, domain))
}

fn open(context: ContextRef, attr: &c::ibv_qp_open_attr, domain: u32) -> Outcome<*mut c::ibv_qp> {
    let mut fabric = fabric();
    fabric.enter(context.device, Verb::ibv_open_qp)?;
    let pair = fabric.pairs.get_mut(attr.qp_num).ok_or(libc::EINVAL)?;
    if attr.qp_type != c::IBV_QPT_XRC_RECV || pair.xrc_domain != Some(domain) {
        return Err(libc::EINVAL);
    }
    pair.handles += 1;
    let init = c::ibv_qp_init_attr {
        qp_context: attr.qp_context,
        qp_type: attr.qp_type,
        ..c::ibv_qp_init_attr::default()
    };
    let creation = Creation {
        verb: Verb::ibv_open_qp,
        context,
        pd: None,
        xrc_domain: Some(domain),
        send_cq: None,
        receive_cq: None,
        srq: None,
        blocks_loopback: false,
        strips_vlan: false,
        max_header: 0,
        spreading: None,
        operations: None,
        efa: None,
    };
    Ok(ptr::with_exposed_provenance_mut(handle(&creation, &init, attr.qp_num)))
}
