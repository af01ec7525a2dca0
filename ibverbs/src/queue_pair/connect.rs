//! Connecting two queue pairs.

use std::time::Duration;

use super::{
    Initialized, QueuePair, ReadyToReceive, ReadyToSend, Reset,
    endpoint::QpInfo,
    transition::{self, Path},
};
use crate::{Access, Error, LinkLayer, LocalPort, Mtu, Rc, Result, Transport};

/// How a reliable connection behaves. Everything has a default that works in one network.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    port: LocalPort,
    access: Access,
    pkey_index: u16,
    mtu: Option<Mtu>,
    timeout: Duration,
    retries: u8,
    receiver_not_ready_retries: u8,
    receiver_not_ready_timer: Duration,
    incoming_reads: Option<u8>,
    outgoing_reads: Option<u8>,
    service_level: u8,
    traffic_class: u8,
    flow_label: u32,
    hop_limit: u8,
}

impl ConnectOptions {
    /// A connection over a port of this side.
    #[must_use]
    pub fn new(port: &LocalPort) -> Self {
        Self {
            port: port.clone(),
            access: Access::empty(),
            pkey_index: 0,
            mtu: None,
            timeout: Duration::from_millis(67),
            retries: 7,
            receiver_not_ready_retries: 7,
            receiver_not_ready_timer: Duration::from_micros(640),
            incoming_reads: None,
            outgoing_reads: None,
            service_level: 0,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
        }
    }

    /// What the peer may ask of this side: nothing if not set. The region must allow it too.
    #[must_use]
    pub fn access(self, access: Access) -> Self {
        Self { access, ..self }
    }

    /// The place of the partition key in the port's table; 0 if not set.
    #[must_use]
    pub fn pkey_index(self, pkey_index: u16) -> Self {
        Self { pkey_index, ..self }
    }

    /// The MTU of the path; the smaller one of both ports if not set.
    #[must_use]
    pub fn mtu(self, mtu: Mtu) -> Self {
        Self { mtu: Some(mtu), ..self }
    }

    /// How long to wait for an answer before sending again; 67 ms if not set, rounded up to 4.096 µs
    /// times a power of two, at most 2.4 hours. Zero waits for ever.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// How often to send again before giving up, at most 7; 7 if not set.
    #[must_use]
    #[doc(alias = "retry_cnt")]
    pub fn retries(self, retries: u8) -> Self {
        Self { retries, ..self }
    }

    /// How often to try again while the peer has no receive posted, at most 7; 7, which is for ever, if
    /// not set.
    #[must_use]
    #[doc(alias = "rnr_retry")]
    pub fn receiver_not_ready_retries(self, retries: u8) -> Self {
        Self { receiver_not_ready_retries: retries, ..self }
    }

    /// How long the peer must wait before it tries again while this side has no receive posted; 640 µs
    /// if not set, rounded up to one of 32 steps from 10 µs to 655 ms.
    #[must_use]
    #[doc(alias = "min_rnr_timer")]
    pub fn receiver_not_ready_timer(self, timer: Duration) -> Self {
        Self { receiver_not_ready_timer: timer, ..self }
    }

    /// How many reads and atomics of the peer are answered at a time; the device's limit, but at most 16,
    /// if not set. Must not be less than the peer's [`outgoing_reads`](Self::outgoing_reads).
    #[must_use]
    #[doc(alias = "max_dest_rd_atomic")]
    pub fn incoming_reads(self, count: u8) -> Self {
        Self { incoming_reads: Some(count), ..self }
    }

    /// How many reads and atomics are outstanding at a time; the device's limit, but at most 16, if not
    /// set. Must not be more than the peer answers: a peer that is not this crate may answer just 1.
    #[must_use]
    #[doc(alias = "max_rd_atomic")]
    pub fn outgoing_reads(self, count: u8) -> Self {
        Self { outgoing_reads: Some(count), ..self }
    }

    /// The service level, 0 to 15; 0 if not set.
    #[must_use]
    pub fn service_level(self, service_level: u8) -> Self {
        Self { service_level, ..self }
    }

