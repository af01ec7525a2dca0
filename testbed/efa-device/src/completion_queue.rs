//! Completion queues: rings of completions in guest memory.

use crate::bytes::PutFields;
use crate::host::GuestMemory;
use crate::producer::{Place, Producer};
use crate::status::CompletionStatus;
use crate::work_request::{Operation, RequestId};

/// Where the phase bit is.
const FLAGS_BYTE: usize = 3;
const SEND_QUEUE: u8 = 1;
const RECEIVE_QUEUE: u8 = 2;

/// What a completion says about its work request.
#[derive(Clone, Debug)]
pub(crate) struct Completion {
    pub(crate) queue_pair: u16,
    pub(crate) status: CompletionStatus,
    pub(crate) operation: Operation,
    pub(crate) side: Side,
}

/// Which queue the work request was on.
#[derive(Clone, Debug)]
pub(crate) enum Side {
    Send(RequestId),
    Receive(Received),
}

/// What only the receiver learns.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) request: u16,
    pub(crate) length: u32,
    /// Number of the address handle of the sender; none if there is no such handle.
    pub(crate) address_handle: Option<u16>,
    pub(crate) source_gid: [u8; 16],
    pub(crate) source_queue_pair: u16,
    pub(crate) immediate: Option<u32>,
    /// No receive was used up.
    pub(crate) unsolicited: bool,
}

/// A ring of completions, 16 or 32 bytes each.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    base: u64,
    depth: u16,
    entry_bytes: usize,
    /// Receives from unknown senders carry the sender's address.
    source_addresses: bool,
    /// Send completions carry 64-bit identifiers.
    pub(crate) wide_request_ids: bool,
    /// The event queue to tell; none if the queue is only polled.
    pub(crate) event_queue: Option<u16>,
    producer: Producer,
    armed: bool,
    pub(crate) users: u32,
}

/// The parts of a create command.
#[derive(Debug)]
pub(crate) struct CompletionQueueParameters {
    pub(crate) base: u64,
    pub(crate) depth: u16,
    pub(crate) entry_bytes: usize,
    pub(crate) source_addresses: bool,
    pub(crate) wide_request_ids: bool,
    pub(crate) event_queue: Option<u16>,
}

impl CompletionQueue {
    /// `depth` is a power of two, `entry_bytes` 16 or 32.
    pub(crate) fn new(parameters: CompletionQueueParameters) -> Self {
        let CompletionQueueParameters {
            base,
            depth,
            entry_bytes,
            source_addresses,
            wide_request_ids,
            event_queue,
        } = parameters;
        Self {
            base,
            depth,
            entry_bytes,
            source_addresses,
            wide_request_ids,
            event_queue,
            producer: Producer::new(),
            armed: false,
            users: 0,
        }
    }

    /// Adds a completion; returns the event queue that must be told, if one must.
    ///
    /// A full ring is overwritten: only the driver knows how far it has read.
    pub(crate) fn push(
        &mut self,
        memory: &dyn GuestMemory,
        completion: &Completion,
    ) -> Option<u16> {
        let Place { slot, phase } = self.producer.next(self.depth)?;
        let mut entry = self.encode(completion);
        entry[FLAGS_BYTE] |= phase;
        let address = self.base.wrapping_add(slot * self.entry_bytes as u64);
        let bytes = entry.get(..self.entry_bytes).unwrap_or(&entry);
        if let Err(fault) = memory.publish(address, bytes, FLAGS_BYTE) {
            log::warn!("completion queue: {fault}");
        }
        if self.armed {
            self.armed = false;
            self.event_queue
        } else {
            None
        }
    }

    /// The user asks to be told of the next completion after the first `consumed` (modulo
    /// 2^16); returns the event queue to tell at once if it is already there.
    pub(crate) fn arm(&mut self, consumed: u16) -> Option<u16> {
        let event_queue = self.event_queue?;
        if self.producer.count() == consumed {
            self.armed = true;
            None
        } else {
            self.armed = false;
            Some(event_queue)
        }
    }

    fn encode(&self, completion: &Completion) -> [u8; 32] {
        let Completion { queue_pair, status, operation, side } = completion;
        let mut entry = [0_u8; 32];
        entry.put_u8(2, *status as u8);
        entry.put_u16(4, *queue_pair);
        let mut flags = operation.code() << 4;
        match side {
            Side::Send(request) => {
                flags |= SEND_QUEUE << 1;
                entry.put_u16(0, request.low);
                if self.wide_request_ids {
                    entry.put(6, request.extension);
                }
            }
            Side::Receive(received) => {
                flags |= RECEIVE_QUEUE << 1;
                flags |= u8::from(received.immediate.is_some()) << 3;
                flags |= u8::from(received.unsolicited) << 7;
                entry.put_u16(0, received.request);
                entry.put_u16(6, crate::bytes::low_u16(received.length));
                entry.put_u16(8, received.address_handle.unwrap_or(0xffff));
                entry.put_u16(10, received.source_queue_pair);
                entry.put_u32(12, received.immediate.unwrap_or(0));
                if *operation == Operation::Write {
                    entry.put_u16(16, crate::bytes::high_u16(received.length));
                } else if received.address_handle.is_none() && self.source_addresses {
                    entry.put(16, received.source_gid);
                }
            }
        }
        entry.put_u8(FLAGS_BYTE, flags);
        entry
    }
}
