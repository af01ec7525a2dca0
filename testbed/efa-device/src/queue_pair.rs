//! Queue pairs: state, the two work queues, and what is under way.

use crate::bytes::{index, low_u16};
use crate::host::{GuestMemory, Host};
use crate::slots::Slots;
use crate::status::AdminStatus;
use crate::work_request::{
    MAX_RECEIVE_BUFFERS, Operation, RECEIVE_DESCRIPTOR_BYTES, ReceiveDescriptor, RequestId,
    SendRequest,
};

/// Send queue memory of one queue pair.
pub(crate) const SEND_QUEUE_BYTES: u64 = 64 * 1024;
/// Largest send queue, in 64-byte requests.
pub(crate) const MAX_SEND_REQUESTS: u32 = 1024;
/// Largest receive queue, in descriptors.
pub(crate) const MAX_RECEIVE_DESCRIPTORS: u32 = 32_768;
/// The retry count that means "for ever".
const RETRY_FOR_EVER: u8 = 7;

/// The transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Unreliable datagram.
    Ud,
    /// Scalable reliable datagram.
    Srd,
}

/// The verbs states, numbered as the interface numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    Reset = 0,
    Init = 1,
    ReadyToReceive = 2,
    ReadyToSend = 3,
    SendQueueDrained = 4,
    SendQueueError = 5,
    Error = 6,
}

impl State {
    pub(crate) const fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::ReadyToReceive,
            3 => Self::ReadyToSend,
            4 => Self::SendQueueDrained,
            5 => Self::SendQueueError,
            6 => Self::Error,
            _ => return None,
        })
    }

    /// Whether a modify command may lead from here to `to`.
    const fn leads_to(self, to: Self) -> bool {
        matches!(
            (self, to),
            (_, Self::Reset | Self::Error)
                | (Self::Reset, Self::Init)
                | (Self::Init, Self::Init | Self::ReadyToReceive)
                | (
                    Self::ReadyToReceive
                        | Self::ReadyToSend
                        | Self::SendQueueDrained
                        | Self::SendQueueError,
                    Self::ReadyToSend
                )
                | (Self::ReadyToSend | Self::SendQueueDrained, Self::SendQueueDrained)
        )
    }

    const fn receives(self) -> bool {
        !matches!(self, Self::Reset | Self::Init | Self::Error)
    }
}

/// A send request that was taken from its queue and is not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outstanding {
    pub(crate) ticket: u64,
    pub(crate) id: RequestId,
    pub(crate) operation: Operation,
}

/// A receive that was taken from its queue.
#[derive(Clone, Debug)]
pub(crate) struct TakenReceive {
    pub(crate) request: u16,
    pub(crate) buffers: Vec<crate::work_request::LocalBuffer>,
}

#[derive(Debug)]
struct SendQueue {
    /// Offset in the send queue BAR.
    offset: u64,
    request_bytes: u32,
    depth: u32,
    producer: u16,
    consumer: u16,
}

#[derive(Debug)]
struct ReceiveQueue {
    base: u64,
    /// In descriptors, a power of two, or 0.
    depth: u32,
    producer: u16,
    consumer: u16,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) number: u16,
    pub(crate) domain: u16,
    pub(crate) transport: Transport,
    /// A write with immediate uses up no receive.
    pub(crate) unsolicited_writes: bool,
    pub(crate) send_completion_queue: u16,
    pub(crate) receive_completion_queue: u16,
    pub(crate) state: State,
    pub(crate) queue_key: u32,
    pub(crate) packet_sequence: u32,
    pub(crate) not_ready_retries: u8,
    pub(crate) outstanding: Vec<Outstanding>,
    send: SendQueue,
    receive: ReceiveQueue,
}

/// The parts of a create command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuePairParameters {
    pub(crate) domain: u16,
    pub(crate) transport: Transport,
    pub(crate) unsolicited_writes: bool,
    pub(crate) send_completion_queue: u16,
    pub(crate) receive_completion_queue: u16,
    pub(crate) send_ring_bytes: u32,
    pub(crate) send_depth: u32,
    pub(crate) receive_base: u64,
    pub(crate) receive_ring_bytes: u32,
}