    /// The traffic class: for RoCE v2 the DSCP in the upper six bits; 0 if not set.
    #[must_use]
    pub fn traffic_class(self, traffic_class: u8) -> Self {
        Self { traffic_class, ..self }
    }

    /// The flow label, 20 bits, from which RoCE v2 derives its UDP source port; 0 if not set.
    #[must_use]
    pub fn flow_label(self, flow_label: u32) -> Self {
        Self { flow_label, ..self }
    }

    /// How many routers a packet may pass; 64 if not set.
    #[must_use]
    pub fn hop_limit(self, hop_limit: u8) -> Self {
        Self { hop_limit, ..self }
    }

    fn check(&self) -> Result<()> {
        Error::check("retries", self.retries.into(), 0, 7)?;
        Error::check("receiver-not-ready retries", self.receiver_not_ready_retries.into(), 0, 7)?;
        Error::check("service level", self.service_level.into(), 0, 15)?;
        Error::check("flow label", self.flow_label.into(), 0, 0x000f_ffff)
    }

    /// The MTU that both sides carry.
    fn path_mtu(&self, remote: &QpInfo) -> Result<Mtu> {
        let local = self.port.attributes.active_mtu();
        let most = local.min(remote.mtu);
        let mtu = self.mtu.unwrap_or(most);
        Error::check(
            "MTU in bytes, which both ports must carry,",
            mtu.bytes() as u64,
            Mtu::BYTES_256.bytes() as u64,
            most.bytes() as u64,
        )?;
        Ok(mtu)
    }

    /// How packets find the peer.
    fn address(&self, remote: &QpInfo) -> rdma_sys::ibv_ah_attr {
        let infiniband = self.port.attributes.link_layer() != LinkLayer::ETHERNET;
        let one_subnet = self.port.gid.gid.subnet_prefix() == remote.gid.subnet_prefix();
        // Ethernet has no other address than the GID; within an InfiniBand subnet the lid is enough.
        let global = !(infiniband && one_subnet && remote.lid != 0);
        rdma_sys::ibv_ah_attr {
            grh: rdma_sys::ibv_global_route {
                dgid: remote.gid.to_raw(),
                flow_label: self.flow_label,
                sgid_index: self.port.gid.index,
                hop_limit: self.hop_limit,
                traffic_class: self.traffic_class,
            },
            dlid: remote.lid,
            sl: self.service_level,
            src_path_bits: 0,
            static_rate: 0,
            is_global: global.into(),
            port_num: self.port.port.get(),
        }
    }
}

/// How many reads a device can have in each direction, kept to what is of use.
pub(crate) fn read_depth(limit: u32) -> u8 {
    u8::try_from(limit.min(16)).unwrap_or(16)
}

/// The code of the InfiniBand specification for a timeout: 4.096 µs times two to its power.
fn timeout_code(timeout: Duration) -> u8 {
    if timeout.is_zero() {
        return 0;
    }
    let fits = |code: &u8| Duration::from_nanos(4096 << code) >= timeout;
    (1..31).find(fits).unwrap_or(31)
}

/// The steps of the receiver-not-ready timer in units of 10 µs, in the order of their codes from 1 on.
/// Code 0 is the longest, 655.36 ms. InfiniBand specification, table 45.
const RECEIVER_NOT_READY_STEPS: [u64; 31] = [
    1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

pub(crate) fn receiver_not_ready_code(timer: Duration) -> u8 {
    let fits = |step: &u64| Duration::from_micros(step * 10) >= timer;
    let index = RECEIVER_NOT_READY_STEPS.iter().position(fits);
    index.and_then(|index| u8::try_from(index + 1).ok()).unwrap_or(0)
}

impl<'a> QueuePair<'a, Rc, Reset> {
    /// Makes it ready to send to the peer, and to receive from it. Enters the kernel three times.
    ///
    /// The peer connects to this side's [`endpoint`](Self::endpoint) in the same way; data may flow when both have.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for a number that cannot be, such as an MTU that one of the ports does not have;
    /// [`Error::Transition`] if the device refuses, with the likely cause. The queue pair is dropped then.
    pub fn connect(self, remote: &QpInfo, options: ConnectOptions) -> Result<QueuePair<'a, Rc>> {
        options.check()?;
        self.initialize(&options)?.connect(remote, options)
    }

    /// Makes it take receives, before the peer is known.
    ///
    /// # Errors
    ///
    /// [`Error::Transition`] if the device refuses, with the likely cause.
    pub fn initialize(self, options: &ConnectOptions) -> Result<QueuePair<'a, Rc, Initialized>> {
        let ConnectOptions { port, pkey_index, access, .. } = options;
        let change = transition::to_initialized(port.port.get(), *pkey_index, access.bits());
        self.change(change)
    }
}

