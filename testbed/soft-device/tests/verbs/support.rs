//! What most tests need: an open device, a queue pair with memory, two that are connected.
//!
//! Everything goes through the raw calls of `rdma_sys`. The helpers are safe functions so that the
//! tests read well; they are for these tests only, whose objects all live until their end.
#![expect(unsafe_code, reason = "raw verbs")]
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each call is made on live objects of this file"
)]
#![expect(clippy::multiple_unsafe_ops_per_block, reason = "raw verbs in tests")]

use std::{
    ffi::{CStr, c_int},
    ptr,
    time::{Duration, Instant},
};

use rdma_sys as c;
use soft_device::SoftDevice;

pub(crate) const ALL: u32 = c::IBV_ACCESS_LOCAL_WRITE
    | c::IBV_ACCESS_REMOTE_WRITE
    | c::IBV_ACCESS_REMOTE_READ
    | c::IBV_ACCESS_REMOTE_ATOMIC;

/// Calls an exported verb of the library.
macro_rules! call {
    ($verb:ident($($argument:expr),* $(,)?)) => {
        (soft_device::library().verbs().$verb.unwrap())($($argument),*)
    };
}

pub(crate) use call;

pub(crate) fn errno() -> c_int {
    unsafe { *libc::__errno_location() }
}

/// Opens a device of the library by its name.
pub(crate) fn open(device: &SoftDevice) -> *mut c::ibv_context {
    let mut count = 0;
    unsafe {
        let list = call!(ibv_get_device_list(&raw mut count));
        let found = (0..usize::try_from(count).unwrap())
            .map(|index| *list.add(index))
            .find(|&each| name(each) == device.name())
            .unwrap();
        let context = call!(ibv_open_device(found));
        call!(ibv_free_device_list(list));
        assert!(!context.is_null());
        context
    }
}

pub(crate) fn name(device: *mut c::ibv_device) -> String {
    unsafe { CStr::from_ptr(call!(ibv_get_device_name(device))) }.to_str().unwrap().to_owned()
}

/// How a [`Side`] is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    pub(crate) extended: bool,
    pub(crate) cap: c::ibv_qp_cap,
    pub(crate) cqe: u32,
    pub(crate) signals_all: bool,
    pub(crate) channel: bool,
    pub(crate) wc_flags: u32,
    pub(crate) access: u32,
    pub(crate) memory: usize,
    pub(crate) kind: c::ibv_qp_type,
    pub(crate) srq: *mut c::ibv_srq,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            extended: false,
            cap: c::ibv_qp_cap {
                max_send_wr: 8,
                max_recv_wr: 8,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 64,
            },
            cqe: 32,
            signals_all: false,
            channel: false,
            wc_flags: c::IBV_WC_STANDARD_FLAGS,
            access: ALL,
            memory: 4096,
            kind: c::IBV_QPT_RC,
            srq: ptr::null_mut(),
        }
    }
}

/// A queue pair with a completion queue for each direction and a region of memory.
pub(crate) struct Side {
    pub(crate) context: *mut c::ibv_context,
    pub(crate) pd: *mut c::ibv_pd,
    pub(crate) channel: *mut c::ibv_comp_channel,
    pub(crate) send_cq: *mut c::ibv_cq,
    pub(crate) receive_cq: *mut c::ibv_cq,
    pub(crate) qp: *mut c::ibv_qp,
    pub(crate) mr: *mut c::ibv_mr,
    pub(crate) memory: Vec<u8>,
    pub(crate) extended: bool,
}

impl Side {
    pub(crate) fn new(device: &SoftDevice, options: Options) -> Self {
        let context = open(device);
        let mut memory = vec![0u8; options.memory];
        unsafe {
            let pd = call!(ibv_alloc_pd(context));
            let channel = if options.channel {
                call!(ibv_create_comp_channel(context))
            } else {
                ptr::null_mut()
            };
            let queue = || create_queue(context, channel, options);
            let (send_cq, receive_cq) = (queue(), queue());
            let qp = create_pair(context, pd, send_cq, receive_cq, options);
            assert!(!qp.is_null(), "errno {}", errno());
            let access = c_int::try_from(options.access).unwrap();
            let mr = call!(ibv_reg_mr(pd, memory.as_mut_ptr().cast(), memory.len(), access));
            assert!(!mr.is_null(), "errno {}", errno());
            let extended = options.extended;
            Self { context, pd, channel, send_cq, receive_cq, qp, mr, memory, extended }
        }
    }

