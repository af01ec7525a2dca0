//! A driver: it probes a device, talks to its admin queue, and rings its doorbells.

mod machine;
mod verbs;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use efa_device::{DeviceConfig, DeviceNumber, Fabric, FabricConfig, GuestMemory, Layout};

pub(crate) use machine::{MEMORY_BYTES, Machine};
pub(crate) use verbs::{Buffer, Completion, End, Post, Qp, pair, srd_pair};

pub(crate) const SRD: u8 = 2;
pub(crate) const UD: u8 = 1;
pub(crate) const LOCAL_WRITE: u8 = 1;
pub(crate) const REMOTE_WRITE: u8 = 2;
pub(crate) const REMOTE_READ: u8 = 4;
pub(crate) const ALL_ACCESS: u8 = 7;
pub(crate) const QKEY: u32 = 0x1111_2222;

const AQ_DEPTH: u16 = 32;
const AENQ_DEPTH: u16 = 16;

/// Drivers on one network.
pub(crate) struct Network {
    fabric: Rc<RefCell<Fabric>>,
    now: Cell<Duration>,
}

impl Network {
    pub(crate) fn new(config: FabricConfig) -> Self {
        Self { fabric: Rc::new(RefCell::new(Fabric::new(config))), now: Cell::default() }
    }

    /// A network that delivers in order and at once.
    pub(crate) fn calm() -> Self {
        Self::new(FabricConfig { reorder: false, ..FabricConfig::default() })
    }

    /// Plugs in a device without touching it.
    pub(crate) fn plug(&self, config: DeviceConfig) -> Driver {
        let layout = Layout::new(&config);
        let machine = Arc::new(Machine::new(layout.send_queue_bytes()));
        let wide = config.interface_minor >= 3;
        let checksums = config.interface_minor >= 2;
        let number = self.fabric.borrow_mut().add(config, machine.clone()).expect("valid");
        Driver {
            gid: self.fabric.borrow().gid(number).expect("a device"),
            fabric: self.fabric.clone(),
            number,
            machine,
            wide,
            checksums,
            next_free: 0x1000,
            aq: 0,
            acq: 0,
            commands: 0,
            responses: 0,
            aenq: 0,
            readless: 0,
            reads: 0,
        }
    }

    /// Plugs in a device and probes it.
    pub(crate) fn device(&self, config: DeviceConfig) -> Driver {
        let mut driver = self.plug(config);
        driver.probe();
        driver
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.now.set(self.now.get() + by);
        self.fabric.borrow_mut().advance(self.now.get());
    }

    /// Lets everything arrive that takes no more than some milliseconds.
    pub(crate) fn settle(&self) {
        for _ in 0..200 {
            self.advance(Duration::from_micros(100));
        }
    }
}

/// The driver of one device.
pub(crate) struct Driver {
    fabric: Rc<RefCell<Fabric>>,
    pub(crate) number: DeviceNumber,
    pub(crate) machine: Arc<Machine>,
    pub(crate) gid: [u8; 16],
    wide: bool,
    checksums: bool,
    next_free: u64,
    pub(crate) aq: u64,
    acq: u64,
    commands: u16,
    responses: u16,
    pub(crate) aenq: u64,
    readless: u64,
    reads: u16,
}

impl Driver {
    /// Fresh memory, aligned to pages.
    pub(crate) fn allocate(&mut self, bytes: usize) -> u64 {
        let address = self.next_free;
        self.next_free += (bytes as u64).next_multiple_of(4096);
        assert!(self.next_free <= MEMORY_BYTES as u64, "the test needs more memory");
        address
    }

    pub(crate) fn write_register(&self, offset: u64, value: u32) {
        self.fabric.borrow_mut().write_register(self.number, offset, value);
    }

    pub(crate) fn ring(&self, offset: u64, value: u32) {
        self.fabric.borrow_mut().ring(self.number, offset, value);
    }

    pub(crate) fn reset_function(&self) {
        self.fabric.borrow_mut().reset(self.number);
    }

    /// Tells the device where to answer reads.
    pub(crate) fn set_read_address(&mut self) {
        if self.readless == 0 {
            self.readless = self.allocate(8);
        }
        let [low, high] = halves(self.readless);
        self.write_register(0x60, low);
        self.write_register(0x64, high);
    }

    /// Reads a register as the driver does; none if no answer comes.
    pub(crate) fn read_register(&mut self, offset: u16) -> Option<u32> {
        self.reads += 1;
        self.write_register(0x5c, u32::from(offset) << 16 | u32::from(self.reads));
        let answer = self.machine.bytes(self.readless, 8);
        let id = u16::from_le_bytes([answer[0], answer[1]]);
        if id != self.reads {
            return None;
        }
        assert_eq!(u16::from_le_bytes([answer[2], answer[3]]), offset);
        Some(u32::from_le_bytes(answer[4..8].try_into().unwrap()))
    }

