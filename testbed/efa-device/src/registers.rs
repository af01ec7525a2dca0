//! The registers of BAR 0.
//!
//! The driver writes them directly but never reads them so: it writes what it wants to know to
//! one register, and the device writes the answer to guest memory (a "readless read").

use crate::bytes::{PutFields, high_u16, low_u16};
use crate::config::DeviceConfig;
use crate::host::GuestMemory;

/// Offsets in BAR 0.
mod offset {
    pub(super) const VERSION: u64 = 0x00;
    pub(super) const CONTROLLER_VERSION: u64 = 0x04;
    pub(super) const CAPABILITIES: u64 = 0x08;
    pub(super) const COMMANDS_BASE_LOW: u64 = 0x10;
    pub(super) const COMMANDS_BASE_HIGH: u64 = 0x14;
    pub(super) const COMMANDS_SHAPE: u64 = 0x18;
    pub(super) const RESPONSES_BASE_LOW: u64 = 0x20;
    pub(super) const RESPONSES_BASE_HIGH: u64 = 0x24;
    pub(super) const RESPONSES_SHAPE: u64 = 0x28;
    pub(super) const COMMANDS_DOORBELL: u64 = 0x2c;
    pub(super) const EVENTS_SHAPE: u64 = 0x34;
    pub(super) const EVENTS_BASE_LOW: u64 = 0x38;
    pub(super) const EVENTS_BASE_HIGH: u64 = 0x3c;
    pub(super) const EVENTS_DOORBELL: u64 = 0x40;
    pub(super) const INTERRUPT_MASK: u64 = 0x4c;
    pub(super) const CONTROL: u64 = 0x54;
    pub(super) const STATUS: u64 = 0x58;
    pub(super) const READLESS_READ: u64 = 0x5c;
    pub(super) const ANSWER_LOW: u64 = 0x60;
    pub(super) const ANSWER_HIGH: u64 = 0x64;
    pub(super) const EVENT_QUEUE_DOORBELL: u64 = 0x68;
}

const READY: u32 = 1;
const RESET_IN_PROGRESS: u32 = 1 << 3;
const RESET_FINISHED: u32 = 1 << 4;
/// Time-out of a reset, in units of 100 ms.
const RESET_TIMEOUT: u32 = 30;
/// Bits of a guest-physical address that the device can form.
pub(crate) const ADDRESS_BITS: u8 = 48;

/// A ring that the driver described.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ring {
    pub(crate) base: u64,
    pub(crate) depth: u16,
    pub(crate) entry_bytes: u16,
    pub(crate) vector: u8,
}

impl Ring {
    fn set_low(&mut self, value: u32) {
        self.base = self.base & !0xffff_ffff | u64::from(value);
    }

    fn set_high(&mut self, value: u32) {
        self.base = self.base & 0xffff_ffff | u64::from(value) << 32;
    }

    /// The shape of response and event rings: depth, entry size, interrupt vector.
    fn set_shape(&mut self, value: u32) {
        let [entry_bytes, vector] = high_u16(value).to_le_bytes();
        self.depth = low_u16(value);
        self.entry_bytes = entry_bytes.into();
        self.vector = vector;
    }
}

/// What a register write asks the device to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Forget everything.
    Reset,
    /// Start the ring of that name afresh.
    StartCommands,
    StartResponses,
    StartEvents,
    /// Run admin commands up to this index.
    RunCommands(u16),
    /// The driver has read asynchronous events up to this index.
    EventsRead(u16),
    /// The driver wants the next interrupt of an event queue.
    ArmEventQueue(u16),
}

/// What the driver wrote.
#[derive(Debug)]
pub(crate) struct Registers {
    pub(crate) commands: Ring,
    pub(crate) responses: Ring,
    pub(crate) events: Ring,
    pub(crate) interrupts_masked: bool,
    status: u32,
    answer: u64,
}

impl Registers {
    pub(crate) fn new() -> Self {
        Self {
            commands: Ring::default(),
            responses: Ring::default(),
            events: Ring::default(),
            interrupts_masked: false,
            status: READY,
            answer: 0,
        }
    }

    pub(crate) fn read(&self, config: &DeviceConfig, register: u64) -> u32 {
        match register {
            offset::VERSION => config.interface_minor.into(),
            offset::CONTROLLER_VERSION => 1,
            offset::CAPABILITIES => {
                RESET_TIMEOUT << 1
                    | u32::from(ADDRESS_BITS) << 8
                    | u32::from(config.admin_timeout & 0xf) << 16
            }
            offset::STATUS => self.status,
            _ => 0,
        }
    }

    pub(crate) fn write(
        &mut self,
        config: &DeviceConfig,
        memory: &dyn GuestMemory,
        register: u64,
        value: u32,
    ) -> Option<Action> {
        match register {
            offset::COMMANDS_BASE_LOW => self.commands.set_low(value),
            offset::COMMANDS_BASE_HIGH => self.commands.set_high(value),
            offset::COMMANDS_SHAPE => {
                self.commands.depth = low_u16(value);
                self.commands.entry_bytes = high_u16(value);
                return Some(Action::StartCommands);
            }
            offset::RESPONSES_BASE_LOW => self.responses.set_low(value),
            offset::RESPONSES_BASE_HIGH => self.responses.set_high(value),
            offset::RESPONSES_SHAPE => {
                self.responses.set_shape(value);
                return Some(Action::StartResponses);
            }
            offset::EVENTS_BASE_LOW => self.events.set_low(value),
            offset::EVENTS_BASE_HIGH => self.events.set_high(value),
            offset::EVENTS_SHAPE => {
                self.events.set_shape(value);
                return Some(Action::StartEvents);
            }
            offset::COMMANDS_DOORBELL => return Some(Action::RunCommands(low_u16(value))),
            offset::EVENTS_DOORBELL => return Some(Action::EventsRead(low_u16(value))),
            offset::INTERRUPT_MASK => self.interrupts_masked = value & 1 != 0,
            offset::CONTROL if value & 1 != 0 => {
                *self = Self { status: READY | RESET_IN_PROGRESS, ..Self::new() };
                return Some(Action::Reset);
            }
            offset::CONTROL if self.status & RESET_IN_PROGRESS != 0 => {
                self.status = READY | RESET_FINISHED;
            }
            offset::READLESS_READ => self.answer(config, memory, value),
            offset::ANSWER_LOW => self.answer = self.answer & !0xffff_ffff | u64::from(value),
            offset::ANSWER_HIGH => self.answer = self.answer & 0xffff_ffff | u64::from(value) << 32,
            offset::EVENT_QUEUE_DOORBELL if value >> 31 != 0 => {
                return Some(Action::ArmEventQueue(low_u16(value)));
            }
            _ => log::debug!("write of {value:#x} to register {register:#x} has no effect"),
        }
        None
    }

    /// Answers a readless read: offset and value first, then the request number that the driver
    /// waits for.
    fn answer(&self, config: &DeviceConfig, memory: &dyn GuestMemory, request: u32) {
        if self.answer == 0 {
            log::debug!("readless read before the driver gave an address to answer to");
            return;
        }
        let register = high_u16(request);
        let mut value = [0_u8; 6];
        value.put_u16(0, register);
        value.put_u32(2, self.read(config, register.into()));
        let number = low_u16(request).to_le_bytes();
        let written = memory
            .write(self.answer.wrapping_add(2), &value)
            .and_then(|()| memory.publish(self.answer, &number, 0));
        if let Err(fault) = written {
            log::warn!("readless read: {fault}");
        }
    }
}