    pub(crate) fn qpn(&self) -> u32 {
        unsafe { (*self.qp).qp_num }
    }

    pub(crate) fn address(&self) -> u64 {
        self.memory.as_ptr().addr() as u64
    }

    pub(crate) fn lkey(&self) -> u32 {
        unsafe { (*self.mr).lkey }
    }

    pub(crate) fn rkey(&self) -> u32 {
        unsafe { (*self.mr).rkey }
    }

    /// A segment of the region.
    pub(crate) fn segment(&self, start: usize, length: u32) -> c::ibv_sge {
        c::ibv_sge { addr: self.address() + start as u64, length, lkey: self.lkey() }
    }

    pub(crate) fn modify(&self, attr: &c::ibv_qp_attr, mask: u32) -> c_int {
        let mut attr = *attr;
        let mask = c_int::try_from(mask).unwrap();
        unsafe { call!(ibv_modify_qp(self.qp, &raw mut attr, mask)) }
    }

    pub(crate) fn set_state(&self, state: c::ibv_qp_state) -> c_int {
        self.modify(&c::ibv_qp_attr { qp_state: state, ..Default::default() }, c::IBV_QP_STATE)
    }

    pub(crate) fn state(&self) -> c::ibv_qp_state {
        self.query().qp_state
    }

    pub(crate) fn query(&self) -> c::ibv_qp_attr {
        let mut attr = c::ibv_qp_attr::default();
        let mut init = c::ibv_qp_init_attr::default();
        let code =
            unsafe { call!(ibv_query_qp(self.qp, &raw mut attr, c_int::MAX, &raw mut init)) };
        assert_eq!(code, 0);
        attr
    }

    pub(crate) fn to_init(&self) {
        let (attr, mask) = init_attr();
        assert_eq!(self.modify(&attr, mask), 0);
    }

    pub(crate) fn to_rtr(&self, peer: &Self) {
        let (attr, mask) = rtr_attr(peer);
        assert_eq!(self.modify(&attr, mask), 0);
    }

    pub(crate) fn to_rts(&self) {
        let (attr, mask) = rts_attr();
        assert_eq!(self.modify(&attr, mask), 0);
    }

