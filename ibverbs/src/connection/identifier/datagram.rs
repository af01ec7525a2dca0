//! What identifiers of [`PortSpace::UDP`](super::super::PortSpace::UDP) do.

use std::net::SocketAddr;

use super::Identifier;
use crate::{
    QueuePair, QueuePairState, Reset, Result, Ud,
    connection::{MemberKind, Parameters, address::RawAddress, call, parameters::Reads},
};

/// Datagrams have no reads.
const NO_READS: Reads = Reads { incoming: 0, outgoing: 0 };

impl Identifier {
    /// Makes a datagram queue pair send and receive, with the key and on the port that the connection manager has for this
    /// end, once it has a device. Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) if there is no device yet or the queue pair is on another one;
    /// [`Error::Transition`](crate::Error::Transition) if the device refuses. The queue pair is dropped then.
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn activate<'a>(&self, queue_pair: QueuePair<'a, Ud, Reset>) -> Result<QueuePair<'a, Ud>> {
        self.check_device(queue_pair.protection_domain().context())?;
        let queue_pair = queue_pair.change(self.change_to(QueuePairState::INITIALIZED)?)?;
        queue_pair.ready_to_receive()?.ready_to_send()
    }

    /// Asks the service whose route is resolved for its queue pair, and sends up to 180 bytes along. Ends in
    /// [`EventKind::ESTABLISHED`](crate::connection::EventKind::ESTABLISHED), with
    /// [`datagram_peer`](crate::connection::Event::datagram_peer).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) before the address is resolved; [`Error::Verb`](crate::Error::Verb),
    /// `EINVAL` for more bytes or before the route is resolved. See `rdma_connect(3)`.
    #[doc(alias = "rdma_connect")]
    pub fn look_up(&self, private_data: &[u8]) -> Result<()> {
        let (verb, connect) = call!(self.channel.library(), rdma_connect)?;
        let parameters = Parameters::new().private_data(private_data);
        let mut raw = parameters.to_raw(NO_READS)?;
        let _held = self.channel.lock();
        self.bound_device()?;
        // SAFETY: `raw` is live and has a device, and the lock is held; the parameters are copied.
        verb.status(unsafe { connect(self.as_raw(), &raw mut raw) })
    }

    /// Answers a request with a queue pair that [`activate`](Self::activate) made ready, and up to 136 bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) if the queue pair is on another device; [`Error::Verb`](crate::Error::Verb),
    /// `EINVAL` for more bytes or if this is no request. See `rdma_accept(3)`.
    #[doc(alias = "rdma_accept")]
    pub fn answer(&self, queue_pair: &QueuePair<'_, Ud>, private_data: &[u8]) -> Result<()> {
        self.check_device(queue_pair.protection_domain().context())?;
        let (verb, accept) = call!(self.channel.library(), rdma_accept)?;
        let parameters = Parameters::new().private_data(private_data);
        let mut raw = parameters.to_raw(NO_READS)?;
        raw.qp_num = queue_pair.number().get();
        let _held = self.channel.lock();
        // SAFETY: `raw` is live and has a device, and the lock is held; the parameters are copied.
        verb.status(unsafe { accept(self.as_raw(), &raw mut raw) })
    }

    /// Joins a multicast group, once this end has a device. Ends in
    /// [`EventKind::MULTICAST_JOINED`](crate::connection::EventKind::MULTICAST_JOINED), with
    /// [`datagram_peer`](crate::connection::Event::datagram_peer).
    ///
    /// No queue pair receives what is sent to the group before it is
    /// [attached](crate::MulticastMembership::attach).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) if there is no device yet; [`Error::Verb`](crate::Error::Verb) if the kernel
    /// refuses. See `rdma_join_multicast_ex(3)`.
    #[doc(alias = "rdma_join_multicast_ex")]
    pub fn join_multicast(&self, group: SocketAddr, kind: MemberKind) -> Result<()> {
        let (verb, join) = call!(self.channel.library(), rdma_join_multicast_ex)?;
        let mut group = RawAddress::from(group);
        let mut raw = rdma_sys::rdma_cm_join_mc_attr_ex {
            comp_mask: rdma_sys::RDMA_CM_JOIN_MC_ATTR_ADDRESS
                | rdma_sys::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
            join_flags: match kind {
                MemberKind::Full => rdma_sys::RDMA_MC_JOIN_FLAG_FULLMEMBER,
                MemberKind::SendOnly => rdma_sys::RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
            },
            addr: group.as_mut_ptr().cast(),
        };
        let _held = self.channel.lock();
        self.bound_device()?;
        // SAFETY: `raw` is live and the lock is held; the address is copied, and there is no user data.
        verb.status(unsafe { join(self.as_raw(), &raw mut raw, std::ptr::null_mut()) })
    }

    /// Leaves a multicast group.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`](crate::Error::Verb), `EADDRNOTAVAIL` if it was not joined. See `rdma_leave_multicast(3)`.
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave_multicast(&self, group: SocketAddr) -> Result<()> {
        let (verb, leave) = call!(self.channel.library(), rdma_leave_multicast)?;
        let mut group = RawAddress::from(group);
        let _held = self.channel.lock();
        // SAFETY: `raw` is live and the lock is held; every event was acknowledged under it, so that the call waits for
        // none. The address is read in this call only.
        verb.status(unsafe { leave(self.as_raw(), group.as_mut_ptr()) })
    }
}
