//! Making datagram queue pairs ready.

use super::{
    QueuePair,
    state::{Initialized, ReadyToReceive, ReadyToSend, Reset},
    transition,
};
use crate::{Gid, LocalPort, QueueKey, QueuePairNumber, Result, Ud};

/// How a datagram queue pair is reached.
#[derive(Debug, Clone)]
pub struct DatagramOptions {
    port: LocalPort,
    queue_key: QueueKey,
    pkey_index: u16,
}

impl DatagramOptions {
    /// A queue pair at a port of this side that accepts datagrams with this key. A key whose highest bit is
    /// set is for privileged programs.
    #[must_use]
    #[doc(alias = "qkey")]
    pub fn new(port: &LocalPort, queue_key: QueueKey) -> Self {
        Self { port: port.clone(), queue_key, pkey_index: 0 }
    }

    /// The place of the partition key in the port's table; 0 if not set.
    #[must_use]
    pub fn pkey_index(self, pkey_index: u16) -> Self {
        Self { pkey_index, ..self }
    }
}

/// What a sender needs to reach a datagram queue pair, besides the way to its port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramInfo {
    /// The queue pair's number.
    pub number: QueuePairNumber,
    /// The key that it accepts.
    pub queue_key: QueueKey,
    /// Its port's local identifier; 0 on Ethernet.
    pub lid: u16,
    /// Its port's GID.
    pub gid: Gid,
}

impl<'a> QueuePair<'a, Ud, Reset> {
    /// Makes it send and receive. Enters the kernel three times.
    ///
    /// # Errors
    ///
    /// [`Error::Transition`](crate::Error::Transition) if the device refuses, with the likely cause. The queue pair is dropped then.
    pub fn activate(self, options: &DatagramOptions) -> Result<QueuePair<'a, Ud>> {
        self.initialize(options)?.ready_to_receive()?.ready_to_send()
    }

    /// Makes it take receives.
    ///
    /// # Errors
    ///
    /// As for [`activate`](Self::activate).
    pub fn initialize(self, options: &DatagramOptions) -> Result<QueuePair<'a, Ud, Initialized>> {
        let DatagramOptions { port, queue_key, pkey_index } = options;
        let port = port.port.get();
        self.change(transition::to_initialized_for_datagrams(port, *pkey_index, queue_key.0))
    }
}

impl<'a> QueuePair<'a, Ud, Initialized> {
    /// Makes it take datagrams.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::activate`].
    pub fn ready_to_receive(self) -> Result<QueuePair<'a, Ud, ReadyToReceive>> {
        self.change(transition::to_ready_to_receive_without_peer())
    }
}

impl<'a> QueuePair<'a, Ud, ReadyToReceive> {
    /// Makes it send.
    ///
    /// # Errors
    ///
    /// As for [`QueuePair::activate`].
    pub fn ready_to_send(self) -> Result<QueuePair<'a, Ud>> {
        let first_packet = self.handle.first_packet.get();
        self.change::<ReadyToSend>(transition::to_ready_to_send(first_packet))
    }
}

impl<S> QueuePair<'_, Ud, S> {
    /// What senders need to reach this queue pair when it was made ready with `options`.
    #[must_use]
    pub fn datagram_endpoint(&self, options: &DatagramOptions) -> DatagramInfo {
        DatagramInfo {
            number: self.number(),
            queue_key: options.queue_key,
            lid: options.port.attributes.lid(),
            gid: options.port.gid.gid,
        }
    }
}