    /// Posts sends by either back end: 0 or the errno, and how many were posted.
    pub(crate) fn post(&self, works: &[Work<'_>]) -> (c_int, usize) {
        if self.extended { self.post_extended(works) } else { self.post_classic(works) }
    }

    fn post_classic(&self, works: &[Work<'_>]) -> (c_int, usize) {
        let mut requests: Vec<c::ibv_send_wr> = works.iter().map(Work::in_c).collect();
        let first = link(&mut requests, |wr, next| wr.next = next);
        let mut bad = ptr::null_mut();
        let code = unsafe { c::ibv_post_send(self.qp, first, &raw mut bad) };
        let posted = if code == 0 {
            works.len()
        } else {
            (bad.addr() - first.addr()) / size_of::<c::ibv_send_wr>()
        };
        (code, posted)
    }

    fn post_extended(&self, works: &[Work<'_>]) -> (c_int, usize) {
        unsafe {
            let qp = call!(ibv_qp_to_qp_ex(self.qp));
            c::ibv_wr_start(qp);
            for work in works {
                (*qp).wr_id = work.id;
                (*qp).wr_flags = work.flags;
                let (key, address) = (work.rkey, work.remote);
                match work.opcode {
                    c::IBV_WR_SEND => c::ibv_wr_send(qp),
                    c::IBV_WR_SEND_WITH_IMM => c::ibv_wr_send_imm(qp, work.immediate),
                    c::IBV_WR_RDMA_WRITE => c::ibv_wr_rdma_write(qp, key, address),
                    c::IBV_WR_RDMA_WRITE_WITH_IMM => {
                        c::ibv_wr_rdma_write_imm(qp, key, address, work.immediate);
                    }
                    c::IBV_WR_RDMA_READ => c::ibv_wr_rdma_read(qp, key, address),
                    c::IBV_WR_ATOMIC_CMP_AND_SWP => {
                        c::ibv_wr_atomic_cmp_swp(qp, key, address, work.compare_add, work.swap);
                    }
                    c::IBV_WR_ATOMIC_FETCH_AND_ADD => {
                        c::ibv_wr_atomic_fetch_add(qp, key, address, work.compare_add);
                    }
                    c::IBV_WR_SEND_WITH_INV => c::ibv_wr_send_inv(qp, work.immediate),
                    c::IBV_WR_LOCAL_INV => {
                        c::ibv_wr_local_inv(qp, work.immediate);
                        continue;
                    }
                    c::IBV_WR_BIND_MW => {
                        let (mw, info) = work.bind.unwrap();
                        c::ibv_wr_bind_mw(qp, mw, key, &raw const info);
                        continue;
                    }
                    c::IBV_WR_FLUSH => {
                        let length = usize::try_from(work.compare_add).unwrap();
                        let kind = u8::try_from(c::IBV_FLUSH_GLOBAL).unwrap();
                        c::ibv_wr_flush(qp, key, address, length, kind, 0);
                        continue;
                    }
                    c::IBV_WR_ATOMIC_WRITE => {
                        let value = work.compare_add;
                        c::ibv_wr_atomic_write(qp, key, address, (&raw const value).cast());
                        continue;
                    }
                    other => panic!("no operation {other}"),
                }
                if !work.ah.is_null() {
                    c::ibv_wr_set_ud_addr(qp, work.ah, work.qpn, work.qkey);
                }
                if work.flags & c::IBV_SEND_INLINE != 0 {
                    let buffers: Vec<_> = work
                        .segments
                        .iter()
                        .map(|each| c::ibv_data_buf {
                            addr: ptr::with_exposed_provenance_mut(
                                usize::try_from(each.addr).unwrap(),
                            ),
                            length: each.length as usize,
                        })
                        .collect();
                    c::ibv_wr_set_inline_data_list(qp, buffers.len(), buffers.as_ptr());
                } else {
                    c::ibv_wr_set_sge_list(qp, work.segments.len(), work.segments.as_ptr());
                }
            }
            let code = c::ibv_wr_complete(qp);
            (code, if code == 0 { works.len() } else { 0 })
        }
    }

    /// Posts one signaled send and expects that it is taken.
    pub(crate) fn send(&self, work: Work<'_>) {
        assert_eq!(self.post(&[work]), (0, 1));
    }

    /// Posts receives: 0 or the errno, and how many were posted.
    pub(crate) fn receive(&self, list: &[(u64, &[c::ibv_sge])]) -> (c_int, usize) {
        let mut requests: Vec<c::ibv_recv_wr> = list
            .iter()
            .map(|&(wr_id, segments)| c::ibv_recv_wr {
                wr_id,
                sg_list: segments.as_ptr().cast_mut(),
                num_sge: c_int::try_from(segments.len()).unwrap(),
                next: ptr::null_mut(),
            })
            .collect();
        let first = link(&mut requests, |wr, next| wr.next = next);
        let mut bad = ptr::null_mut();
        let code = unsafe { c::ibv_post_recv(self.qp, first, &raw mut bad) };
        let posted = if code == 0 {
            list.len()
        } else {
            (bad.addr() - first.addr()) / size_of::<c::ibv_recv_wr>()
        };
        (code, posted)
    }

    /// Destroys everything; each call must succeed.
    pub(crate) fn close(self) {
        unsafe {
            assert_eq!(call!(ibv_destroy_qp(self.qp)), 0);
            assert_eq!(call!(ibv_destroy_cq(self.send_cq)), 0);
            assert_eq!(call!(ibv_destroy_cq(self.receive_cq)), 0);
            if !self.channel.is_null() {
                assert_eq!(call!(ibv_destroy_comp_channel(self.channel)), 0);
            }
            assert_eq!(call!(ibv_dereg_mr(self.mr)), 0);
            assert_eq!(call!(ibv_dealloc_pd(self.pd)), 0);
            assert_eq!(call!(ibv_close_device(self.context)), 0);
        }
    }
}

pub(crate) fn create_queue(
    context: *mut c::ibv_context,
    channel: *mut c::ibv_comp_channel,
    options: Options,
) -> *mut c::ibv_cq {
    unsafe {
        let queue = if options.extended {
            let mut attr = c::ibv_cq_init_attr_ex {
                cqe: options.cqe,
                channel,
                wc_flags: options.wc_flags.into(),
                ..Default::default()
            };
            c::ibv_create_cq_ex(context, &raw mut attr).unwrap().cast()
        } else {
            let cqe = c_int::try_from(options.cqe).unwrap();
            call!(ibv_create_cq(context, cqe, ptr::null_mut(), channel, 0))
        };
        assert!(!queue.is_null(), "errno {}", errno());
        queue
    }
}

pub(crate) fn create_pair(
    context: *mut c::ibv_context,
    pd: *mut c::ibv_pd,
    send_cq: *mut c::ibv_cq,
    recv_cq: *mut c::ibv_cq,
    options: Options,
) -> *mut c::ibv_qp {
    let sends = c::IBV_QP_EX_WITH_SEND | c::IBV_QP_EX_WITH_SEND_WITH_IMM;
    let writes = c::IBV_QP_EX_WITH_RDMA_WRITE
        | c::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        | c::IBV_QP_EX_WITH_SEND_WITH_INV
        | c::IBV_QP_EX_WITH_LOCAL_INV
        | c::IBV_QP_EX_WITH_BIND_MW;
    let reads = c::IBV_QP_EX_WITH_RDMA_READ
        | c::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | c::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        | c::IBV_QP_EX_WITH_ATOMIC_WRITE
        | c::IBV_QP_EX_WITH_FLUSH;
    let operations = match options.kind {
        c::IBV_QPT_RAW_PACKET => c::IBV_QP_EX_WITH_SEND,
        c::IBV_QPT_UD => sends,
        c::IBV_QPT_UC => sends | writes,
        _ => sends | writes | reads,
    };
    let (cap, qp_type, srq) = (options.cap, options.kind, options.srq);
    let sq_sig_all = c_int::from(options.signals_all);
    unsafe {
        if options.extended {
            let mut attr = c::ibv_qp_init_attr_ex {
                send_cq,
                recv_cq,
                srq,
                cap,
                qp_type,
                sq_sig_all,
                pd,
                comp_mask: c::IBV_QP_INIT_ATTR_PD | c::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                send_ops_flags: operations.into(),
                ..Default::default()
            };
            c::ibv_create_qp_ex(context, &raw mut attr).unwrap()
        } else {
            let mut attr = c::ibv_qp_init_attr {
                send_cq,
                recv_cq,
                srq,
                cap,
                qp_type,
                sq_sig_all,
                ..Default::default()
            };
            call!(ibv_create_qp(pd, &raw mut attr))
        }
    }
}

pub(crate) fn init_attr() -> (c::ibv_qp_attr, u32) {
    let attr = c::ibv_qp_attr {
        qp_state: c::IBV_QPS_INIT,
        port_num: 1,
        qp_access_flags: ALL,
        ..Default::default()
    };
    let mask = c::IBV_QP_STATE | c::IBV_QP_PKEY_INDEX | c::IBV_QP_PORT | c::IBV_QP_ACCESS_FLAGS;
    (attr, mask)
}

pub(crate) fn rtr_attr(peer: &Side) -> (c::ibv_qp_attr, u32) {
    let attr = c::ibv_qp_attr {
        qp_state: c::IBV_QPS_RTR,
        path_mtu: c::IBV_MTU_1024,
        dest_qp_num: peer.qpn(),
        rq_psn: 7,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 12,
        ah_attr: c::ibv_ah_attr {
            is_global: 1,
            port_num: 1,
            grh: c::ibv_global_route {
                dgid: gid(peer.context, 1),
                sgid_index: 1,
                hop_limit: 64,
                ..Default::default()
            },
            ..Default::default()
        },
        ..Default::default()
    };
    let mask = c::IBV_QP_STATE
        | c::IBV_QP_AV
        | c::IBV_QP_PATH_MTU
        | c::IBV_QP_DEST_QPN
        | c::IBV_QP_RQ_PSN
        | c::IBV_QP_MAX_DEST_RD_ATOMIC
        | c::IBV_QP_MIN_RNR_TIMER;
    (attr, mask)
}

pub(crate) fn rts_attr() -> (c::ibv_qp_attr, u32) {
    let attr = c::ibv_qp_attr {
        qp_state: c::IBV_QPS_RTS,
        sq_psn: 7,
        timeout: 10,
        retry_cnt: 2,
        rnr_retry: 7,
        max_rd_atomic: 4,
        ..Default::default()
    };
    let mask = c::IBV_QP_STATE
        | c::IBV_QP_SQ_PSN
        | c::IBV_QP_TIMEOUT
        | c::IBV_QP_RETRY_CNT
        | c::IBV_QP_RNR_RETRY
        | c::IBV_QP_MAX_QP_RD_ATOMIC;
    (attr, mask)
}

pub(crate) fn gid(context: *mut c::ibv_context, index: c_int) -> c::ibv_gid {
    let mut gid = c::ibv_gid::default();
    assert_eq!(unsafe { call!(ibv_query_gid(context, 1, index, &raw mut gid)) }, 0);
    gid
}

/// Two sides on one device, connected.
pub(crate) fn pair(device: &SoftDevice, options: Options) -> (Side, Side) {
    let (a, b) = (Side::new(device, options), Side::new(device, options));
    connect(&a, &b);
    (a, b)
}

pub(crate) fn connect(a: &Side, b: &Side) {
    for (this, other) in [(a, b), (b, a)] {
        this.to_init();
        this.to_rtr(other);
        this.to_rts();
    }
}

/// A send request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work<'a> {
    pub(crate) id: u64,
    pub(crate) opcode: c::ibv_wr_opcode,
    pub(crate) flags: u32,
    pub(crate) segments: &'a [c::ibv_sge],
    pub(crate) immediate: u32,
    pub(crate) remote: u64,
    pub(crate) rkey: u32,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) ah: *mut c::ibv_ah,
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
    pub(crate) bind: Option<(*mut c::ibv_mw, c::ibv_mw_bind_info)>,
}

impl<'a> Work<'a> {
    pub(crate) fn new(id: u64, opcode: c::ibv_wr_opcode, segments: &'a [c::ibv_sge]) -> Self {
        Self {
            id,
            opcode,
            flags: c::IBV_SEND_SIGNALED,
            segments,
            immediate: 0,
            remote: 0,
            rkey: 0,
            compare_add: 0,
            swap: 0,
            ah: ptr::null_mut(),
            qpn: 0,
            qkey: 0,
            bind: None,
        }
    }

