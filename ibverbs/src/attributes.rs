//! What devices and ports can do: plain data, read once.
#![expect(unsafe_code, reason = "reads text out of C arrays")]

use std::{ffi::CStr, fmt, slice};

use crate::{Mtu, PortNumber};

/// What a device can do. See `ibv_query_device_ex(3)`.
#[derive(Debug, Clone, Copy)]
pub struct DeviceAttributes(rdma_sys::ibv_device_attr_ex);

/// Getters of limits that C keeps as signed numbers.
macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident = $field:ident;)*) => {
        $(
            $(#[$doc])*
            #[doc = concat!("\n\nIn C: `", stringify!($field), "`.")]
            #[must_use]
            pub fn $name(&self) -> u32 {
                u32::try_from(self.0.orig_attr.$field).unwrap_or(0)
            }
        )*
    };
}

impl DeviceAttributes {
    pub(crate) const fn new(raw: rdma_sys::ibv_device_attr_ex) -> Self {
        Self(raw)
    }

    limits! {
        /// Most queue pairs.
        max_queue_pairs = max_qp;
        /// Most outstanding requests of one queue.
        max_requests = max_qp_wr;
        /// Most segments of a request other than a read.
        max_segments = max_sge;
        /// Most segments of a read.
        max_read_segments = max_sge_rd;
        /// Most completion queues.
        max_completion_queues = max_cq;
        /// Most entries of one completion queue.
        max_completion_entries = max_cqe;
        /// Most memory regions.
        max_memory_regions = max_mr;
        /// Most protection domains.
        max_protection_domains = max_pd;
        /// Most reads and atomics that a queue pair answers at a time.
        max_incoming_reads = max_qp_rd_atom;
        /// Most reads and atomics that a queue pair has outstanding.
        max_outgoing_reads = max_qp_init_rd_atom;
        /// Most memory windows.
        max_memory_windows = max_mw;
        /// Most multicast groups.
        max_multicast_groups = max_mcast_grp;
        /// Most queue pairs in one multicast group.
        max_multicast_members = max_mcast_qp_attach;
        /// Most address handles.
        max_address_handles = max_ah;
        /// Most shared receive queues.
        max_shared_receive_queues = max_srq;
        /// Most outstanding requests of one shared receive queue.
        max_shared_receive_requests = max_srq_wr;
        /// Most segments of a request of a shared receive queue.
        max_shared_receive_segments = max_srq_sge;
    }

    /// The version of the firmware, in the vendor's words.
    #[must_use]
    #[doc(alias = "fw_ver")]
    pub fn firmware_version(&self) -> String {
        let array = &self.0.orig_attr.fw_ver;
        // SAFETY: c_char and u8 have one layout.
        let bytes = unsafe { slice::from_raw_parts(array.as_ptr().cast::<u8>(), array.len()) };
        CStr::from_bytes_until_nul(bytes)
            .map(|text| text.to_string_lossy().into_owned())
            .unwrap_or_default()
    }

    /// The worldwide unique number of the device, host order.
    #[must_use]
    pub fn node_guid(&self) -> u64 {
        u64::from_be(self.0.orig_attr.node_guid)
    }

    /// The worldwide unique number of the system image, host order.
    #[must_use]
    pub fn system_image_guid(&self) -> u64 {
        u64::from_be(self.0.orig_attr.sys_image_guid)
    }

    /// The vendor: an IEEE company number, or a PCI one.
    #[must_use]
    pub fn vendor_id(&self) -> u32 {
        self.0.orig_attr.vendor_id
    }

    /// The vendor's number for this kind of device.
    #[must_use]
    pub fn vendor_part_id(&self) -> u32 {
        self.0.orig_attr.vendor_part_id
    }

    /// The version of the hardware.
    #[must_use]
    pub fn hardware_version(&self) -> u32 {
        self.0.orig_attr.hw_ver
    }

