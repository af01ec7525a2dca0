//! Connecting two queue pairs.

use std::time::Duration;

use super::{
    QueuePair, QueuePairState,
    endpoint::QpInfo,
    state::{Initialized, ReadyToReceive, ReadyToSend, Reset},
    transition::{self, Path, Transition},
};
use crate::{Access, Connected, Context, Error, LocalPort, Mtu, PacketSequence, Result, Transport};

/// How a connection behaves. Everything has a default that works in one network.
///
/// An unreliable connection ignores what is about answers: timeouts, retries, and reads.
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
        Error::check("the number of retries", self.retries.into(), 0, 7)?;
        let not_ready = self.receiver_not_ready_retries.into();
        Error::check("the number of receiver-not-ready retries", not_ready, 0, 7)
    }

    /// The MTU that both sides carry.
    fn path_mtu(&self, remote: &QpInfo) -> Result<Mtu> {
        let local = self.port.attributes.active_mtu();
        let most = local.min(remote.mtu);
        let mtu = self.mtu.unwrap_or(most);
        if mtu > most {
            let remote = remote.mtu;
            return Err(Error::Invalid {
                what: format!(
                    "the path cannot have an MTU of {mtu} bytes, since the port of this side carries {local} and that of the \
                     peer {remote}"
                )
                .into(),
                remedy: "leave out `ConnectOptions::mtu`, and the smaller one of both is used",
            });
        }
        Ok(mtu)
    }

    /// How packets find the peer.
    fn address(&self, remote: &QpInfo) -> Result<rdma_sys::ibv_ah_attr> {
        remote
            .address(&self.port)
            .service_level(self.service_level)
            .traffic_class(self.traffic_class)
            .flow_label(self.flow_label)
            .hop_limit(self.hop_limit)
            .to_raw()
    }

    /// To initialized, on whichever connected transport.
    pub(crate) fn to_initialized(&self) -> Transition {
        let Self { port, pkey_index, access, .. } = self;
        transition::to_initialized(port.port.get(), *pkey_index, access.bits())
    }

    /// To ready-to-receive, with everything that any connected transport needs.
    pub(crate) fn to_ready_to_receive(
        &self,
        remote: &QpInfo,
        context: &Context,
    ) -> Result<Transition> {
        self.check()?;
        let path = Path {
            address: self.address(remote)?,
            mtu: self.path_mtu(remote)?.code(),
            peer: remote.number.get(),
            first_packet: remote.first_packet.get(),
        };
        let limits = context.query_device()?;
        let incoming =
            self.incoming_reads.unwrap_or_else(|| read_depth(limits.max_incoming_reads()));
        let timer = receiver_not_ready_code(self.receiver_not_ready_timer);
        Ok(transition::to_ready_to_receive(path).reliable_receiver(incoming, timer))
    }

    /// To ready-to-send, with everything that any connected transport needs.
    pub(crate) fn to_ready_to_send(
        &self,
        first_packet: PacketSequence,
        context: &Context,
    ) -> Result<Transition> {
        self.check()?;
        let limits = context.query_device()?;
        let outgoing =
            self.outgoing_reads.unwrap_or_else(|| read_depth(limits.max_outgoing_reads()));
        Ok(transition::to_ready_to_send(first_packet.get()).reliable_sender(
            timeout_code(self.timeout),
            self.retries,
            self.receiver_not_ready_retries,
            outgoing,
        ))
    }
}

/// How many reads a device can have in each direction, kept to what is of use.
pub(crate) fn read_depth(limit: u32) -> u8 {
    u8::try_from(limit.min(16)).unwrap_or(16)
}

/// The code of the InfiniBand specification for a timeout: 4.096 µs times two to its power.
pub(super) fn timeout_code(timeout: Duration) -> u8 {
    if timeout.is_zero() {
        return 0;
    }
    let fits = |code: &u8| Duration::from_nanos(4096 << code) >= timeout;
    (1..31).find(fits).unwrap_or(31)
}

/// The timeout of a code.
pub(super) fn timeout_of(code: u8) -> Duration {
    if code == 0 { Duration::ZERO } else { Duration::from_nanos(4096 << code.min(31)) }
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

/// The timer of a code.
pub(super) fn receiver_not_ready_of(code: u8) -> Duration {
    let step =
        usize::from(code & 0x1f).checked_sub(1).and_then(|at| RECEIVER_NOT_READY_STEPS.get(at));
    Duration::from_micros(step.map_or(655_360, |step| step * 10))
}

impl<'a, T: Transport> QueuePair<'a, T, Reset> {
    /// Makes it ready to send to the peer, and to receive from it. Enters the kernel three times.
    ///
    /// The peer connects to this side's [`endpoint`](Self::endpoint) in the same way; data may flow when both have.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for a number that cannot be; [`Error::Invalid`] for an MTU that one of the ports does not have;
    /// [`Error::Transition`] if the device refuses, with the likely cause. The queue pair is dropped then.
    pub fn connect(self, remote: &QpInfo, options: &ConnectOptions) -> Result<QueuePair<'a, T>>
    where
        T: Connected,
    {
        options.check()?;
        self.initialize(options)?.connect(remote, options)
    }
}

impl<'a, T: Connected> QueuePair<'a, T, Reset> {
    /// Makes it take receives, before the peer is known.
    ///
    /// # Errors
    ///
    /// [`Error::Transition`] if the device refuses, with the likely cause.
    pub fn initialize(self, options: &ConnectOptions) -> Result<QueuePair<'a, T, Initialized>> {
        self.change(options.to_initialized())
    }
}

impl<'a, T: Transport> QueuePair<'a, T, Initialized> {
    /// Makes it ready to send to the peer, and to receive from it, over the port it was initialized with.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::connect`].
    pub fn connect(self, remote: &QpInfo, options: &ConnectOptions) -> Result<QueuePair<'a, T>>
    where
        T: Connected,
    {
        self.ready_to_receive(remote, options)?.ready_to_send(options)
    }
}

impl<'a, T: Connected> QueuePair<'a, T, Initialized> {
    /// Makes it take what the peer sends.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::connect`].
    pub fn ready_to_receive(
        self,
        remote: &QpInfo,
        options: &ConnectOptions,
    ) -> Result<QueuePair<'a, T, ReadyToReceive>> {
        let context = self.protection_domain().context();
        let change = options.to_ready_to_receive(remote, context)?;
        self.change(change.only_for(T::TYPE, QueuePairState::INITIALIZED))
    }
}

impl<'a, T: Connected> QueuePair<'a, T, ReadyToReceive> {
    /// Makes it send.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::connect`].
    pub fn ready_to_send(self, options: &ConnectOptions) -> Result<QueuePair<'a, T>> {
        let context = self.protection_domain().context();
        let change = options.to_ready_to_send(self.handle.first_packet, context)?;
        self.change::<ReadyToSend>(change.only_for(T::TYPE, QueuePairState::READY_TO_RECEIVE))
    }
}

impl<'a, T: Transport, S> QueuePair<'a, T, S> {
    /// Carries out a change whose attributes lead to state `N`.
    pub(crate) fn change<N>(self, change: Transition) -> Result<QueuePair<'a, T, N>> {
        self.handle.apply(change)?;
        Ok(self.in_state())
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

    #[test]
    fn codes_mean_the_times_that_they_were_made_from() {
        for code in 0..32 {
            assert_eq!(timeout_code(timeout_of(code)), code);
            assert_eq!(receiver_not_ready_code(receiver_not_ready_of(code)), code);
        }
    }
}
