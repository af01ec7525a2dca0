//! Page lists: how the driver tells where the pages of a memory region are.
//!
//! Up to four page addresses stand in the command itself. More stand in a buffer (direct), or in
//! 4 KiB pages whose addresses stand in chained chunks (indirect).

use crate::bytes::{Fields, index};
use crate::host::GuestMemory;
use crate::status::AdminStatus;

const ADDRESS_BYTES: usize = 8;
/// Length and address of the next chunk, at the end of each chunk.
const LINK_BYTES: usize = 12;
const CHUNK_BYTES: usize = 4096;
const ADDRESSES_PER_PAGE: usize = 512;
/// Page addresses that fit into the command.
const INLINE_PAGES: usize = 4;

/// A buffer that a command points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ControlBuffer {
    pub(crate) length: u32,
    pub(crate) address: u64,
}

impl ControlBuffer {
    pub(crate) fn parse(fields: Fields<'_>) -> Self {
        Self { length: fields.u32(0), address: fields.u64(4) }
    }
}

/// Where the page addresses of a command are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageList<'a> {
    Inline(&'a [u8]),
    Direct(ControlBuffer),
    Indirect(ControlBuffer),
}

impl PageList<'_> {
    /// Reads the addresses of `count` pages.
    pub(crate) fn read(
        self,
        memory: &dyn GuestMemory,
        count: usize,
    ) -> Result<Vec<u64>, AdminStatus> {
        match self {
            Self::Inline(bytes) if count <= INLINE_PAGES => {
                Ok((0..count).map(|page| Fields(bytes).u64(page * ADDRESS_BYTES)).collect())
            }
            Self::Inline(_) => Err(AdminStatus::Malformed),
            Self::Direct(buffer) => {
                if index(buffer.length.into()) < count.saturating_mul(ADDRESS_BYTES) {
                    return Err(AdminStatus::Malformed);
                }
                let mut pages = Vec::new();
                read_addresses(memory, buffer.address, count, &mut pages)?;
                Ok(pages)
            }
            Self::Indirect(chunk) => read_chunks(memory, chunk, count),
        }
    }
}

fn read_chunks(
    memory: &dyn GuestMemory,
    mut chunk: ControlBuffer,
    count: usize,
) -> Result<Vec<u64>, AdminStatus> {
    let mut pages = Vec::new();
    loop {
        let length = index(chunk.length.into());
        // Every chunk names at least one page, so a chain that loops still ends.
        if !(LINK_BYTES + ADDRESS_BYTES..=CHUNK_BYTES).contains(&length) {
            return Err(AdminStatus::Malformed);
        }
        let mut bytes = vec![0; length];
        memory.read(chunk.address, &mut bytes).map_err(|_| AdminStatus::Malformed)?;
        let named = (length - LINK_BYTES) / ADDRESS_BYTES;
        for page in 0..named {
            let missing = count - pages.len();
            let address = Fields(&bytes).u64(page * ADDRESS_BYTES);
            read_addresses(memory, address, missing.min(ADDRESSES_PER_PAGE), &mut pages)?;
            if pages.len() == count {
                return Ok(pages);
            }
        }
        chunk = ControlBuffer::parse(Fields(&bytes).from(named * ADDRESS_BYTES));
    }
}

/// Appends `count` addresses that stand at `address`, in steps so that a count that memory does
/// not back costs no memory here either.
fn read_addresses(
    memory: &dyn GuestMemory,
    address: u64,
    count: usize,
    pages: &mut Vec<u64>,
) -> Result<(), AdminStatus> {
    let mut done = 0;
    while done < count {
        let step = (count - done).min(ADDRESSES_PER_PAGE);
        let mut bytes = vec![0; step * ADDRESS_BYTES];
        let from = address.wrapping_add((done * ADDRESS_BYTES) as u64);
        memory.read(from, &mut bytes).map_err(|_| AdminStatus::Malformed)?;
        pages.extend((0..step).map(|page| Fields(&bytes).u64(page * ADDRESS_BYTES)));
        done += step;
    }
    Ok(())
}