    pub(crate) fn to(self, side: &Side, offset: u64) -> Self {
        Self { remote: side.address() + offset, rkey: side.rkey(), ..self }
    }

    pub(crate) fn flags(self, flags: u32) -> Self {
        Self { flags, ..self }
    }

    pub(crate) fn immediate(self, immediate: u32) -> Self {
        Self { immediate: immediate.to_be(), ..self }
    }

    /// Addressed to a datagram pair.
    pub(crate) fn datagram(self, ah: *mut c::ibv_ah, qpn: u32, qkey: u32) -> Self {
        Self { ah, qpn, qkey, ..self }
    }

    fn in_c(&self) -> c::ibv_send_wr {
        let mut wr = c::ibv_send_wr {
            wr_id: self.id,
            opcode: self.opcode,
            send_flags: self.flags,
            sg_list: self.segments.as_ptr().cast_mut(),
            num_sge: c_int::try_from(self.segments.len()).unwrap(),
            ..Default::default()
        };
        wr.__bindgen_anon_1.imm_data = self.immediate;
        if let Some((mw, bind_info)) = self.bind {
            wr.__bindgen_anon_2.bind_mw =
                c::ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw, rkey: self.rkey, bind_info };
        }
        let atomic = [c::IBV_WR_ATOMIC_CMP_AND_SWP, c::IBV_WR_ATOMIC_FETCH_AND_ADD];
        if !self.ah.is_null() {
            wr.wr.ud = c::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
                ah: self.ah,
                remote_qpn: self.qpn,
                remote_qkey: self.qkey,
            };
        } else if atomic.contains(&self.opcode) {
            wr.wr.atomic = c::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
                remote_addr: self.remote,
                rkey: self.rkey,
                compare_add: self.compare_add,
                swap: self.swap,
            };
        } else {
            wr.wr.rdma = c::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
                remote_addr: self.remote,
                rkey: self.rkey,
            };
        }
        wr
    }
}

