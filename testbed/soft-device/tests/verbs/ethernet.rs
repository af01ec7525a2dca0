//! Raw packets and flows as C writes them: what is checked of attributes and specifications.
#![expect(unsafe_code, reason = "raw verbs")]
#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each call is made on live objects of a test"
)]

use std::ptr;

use rdma_sys as c;
use soft_device::SoftDevice;

use crate::support::{Options, Side, Work, errno, poll, reap};

const KIND: c::ibv_qp_type = c::IBV_QPT_RAW_PACKET;

/// A queue pair of raw packets that sends and receives.
fn station(device: &SoftDevice, extended: bool) -> Side {
    let side = Side::new(device, Options { kind: KIND, extended, ..Options::default() });
    let state = c::IBV_QPS_INIT;
    let attr = c::ibv_qp_attr { qp_state: state, port_num: 1, ..Default::default() };
    let both = c::IBV_QP_STATE | c::IBV_QP_PORT;
    assert_eq!(side.modify(&attr, both | c::IBV_QP_PKEY_INDEX), libc::EINVAL, "it has no such key");
    assert_eq!(side.modify(&attr, both), 0);
    assert_eq!(side.set_state(c::IBV_QPS_RTR), 0);
    assert_eq!(side.set_state(c::IBV_QPS_RTS), 0);
    side
}

/// Attributes, and behind them one specification after the other.
struct Flow {
    words: Vec<u64>,
    length: usize,
    specs: u8,
}

impl Flow {
    fn new() -> Self {
        Self { words: vec![0; 64], length: size_of::<c::ibv_flow_attr>(), specs: 0 }
    }

    fn with<T: Copy>(mut self, spec: T) -> Self {
        let place = self.words.as_mut_ptr().wrapping_byte_add(self.length);
        unsafe { place.cast::<T>().write_unaligned(spec) };
        self.length += size_of::<T>();
        self.specs += 1;
        self
    }

    fn create(
        mut self,
        side: &Side,
        change: impl FnOnce(&mut c::ibv_flow_attr),
    ) -> Result<*mut c::ibv_flow, i32> {
        let attr: *mut c::ibv_flow_attr = self.words.as_mut_ptr().cast();
        let mut head = c::ibv_flow_attr {
            size: u16::try_from(self.length).unwrap_or(0),
            num_of_specs: self.specs,
            port: 1,
            ..Default::default()
        };
        change(&mut head);
        unsafe { attr.write(head) };
        let flow = unsafe { c::ibv_create_flow(side.qp, attr) }.unwrap();
        if flow.is_null() { Err(errno()) } else { Ok(flow) }
    }
}

fn size<T>() -> u16 {
    u16::try_from(size_of::<T>()).unwrap()
}

fn ethernet(device: &SoftDevice) -> c::ibv_flow_spec_eth {
    let mut spec = c::ibv_flow_spec_eth {
        type_: c::IBV_FLOW_SPEC_ETH,
        size: size::<c::ibv_flow_spec_eth>(),
        ..Default::default()
    };
    spec.val.dst_mac = device.mac(1).unwrap();
    spec.mask.dst_mac = [0xff; 6];
    spec
}

fn udp() -> c::ibv_flow_spec_tcp_udp {
    c::ibv_flow_spec_tcp_udp {
        type_: c::IBV_FLOW_SPEC_UDP,
        size: size::<c::ibv_flow_spec_tcp_udp>(),
        ..Default::default()
    }
}

fn tag(tag_id: u32) -> c::ibv_flow_spec_action_tag {
    let type_ = c::IBV_FLOW_SPEC_ACTION_TAG;
    c::ibv_flow_spec_action_tag { type_, size: size::<c::ibv_flow_spec_action_tag>(), tag_id }
}

/// Puts a frame to a device into the memory of a side, and sends it.
fn send(side: &mut Side, to: &SoftDevice, length: u32) {
    side.memory[..6].copy_from_slice(&to.mac(1).unwrap());
    side.memory[12..14].copy_from_slice(&[0x88, 0xb5]);
    side.send(Work::new(1, c::IBV_WR_SEND, &[side.segment(0, length)]));
    assert_eq!(reap(side, side.send_cq).status, c::IBV_WC_SUCCESS);
}

