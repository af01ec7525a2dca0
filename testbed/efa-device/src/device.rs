//! One device: its objects, and what registers and doorbells do to them.

use std::collections::HashSet;
use std::sync::Arc;

use crate::address_handle::AddressHandles;
use crate::admin_queue::{AdminQueue, RESPONSE_BYTES};
use crate::async_events::{AsyncEventQueue, Group};
use crate::bytes::low_u16;
use crate::completion_queue::{Completion, CompletionQueue, Side};
use crate::config::{AdminEffect, DeviceConfig};
use crate::event_counter::{EventCounter, Events, MAX_COUNTERS};
use crate::event_queue::EventQueue;
use crate::host::Host;
use crate::layout::{Doorbell, EVENT_QUEUES, Layout};
use crate::memory_region::MemoryRegions;
use crate::queue_pair::{Outstanding, QueuePairs, State};
use crate::registers::{Action, Registers};
use crate::slots::Slots;
use crate::statistics::Statistics;
use crate::status::CompletionStatus;
use crate::work_request::{Operation, SendRequest};

/// Doorbell pages (UARs): one for each process that opened the device.
const DOORBELL_PAGES: u32 = 1024;

/// The first minor version of the register interface whose responses carry checksums.
const CHECKSUMS_SINCE: u8 = 2;

/// A send request that has left its queue.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) queue_pair: u16,
    pub(crate) ticket: u64,
    pub(crate) request: SendRequest,
}

/// An EFA device.
pub(crate) struct Device {
    pub(crate) config: DeviceConfig,
    pub(crate) layout: Layout,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) gid: [u8; 16],
    /// False once it died; a reset of the PCI function revives it.
    pub(crate) alive: bool,
    pub(crate) flush_on_destroy: bool,
    registers: Registers,
    admin: AdminQueue,
    pub(crate) async_events: AsyncEventQueue,
    pub(crate) domains: Slots<()>,
    pub(crate) doorbell_pages: Slots<()>,
    pub(crate) event_queues: Slots<EventQueue>,
    pub(crate) completion_queues: Slots<CompletionQueue>,
    pub(crate) queue_pairs: QueuePairs,
    pub(crate) regions: MemoryRegions,
    pub(crate) address_handles: AddressHandles,
    pub(crate) event_counters: Slots<EventCounter>,
    pub(crate) statistics: Statistics,
    /// Peers that answered since the last reset.
    pub(crate) heard_from: HashSet<[u8; 16]>,
    launched: Vec<Launch>,
    next_ticket: u64,
    messages: u64,
    pub(crate) messages_received: u64,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { gid, alive, statistics, .. } = self;
        formatter
            .debug_struct("Device")
            .field("gid", gid)
            .field("alive", alive)
            .field("statistics", statistics)
            .finish_non_exhaustive()
    }
}