fn link<T>(list: &mut [T], set: impl Fn(&mut T, *mut T)) -> *mut T {
    let first = list.as_mut_ptr();
    for index in 1..list.len() {
        let next = first.wrapping_add(index);
        set(unsafe { &mut *first.wrapping_add(index - 1) }, next);
    }
    first
}

/// A completion, by whichever poller the queue has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Done {
    pub(crate) id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) length: u32,
    /// In host order.
    pub(crate) immediate: u32,
    pub(crate) flags: u32,
    pub(crate) qpn: u32,
    pub(crate) src_qp: u32,
    pub(crate) vendor_err: u32,
}

/// Takes what is in a queue, at most 16.
pub(crate) fn poll(side: &Side, queue: *mut c::ibv_cq) -> Vec<Done> {
    if side.extended { poll_extended(queue.cast()) } else { poll_classic(queue) }
}

fn poll_classic(queue: *mut c::ibv_cq) -> Vec<Done> {
    let mut slots = [c::ibv_wc::default(); 16];
    let count = unsafe { c::ibv_poll_cq(queue, 16, slots.as_mut_ptr()) };
    slots[..usize::try_from(count).unwrap()]
        .iter()
        .map(|wc| Done {
            id: wc.wr_id,
            status: wc.status,
            opcode: wc.opcode,
            length: wc.byte_len,
            immediate: u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data }),
            flags: wc.wc_flags,
            qpn: wc.qp_num,
            src_qp: wc.src_qp,
            vendor_err: wc.vendor_err,
        })
        .collect()
}