    /// The longest memory region in bytes.
    #[must_use]
    #[doc(alias = "max_mr_size")]
    pub fn max_region_length(&self) -> u64 {
        self.0.orig_attr.max_mr_size
    }

    /// Bit `n` is set if pages of `2^n` bytes are understood.
    #[must_use]
    #[doc(alias = "page_size_cap")]
    pub fn page_sizes(&self) -> u64 {
        self.0.orig_attr.page_size_cap
    }

    /// The capability bits of the basic query, `IBV_DEVICE_*`.
    #[must_use]
    pub fn capability_flags(&self) -> u32 {
        self.0.orig_attr.device_cap_flags
    }

    /// The capability bits of the extended query, 0 where there is none.
    #[must_use]
    pub fn extended_capability_flags(&self) -> u64 {
        self.0.device_cap_flags_ex
    }

    /// Between whom atomic operations are atomic.
    #[must_use]
    #[doc(alias = "atomic_cap")]
    pub fn atomics(&self) -> AtomicSupport {
        AtomicSupport(self.0.orig_attr.atomic_cap)
    }

    /// How many ports there are.
    #[must_use]
    pub fn port_count(&self) -> u8 {
        self.0.orig_attr.phys_port_cnt
    }

    /// Which bits of a completion's timestamp count; 0 if there are no timestamps.
    #[must_use]
    pub fn completion_timestamp_mask(&self) -> u64 {
        self.0.completion_timestamp_mask
    }

    /// The frequency of the device's clock in kilohertz; 0 if unknown.
    #[must_use]
    #[doc(alias = "hca_core_clock")]
    pub fn clock_kilohertz(&self) -> u64 {
        self.0.hca_core_clock
    }

    /// Bytes of memory on the device that can be allocated; 0 if there is none.
    #[must_use]
    #[doc(alias = "max_dm_size")]
    pub fn device_memory_length(&self) -> u64 {
        self.0.max_dm_size
    }

    /// All attributes, as C has them.
    #[must_use]
    pub fn as_raw(&self) -> &rdma_sys::ibv_device_attr_ex {
        &self.0
    }
}

/// Between whom atomic operations are atomic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AtomicSupport(pub u32);

impl AtomicSupport {
    /// There are none.
    pub const NONE: Self = Self(rdma_sys::IBV_ATOMIC_NONE);
    /// Between requests that this device executes.
    pub const DEVICE: Self = Self(rdma_sys::IBV_ATOMIC_HCA);
    /// Between devices and CPUs of this machine.
    pub const GLOBAL: Self = Self(rdma_sys::IBV_ATOMIC_GLOB);
}

impl fmt::Display for AtomicSupport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NONE => f.write_str("none"),
            Self::DEVICE => f.write_str("among requests of this device"),
            Self::GLOBAL => f.write_str("among devices and CPUs"),
            Self(other) => write!(f, "atomic support {other}"),
        }
    }
}

/// The state and the limits of a port. See `ibv_query_port(3)`.
#[derive(Debug, Clone, Copy)]
pub struct PortAttributes {
    number: PortNumber,
    raw: rdma_sys::ibv_port_attr,
}

impl PortAttributes {
    pub(crate) const fn new(number: PortNumber, raw: rdma_sys::ibv_port_attr) -> Self {
        Self { number, raw }
    }

    /// Which port this is.
    #[must_use]
    pub fn number(&self) -> PortNumber {
        self.number
    }

    /// Whether it carries traffic.
    #[must_use]
    pub fn state(&self) -> PortState {
        PortState(self.raw.state)
    }

    /// The largest MTU it can have; the smallest there is if the device tells none.
    #[must_use]
    pub fn max_mtu(&self) -> Mtu {
        mtu(self.raw.max_mtu)
    }

    /// The MTU it has.
    #[must_use]
    pub fn active_mtu(&self) -> Mtu {
        mtu(self.raw.active_mtu)
    }