impl Device {
    /// A device with the link-local address number `number` of its fabric.
    pub(crate) fn new(
        config: DeviceConfig,
        number: u32,
        flush_on_destroy: bool,
        host: Arc<dyn Host>,
    ) -> Self {
        let mut gid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0xef, 0xa0, 0, 0, 0, 0, 0];
        gid[12..].copy_from_slice(&number.wrapping_add(1).to_be_bytes());
        Self {
            layout: Layout::new(&config),
            host,
            gid,
            alive: true,
            flush_on_destroy,
            registers: Registers::new(),
            admin: AdminQueue::new(config.admin_faults.clone()),
            async_events: AsyncEventQueue::default(),
            domains: Slots::new(config.max_protection_domains),
            doorbell_pages: Slots::new(DOORBELL_PAGES),
            event_queues: Slots::new(EVENT_QUEUES.into()),
            completion_queues: Slots::new(config.max_completion_queues),
            queue_pairs: QueuePairs::new(config.max_queue_pairs),
            regions: MemoryRegions::new(config.max_memory_regions),
            address_handles: AddressHandles::new(config.max_address_handles),
            event_counters: Slots::new(MAX_COUNTERS),
            statistics: Statistics::default(),
            heard_from: HashSet::new(),
            launched: Vec::new(),
            next_ticket: 0,
            messages: 0,
            messages_received: 0,
            config,
        }
    }

    /// The interface part of the address, which is also the node GUID.
    pub(crate) fn guid(&self) -> [u8; 8] {
        crate::bytes::Fields(&self.gid).array(8)
    }

    /// A reset of the PCI function: everything begins anew, and the dead live.
    pub(crate) fn reset_function(&mut self) {
        self.alive = true;
        self.registers = Registers::new();
        self.forget();
    }

    pub(crate) fn read_register(&self, offset: u64) -> u32 {
        if self.alive { self.registers.read(&self.config, offset) } else { u32::MAX }
    }

    pub(crate) fn write_register(&mut self, offset: u64, value: u32) {
        if !self.alive {
            return;
        }
        let host = self.host.clone();
        match self.registers.write(&self.config, &*host, offset, value) {
            None => {}
            Some(Action::Reset) => self.forget(),
            Some(Action::StartCommands) => self.admin.start_commands(),
            Some(Action::StartResponses) => self.admin.start_responses(),
            Some(Action::StartEvents) => self.async_events.start(),
            Some(Action::RunCommands(producer)) => self.run_commands(producer),
            Some(Action::EventsRead(consumed)) => self.async_events.read_up_to(consumed),
            Some(Action::ArmEventQueue(number)) => {
                if let Some(queue) = self.event_queues.get_mut(number.into()) {
                    queue.arm(&*host);
                }
            }
        }
    }

    pub(crate) fn ring(&mut self, offset: u64, value: u32) {
        if !self.alive {
            return;
        }
        match self.layout.doorbell(offset) {
            Some(Doorbell::Send { slot }) => {
                let Some(queue_pair) = self.queue_pairs.in_slot(slot) else { return };
                queue_pair.ring_send(low_u16(value));
                let number = queue_pair.number;
                self.launch(number);
            }
            Some(Doorbell::Receive { slot }) => {
                let Some(queue_pair) = self.queue_pairs.in_slot(slot) else { return };
                queue_pair.ring_receive(low_u16(value));
                let (number, state) = (queue_pair.number, queue_pair.state);
                if state == State::Error {
                    self.flush(number);
                }
            }
            Some(Doorbell::CompletionQueue { number }) if value >> 31 != 0 => {
                let queue = self.completion_queues.get_mut(number.into());
                if let Some(event_queue) = queue.and_then(|queue| queue.arm(low_u16(value))) {
                    self.tell(event_queue, number);
                }
            }
            Some(Doorbell::CompletionQueue { .. }) => {}
            None => log::debug!("nothing at doorbell {offset:#x}"),
        }
    }

    pub(crate) fn keep_alive(&mut self) {
        if self.alive {
            self.async_events.report(&*self.host, &self.registers.events, Group::KeepAlive);
        }
    }

    /// Takes the requests that have left their queues since the last call.
    pub(crate) fn take_launched(&mut self) -> Vec<Launch> {
        std::mem::take(&mut self.launched)
    }

    /// Whether messages can reach this device and come from it.
    pub(crate) fn reachable(&self) -> bool {
        self.alive && self.config.lost_after.is_none_or(|limit| self.messages_received < limit)
    }

    /// Counts a message that was sent or received; the device may die of it.
    pub(crate) fn count_message(&mut self) {
        self.messages += 1;
        if self.config.dies_after == Some(self.messages) {
            log::info!("device dies after {} messages", self.messages);
            self.alive = false;
        }
    }

    /// Takes posted sends from their queue: to the wire if the queue pair may send and has room,
    /// else, in the error state, to the completion queue as flushed.
    pub(crate) fn launch(&mut self, number: u16) {
        let Some(queue_pair) = self.queue_pairs.get_mut(number) else { return };
        match queue_pair.state {
            State::ReadyToSend => {
                while !queue_pair.is_full()
                    && let Some(request) = queue_pair.take_send(&*self.host)
                {
                    let ticket = self.next_ticket;
                    self.next_ticket += 1;
                    let (id, operation) = (request.id, request.operation);
                    queue_pair.outstanding.push(Outstanding { ticket, id, operation });
                    self.launched.push(Launch { queue_pair: number, ticket, request });
                }
            }
            State::Error => self.flush(number),
            State::Reset
            | State::Init
            | State::ReadyToReceive
            | State::SendQueueDrained
            | State::SendQueueError => {}
        }
    }

    /// Completes everything posted on a queue pair as flushed.
    pub(crate) fn flush(&mut self, number: u16) {
        let host = self.host.clone();
        let Some(queue_pair) = self.queue_pairs.get_mut(number) else { return };
        let mut sends: Vec<(crate::work_request::RequestId, Operation)> =
            queue_pair.outstanding.drain(..).map(|sent| (sent.id, sent.operation)).collect();
        while let Some(request) = queue_pair.take_send(&*host) {
            sends.push((request.id, request.operation));
        }
        let mut receives = Vec::new();
        while let Some(receive) = queue_pair.take_receive(&*host) {
            receives.push(receive.request);
        }
        for (id, operation) in sends {
            self.complete(number, CompletionStatus::Flushed, operation, Side::Send(id));
        }
        for request in receives {
            let received = crate::completion_queue::Received {
                request,
                length: 0,
                address_handle: None,
                source_gid: [0; 16],
                source_queue_pair: 0,
                immediate: None,
                unsolicited: false,
            };
            let side = Side::Receive(received);
            self.complete(number, CompletionStatus::Flushed, Operation::Send, side);
        }
    }

    /// Adds a completion of queue pair `number`, counts it, and tells who waits for it.
    pub(crate) fn complete(
        &mut self,
        number: u16,
        status: CompletionStatus,
        operation: Operation,
        side: Side,
    ) {
        let Some(queue_pair) = self.queue_pairs.get(number) else { return };
        let queue = match side {
            Side::Send(_) => queue_pair.send_completion_queue,
            Side::Receive(_) => queue_pair.receive_completion_queue,
        };
        self.count_event(number, completion_event(operation, &side, status));
        let completion = Completion { queue_pair: number, status, operation, side };
        let Some(completion_queue) = self.completion_queues.get_mut(queue.into()) else { return };
        if let Some(event_queue) = completion_queue.push(&*self.host, &completion) {
            self.tell(event_queue, queue);
        }
    }

    /// Counts `event` of queue pair `number` in the event counters attached to it.
    pub(crate) fn count_event(&mut self, number: u16, event: Events) {
        for counter in self.event_counters.iter_mut() {
            counter.count(&*self.host, number, event);
        }
    }

    fn tell(&mut self, event_queue: u16, completion_queue: u16) {
        if let Some(queue) = self.event_queues.get_mut(event_queue.into()) {
            queue.completion(&*self.host, completion_queue);
        }
    }

    fn run_commands(&mut self, producer: u16) {
        let host = self.host.clone();
        while let Some(command) = self.admin.next(&*host, &self.registers.commands, producer) {
            let mut response = [0; RESPONSE_BYTES];
            let status = match self.admin.fault(&command) {
                Some(AdminEffect::Silence) => continue,
                Some(AdminEffect::Status(status)) => status,
                None => match self.execute(&command, &mut response) {
                    Ok(()) => 0,
                    Err(status) => status as u8,
                },
            };
            if status != 0 {
                log::info!("admin command {} refused with status {status}", command.opcode);
                response = [0; RESPONSE_BYTES];
            }
            let checksums = self.config.interface_minor >= CHECKSUMS_SINCE;
            self.admin.respond(&*host, &self.registers, checksums, &command, status, response);
        }
    }

    /// Drops every object and every ring.
    fn forget(&mut self) {
        self.admin.start_commands();
        self.admin.start_responses();
        self.async_events = AsyncEventQueue::default();
        self.domains.clear();
        self.doorbell_pages.clear();
        self.event_queues.clear();
        self.completion_queues.clear();
        // Numbers and keys of before must not become valid again, so generations go on.
        self.queue_pairs.clear();
        self.regions.clear();
        self.address_handles.clear();
        self.event_counters.clear();
        self.heard_from.clear();
        self.launched.clear();
    }
}

/// The event that a completion is.
fn completion_event(operation: Operation, side: &Side, status: CompletionStatus) -> Events {
    let well = status == CompletionStatus::Ok;
    match (side, operation) {
        (Side::Receive(_), _) if well => Events::RECEIVE,
        (Side::Receive(_), _) => Events::RECEIVE_ERROR,
        (Side::Send(_), Operation::Read) if well => Events::READ,
        (Side::Send(_), Operation::Read) => Events::READ_ERROR,
        (Side::Send(_), Operation::Write) if well => Events::WRITE,
        (Side::Send(_), Operation::Write) => Events::WRITE_ERROR,
        (Side::Send(_), Operation::Send | Operation::Unsupported(_)) if well => Events::SEND,
        (Side::Send(_), Operation::Send | Operation::Unsupported(_)) => Events::SEND_ERROR,
    }
}