impl<'a> QueuePair<'a, Rc, Initialized> {
    /// Makes it ready to send to the peer, and to receive from it, over the port it was initialized with.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::connect`].
    pub fn connect(self, remote: &QpInfo, options: ConnectOptions) -> Result<QueuePair<'a, Rc>> {
        self.ready_to_receive(remote, &options)?.ready_to_send(&options)
    }

    /// Makes it take what the peer sends.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::connect`].
    pub fn ready_to_receive(
        self,
        remote: &QpInfo,
        options: &ConnectOptions,
    ) -> Result<QueuePair<'a, Rc, ReadyToReceive>> {
        options.check()?;
        let path = Path {
            address: options.address(remote),
            mtu: options.path_mtu(remote)?.code(),
            peer: remote.number.get(),
            first_packet: remote.first_packet.get(),
        };
        let limits = self.protection_domain().context().query_device()?;
        let incoming =
            options.incoming_reads.unwrap_or_else(|| read_depth(limits.max_incoming_reads()));
        let timer = receiver_not_ready_code(options.receiver_not_ready_timer);
        self.change(transition::to_ready_to_receive(path).reliable_receiver(incoming, timer))
    }
}

impl<'a> QueuePair<'a, Rc, ReadyToReceive> {
    /// Makes it send.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::connect`].
    pub fn ready_to_send(self, options: &ConnectOptions) -> Result<QueuePair<'a, Rc>> {
        options.check()?;
        let limits = self.protection_domain().context().query_device()?;
        let outgoing =
            options.outgoing_reads.unwrap_or_else(|| read_depth(limits.max_outgoing_reads()));
        let first_packet = self.handle.first_packet.get();
        let change = transition::to_ready_to_send(first_packet).reliable_sender(
            timeout_code(options.timeout),
            options.retries,
            options.receiver_not_ready_retries,
            outgoing,
        );
        self.change::<ReadyToSend>(change)
    }
}

impl<'a, T: Transport, S> QueuePair<'a, T, S> {
    /// Carries out a change whose attributes lead to state `N`.
    pub(crate) fn change<N>(self, change: transition::Transition) -> Result<QueuePair<'a, T, N>> {
        change.apply(&self.handle)?;
        // SAFETY: the device has just gone to that state.
        Ok(unsafe { QueuePair::from_handle(self.handle) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_rounded_up_to_a_power_of_two() {
        assert_eq!(timeout_code(Duration::ZERO), 0);
        assert_eq!(timeout_code(Duration::from_nanos(1)), 1);
        assert_eq!(timeout_code(Duration::from_millis(67)), 14);
        assert_eq!(timeout_code(Duration::from_nanos(4096 << 14)), 14);
        assert_eq!(timeout_code(Duration::from_secs(1_000_000)), 31);
    }

    #[test]
    fn receiver_not_ready_timers_are_rounded_up_to_a_step() {
        assert_eq!(receiver_not_ready_code(Duration::ZERO), 1);
        assert_eq!(receiver_not_ready_code(Duration::from_micros(640)), 12);
        assert_eq!(receiver_not_ready_code(Duration::from_micros(641)), 13);
        assert_eq!(receiver_not_ready_code(Duration::from_micros(491_520)), 31);
        assert_eq!(receiver_not_ready_code(Duration::from_secs(1)), 0);
    }
}
