//! A soft device: how a test makes one and what it can tell it to do.

use std::{
    cell::Cell,
    ffi::{c_char, c_int},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
    time::{Duration, Instant},
};

use rdma_sys as c;

use crate::{
    CompletionFault,
    async_event::Element,
    control::{Control, Delivery},
    dma::{DmaEngine, Engine},
    efa::EfaLimits,
    fabric::{Device, fabric},
    verb::Verb,
};

/// What is below the verbs of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkLayer {
    /// RoCE: a LID of 0, GIDs made of IP addresses, and each address vector needs a GID.
    Ethernet,
    /// InfiniBand: a LID for each port, and one GID.
    InfiniBand,
    /// Neither, as EFA has it: one GID, which each address vector needs.
    Unspecified,
}

/// One entry of a GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID, as on the wire.
    pub gid: [u8; 16],
    /// `IBV_GID_TYPE_IB`, `IBV_GID_TYPE_ROCE_V1` or `IBV_GID_TYPE_ROCE_V2`.
    pub kind: u32,
}

/// What a device can do, as `ibv_query_device` tells.
#[derive(Debug, Clone)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields of ibv_device_attr and ibv_qp_cap, under their names")]
pub struct Limits {
    pub max_mr_size: u64,
    pub max_msg_sz: u32,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub max_sge: u32,
    pub max_inline_data: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_pd: u32,
    pub max_ah: u32,
    pub max_mw: u32,
    pub max_qp_rd_atom: u8,
    pub max_qp_init_rd_atom: u8,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    pub max_mcast_grp: u32,
    pub max_pkeys: u16,
    pub max_dm_size: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_mr_size: 1 << 47,
            max_msg_sz: 1 << 31,
            max_qp: 1 << 16,
            max_qp_wr: 1 << 14,
            max_sge: 16,
            max_inline_data: 1024,
            max_cq: 1 << 16,
            max_cqe: 1 << 20,
            max_mr: 1 << 20,
            max_pd: 1 << 16,
            max_ah: 1 << 16,
            max_mw: 1 << 16,
            max_qp_rd_atom: 16,
            max_qp_init_rd_atom: 16,
            max_srq: 1 << 12,
            max_srq_wr: 1 << 14,
            max_srq_sge: 16,
            max_mcast_grp: 1 << 10,
            max_pkeys: 2,
            max_dm_size: 256 << 10,
        }
    }
}

/// One port of a device.
#[derive(Debug, Clone)]
pub(crate) struct Port {
    pub(crate) state: c::ibv_port_state,
    pub(crate) lid: u16,
    /// The address of an Ethernet port.
    pub(crate) mac: [u8; 6],
    pub(crate) gids: Vec<GidEntry>,
    /// In host order; the first is the default partition.
    pub(crate) partition_keys: Vec<u16>,
}

/// What a device is, fixed when it is made except for the state of its ports.
#[derive(Debug)]
pub(crate) struct Description {
    /// Address of the `ibv_device` that lists show; it is never freed, since lists may be kept.
    pub(crate) raw: usize,
    pub(crate) guid: u64,
    pub(crate) link_layer: LinkLayer,
    /// Of the EFA kind.
    pub(crate) efa: Option<EfaLimits>,
    pub(crate) mtu: c::ibv_mtu,
    pub(crate) extended_posting: bool,
    pub(crate) extended_completion: bool,
    pub(crate) keeps_completions: bool,
    pub(crate) limits: Limits,
    pub(crate) ports: Vec<Port>,
}

impl Description {
    /// A port by its number, 1 being the first.
    pub(crate) fn port(&self, number: u8) -> Option<&Port> {
        self.ports.get(usize::from(number).checked_sub(1)?)
    }
}

/// How a device is to be; see [`SoftDevice::builder`].
#[derive(Debug)]
#[must_use]
pub struct Builder {
    ports: u8,
    gids: Option<Vec<GidEntry>>,
    link_layer: LinkLayer,
    efa: Option<EfaLimits>,
    mtu: c::ibv_mtu,
    extended_posting: bool,
    extended_completion: bool,
    keeps_completions: bool,
    limits: Limits,
}

impl Builder {
    /// How many ports there are; 1 unless said otherwise.
    pub fn ports(self, ports: u8) -> Self {
        Self { ports: ports.max(1), ..self }
    }