#[test]
fn frames_go_both_ways_of_posting_where_flows_lead_them() {
    for extended in [false, true] {
        let (here, there) = (SoftDevice::new(), SoftDevice::new());
        let (mut a, b) = (station(&here, extended), station(&there, extended));
        assert_eq!(b.receive(&[(9, &[b.segment(100, 200)])]), (0, 1));
        send(&mut a, &there, 64);
        assert_eq!(poll(&b, b.receive_cq).len(), 0);
        let flow = Flow::new().with(ethernet(&there)).create(&b, |_| ()).unwrap();
        send(&mut a, &there, 64);
        let came = reap(&b, b.receive_cq);
        assert_eq!((came.id, came.status, came.length), (9, c::IBV_WC_SUCCESS, 64));
        assert_eq!(b.memory[100..106], there.mac(1).unwrap());
        // A frame that finds no receive is lost, and nobody is told.
        send(&mut a, &there, 64);
        assert_eq!(poll(&b, b.receive_cq).len(), 0);
        assert_eq!(unsafe { c::ibv_destroy_flow(flow) }, Some(0));
        a.close();
        b.close();
        for device in [here, there] {
            assert_eq!(device.leaks(), [""; 0]);
            assert_eq!(device.violations(), [""; 0]);
        }
    }
}

#[test]
fn a_raw_packet_pair_sends_frames_and_nothing_else() {
    let device = SoftDevice::new();
    let side = station(&device, false);
    let refused = |opcode| side.post(&[Work::new(1, opcode, &[side.segment(0, 64)])]);
    for opcode in [c::IBV_WR_SEND_WITH_IMM, c::IBV_WR_RDMA_WRITE, c::IBV_WR_RDMA_READ] {
        assert_eq!(refused(opcode), (libc::EINVAL, 0));
    }
    side.close();
}

#[test]
fn the_attributes_of_a_flow_are_checked() {
    let device = SoftDevice::new();
    let side = station(&device, false);
    let whole = || Flow::new().with(ethernet(&device)).with(udp());
    let refused = |flow: Flow, change: &dyn Fn(&mut c::ibv_flow_attr)| {
        flow.create(&side, change).expect_err("a flow that cannot be was made")
    };
    assert_eq!(refused(whole(), &|attr| attr.size += 1), libc::EINVAL);
    assert_eq!(refused(whole(), &|attr| attr.num_of_specs = 1), libc::EINVAL);
    assert_eq!(refused(whole(), &|attr| attr.comp_mask = 1), libc::EINVAL);
    assert_eq!(refused(whole(), &|attr| attr.port = 2), libc::EINVAL);
    assert_eq!(refused(whole(), &|attr| attr.type_ = 4), libc::EINVAL);
    let egress = c::IBV_FLOW_ATTR_FLAGS_EGRESS;
    assert_eq!(refused(whole(), &|attr| attr.flags = egress), libc::EOPNOTSUPP);
    // A rule for the rest does not name headers, and lets nothing pass.
    let rest = c::IBV_FLOW_ATTR_ALL_DEFAULT;
    let lets_pass = |attr: &mut c::ibv_flow_attr| {
        (attr.type_, attr.flags) = (rest, c::IBV_FLOW_ATTR_FLAGS_DONT_TRAP);
    };
    assert_eq!(refused(Flow::new(), &lets_pass), libc::EINVAL);
    assert_eq!(refused(whole(), &|attr| attr.type_ = rest), libc::EINVAL);
    let flow = Flow::new().create(&side, |attr| attr.type_ = rest).unwrap();
    assert_eq!(unsafe { c::ibv_destroy_flow(flow) }, Some(0));
    side.close();
    let reliable = Side::new(&device, Options::default());
    assert_eq!(whole().create(&reliable, |_| ()), Err(libc::EINVAL));
    reliable.close();
}

#[test]
fn the_specifications_of_a_flow_are_checked() {
    let device = SoftDevice::new();
    let side = station(&device, false);
    let refused = |flow: Flow| flow.create(&side, |_| ()).expect_err("it was made");
    let mut longer = ethernet(&device);
    longer.size += 4;
    assert_eq!(refused(Flow::new().with(longer).with(0_u32)), libc::EINVAL);
    assert_eq!(refused(Flow::new().with(udp()).with(udp())), libc::EINVAL);
    assert_eq!(refused(Flow::new().with(tag(1 << 24))), libc::EINVAL);
    let type_ = c::IBV_FLOW_SPEC_ACTION_DROP;
    let drop = c::ibv_flow_spec_action_drop { type_, size: size::<c::ibv_flow_spec_action_drop>() };
    assert_eq!(refused(Flow::new().with(tag(1)).with(drop)), libc::EINVAL);
    let type_ = c::IBV_FLOW_SPEC_ACTION_COUNT;
    let count = c::ibv_flow_spec_counter_action {
        type_,
        size: size::<c::ibv_flow_spec_counter_action>(),
        counters: ptr::null_mut(),
    };
    assert_eq!(refused(Flow::new().with(count)), libc::EINVAL);
    let mut unknown = udp();
    unknown.type_ = c::IBV_FLOW_SPEC_GRE;
    assert_eq!(refused(Flow::new().with(unknown)), libc::EOPNOTSUPP);
    side.close();
    assert_eq!(device.leaks(), [""; 0]);
}

