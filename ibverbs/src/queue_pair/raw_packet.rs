//! Raw packet queue pairs: whole Ethernet frames, sent as they are and received by rules.
#![expect(unsafe_code, reason = "a trait that posting relies on, and a post of its own")]

mod segmented;

pub use self::segmented::SegmentedFrames;
use super::{
    QueuePair,
    builder::QueuePairBuilder,
    state::{Initialized, ReadyToReceive, ReadyToSend, Reset},
    transition,
};
use crate::{
    DeviceAttributes, Gather, Operations, PortNumber, Receiving, Result, SendWr, Transport,
};

/// Whole Ethernet frames, past the network stack of the kernel: what is sent goes out as it is, header included, and
/// what comes is what a [`Flow`](crate::Flow) leads here. There is no peer, no acknowledgement and no order between
/// ports.
///
/// Making one needs the capability `CAP_NET_RAW`, and a device that has such queue pairs on an Ethernet port (ConnectX,
/// for example; the kernel's software devices have none). Without a flow nothing is received.
///
/// Not tried on hardware: on the software device only.
#[derive(Debug, Clone, Copy)]
#[doc(alias = "IBV_QPT_RAW_PACKET")]
pub enum RawPacket {}

// SAFETY: a raw packet queue pair has one port and no peer; its requests name no destination beside the frame, and it is
// neither connected nor a datagram queue pair of the verbs.
unsafe impl Transport for RawPacket {
    const TYPE: u32 = rdma_sys::IBV_QPT_RAW_PACKET;
    const NAME: &'static str = "raw packet";
    const OPERATIONS: Operations = Operations::SEND;
}
impl Receiving for RawPacket {}

impl<'a> SendWr<'a, RawPacket> {
    /// One frame, from its destination address on and without its checksum (FCS): 14 bytes of header at least. The
    /// device or the wire may fill it up to 60 bytes.
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_WR_SEND")]
    pub fn frame(bytes: impl Into<Gather<'a>>) -> Self {
        Self::new(rdma_sys::IBV_WR_SEND, bytes.into())
    }

    /// Has the device fill in the checksums of IPv4 and of TCP or UDP, for which the frame has zeros. Devices
    /// [say](crate::DeviceAttributes::has_raw_packet_checksums) whether they can.
    #[must_use]
    #[inline]
    #[doc(alias = "IBV_SEND_IP_CSUM")]
    pub fn fill_checksums(self) -> Self {
        self.flag(rdma_sys::IBV_SEND_IP_CSUM)
    }
}

impl QueuePairBuilder<'_, RawPacket> {
    /// Takes the tags of VLANs out of frames that come. A completion queue made with
    /// [`CompletionFields::VLAN`](crate::CompletionFields::VLAN) then says which tag it was.
    ///
    /// Creating fails with [`Error::Unsupported`](crate::Error::Unsupported), or `EOPNOTSUPP` or `EINVAL`, where the device cannot.
    #[doc(alias = "IBV_QP_CREATE_CVLAN_STRIPPING")]
    pub fn strip_vlan(self) -> Self {
        self.flag(rdma_sys::IBV_QP_CREATE_CVLAN_STRIPPING)
    }
}

impl DeviceAttributes {
    /// Whether the device fills in the checksums of raw packets, and looks at those that come.
    #[must_use]
    #[doc(alias = "IBV_DEVICE_RAW_IP_CSUM")]
    #[doc(alias = "IBV_RAW_PACKET_CAP_IP_CSUM")]
    pub fn has_raw_packet_checksums(&self) -> bool {
        self.capability_flags() & rdma_sys::IBV_DEVICE_RAW_IP_CSUM != 0
            || self.as_raw().raw_packet_caps & rdma_sys::IBV_RAW_PACKET_CAP_IP_CSUM != 0
    }
}

impl<'a> QueuePair<'a, RawPacket, Reset> {
    /// Makes it send frames out of a port and take those that flows lead to it. Enters the kernel three times.
    ///
    /// # Errors
    ///
    /// [`Error::Transition`](crate::Error::Transition) if the device refuses, with the likely cause. The queue pair is dropped then.
    pub fn start(self, port: PortNumber) -> Result<QueuePair<'a, RawPacket>> {
        self.initialize(port)?.ready_to_receive()?.ready_to_send()
    }

    /// Gives it its port, so that receives can be posted before a frame comes.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub fn initialize(self, port: PortNumber) -> Result<QueuePair<'a, RawPacket, Initialized>> {
        self.change(transition::to_initialized_for_raw_packets(port.get()))
    }
}

impl<'a> QueuePair<'a, RawPacket, Initialized> {
    /// Makes it take frames. One that only listens can stay so.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::start`].
    pub fn ready_to_receive(self) -> Result<QueuePair<'a, RawPacket, ReadyToReceive>> {
        self.change(transition::to_ready_to_receive_without_peer())
    }
}

impl<'a> QueuePair<'a, RawPacket, ReadyToReceive> {
    /// Makes it send.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::start`].
    pub fn ready_to_send(self) -> Result<QueuePair<'a, RawPacket>> {
        self.change::<ReadyToSend>(transition::to_ready_to_send_without_peer())
    }
}