    /// The GID table of each port.
    ///
    /// Unless said otherwise it has the link-local `fe80::…` at index 0 and, on Ethernet, an
    /// IPv4-mapped `::ffff:10.x.y.z` of type RoCE v2 at index 1, which no other soft device has.
    pub fn gids(self, gids: Vec<GidEntry>) -> Self {
        Self { gids: Some(gids), ..self }
    }

    /// The link layer; Ethernet unless said otherwise.
    pub fn link_layer(self, link_layer: LinkLayer) -> Self {
        Self { link_layer, ..self }
    }

    /// Makes it a device of the EFA kind: `efadv_…` works, queue pairs are datagrams only, and the
    /// port is neither InfiniBand nor Ethernet.
    pub fn efa(self, change: impl FnOnce(&mut EfaLimits)) -> Self {
        let mut efa = EfaLimits::default();
        change(&mut efa);
        Self { efa: Some(efa), link_layer: LinkLayer::Unspecified, ..self }
    }

    /// The active path MTU as an `ibv_mtu`; `IBV_MTU_4096` unless said otherwise.
    pub fn mtu(self, mtu: c::ibv_mtu) -> Self {
        Self { mtu, ..self }
    }

    /// Whether queue pairs have `ibv_wr_*`; they do unless said otherwise (siw, irdma and mlx4 do not).
    pub fn extended_posting(self, there: bool) -> Self {
        Self { extended_posting: there, ..self }
    }

    /// Whether there are extended completion queues; there are unless said otherwise.
    pub fn extended_completion(self, there: bool) -> Self {
        Self { extended_completion: there, ..self }
    }

    /// Whether completions stay in their queue when their queue pair is destroyed, as rxe does;
    /// else they are removed with it, as mlx5 does.
    pub fn keeps_completions(self, keeps: bool) -> Self {
        Self { keeps_completions: keeps, ..self }
    }

    /// Changes what the device can do.
    pub fn limits(mut self, change: impl FnOnce(&mut Limits)) -> Self {
        change(&mut self.limits);
        self
    }

    /// Adds the device to the list of the process.
    #[must_use]
    pub fn build(self) -> SoftDevice {
        let Self {
            ports,
            gids,
            link_layer,
            efa,
            mtu,
            extended_posting,
            extended_completion,
            keeps_completions,
            limits,
        } = self;
        let mut fabric = fabric();
        let number = u32::try_from(fabric.devices.len()).unwrap_or(u32::MAX);
        let guid = 0x0200_00ff_fe00_0000 | u64::from(number);
        let name = format!("soft{number}");
        let ports = (0..ports)
            .map(|_| {
                fabric.ports += 1;
                let unique = fabric.ports;
                Port {
                    state: c::IBV_PORT_ACTIVE,
                    lid: match link_layer {
                        LinkLayer::Ethernet | LinkLayer::Unspecified => 0,
                        LinkLayer::InfiniBand => u16::try_from(unique % 0xbfff).unwrap_or(1).max(1),
                    },
                    mac: mac(unique),
                    gids: gids.clone().unwrap_or_else(|| default_gids(link_layer, unique)),
                    partition_keys: (0..limits.max_pkeys)
                        .map(|index| if index == 0 { 0xffff } else { 0x8000 | index })
                        .collect(),
                }
            })
            .collect();
        let raw = Box::into_raw(Box::new(c::ibv_device {
            node_type: if efa.is_some() { c::IBV_NODE_UNSPECIFIED } else { c::IBV_NODE_CA },
            transport_type: if efa.is_some() {
                c::IBV_TRANSPORT_UNSPECIFIED
            } else {
                c::IBV_TRANSPORT_IB
            },
            name: c_string(&name),
            dev_name: c_string(&format!("uverbs{number}")),
            dev_path: c_string(""),
            ibdev_path: c_string(""),
            _ops: c::_ibv_device_ops::default(),
        }))
        .expose_provenance();
        fabric.devices.push(Device {
            description: Description {
                raw,
                guid,
                link_layer,
                efa,
                mtu,
                extended_posting,
                extended_completion,
                keeps_completions,
                limits,
                ports,
            },
            control: Control::new(),
            listed: true,
        });
        SoftDevice { number, name }
    }
}