#[test]
fn specifications_may_stand_in_any_order() {
    let device = SoftDevice::new();
    let mut side = station(&device, false);
    let flow = Flow::new().with(tag(3)).with(udp()).with(ethernet(&device));
    let flow = flow.create(&side, |_| ()).unwrap();
    assert_eq!(side.receive(&[(4, &[side.segment(1000, 200)])]), (0, 1));
    send(&mut side, &device, 64);
    assert_eq!(poll(&side, side.receive_cq).len(), 0, "it is not UDP");
    assert_eq!(unsafe { c::ibv_destroy_flow(flow) }, Some(0));
    side.close();
}

#[test]
fn points_of_all_flows_are_fixed_once_a_flow_counts() {
    let device = SoftDevice::new();
    let mut side = station(&device, false);
    let mut init = c::ibv_counters_init_attr::default();
    let counters = unsafe { c::ibv_create_counters(side.context, &raw mut init) }.unwrap();
    let attach = |index, counter_desc, flow| {
        let mut point = c::ibv_counter_attach_attr { counter_desc, index, comp_mask: 0 };
        unsafe { c::ibv_attach_counters_point_flow(counters, &raw mut point, flow) }
    };
    assert_eq!(attach(0, c::IBV_COUNTER_PACKETS, ptr::null_mut()), Some(0));
    assert_eq!(attach(1, 99, ptr::null_mut()), Some(libc::ENOTSUP));
    // What is counted at one index adds up.
    assert_eq!(attach(0, c::IBV_COUNTER_PACKETS, ptr::null_mut()), Some(0));
    let type_ = c::IBV_FLOW_SPEC_ACTION_COUNT;
    let size = size::<c::ibv_flow_spec_counter_action>();
    let count = c::ibv_flow_spec_counter_action { type_, size, counters };
    let flow = Flow::new().with(ethernet(&device)).with(count).create(&side, |_| ()).unwrap();
    assert_eq!(attach(1, c::IBV_COUNTER_BYTES, ptr::null_mut()), Some(libc::EBUSY));
    assert_eq!(attach(1, c::IBV_COUNTER_BYTES, flow), Some(0));
    send(&mut side, &device, 100);
    send(&mut side, &device, 80);
    let mut values = [0; 2];
    let read = unsafe { c::ibv_read_counters(counters, values.as_mut_ptr(), 2, 0) };
    assert_eq!((read, values), (Some(0), [4, 180]));
    assert_eq!(unsafe { c::ibv_destroy_counters(counters) }, Some(libc::EBUSY));
    assert_eq!(unsafe { c::ibv_destroy_flow(flow) }, Some(0));
    assert_eq!(unsafe { c::ibv_destroy_counters(counters) }, Some(0));
    side.close();
    assert_eq!(device.leaks(), [""; 0]);
}

#[test]
fn the_rules_of_a_closed_context_are_out_of_force() {
    let device = SoftDevice::new();
    let (mut left, right) = (station(&device, false), station(&device, false));
    Flow::new().with(ethernet(&device)).create(&right, |_| ()).unwrap();
    assert_eq!(right.receive(&[(1, &[right.segment(0, 200)])]), (0, 1));
    let flow = Flow::new().with(ethernet(&device)).create(&left, |attr| attr.priority = 1).unwrap();
    assert_eq!(left.receive(&[(2, &[left.segment(1000, 200)])]), (0, 1));
    let verbs = soft_device::library().verbs();
    assert_eq!(unsafe { verbs.ibv_close_device.unwrap()(right.context) }, 0);
    send(&mut left, &device, 64);
    assert_eq!(reap(&left, left.receive_cq).id, 2);
    assert_eq!(unsafe { c::ibv_destroy_flow(flow) }, Some(0));
    left.close();
}
