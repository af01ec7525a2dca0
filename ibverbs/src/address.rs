//! How packets find a peer.

use std::fmt;

use crate::{Error, Gid, LinkLayer, LocalPort, Result};

/// The way to a port: the address that connections and [`AddressHandle`](crate::AddressHandle)s are made with.
///
/// Everything but the port of this side and the other side's identifiers has a default that works in one
/// network.
#[derive(Clone, Copy)]
pub struct Address {
    raw: rdma_sys::ibv_ah_attr,
}

impl Address {
    /// The way from a port of this side to a GID, and on InfiniBand to a local identifier (`lid`, 0 if it is
    /// not known).
    ///
    /// The way to a queue pair that told where it is: [`QpInfo::address`](crate::QpInfo::address),
    /// [`DatagramInfo::address`](crate::DatagramInfo::address).
    #[must_use]
    #[doc(alias = "ibv_ah_attr")]
    pub fn new(from: &LocalPort, gid: Gid, lid: u16) -> Self {
        let infiniband = from.attributes.link_layer() != LinkLayer::ETHERNET;
        let one_subnet = from.gid.gid.subnet_prefix() == gid.subnet_prefix();
        // Ethernet has no other address than the GID; within an InfiniBand subnet the lid is enough.
        let global = !(infiniband && one_subnet && lid != 0);
        Self {
            raw: rdma_sys::ibv_ah_attr {
                grh: rdma_sys::ibv_global_route {
                    dgid: gid.to_raw(),
                    flow_label: 0,
                    sgid_index: from.gid.index,
                    hop_limit: 64,
                    traffic_class: 0,
                },
                dlid: lid,
                sl: 0,
                src_path_bits: 0,
                static_rate: 0,
                is_global: global.into(),
                port_num: from.port.get(),
            },
        }
    }

    pub(crate) const fn from_raw(raw: rdma_sys::ibv_ah_attr) -> Self {
        Self { raw }
    }

    /// The GID it leads to.
    #[must_use]
    pub fn gid(&self) -> Gid {
        Gid::from_raw(self.raw.grh.dgid)
    }

    /// The local identifier it leads to; 0 on Ethernet.
    #[must_use]
    pub const fn lid(&self) -> u16 {
        self.raw.dlid
    }

    /// The service level, 0 to 15; 0 if not set.
    #[must_use]
    #[doc(alias = "sl")]
    pub const fn service_level(mut self, service_level: u8) -> Self {
        self.raw.sl = service_level;
        self
    }

    /// The traffic class: for RoCE v2 the DSCP in the upper six bits; 0 if not set.
    #[must_use]
    pub const fn traffic_class(mut self, traffic_class: u8) -> Self {
        self.raw.grh.traffic_class = traffic_class;
        self
    }

    /// The flow label, 20 bits, from which RoCE v2 derives its UDP source port; 0 if not set.
    #[must_use]
    pub const fn flow_label(mut self, flow_label: u32) -> Self {
        self.raw.grh.flow_label = flow_label;
        self
    }

    /// How many routers a packet may pass; 64 if not set.
    #[must_use]
    pub const fn hop_limit(mut self, hop_limit: u8) -> Self {
        self.raw.grh.hop_limit = hop_limit;
        self
    }

    /// The low bits of the source's local identifier, for a port that has several; 0 if not set.
    #[must_use]
    #[doc(alias = "src_path_bits")]
    pub const fn source_path_bits(mut self, bits: u8) -> Self {
        self.raw.src_path_bits = bits;
        self
    }

    /// The highest rate of packets, as the code of `ibv_rate`; 0, which is the port's, if not set.
    #[must_use]
    pub const fn static_rate(mut self, code: u8) -> Self {
        self.raw.static_rate = code;
        self
    }

    /// The address as C has it, after a look at what can be seen to be wrong.
    pub(crate) fn to_raw(self) -> Result<rdma_sys::ibv_ah_attr> {
        Error::check("the service level", self.raw.sl.into(), 0, 15)?;
        Error::check("the flow label", self.raw.grh.flow_label.into(), 0, 0x000f_ffff)?;
        Ok(self.raw)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address")
            .field("gid", &self.gid())
            .field("lid", &self.raw.dlid)
            .field("port", &self.raw.port_num)
            .field("gid_index", &self.raw.grh.sgid_index)
            .field("service_level", &self.raw.sl)
            .field("global", &(self.raw.is_global != 0))
            .finish_non_exhaustive()
    }
}