/// A verbs device inside the process, listed until it is dropped.
///
/// Contexts that are open when it is dropped stay valid, as they do when a device is hidden from a
/// container. Its tests steer it with the methods below; nothing they do shows on other devices.
#[derive(Debug)]
pub struct SoftDevice {
    number: u32,
    name: String,
}

impl SoftDevice {
    /// A device with one Ethernet port and everything the library knows.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// A device to be described further.
    pub fn builder() -> Builder {
        Builder {
            ports: 1,
            gids: None,
            link_layer: LinkLayer::Ethernet,
            efa: None,
            mtu: c::IBV_MTU_4096,
            extended_posting: true,
            extended_completion: true,
            keeps_completions: false,
            limits: Limits::default(),
        }
    }

    /// The name under which it is listed; no other device of the process has it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The IP address of a port, by which the connection manager finds it: that of its last GID that
    /// is not link-local.
    #[must_use]
    pub fn address(&self, port: u8) -> Option<IpAddr> {
        let fabric = fabric();
        let port = fabric.device(self.number)?.description.port(port)?;
        let routed = |gid: &[u8; 16]| !gid.starts_with(&[0xfe, 0x80]);
        let gid = port.gids.iter().map(|entry| entry.gid).rfind(routed)?;
        Some(Ipv6Addr::from(gid).to_canonical())
    }

    /// The Ethernet address of a port, by which frames of raw packet queue pairs find it.
    #[must_use]
    pub fn mac(&self, port: u8) -> Option<[u8; 6]> {
        let fabric = fabric();
        let description = &fabric.device(self.number)?.description;
        let port = description.port(port)?;
        (description.link_layer == LinkLayer::Ethernet).then_some(port.mac)
    }

    /// Makes the `nth` call of a verb from now fail with `errno`, 1 being the next call.
    ///
    /// The verb is the C name that a program writes, so `ibv_reg_mr` also where the header makes
    /// `ibv_reg_mr_iova2` of it, and `ibv_reg_mr_iova` where the address of the region is another. Of
    /// the connection manager, calls on an identifier that has a device count. A refused `ibv_poll_cq` returns a negative count; a refused
    /// `ibv_post_send` or `ibv_post_recv` posts nothing. Refusals add up.
    ///
    /// # Panics
    ///
    /// There is no verb of this name.
    pub fn refuse(&self, verb: &str, nth: u64, errno: c_int) {
        let place = place_of(verb);
        self.control(|control| control.refuse(place, nth.max(1), errno));
    }

    /// Makes the next `count` deregistrations of memory fail with `EBUSY`; the region stays usable.
    pub fn fail_deregistrations(&self, count: u64) {
        self.control(|control| control.failing_deregistrations = count);
    }

    /// How often a verb was called on this device, refused calls included.
    ///
    /// # Panics
    ///
    /// There is no verb of this name.
    #[must_use]
    pub fn calls(&self, verb: &str) -> u64 {
        let place = place_of(verb);
        self.control(|control| control.calls(place)).unwrap_or(0)
    }

    /// Holds every completion back until [`release_completions`](Self::release_completions). The
    /// work itself is done as usual.
    pub fn hold_completions(&self) {
        self.control(|control| control.delivery = Delivery::Held);
    }

    /// Delivers each completion only after `delay`.
    pub fn delay_completions(&self, delay: Duration) {
        self.control(|control| control.delivery = Delivery::After(delay));
    }

    /// Delivers what is held back, oldest first, and holds nothing back from now on.
    pub fn release_completions(&self) {
        self.control(|control| control.delivery = Delivery::Prompt);
        fabric().release_due(Instant::now());
    }

    /// Breaks the `nth` completion from now, 1 being the next.
    pub fn break_completion(&self, nth: u64, fault: CompletionFault) {
        self.control(|control| control.break_completion(nth.max(1), fault));
    }

    /// Does requests of scalable reliable datagrams out of order, by dice thrown from `seed`; `None`
    /// for the order in which they were posted.
    pub fn set_disorder(&self, seed: Option<u64>) {
        // The dice stop at 0.
        self.control(|control| control.disorder = seed.map(|seed| Cell::new(seed.max(1))));
    }