    /// Resets the device and starts its admin queue, as the kernel driver does.
    pub(crate) fn probe(&mut self) {
        self.set_read_address();
        self.write_register(0x54, 1);
        self.set_read_address();
        assert_eq!(self.read_register(0x58).unwrap() & 8, 8, "reset in progress");
        self.write_register(0x54, 0);
        assert_eq!(self.read_register(0x58).unwrap() & 8, 0, "reset over");
        let entry_bytes: u32 = if self.wide { 128 } else { 64 };
        self.aq = self.allocate(usize::from(AQ_DEPTH) * 128);
        self.acq = self.allocate(usize::from(AQ_DEPTH) * 64);
        self.aenq = self.allocate(usize::from(AENQ_DEPTH) * 64);
        (self.commands, self.responses) = (0, 0);
        let [low, high] = halves(self.aq);
        self.write_register(0x10, low);
        self.write_register(0x14, high);
        self.write_register(0x18, u32::from(AQ_DEPTH) | entry_bytes << 16);
        let [low, high] = halves(self.acq);
        self.write_register(0x20, low);
        self.write_register(0x24, high);
        self.write_register(0x28, u32::from(AQ_DEPTH) | 64 << 16);
        let [low, high] = halves(self.aenq);
        self.write_register(0x38, low);
        self.write_register(0x3c, high);
        self.write_register(0x34, u32::from(AENQ_DEPTH) | 64 << 16);
        self.write_register(0x40, 0);
        self.write_register(0x4c, 0);
    }

    /// Writes a command and rings; the answer is not looked at.
    pub(crate) fn submit(&mut self, opcode: u8, flags: u8, payload: &[u8]) -> u16 {
        let id = self.commands & 0xfff;
        let mut entry = vec![0; if self.wide { 128 } else { 64 }];
        entry[..2].copy_from_slice(&id.to_le_bytes());
        entry[2] = opcode;
        entry[3] = flags;
        let data = if self.wide { 12 } else { 4 };
        entry[data..data + payload.len()].copy_from_slice(payload);
        if self.wide {
            let checksum = crc16(&entry);
            entry[4..6].copy_from_slice(&checksum.to_le_bytes());
        }
        self.submit_entry(&entry);
        id
    }

    /// Writes a whole entry to the next slot of the admin queue and rings.
    pub(crate) fn submit_entry(&mut self, entry: &[u8]) {
        let slot = u64::from(self.commands % AQ_DEPTH);
        self.machine.write(self.aq + slot * entry.len() as u64, entry).expect("inside memory");
        self.commands = self.commands.wrapping_add(1);
        self.write_register(0x2c, self.commands.into());
    }

    /// The next response: id, status and data, if there is one.
    pub(crate) fn response(&mut self) -> Option<(u16, u8, Vec<u8>)> {
        let slot = u64::from(self.responses % AQ_DEPTH);
        let phase = u8::from((self.responses / AQ_DEPTH).is_multiple_of(2));
        let mut entry = self.machine.bytes(self.acq + slot * 64, 64);
        if entry[3] & 1 != phase {
            return None;
        }
        self.responses = self.responses.wrapping_add(1);
        if self.checksums {
            let claimed = u16::from_le_bytes([entry[4], entry[5]]);
            entry[4..6].fill(0);
            assert_eq!(claimed, crc16(&entry), "checksum of a response");
        }
        Some((u16::from_le_bytes([entry[0], entry[1]]), entry[2], entry[8..].to_vec()))
    }

    /// Executes a command; an error is its status.
    pub(crate) fn command(&mut self, opcode: u8, payload: &[u8]) -> Result<Vec<u8>, u8> {
        self.command_with(opcode, 0, payload)
    }

    pub(crate) fn command_with(
        &mut self,
        opcode: u8,
        flags: u8,
        payload: &[u8],
    ) -> Result<Vec<u8>, u8> {
        let id = self.submit(opcode, flags, payload);
        let (answered, status, data) = self.response().expect("an answer");
        assert_eq!(answered, id);
        if status == 0 { Ok(data) } else { Err(status) }
    }

    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        self.machine.write(address, bytes).expect("inside memory");
    }
}

pub(crate) fn halves(value: u64) -> [u32; 2] {
    let low = u32::try_from(value & 0xffff_ffff).unwrap();
    [low, u32::try_from(value >> 32).unwrap()]
}

/// CRC-16 with reflected polynomial 0x8005, bit by bit from its definition.
pub(crate) fn crc16(bytes: &[u8]) -> u16 {
    let mut register = 0xffff_u16;
    for byte in bytes {
        for bit in 0..8 {
            let feedback = (register & 1 == 1) != (byte >> bit & 1 == 1);
            register >>= 1;
            if feedback {
                register ^= 0x8005_u16.reverse_bits();
            }
        }
    }
    register ^ 0xffff
}

/// A command's payload, built field by field.
#[derive(Default)]
pub(crate) struct Payload(Vec<u8>);

impl Payload {
    pub(crate) fn bytes(mut self, offset: usize, bytes: &[u8]) -> Self {
        if self.0.len() < offset + bytes.len() {
            self.0.resize(offset + bytes.len(), 0);
        }
        self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
        self
    }

    pub(crate) fn u8(self, offset: usize, value: u8) -> Self {
        self.bytes(offset, &[value])
    }

    pub(crate) fn u16(self, offset: usize, value: u16) -> Self {
        self.bytes(offset, &value.to_le_bytes())
    }

    pub(crate) fn u32(self, offset: usize, value: u32) -> Self {
        self.bytes(offset, &value.to_le_bytes())
    }

    pub(crate) fn u64(self, offset: usize, value: u64) -> Self {
        self.bytes(offset, &value.to_le_bytes())
    }
}

impl std::ops::Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

pub(crate) fn u16_at(data: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(data[offset..offset + 2].try_into().unwrap())
}

pub(crate) fn u32_at(data: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(data[offset..offset + 4].try_into().unwrap())
}

pub(crate) fn u64_at(data: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(data[offset..offset + 8].try_into().unwrap())
}
