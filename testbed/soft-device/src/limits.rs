//! How many objects a device allows.

use crate::{device::Limits, errno::Outcome, fabric::Fabric};

impl Fabric {
    pub(crate) fn limits(&self, device: u32) -> Outcome<&Limits> {
        Ok(&self.device(device).ok_or(libc::ENODEV)?.description.limits)
    }

    /// Refuses one more object where `limit` of its kind are on the device, given the contexts of all.
    pub(crate) fn within(
        &self,
        limit: u32,
        contexts: impl Iterator<Item = u32>,
        device: u32,
    ) -> Outcome {
        let here =
            |context: u32| self.contexts.get(context).is_some_and(|each| each.device == device);
        let there = contexts.filter(|&context| here(context)).count();
        if u32::try_from(there).is_ok_and(|there| there < limit) {
            Ok(())
        } else {
            Err(libc::ENOMEM)
        }
    }
}
