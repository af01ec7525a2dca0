//! The network: devices, the messages between them, and time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{DeviceConfig, FabricConfig};
use crate::device::{Device, Launch};
use crate::error::Error;
use crate::host::Host;
use crate::queue_pair::Transport;
use crate::random::Random;
use crate::requester::{Packet, Payload};
use crate::responder::{Answer, copy_status};
use crate::scatter::{self, CopyFault, Source};
use crate::status::CompletionStatus;
use crate::work_request::SendRequest;

/// Bytes copied at once where order does not matter.
const COPY_BYTES: u64 = 64 * 1024;

/// The least time between two attempts, so that time always goes on.
const SHORTEST_WAIT: Duration = Duration::from_micros(1);

/// A device of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceNumber(usize);

/// Devices and the network between them.
///
/// A fabric has no clock and no thread: its caller forwards register and doorbell writes, and
/// calls [`Fabric::advance`] with the time since some fixed moment. One seed and one sequence of
/// calls always give one outcome.
#[derive(Debug)]
pub struct Fabric {
    config: FabricConfig,
    devices: Vec<Device>,
    flights: BinaryHeap<Reverse<Flight>>,
    random: Random,
    now: Duration,
    next_keep_alive: Duration,
    launches: u64,
    needing_receive: u32,
}

/// A message under way, ordered by when it arrives.
#[derive(Debug)]
struct Flight {
    due: Duration,
    order: u64,
    device: usize,
    queue_pair: u16,
    ticket: u64,
    request: SendRequest,
    /// How often the receiver was not ready.
    refusals: u32,
    /// How it ends, if that is decided and only time must pass.
    verdict: Option<CompletionStatus>,
}

/// What becomes of a message that arrived.
enum Outcome {
    Finished {
        status: CompletionStatus,
        length: u64,
    },
    /// Nobody answers.
    Lost {
        status: CompletionStatus,
    },
    NotReady {
        attempts: Option<u8>,
    },
}

impl Fabric {
    /// A network without devices.
    #[must_use]
    pub fn new(config: FabricConfig) -> Self {
        Self {
            random: Random::new(config.seed),
            next_keep_alive: config.keep_alive,
            config,
            devices: Vec::new(),
            flights: BinaryHeap::new(),
            now: Duration::ZERO,
            launches: 0,
            needing_receive: 0,
        }
    }

    /// Plugs a device into `host` and into this network.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if a setting does not fit the interface.
    pub fn add(
        &mut self,
        config: DeviceConfig,
        host: Arc<dyn Host>,
    ) -> Result<DeviceNumber, Error> {
        config.check()?;
        let number = self.devices.len();
        let address = u32::try_from(number).unwrap_or(u32::MAX);
        self.devices.push(Device::new(config, address, self.config.flush_on_destroy, host));
        Ok(DeviceNumber(number))
    }

    /// The network address of a device.
    #[must_use]
    pub fn gid(&self, number: DeviceNumber) -> Option<[u8; 16]> {
        self.devices.get(number.0).map(|device| device.gid)
    }

    /// Reads the register at `offset` of BAR 0.
    #[must_use]
    pub fn read_register(&self, number: DeviceNumber, offset: u64) -> u32 {
        self.devices.get(number.0).map_or(u32::MAX, |device| device.read_register(offset))
    }

    /// Writes the register at `offset` of BAR 0, and does what that asks for.
    pub fn write_register(&mut self, number: DeviceNumber, offset: u64, value: u32) {
        if let Some(device) = self.devices.get_mut(number.0) {
            device.write_register(offset, value);
        }
        self.launch(number.0);
    }

    /// Writes the doorbell at `offset` of BAR 4.
    pub fn ring(&mut self, number: DeviceNumber, offset: u64, value: u32) {
        if let Some(device) = self.devices.get_mut(number.0) {
            device.ring(offset, value);
        }
        self.launch(number.0);
    }

    /// Resets a device as if its power had been cut: its objects are gone, its peers find out.
    pub fn reset(&mut self, number: DeviceNumber) {
        if let Some(device) = self.devices.get_mut(number.0) {
            device.reset_function();
        }
    }

