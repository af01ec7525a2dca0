//! Between the device and QEMU: what a PCI function is to a transport, and the transport.
//!
//! Only `vfio` knows the protocol and the crate that speaks it; another transport replaces that
//! file alone.

mod config_space;
mod guest_ram;
mod machine;
mod mapping;
mod vfio;

pub(crate) use machine::Machine;
pub(crate) use vfio::Socket;

/// Size in bytes of the register BAR: registers, then the interrupt tables.
const REGISTER_BAR_BYTES: u64 = 0x4000;
/// Where the MSI-X table and its pending bits are in the register BAR.
const MSIX_TABLE: u32 = 0x2000;
const MSIX_PENDING: u32 = 0x3000;

/// What a transport needs of the device it serves.
///
/// Reads and writes never fail: what a guest does at an odd offset or width reads as zero and is
/// ignored, as on a real bus.
pub(crate) trait PciFunction: Send {
    /// Reads `data.len()` bytes at `offset` of a BAR that is not shared memory.
    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8]);

    /// Writes `data` at `offset` of a BAR that is not shared memory.
    fn write(&mut self, bar: u8, offset: u64, data: &[u8]);

    /// The function is reset, or its machine has gone away.
    fn reset(&mut self);
}
