//! Address handles: numbers for peers. A device answers RDMA only to peers it has one for.

use crate::slots::Slots;
use crate::status::AdminStatus;

#[derive(Debug)]
struct AddressHandle {
    gid: [u8; 16],
    domain: u16,
    users: u32,
}

/// Every address handle of one device. One destination in one domain has one handle, however
/// often it is asked for.
#[derive(Debug)]
pub(crate) struct AddressHandles(Slots<AddressHandle>);

impl AddressHandles {
    pub(crate) const fn new(limit: u32) -> Self {
        Self(Slots::new(limit))
    }

    pub(crate) fn create(&mut self, gid: [u8; 16], domain: u16) -> Result<u16, AdminStatus> {
        let number = match self.number_of(gid, domain) {
            Some(number) => number.into(),
            None => self.0.insert(AddressHandle { gid, domain, users: 0 })?,
        };
        if let Some(handle) = self.0.get_mut(number) {
            handle.users += 1;
        }
        u16::try_from(number).map_err(|_| AdminStatus::NoResources)
    }

    pub(crate) fn destroy(&mut self, number: u16, domain: u16) -> Result<(), AdminStatus> {
        let handle = self.0.get_mut(number.into()).filter(|handle| handle.domain == domain);
        let handle = handle.ok_or(AdminStatus::IllegalParameter)?;
        handle.users -= 1;
        if handle.users == 0 {
            self.0.remove(number.into());
        }
        Ok(())
    }

    /// The destination of handle `number`, if it belongs to `domain`.
    pub(crate) fn destination(&self, number: u16, domain: u16) -> Option<[u8; 16]> {
        self.0.get(number.into()).filter(|handle| handle.domain == domain).map(|handle| handle.gid)
    }

    /// The number of the handle for `gid` in `domain`.
    pub(crate) fn number_of(&self, gid: [u8; 16], domain: u16) -> Option<u16> {
        (0..=u16::MAX)
            .zip(self.0.numbered())
            .find(|(_, handle)| {
                handle.is_some_and(|handle| handle.gid == gid && handle.domain == domain)
            })
            .map(|(number, _)| number)
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn uses_domain(&self, domain: u16) -> bool {
        self.0.iter().any(|handle| handle.domain == domain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_keeps_its_number_until_its_last_user_is_gone() {
        let mut handles = AddressHandles::new(4);
        let (here, there) = ([1; 16], [2; 16]);
        let number = handles.create(there, 3).expect("room");
        assert_eq!(handles.create(there, 3), Ok(number));
        assert_ne!(handles.create(there, 4), Ok(number));
        assert_eq!(handles.destination(number, 3), Some(there));
        assert_eq!(handles.destination(number, 4), None);
        assert_eq!(handles.number_of(here, 3), None);
        assert_eq!(handles.destroy(number, 4), Err(AdminStatus::IllegalParameter));
        assert_eq!(handles.destroy(number, 3), Ok(()));
        assert_eq!(handles.number_of(there, 3), Some(number));
        assert_eq!(handles.destroy(number, 3), Ok(()));
        assert_eq!(handles.number_of(there, 3), None);
    }
}
