//! The memory registration command.

use crate::admin_queue::{Command, RESPONSE_DATA, Response};
use crate::bytes::PutFields;
use crate::device::Device;
use crate::memory_region::{Permissions, Registration};
use crate::page_list::{ControlBuffer, PageList};
use crate::status::AdminStatus;

/// Flags of the command: the page list is in a buffer; in chained chunks.
const IN_BUFFER: u8 = 1 << 1;
const INDIRECT: u8 = 1 << 2;
const PAGE_LIST: usize = 4;
const PAGE_SHIFT_BITS: u8 = 0x3f;
/// Addresses in this region are physical; only a privileged client may ask, and none does.
const PHYSICAL: u8 = 1 << 7;
const PERMISSION_BITS: u8 = 7;

/// The interconnects through which a region is reached when it receives, is read, and is written:
/// three different numbers, so that a program that mixes them up finds out.
const INTERCONNECTS: [u8; 3] = [1, 2, 3];
const ALL_INTERCONNECTS_VALID: u8 = 7;

impl Device {
    pub(super) fn register_region(
        &mut self,
        command: &Command,
        response: &mut Response,
    ) -> Result<(), AdminStatus> {
        let payload = command.payload();
        let domain = payload.u16(0);
        if self.domains.get(domain.into()).is_none() || payload.u8(44) & PHYSICAL != 0 {
            return Err(AdminStatus::IllegalParameter);
        }
        let list = payload.from(PAGE_LIST);
        let pages = match (command.flags & IN_BUFFER != 0, command.flags & INDIRECT != 0) {
            (false, _) => PageList::Inline(list.bytes()),
            (true, false) => PageList::Direct(ControlBuffer::parse(list)),
            (true, true) => PageList::Indirect(ControlBuffer::parse(list)),
        };
        let registration = Registration {
            domain,
            start: payload.u64(52),
            length: payload.u64(36),
            page_shift: (payload.u8(44) & PAGE_SHIFT_BITS).into(),
            permissions: Permissions(payload.u8(45) & PERMISSION_BITS),
            pages,
        };
        let keys = self.regions.register(&*self.host, &registration)?;
        response.put_u32(RESPONSE_DATA, keys.local);
        response.put_u32(RESPONSE_DATA + 4, keys.remote);
        response.put_u8(RESPONSE_DATA + 8, ALL_INTERCONNECTS_VALID);
        response.put(RESPONSE_DATA + 9, INTERCONNECTS);
        Ok(())
    }
}