    /// Delivers everything that is due at `now`; returns when there is more to do.
    pub fn advance(&mut self, now: Duration) -> Duration {
        self.now = self.now.max(now);
        while self.flights.peek().is_some_and(|Reverse(next)| next.due <= self.now) {
            if let Some(Reverse(flight)) = self.flights.pop() {
                self.land(flight);
            }
        }
        if self.next_keep_alive <= self.now {
            self.next_keep_alive = self.now + self.config.keep_alive;
            self.devices.iter_mut().for_each(Device::keep_alive);
        }
        let next_flight = self.flights.peek().map(|Reverse(next)| next.due);
        next_flight.map_or(self.next_keep_alive, |due| due.min(self.next_keep_alive))
    }

    /// Sends off what a device has taken from its send queues.
    fn launch(&mut self, device: usize) {
        let Some(sender) = self.devices.get_mut(device) else { return };
        for Launch { queue_pair, ticket, request } in sender.take_launched() {
            let transport = sender.queue_pairs.get(queue_pair).map(|owner| owner.transport);
            let mut due = self.now + self.config.delay;
            // Half of the messages go at once, so that those held back are overtaken.
            if self.config.reorder && transport == Some(Transport::Srd) && self.random.below(2) == 1
            {
                let window =
                    u64::try_from(self.config.reorder_window.as_nanos()).unwrap_or(u64::MAX);
                due += Duration::from_nanos(self.random.below(window));
            }
            self.launches += 1;
            self.flights.push(Reverse(Flight {
                due,
                order: self.launches,
                device,
                queue_pair,
                ticket,
                request,
                refusals: 0,
                verdict: None,
            }));
        }
    }

    /// Handles a message that arrived, or whose waiting is over.
    fn land(&mut self, mut flight: Flight) {
        let (device, queue_pair, ticket) = (flight.device, flight.queue_pair, flight.ticket);
        let outcome = match flight.verdict {
            Some(status) => Some(Outcome::Finished { status, length: 0 }),
            None => self.deliver(&flight),
        };
        match outcome {
            None => {}
            Some(Outcome::Finished { status, length }) => {
                if let Some(sender) = self.devices.get_mut(device).filter(|sender| sender.alive) {
                    sender.finish(queue_pair, ticket, status, length);
                }
                self.launch(device);
            }
            Some(Outcome::Lost { status }) => {
                flight.verdict = Some(status);
                flight.due += self.config.response_timeout;
                self.flights.push(Reverse(flight));
            }
            Some(Outcome::NotReady { attempts }) => {
                // Even a sender that must not retry waits once: doorbells of two devices reach
                // this model in an order that no network promised.
                let attempts = attempts.map(|attempts| u32::from(attempts.max(1)));
                if attempts.is_some_and(|attempts| flight.refusals >= attempts) {
                    flight.verdict = Some(CompletionStatus::RemoteNotReady);
                } else {
                    flight.refusals += 1;
                    flight.due += self.config.not_ready_delay.max(SHORTEST_WAIT);
                }
                self.flights.push(Reverse(flight));
            }
        }
    }

    /// Carries a message to its destination; none if its sender no longer waits for it.
    fn deliver(&mut self, flight: &Flight) -> Option<Outcome> {
        let sender = self.devices.get(flight.device).filter(|sender| sender.alive)?;
        let owner = sender.queue_pairs.get(flight.queue_pair)?;
        owner.outstanding.iter().find(|sent| sent.ticket == flight.ticket)?;
        let attempts = owner.not_ready_attempts();
        let packet = match sender.prepare(owner, &flight.request) {
            Ok(packet) => packet,
            Err(status) => return Some(Outcome::Finished { status, length: 0 }),
        };
        let length = packet.payload.len();
        let Some(receiver) = self.route(flight.device, &packet) else {
            return Some(self.lose(flight.device, &packet));
        };
        let outcome = match self.hand_over(flight, receiver, &packet) {
            Answer::NotReady => return Some(Outcome::NotReady { attempts }),
            Answer::Done(status) => Outcome::Finished { status, length },
            Answer::Read(list) => {
                let status = self.return_read(flight.device, receiver, &packet, &list);
                Outcome::Finished { status, length }
            }
        };
        if let Some(sender) = self.devices.get_mut(flight.device) {
            sender.heard_from.insert(packet.destination_gid);
        }
        Some(outcome)
    }