fn poll_extended(queue: *mut c::ibv_cq_ex) -> Vec<Done> {
    let mut found = Vec::new();
    let mut attr = c::ibv_poll_cq_attr::default();
    unsafe {
        let mut code = c::ibv_start_poll(queue, &raw mut attr);
        if code == libc::ENOENT {
            return found;
        }
        while code == 0 {
            found.push(Done {
                id: (*queue).wr_id,
                status: (*queue).status,
                opcode: c::ibv_wc_read_opcode(queue),
                length: c::ibv_wc_read_byte_len(queue),
                immediate: u32::from_be(c::ibv_wc_read_imm_data(queue)),
                flags: c::ibv_wc_read_wc_flags(queue),
                qpn: c::ibv_wc_read_qp_num(queue),
                src_qp: c::ibv_wc_read_src_qp(queue),
                vendor_err: c::ibv_wc_read_vendor_err(queue),
            });
            code = c::ibv_next_poll(queue);
        }
        assert_eq!(code, libc::ENOENT);
        c::ibv_end_poll(queue);
    }
    found
}

/// Waits for one completion.
pub(crate) fn reap(side: &Side, queue: *mut c::ibv_cq) -> Done {
    let found = reap_all(side, queue, 1);
    found[0]
}

/// Waits for `count` completions.
pub(crate) fn reap_all(side: &Side, queue: *mut c::ibv_cq, count: usize) -> Vec<Done> {
    let start = Instant::now();
    let mut found = Vec::new();
    while found.len() < count {
        found.extend(poll(side, queue));
        assert!(start.elapsed() < Duration::from_secs(60), "{found:?}");
        std::thread::yield_now();
    }
    found
}

/// Runs a test on classic and on extended queues.
pub(crate) fn on_both(test: impl Fn(Options)) {
    for extended in [false, true] {
        test(Options { extended, ..Options::default() });
    }
}

/// Bytes that repeat seldom.
pub(crate) fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length)
        .map(|index| {
            let [low, high, ..] = index.to_le_bytes();
            low.wrapping_mul(31) ^ high ^ seed
        })
        .collect()
}

/// Whether the library lists a device of this name.
pub(crate) fn is_listed(wanted: &str) -> bool {
    let mut count = 0;
    unsafe {
        let list = call!(ibv_get_device_list(&raw mut count));
        let found =
            (0..usize::try_from(count).unwrap()).any(|index| name(*list.add(index)) == wanted);
        call!(ibv_free_device_list(list));
        found
    }
}
