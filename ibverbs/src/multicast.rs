//! Multicast groups.
#![expect(unsafe_code, reason = "attaches an ibv_qp to a multicast group")]

use crate::{Error, Gid, Parent, QueuePair, ReadyToSend, Result, Ud, error::verb};

/// The membership of a datagram queue pair in a multicast group, which ends when this is dropped.
///
/// Datagrams to the group are sent to its GID, queue pair [`QueuePairNumber::MULTICAST`](crate::QueuePairNumber::MULTICAST), and arrive in
/// each member's receives. On InfiniBand the port must have joined the group with the subnet manager, and on
/// Ethernet the switches may need an IGMP report: the connection manager does both.
///
/// # Examples
///
/// ```
/// use std::net::Ipv4Addr;
///
/// use ibverbs::{MulticastMembership, QueuePair, Ud};
///
/// /// Over RoCE, to the group of an IPv4 address.
/// fn join<'a>(pair: &'a QueuePair<'a, Ud>) -> ibverbs::Result<MulticastMembership<'a>> {
///     MulticastMembership::attach(pair, Ipv4Addr::new(239, 1, 2, 3).into(), 0)
/// }
/// ```
#[derive(Debug)]
#[must_use = "the queue pair leaves the group when this is dropped"]
pub struct MulticastMembership<'a, S = ReadyToSend> {
    queue_pair: Parent<'a, QueuePair<'a, Ud, S>>,
    group: Gid,
    lid: u16,
}

impl<'a, S> MulticastMembership<'a, S> {
    /// Attaches a queue pair, borrowed (`&queue_pair`) or shared (`&Arc<QueuePair<…>>`), to a group. `lid` is the group's
    /// local identifier on InfiniBand, 0 on Ethernet. Enters the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the GID is not a multicast one; [`Error::Verb`], `EINVAL` if the device refuses, `ENOMEM` or `EAGAIN`
    /// if it has no room for more groups. See `ibv_attach_mcast(3)`.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach(
        queue_pair: impl Into<Parent<'a, QueuePair<'a, Ud, S>>>,
        group: Gid,
        lid: u16,
    ) -> Result<Self> {
        if !group.is_multicast() {
            return Err(Error::Invalid {
                what: format!("GID {group} is not that of a multicast group").into(),
                remedy: "name one that begins with ff, or an IPv4 group such as ::ffff:239.1.2.3",
            });
        }
        let queue_pair = queue_pair.into();
        let (verb, attach) =
            verb!(queue_pair.protection_domain().context().library(), ibv_attach_mcast)?;
        let raw = group.to_raw();
        // SAFETY: the queue pair is held, and the GID is read in this call only.
        verb.status(unsafe { attach(queue_pair.as_raw(), &raw const raw, lid) })?;
        Ok(Self { queue_pair, group, lid })
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> Gid {
        self.group
    }

    /// The member.
    #[must_use]
    pub fn queue_pair(&self) -> &QueuePair<'a, Ud, S> {
        &self.queue_pair
    }
}

impl<S> Drop for MulticastMembership<'_, S> {
    fn drop(&mut self) {
        let library = self.queue_pair.protection_domain().context().library();
        if let Ok((verb, detach)) = verb!(library, ibv_detach_mcast) {
            let raw = self.group.to_raw();
            // SAFETY: the queue pair is held, and the GID is read in this call only.
            verb.log_refusal(unsafe { detach(self.queue_pair.as_raw(), &raw const raw, self.lid) });
        }
    }
}
