//! The sending side of the data path: from a work request to a packet, and from an answer to a
//! completion.

use crate::completion_queue::Side;
use crate::device::Device;
use crate::memory_region::Permissions;
use crate::queue_pair::{QueuePair, Transport};
use crate::scatter::{ScatterList, Source};
use crate::status::CompletionStatus;
use crate::work_request::{Data, Operation, RemoteBuffer, SendRequest};

/// A message on the wire.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) transport: Transport,
    pub(crate) operation: Operation,
    pub(crate) immediate: Option<u32>,
    /// The requester's queue pair takes writes with immediate without a receive.
    pub(crate) unsolicited_writes: bool,
    pub(crate) source_gid: [u8; 16],
    pub(crate) source_queue_pair: u16,
    pub(crate) destination_gid: [u8; 16],
    pub(crate) queue_pair: u16,
    pub(crate) queue_key: u32,
    pub(crate) remote: RemoteBuffer,
    pub(crate) payload: Payload,
}

/// The requester's bytes: sent, or to be filled by a read.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    Inline(Vec<u8>),
    Memory(ScatterList),
}

impl Payload {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Memory(list) => list.len(),
        }
    }

    /// The bytes, of which those in memory are in the memory of `host`.
    pub(crate) fn source<'a>(&'a self, host: &'a dyn crate::host::Host) -> Source<'a> {
        match self {
            Self::Inline(bytes) => Source::Bytes(bytes),
            Self::Memory(list) => Source::Memory(host, list),
        }
    }
}

impl Device {
    /// Makes the packet of a request, or says why the request cannot be carried out.
    pub(crate) fn prepare(
        &self,
        queue_pair: &QueuePair,
        request: &SendRequest,
    ) -> Result<Packet, CompletionStatus> {
        let capabilities = self.config.capabilities;
        let one_sided = queue_pair.transport == Transport::Srd;
        let supported = match request.operation {
            Operation::Send => true,
            Operation::Read => one_sided && capabilities.rdma_read && request.immediate.is_none(),
            Operation::Write => one_sided && capabilities.rdma_write,
            Operation::Unsupported(_) => false,
        };
        if !supported {
            return Err(CompletionStatus::LocalUnsupported);
        }
        let destination_gid = self
            .address_handles
            .destination(request.address_handle, queue_pair.domain)
            .ok_or(CompletionStatus::LocalBadAddressHandle)?;
        let payload = self.payload(queue_pair.domain, request)?;
        let fits = match request.operation {
            Operation::Read | Operation::Write => {
                payload.len() <= self.config.max_rdma_size.into()
                    && payload.len() == u64::from(request.remote.length)
            }
            Operation::Send | Operation::Unsupported(_) => payload.len() <= self.config.mtu.into(),
        };
        if !fits {
            return Err(CompletionStatus::LocalBadLength);
        }
        Ok(Packet {
            transport: queue_pair.transport,
            operation: request.operation,
            immediate: request.immediate,
            unsolicited_writes: queue_pair.unsolicited_writes,
            source_gid: self.gid,
            source_queue_pair: queue_pair.number,
            destination_gid,
            queue_pair: request.queue_pair,
            queue_key: request.queue_key,
            remote: request.remote,
            payload,
        })
    }

    fn payload(&self, domain: u16, request: &SendRequest) -> Result<Payload, CompletionStatus> {
        let reads = request.operation == Operation::Read;
        match &request.data {
            Data::Inline(bytes) if !reads => Ok(Payload::Inline(bytes.clone())),
            Data::Inline(_) | Data::Overlong => Err(CompletionStatus::LocalBadLength),
            Data::Buffers(buffers) => {
                let needed = if reads { Permissions::LOCAL_WRITE } else { Permissions::NONE };
                let mut list = ScatterList::default();
                for &buffer in buffers {
                    if !self.regions.resolve_local(domain, buffer, needed, &mut list) {
                        return Err(CompletionStatus::LocalBadKey);
                    }
                }
                Ok(Payload::Memory(list))
            }
        }
    }

    /// Completes the request with `ticket`, unless it was flushed or forgotten meanwhile.
    pub(crate) fn finish(
        &mut self,
        queue_pair: u16,
        ticket: u64,
        status: CompletionStatus,
        length: u64,
    ) {
        let Some(owner) = self.queue_pairs.get_mut(queue_pair) else { return };
        let place = owner.outstanding.iter().position(|sent| sent.ticket == ticket);
        let Some(place) = place else { return };
        let sent = owner.outstanding.swap_remove(place);
        self.count_sent(sent.operation, status, length);
        self.complete(queue_pair, status, sent.operation, Side::Send(sent.id));
        self.count_message();
        self.launch(queue_pair);
    }

    fn count_sent(&mut self, operation: Operation, status: CompletionStatus, length: u64) {
        let statistics = &mut self.statistics;
        let well = status == CompletionStatus::Ok;
        match operation {
            Operation::Send if well => {
                statistics.send_requests += 1;
                statistics.send_bytes += length;
            }
            Operation::Read if well => {
                statistics.read_requests += 1;
                statistics.read_bytes += length;
            }
            Operation::Read => statistics.read_errors += 1,
            Operation::Write if well => {
                statistics.write_requests += 1;
                statistics.write_bytes += length;
            }
            Operation::Write => statistics.write_errors += 1,
            Operation::Send | Operation::Unsupported(_) => {}
        }
        if well && operation != Operation::Read {
            statistics.tx_packets += 1;
            statistics.tx_bytes += length;
        }
    }
}
