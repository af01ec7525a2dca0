//! The receiving side of the data path.

use std::ops::Range;

use crate::completion_queue::{Received, Side};
use crate::device::Device;
use crate::event_counter::Events;
use crate::memory_region::Permissions;
use crate::queue_pair::{QueuePair, TakenReceive, Transport};
use crate::requester::Packet;
use crate::scatter::{self, CopyFault, ScatterList, Source};
use crate::status::CompletionStatus;
use crate::work_request::Operation;

/// Bytes of the global routing header before the payload of a UD receive.
pub(crate) const GLOBAL_HEADER_BYTES: u16 = 40;

/// What a device does with a packet.
#[derive(Debug)]
pub(crate) enum Answer {
    /// It is done, or refused.
    Done(CompletionStatus),
    /// A read: the requester is to be sent these bytes.
    Read(ScatterList),
    /// There is no receive for it.
    NotReady,
}

impl Device {
    /// Handles a packet, whose bytes are copied in the order of `pieces`.
    pub(crate) fn accept(
        &mut self,
        packet: &Packet,
        source: Source<'_>,
        pieces: &[Range<u64>],
    ) -> Answer {
        let answer = match self.check(packet) {
            Err(status) => self.refuse(packet, status),
            Ok(()) => match packet.operation {
                Operation::Send => self.receive(packet, source, pieces),
                Operation::Read => self.respond_to_read(packet),
                Operation::Write => self.respond_to_write(packet, source, pieces),
                Operation::Unsupported(_) => Answer::Done(CompletionStatus::RemoteBadStatus),
            },
        };
        if !matches!(answer, Answer::NotReady) {
            self.messages_received += 1;
            self.count_message();
        }
        answer
    }

    /// Whether `packet` needs a receive at this device.
    pub(crate) fn needs_receive(&self, packet: &Packet) -> bool {
        match packet.operation {
            Operation::Send => true,
            Operation::Write => {
                packet.immediate.is_some()
                    && self
                        .queue_pairs
                        .get(packet.queue_pair)
                        .is_some_and(|queue_pair| !queue_pair.unsolicited_writes)
            }
            Operation::Read | Operation::Unsupported(_) => false,
        }
    }

    fn check(&mut self, packet: &Packet) -> Result<(), CompletionStatus> {
        let queue_pair = self
            .queue_pairs
            .get(packet.queue_pair)
            .filter(|queue_pair| queue_pair.receives() && queue_pair.transport == packet.transport)
            .ok_or(CompletionStatus::RemoteBadQueuePair)?;
        if queue_pair.queue_key != packet.queue_key {
            self.statistics.queue_key_violations += 1;
            return Err(CompletionStatus::RemoteBadQueuePair);
        }
        let capabilities = self.config.capabilities;
        let supported = match packet.operation {
            Operation::Send | Operation::Unsupported(_) => return Ok(()),
            Operation::Read => capabilities.rdma_read,
            Operation::Write if packet.immediate.is_some() => {
                // Both ends must agree on whether immediates use up receives.
                capabilities.rdma_write
                    && packet.unsolicited_writes == queue_pair.unsolicited_writes
            }
            Operation::Write => capabilities.rdma_write,
        };
        if !supported {
            return Err(CompletionStatus::RemoteFeatureMismatch);
        }
        self.address_handles
            .number_of(packet.source_gid, queue_pair.domain)
            .map(drop)
            .ok_or(CompletionStatus::RemoteUnknownPeer)
    }

    /// A refused datagram vanishes; a refused reliable message tells its sender.
    fn refuse(&mut self, packet: &Packet, status: CompletionStatus) -> Answer {
        match packet.transport {
            Transport::Srd => Answer::Done(status),
            Transport::Ud => {
                self.statistics.rx_drops += 1;
                Answer::Done(CompletionStatus::Ok)
            }
        }
    }

    fn respond_to_read(&mut self, packet: &Packet) -> Answer {
        match self.remote_memory(packet, Permissions::REMOTE_READ) {
            None => Answer::Done(CompletionStatus::RemoteBadAddress),
            Some(list) => {
                self.statistics.read_response_bytes += list.len();
                self.count_event(packet.queue_pair, Events::REMOTE_READ);
                Answer::Read(list)
            }
        }
    }

    fn respond_to_write(
        &mut self,
        packet: &Packet,
        source: Source<'_>,
        pieces: &[Range<u64>],
    ) -> Answer {
        let Some(target) = self.remote_memory(packet, Permissions::REMOTE_WRITE) else {
            return Answer::Done(CompletionStatus::RemoteBadAddress);
        };
        let uses_receive = self.needs_receive(packet);
        if uses_receive && !self.has_receive(packet) {
            return Answer::NotReady;
        }
        if let Err(fault) = scatter::copy(source, &*self.host, &target, 0, pieces) {
            return Answer::Done(copy_status(fault));
        }
        self.statistics.write_receive_bytes += target.len();
        self.count_received(target.len());
        self.count_event(packet.queue_pair, Events::REMOTE_WRITE);
        if packet.immediate.is_some() {
            let request = if uses_receive { self.take_receive(packet) } else { None };
            let request = request.map_or(0, |receive| receive.request);
            let received = Received {
                unsolicited: !uses_receive,
                ..self.received(packet, request, packet.remote.length)
            };
            let side = Side::Receive(received);
            self.complete(packet.queue_pair, CompletionStatus::Ok, packet.operation, side);
        }
        Answer::Done(CompletionStatus::Ok)
    }