    /// The device that a packet reaches, if it reaches one.
    fn route(&self, from: usize, packet: &Packet) -> Option<usize> {
        let to = self.devices.iter().position(|device| device.gid == packet.destination_gid)?;
        let connected =
            [from, to].iter().all(|&end| self.devices.get(end).is_some_and(Device::reachable));
        let dropped = from == to && !self.config.loopback && packet.transport == Transport::Srd;
        (connected && !dropped).then_some(to)
    }

    /// What a sender makes of silence: a datagram is done, a reliable message times out.
    fn lose(&mut self, from: usize, packet: &Packet) -> Outcome {
        if packet.transport == Transport::Ud {
            return Outcome::Finished {
                status: CompletionStatus::Ok,
                length: packet.payload.len(),
            };
        }
        let Some(sender) = self.devices.get_mut(from) else {
            return Outcome::Lost { status: CompletionStatus::Unreachable };
        };
        sender.statistics.retransmit_timeouts += 1;
        sender.statistics.retransmitted_packets += 1;
        sender.statistics.retransmitted_bytes += packet.payload.len();
        let status = if sender.heard_from.contains(&packet.destination_gid) {
            sender.statistics.unresponsive_remotes += 1;
            CompletionStatus::Unresponsive
        } else {
            CompletionStatus::Unreachable
        };
        Outcome::Lost { status }
    }

    fn hand_over(&mut self, flight: &Flight, receiver: usize, packet: &Packet) -> Answer {
        let host = self.devices.get(flight.device).map(|sender| sender.host.clone());
        let pieces = self.pieces(packet);
        let (Some(host), Some(responder)) = (host, self.devices.get_mut(receiver)) else {
            return Answer::Done(CompletionStatus::RemoteAbort);
        };
        if flight.refusals == 0 && responder.needs_receive(packet) {
            self.needing_receive = self.needing_receive.wrapping_add(1);
            let every = self.config.not_ready_every.unwrap_or(0);
            let refused = self.needing_receive.checked_rem(every) == Some(0);
            if refused && packet.transport == Transport::Srd {
                return Answer::NotReady;
            }
        }
        responder.accept(packet, packet.payload.source(&*host), &pieces)
    }

    /// Copies what a read asked for to the memory of the requester.
    fn return_read(
        &mut self,
        requester: usize,
        responder: usize,
        packet: &Packet,
        list: &scatter::ScatterList,
    ) -> CompletionStatus {
        let pieces = self.pieces(packet);
        let (Some(requester), Some(responder)) =
            (self.devices.get(requester), self.devices.get(responder))
        else {
            return CompletionStatus::RemoteAbort;
        };
        let Payload::Memory(target) = &packet.payload else {
            return CompletionStatus::LocalBadLength;
        };
        let source = Source::Memory(&*responder.host, list);
        match scatter::copy(source, &*requester.host, target, 0, &pieces) {
            Ok(()) => CompletionStatus::Ok,
            // Source and target are the other way round than for a write.
            Err(CopyFault::Source) => copy_status(CopyFault::Target),
            Err(CopyFault::Target) => copy_status(CopyFault::Source),
        }
    }

    /// The order in which the bytes of a packet land.
    fn pieces(&mut self, packet: &Packet) -> Vec<Range<u64>> {
        if self.config.reorder && packet.transport == Transport::Srd {
            let mut pieces = scatter::cut(packet.payload.len(), self.mtu_of(packet));
            self.random.shuffle(&mut pieces);
            pieces
        } else {
            scatter::cut(packet.payload.len(), COPY_BYTES)
        }
    }

    fn mtu_of(&self, packet: &Packet) -> u64 {
        let sender = self.devices.iter().find(|device| device.gid == packet.source_gid);
        sender.map_or(COPY_BYTES, |sender| sender.config.mtu.into())
    }
}

impl PartialEq for Flight {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Flight {}

impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Flight {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.order).cmp(&(other.due, other.order))
    }
}