impl QueuePairParameters {
    /// Checks the ring sizes; returns the bytes of a send request and the receive descriptors.
    fn ring_shapes(&self) -> Result<(u32, u32), AdminStatus> {
        let descriptors = self.receive_ring_bytes / low_u32(RECEIVE_DESCRIPTOR_BYTES);
        let request_bytes = match self.send_depth {
            0 => 64,
            depth => self.send_ring_bytes / depth,
        };
        let fits = matches!(request_bytes, 64 | 128)
            && u64::from(self.send_ring_bytes) <= SEND_QUEUE_BYTES
            && self.send_depth.is_power_of_two() | (self.send_depth == 0)
            && descriptors.is_power_of_two() | (descriptors == 0)
            && descriptors <= MAX_RECEIVE_DESCRIPTORS;
        if fits { Ok((request_bytes, descriptors)) } else { Err(AdminStatus::IllegalParameter) }
    }
}

use crate::bytes::low_u32;

impl QueuePair {
    fn new(
        number: u16,
        slot: u32,
        parameters: QueuePairParameters,
        (request_bytes, descriptors): (u32, u32),
    ) -> Self {
        let QueuePairParameters {
            domain,
            transport,
            unsolicited_writes,
            send_completion_queue,
            receive_completion_queue,
            send_ring_bytes: _,
            send_depth,
            receive_base,
            receive_ring_bytes: _,
        } = parameters;
        Self {
            number,
            domain,
            transport,
            unsolicited_writes,
            send_completion_queue,
            receive_completion_queue,
            state: State::Reset,
            queue_key: 0,
            packet_sequence: 0,
            not_ready_retries: RETRY_FOR_EVER,
            outstanding: Vec::new(),
            send: SendQueue {
                offset: u64::from(slot) * SEND_QUEUE_BYTES,
                request_bytes,
                depth: send_depth,
                producer: 0,
                consumer: 0,
            },
            receive: ReceiveQueue {
                base: receive_base,
                depth: descriptors,
                producer: 0,
                consumer: 0,
            },
        }
    }

    /// Changes the state; an illegal change leaves it as it is.
    pub(crate) fn enter(&mut self, to: State) -> Result<(), AdminStatus> {
        if !self.state.leads_to(to) {
            return Err(AdminStatus::IllegalParameter);
        }
        self.state = to;
        if to == State::Reset {
            self.outstanding.clear();
            (self.send.producer, self.send.consumer) = (0, 0);
            (self.receive.producer, self.receive.consumer) = (0, 0);
        }
        Ok(())
    }

    pub(crate) const fn receives(&self) -> bool {
        self.state.receives()
    }

    /// The attempts a message may make at a receiver that is not ready; none if unlimited.
    pub(crate) const fn not_ready_attempts(&self) -> Option<u8> {
        if self.not_ready_retries >= RETRY_FOR_EVER { None } else { Some(self.not_ready_retries) }
    }

    /// The send doorbell: requests before `producer` are posted.
    ///
    /// An index that claims more requests than the queue holds is a broken driver's; it is
    /// ignored.
    pub(crate) fn ring_send(&mut self, producer: u16) {
        let posted = producer.wrapping_sub(self.send.consumer);
        if u32::from(posted) <= self.send.depth {
            self.send.producer = producer;
        } else {
            log::warn!("queue pair {}: {posted} sends posted at once", self.number);
        }
    }

    /// The receive doorbell: descriptors before `producer` are posted.
    pub(crate) fn ring_receive(&mut self, producer: u16) {
        let posted = producer.wrapping_sub(self.receive.consumer);
        if u32::from(posted) <= self.receive.depth {
            self.receive.producer = producer;
        } else {
            log::warn!("queue pair {}: {posted} receive descriptors posted at once", self.number);
        }
    }

    /// Takes the next posted send request, whatever the state.
    pub(crate) fn take_send(&mut self, host: &dyn Host) -> Option<SendRequest> {
        let SendQueue { offset, request_bytes, depth, producer, consumer } = self.send;
        if producer == consumer {
            return None;
        }
        let slot = u64::from(consumer) & u64::from(depth - 1);
        let mut bytes = vec![0; index(request_bytes.into())];
        host.read_send_queue(offset + slot * u64::from(request_bytes), &mut bytes);
        self.send.consumer = consumer.wrapping_add(1);
        Some(SendRequest::parse(&bytes))
    }

