//! The admin queue: commands in one ring of guest memory, responses in another.

use crate::bytes::{Fields, PutFields};
use crate::checksum::crc16;
use crate::config::{AdminEffect, AdminFault};
use crate::host::Host;
use crate::producer::{Place, Producer};
use crate::registers::{Registers, Ring};
use crate::status::AdminStatus;

/// Bytes of a response.
pub(crate) const RESPONSE_BYTES: usize = 64;
/// Where a response's own data begins.
pub(crate) const RESPONSE_DATA: usize = 8;

const PHASE_BYTE: usize = 3;
const RESPONSE_CHECKSUM: usize = 4;
/// Commands of version 1 and 2: their size and where their own data begins.
const VERSION_1: (u16, usize) = (64, 4);
const VERSION_2: (u16, usize) = (128, 12);
const VERSION_2_CHECKSUM: usize = 4;
const COMMAND_ID_BITS: u16 = 0xfff;

/// A response under construction.
pub(crate) type Response = [u8; RESPONSE_BYTES];

/// A command as the driver wrote it.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) id: u16,
    pub(crate) opcode: u8,
    pub(crate) flags: u8,
    payload: Vec<u8>,
    intact: bool,
}

impl Command {
    fn parse(entry: &mut [u8]) -> Self {
        let (_, data) = if entry.len() == usize::from(VERSION_2.0) { VERSION_2 } else { VERSION_1 };
        let intact = data == VERSION_1.1 || {
            let claimed = Fields(entry).u16(VERSION_2_CHECKSUM);
            entry.put_u16(VERSION_2_CHECKSUM, 0);
            claimed == crc16(entry)
        };
        let fields = Fields(entry);
        Self {
            id: fields.u16(0) & COMMAND_ID_BITS,
            opcode: fields.u8(2),
            flags: fields.u8(3),
            payload: fields.from(data).bytes().to_vec(),
            intact,
        }
    }

    /// The command's own data, in which all documented offsets count.
    pub(crate) fn payload(&self) -> Fields<'_> {
        Fields(&self.payload)
    }

    /// Malformed if the checksum of a version 2 command is wrong.
    pub(crate) const fn check(&self) -> Result<(), AdminStatus> {
        if self.intact { Ok(()) } else { Err(AdminStatus::Malformed) }
    }
}

/// Where the device is in the two rings.
#[derive(Debug)]
pub(crate) struct AdminQueue {
    consumed: u16,
    producer: Producer,
    faults: Vec<AdminFault>,
    /// Commands seen, by opcode.
    seen: [u32; 256],
}

impl AdminQueue {
    pub(crate) const fn new(faults: Vec<AdminFault>) -> Self {
        Self { consumed: 0, producer: Producer::new(), faults, seen: [0; 256] }
    }

    pub(crate) const fn start_commands(&mut self) {
        self.consumed = 0;
    }

    pub(crate) const fn start_responses(&mut self) {
        self.producer = Producer::new();
    }

    /// The next command before index `producer`; none if there is none or the ring is unusable.
    pub(crate) fn next(&mut self, host: &dyn Host, ring: &Ring, producer: u16) -> Option<Command> {
        let posted = producer.wrapping_sub(self.consumed);
        let known = [VERSION_1.0, VERSION_2.0].contains(&ring.entry_bytes);
        if posted == 0 || !known || posted > ring.depth || !ring.depth.is_power_of_two() {
            return None;
        }
        let slot = u64::from(self.consumed & (ring.depth - 1));
        self.consumed = self.consumed.wrapping_add(1);
        let mut entry = vec![0; usize::from(ring.entry_bytes)];
        let address = ring.base.wrapping_add(slot * u64::from(ring.entry_bytes));
        if let Err(fault) = host.read(address, &mut entry) {
            log::warn!("admin queue: {fault}");
            return None;
        }
        Some(Command::parse(&mut entry))
    }

    /// What is to go wrong with this command; counts it.
    pub(crate) fn fault(&mut self, command: &Command) -> Option<AdminEffect> {
        let seen = self.seen.get_mut(usize::from(command.opcode))?;
        *seen = seen.wrapping_add(1);
        let wanted = |fault: &&AdminFault| {
            fault.opcode == command.opcode && (fault.nth == 0 || fault.nth == *seen)
        };
        self.faults.iter().find(wanted).map(|fault| fault.effect)
    }

    /// Publishes a response and raises the admin interrupt unless the driver polls.
    pub(crate) fn respond(
        &mut self,
        host: &dyn Host,
        registers: &Registers,
        checksums: bool,
        command: &Command,
        status: u8,
        mut response: Response,
    ) {
        let ring = &registers.responses;
        if usize::from(ring.entry_bytes) != RESPONSE_BYTES {
            return;
        }
        let Some(Place { slot, phase }) = self.producer.next(ring.depth) else { return };
        response.put_u16(0, command.id);
        response.put_u8(2, status);
        response.put_u8(PHASE_BYTE, phase);
        if checksums {
            let checksum = crc16(&response);
            response.put_u16(RESPONSE_CHECKSUM, checksum);
        }
        let address = ring.base.wrapping_add(slot * RESPONSE_BYTES as u64);
        if let Err(fault) = host.publish(address, &response, PHASE_BYTE) {
            log::warn!("admin queue: {fault}");
        }
        if !registers.interrupts_masked {
            host.raise(ring.vector.into());
        }
    }
}