    /// How many entries its GID table has room for.
    #[must_use]
    #[doc(alias = "gid_tbl_len")]
    pub fn gid_table_length(&self) -> u32 {
        u32::try_from(self.raw.gid_tbl_len).unwrap_or(0)
    }

    /// How many entries its partition key table has room for.
    #[must_use]
    #[doc(alias = "pkey_tbl_len")]
    pub fn pkey_table_length(&self) -> u16 {
        self.raw.pkey_tbl_len
    }

    /// The longest message in bytes.
    #[must_use]
    #[doc(alias = "max_msg_sz")]
    pub fn max_message_length(&self) -> u32 {
        self.raw.max_msg_sz
    }

    /// Its local identifier in an InfiniBand subnet; 0 on Ethernet.
    #[must_use]
    pub fn lid(&self) -> u16 {
        self.raw.lid
    }

    /// The local identifier of the subnet manager.
    #[must_use]
    #[doc(alias = "sm_lid")]
    pub fn subnet_manager_lid(&self) -> u16 {
        self.raw.sm_lid
    }

    /// What kind of link it is.
    #[must_use]
    pub fn link_layer(&self) -> LinkLayer {
        LinkLayer(self.raw.link_layer)
    }

    /// The speed of the link in megabits per second; 0 if the codes are not known.
    #[must_use]
    pub fn megabits_per_second(&self) -> u64 {
        let lanes = match self.raw.active_width {
            1 => 1,
            2 => 4,
            4 => 8,
            8 => 12,
            16 => 2,
            _ => 0,
        };
        let code = match self.raw.active_speed_ex {
            0 => u32::from(self.raw.active_speed),
            code => code,
        };
        let lane = match code {
            1 => 2_500,
            2 => 5_000,
            4 | 8 => 10_000,
            16 => 14_000,
            32 => 25_000,
            64 => 50_000,
            128 => 100_000,
            256 => 200_000,
            _ => 0,
        };
        lanes * lane
    }

    /// All attributes, as C has them.
    #[must_use]
    pub fn as_raw(&self) -> &rdma_sys::ibv_port_attr {
        &self.raw
    }
}

/// The code of C as a size, the smallest for one that is not known.
fn mtu(code: rdma_sys::ibv_mtu) -> Mtu {
    u8::try_from(code).ok().and_then(|code| Mtu::from_code(code).ok()).unwrap_or(Mtu::BYTES_256)
}

/// Whether a port carries traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PortState(pub u32);

impl PortState {
    /// No link.
    pub const DOWN: Self = Self(rdma_sys::IBV_PORT_DOWN);
    /// A link, not yet configured by a subnet manager.
    pub const INITIALIZING: Self = Self(rdma_sys::IBV_PORT_INIT);
    /// Configured, not yet active.
    pub const ARMED: Self = Self(rdma_sys::IBV_PORT_ARMED);
    /// It carries traffic.
    pub const ACTIVE: Self = Self(rdma_sys::IBV_PORT_ACTIVE);
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::DOWN => f.write_str("down"),
            Self::INITIALIZING => f.write_str("initializing"),
            Self::ARMED => f.write_str("armed"),
            Self::ACTIVE => f.write_str("active"),
            Self(other) => write!(f, "in state {other}"),
        }
    }
}

/// What kind of link a port has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkLayer(pub u8);

impl LinkLayer {
    /// Unknown to the device; InfiniBand on old kernels.
    pub const UNSPECIFIED: Self = Self(0);
    /// InfiniBand.
    pub const INFINIBAND: Self = Self(1);
    /// Ethernet: RoCE or iWARP.
    pub const ETHERNET: Self = Self(2);
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UNSPECIFIED => f.write_str("unspecified"),
            Self::INFINIBAND => f.write_str("InfiniBand"),
            Self::ETHERNET => f.write_str("Ethernet"),
            Self(other) => write!(f, "link layer {other}"),
        }
    }
}