    /// Whether as many requests are under way as the queue holds. No more are taken then: a driver
    /// waits for completions before it posts more, and one that does not would fill our memory.
    pub(crate) fn is_full(&self) -> bool {
        self.outstanding.len() as u64 >= u64::from(self.send.depth)
    }

    pub(crate) const fn has_receive(&self) -> bool {
        self.receive.producer != self.receive.consumer
    }

    /// Takes the next posted receive, whatever the state. One that cannot be read has no
    /// buffers.
    pub(crate) fn take_receive(&mut self, memory: &dyn GuestMemory) -> Option<TakenReceive> {
        let mut taken: Option<TakenReceive> = None;
        while self.has_receive() {
            let slot = u64::from(self.receive.consumer) & u64::from(self.receive.depth - 1);
            let address = self.receive.base.wrapping_add(slot * RECEIVE_DESCRIPTOR_BYTES);
            let mut bytes = [0; 16];
            if let Err(fault) = memory.read(address, &mut bytes) {
                log::warn!("queue pair {}: receive queue: {fault}", self.number);
            }
            self.receive.consumer = self.receive.consumer.wrapping_add(1);
            let descriptor = ReceiveDescriptor::parse(bytes);
            let receive = taken.get_or_insert_with(|| TakenReceive {
                request: descriptor.request,
                buffers: Vec::new(),
            });
            receive.buffers.push(descriptor.buffer);
            if descriptor.last || receive.buffers.len() == MAX_RECEIVE_BUFFERS {
                break;
            }
        }
        taken
    }
}

/// Every queue pair of one device.
///
/// A number is a slot in its low bits and a generation above, so that a number stays unknown for
/// a while after its queue pair is gone. The provider tells queue pairs apart by the low bits
/// alone, as many as the power of two that covers the limit.
#[derive(Debug)]
pub(crate) struct QueuePairs {
    slots: Slots<QueuePair>,
    slot_bits: u32,
    generation: u32,
}

impl QueuePairs {
    pub(crate) const fn new(limit: u32) -> Self {
        Self {
            slots: Slots::new(limit),
            slot_bits: limit.next_power_of_two().trailing_zeros(),
            generation: 0,
        }
    }

    /// Makes a queue pair; returns its number and its slot.
    pub(crate) fn create(
        &mut self,
        parameters: QueuePairParameters,
    ) -> Result<(u16, u32), AdminStatus> {
        let shapes = parameters.ring_shapes()?;
        self.generation = self.generation % ((1 << (16 - self.slot_bits)) - 1) + 1;
        let high = self.generation << self.slot_bits;
        let slot = self
            .slots
            .insert_with(|slot| QueuePair::new(low_u16(high | slot), slot, parameters, shapes))?;
        Ok((low_u16(high | slot), slot))
    }

    pub(crate) fn get(&self, number: u16) -> Option<&QueuePair> {
        self.slots.get(self.slot(number)).filter(|queue_pair| queue_pair.number == number)
    }

    pub(crate) fn get_mut(&mut self, number: u16) -> Option<&mut QueuePair> {
        let slot = self.slot(number);
        self.slots.get_mut(slot).filter(|queue_pair| queue_pair.number == number)
    }

    /// The queue pair whose doorbells are on page `slot`.
    pub(crate) fn in_slot(&mut self, slot: u32) -> Option<&mut QueuePair> {
        self.slots.get_mut(slot)
    }

    pub(crate) fn remove(&mut self, number: u16) -> Option<QueuePair> {
        self.get(number)?;
        self.slots.remove(self.slot(number))
    }

    pub(crate) fn clear(&mut self) {
        self.slots.clear();
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &QueuePair> {
        self.slots.iter()
    }

    fn slot(&self, number: u16) -> u32 {
        u32::from(number) & ((1 << self.slot_bits) - 1)
    }
}