    /// Puts a send into the next receive.
    fn receive(&mut self, packet: &Packet, source: Source<'_>, pieces: &[Range<u64>]) -> Answer {
        let Some(receive) = self.take_receive(packet) else {
            return match packet.transport {
                Transport::Srd => Answer::NotReady,
                Transport::Ud => self.refuse(packet, CompletionStatus::RemoteNotReady),
            };
        };
        let header = match packet.transport {
            Transport::Ud => GLOBAL_HEADER_BYTES,
            Transport::Srd => 0,
        };
        let length = u64::from(header) + packet.payload.len();
        let (local, remote) = match self.place(packet, &receive, source, header, pieces) {
            Ok(()) => (CompletionStatus::Ok, CompletionStatus::Ok),
            Err((local, remote)) => (local, remote),
        };
        if local == CompletionStatus::Ok {
            self.statistics.receive_requests += 1;
            self.statistics.receive_bytes += packet.payload.len();
            self.count_received(packet.payload.len());
        }
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let side = Side::Receive(self.received(packet, receive.request, length));
        self.complete(packet.queue_pair, local, packet.operation, side);
        match packet.transport {
            Transport::Srd => Answer::Done(remote),
            Transport::Ud => Answer::Done(CompletionStatus::Ok),
        }
    }

    /// Copies header and payload into the buffers of a receive; on failure, the status of the
    /// receive and that of the send.
    fn place(
        &self,
        packet: &Packet,
        receive: &TakenReceive,
        source: Source<'_>,
        header: u16,
        pieces: &[Range<u64>],
    ) -> Result<(), (CompletionStatus, CompletionStatus)> {
        let domain = self.queue_pairs.get(packet.queue_pair).map_or(0, |owner| owner.domain);
        let mut target = ScatterList::default();
        for &buffer in &receive.buffers {
            if !self.regions.resolve_local(domain, buffer, Permissions::LOCAL_WRITE, &mut target) {
                return Err((CompletionStatus::LocalBadKey, CompletionStatus::RemoteBadStatus));
            }
        }
        if target.len() < u64::from(header) + packet.payload.len() {
            return Err((CompletionStatus::LocalBadLength, CompletionStatus::RemoteBadLength));
        }
        let memory = &*self.host;
        let fault = (CompletionStatus::LocalInternal, CompletionStatus::RemoteAbort);
        if header != 0 {
            let bytes = global_header(packet);
            target.write(memory, 0, &bytes).map_err(|_| fault)?;
        }
        scatter::copy(source, memory, &target, header.into(), pieces).map_err(|_| fault)
    }

    fn take_receive(&mut self, packet: &Packet) -> Option<TakenReceive> {
        let queue_pair = self.queue_pairs.get_mut(packet.queue_pair)?;
        queue_pair.take_receive(&*self.host)
    }

    fn has_receive(&self, packet: &Packet) -> bool {
        self.queue_pairs.get(packet.queue_pair).is_some_and(QueuePair::has_receive)
    }

    fn remote_memory(&self, packet: &Packet, needed: Permissions) -> Option<ScatterList> {
        let domain = self.queue_pairs.get(packet.queue_pair)?.domain;
        self.regions.resolve_remote(domain, packet.remote, needed)
    }

    fn received(&self, packet: &Packet, request: u16, length: u32) -> Received {
        let domain = self.queue_pairs.get(packet.queue_pair).map_or(0, |owner| owner.domain);
        Received {
            request,
            length,
            address_handle: self.address_handles.number_of(packet.source_gid, domain),
            source_gid: packet.source_gid,
            source_queue_pair: packet.source_queue_pair,
            immediate: packet.immediate,
            unsolicited: false,
        }
    }

    const fn count_received(&mut self, length: u64) {
        self.statistics.rx_packets += 1;
        self.statistics.rx_bytes += length;
    }
}

/// How a requester learns that a write could not be copied.
pub(crate) const fn copy_status(fault: CopyFault) -> CompletionStatus {
    match fault {
        CopyFault::Source => CompletionStatus::LocalInternal,
        CopyFault::Target => CompletionStatus::RemoteAbort,
    }
}

/// An IPv6-shaped routing header, as InfiniBand defines it.
fn global_header(packet: &Packet) -> [u8; GLOBAL_HEADER_BYTES as usize] {
    const VERSION_6: u8 = 6 << 4;
    const INFINIBAND_TRANSPORT: u8 = 0x1b;
    const HOP_LIMIT: u8 = 255;
    let mut header = [0; GLOBAL_HEADER_BYTES as usize];
    let length = u16::try_from(packet.payload.len()).unwrap_or(u16::MAX);
    header[0] = VERSION_6;
    header[4..6].copy_from_slice(&length.to_be_bytes());
    header[6] = INFINIBAND_TRANSPORT;
    header[7] = HOP_LIMIT;
    header[8..24].copy_from_slice(&packet.source_gid);
    header[24..].copy_from_slice(&packet.destination_gid);
    header
}