    /// Gives the device an engine that reaches dma-bufs which the processor cannot map.
    pub fn set_dma_engine(&self, engine: Arc<dyn DmaEngine>) {
        self.control(|control| control.engine = Some(Engine(engine)));
    }

    /// Whether writes of the device through its [`DmaEngine`] wait until
    /// [`flush_inbound_writes`](Self::flush_inbound_writes), whatever their completions say. A read of
    /// the same region through the device, and deregistration, flush as well.
    pub fn hold_inbound_writes(&self, hold: bool) {
        self.control(|control| control.holds_inbound = hold);
    }

    /// Does the writes that were held back, in their order.
    pub fn flush_inbound_writes(&self) {
        fabric().flush_inbound(self.number);
    }

    /// Takes a port down or brings it up, and raises the event of that on every open context.
    ///
    /// Packets from and to a port that is down are lost.
    pub fn set_port_active(&self, port: u8, active: bool) {
        let (state, event) = if active {
            (c::IBV_PORT_ACTIVE, c::IBV_EVENT_PORT_ACTIVE)
        } else {
            (c::IBV_PORT_DOWN, c::IBV_EVENT_PORT_ERR)
        };
        let mut fabric = fabric();
        let place = usize::from(port).checked_sub(1);
        if let Some(device) = fabric.device_mut(self.number)
            && let Some(port) = place.and_then(|place| device.description.ports.get_mut(place))
        {
            port.state = state;
        }
        fabric.raise_on_all(self.number, event, Element::Port(port));
        fabric.wake();
    }

    /// Raises an event of a port, such as `IBV_EVENT_GID_CHANGE`, or with port 0 of the device, such
    /// as `IBV_EVENT_DEVICE_FATAL`, on every open context.
    pub fn raise_event(&self, event: c::ibv_event_type, port: u8) {
        fabric().raise_on_all(self.number, event, Element::Port(port));
    }

    /// Every object of the device that is still alive, in words; empty after a clean end.
    #[must_use]
    pub fn leaks(&self) -> Vec<String> {
        fabric().alive(self.number)
    }

    /// What callers did that another library would punish with a hang or with corrupt memory.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.control(|control| control.violations.clone()).unwrap_or_default()
    }

    fn control<T>(&self, act: impl FnOnce(&mut Control) -> T) -> Option<T> {
        fabric().control(self.number).map(act)
    }
}

impl Default for SoftDevice {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for SoftDevice {
    fn drop(&mut self) {
        if let Some(device) = fabric().device_mut(self.number) {
            device.listed = false;
        }
    }
}

/// The place of a verb in the tables of a device.
#[expect(clippy::panic, reason = "a test that misspells a verb must not pass")]
fn place_of(verb: &str) -> usize {
    Verb::place_of(verb).unwrap_or_else(|| panic!("the soft device has no verb {verb}"))
}

/// The address of a port, made of a number that no other port has: that of its link-local GID.
fn mac(unique: u32) -> [u8; 6] {
    let [_, high, middle, low] = unique.to_be_bytes();
    [0, 0, 0, high, middle, low]
}

/// The GID table of a port, made of a number that no other port has.
fn default_gids(link_layer: LinkLayer, unique: u32) -> Vec<GidEntry> {
    let [_, high, middle, low] = unique.to_be_bytes();
    let link_local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, high, middle, low];
    let address = Ipv4Addr::new(10, high, middle, low).to_ipv6_mapped().octets();
    match link_layer {
        LinkLayer::InfiniBand | LinkLayer::Unspecified => {
            vec![GidEntry { gid: link_local, kind: c::IBV_GID_TYPE_IB }]
        }
        LinkLayer::Ethernet => vec![
            GidEntry { gid: link_local, kind: c::IBV_GID_TYPE_ROCE_V2 },
            GidEntry { gid: address, kind: c::IBV_GID_TYPE_ROCE_V2 },
        ],
    }
}

/// Text in a C array, cut so that its last byte stays 0.
fn c_string<const LENGTH: usize>(text: &str) -> [c_char; LENGTH] {
    let mut array = [0; LENGTH];
    for (place, byte) in array.iter_mut().take(LENGTH - 1).zip(text.bytes()) {
        *place = byte.cast_signed();
    }
    array
}
