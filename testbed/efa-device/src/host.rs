//! What the device may do to the machine it is plugged into: read and write its memory, read the
//! send queue memory that the driver writes, and raise interrupts.

/// An access to guest memory that hit no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no guest memory at {address:#x}, {length} bytes")]
pub struct DmaFault {
    /// Guest-physical address of the first byte of the access.
    pub address: u64,
    /// Length of the access in bytes.
    pub length: usize,
}

/// Guest-physical memory, as the device's direct memory access sees it.
///
/// The guest may read and write the same bytes at any time. An implementation copies; it never
/// hands out references.
pub trait GuestMemory: Send + Sync {
    /// Copies guest memory at `address` into `into`.
    ///
    /// # Errors
    ///
    /// [`DmaFault`] if any byte of the range is not memory; what `into` then holds is unspecified.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), DmaFault>;

    /// Copies `from` to guest memory at `address`.
    ///
    /// # Errors
    ///
    /// [`DmaFault`] if any byte of the range is not writable memory; a part may have been written.
    fn write(&self, address: u64, from: &[u8]) -> Result<(), DmaFault>;

    /// Writes a queue entry such that a guest that sees the byte at `flag` sees all of it.
    ///
    /// The driver polls a phase bit in that byte: every other byte, and everything written
    /// before, is visible first.
    ///
    /// # Errors
    ///
    /// [`DmaFault`] as for [`GuestMemory::write`].
    fn publish(&self, address: u64, entry: &[u8], flag: usize) -> Result<(), DmaFault>;
}

/// The slot that a device is plugged into.
pub trait Host: GuestMemory {
    /// Raises MSI-X vector `vector`; does nothing if the guest has not enabled it.
    fn raise(&self, vector: u16);

    /// Copies send queue memory (BAR 2) at `offset` into `into`; bytes outside the BAR read as
    /// zero.
    fn read_send_queue(&self, offset: u64, into: &mut [u8]);
}
