//! Event counter commands.

use crate::admin_queue::{RESPONSE_DATA, Response};
use crate::bytes::{Fields, PutFields, low_u16};
use crate::device::Device;
use crate::event_counter::{EventCounter, Events};
use crate::status::AdminStatus;

const SET: u8 = 0;
const ADD: u8 = 1;
const QUEUE_PAIR_EVENTS: u8 = 0;

impl Device {
    pub(super) fn create_event_counter(
        &mut self,
        payload: Fields<'_>,
        response: &mut Response,
    ) -> Result<(), AdminStatus> {
        if !self.config.capabilities.event_counters {
            return Err(AdminStatus::UnsupportedOpcode);
        }
        let address = payload.u64(4);
        if !address.is_multiple_of(8) {
            return Err(AdminStatus::IllegalParameter);
        }
        let number = self.event_counters.insert(EventCounter::new(address))?;
        response.put_u32(RESPONSE_DATA, number);
        Ok(())
    }

    pub(super) fn destroy_event_counter(&mut self, payload: Fields<'_>) -> Result<(), AdminStatus> {
        let gone = self.event_counters.remove(payload.u32(0));
        gone.map(drop).ok_or(AdminStatus::IllegalParameter)
    }

    pub(super) fn attach_event_counter(&mut self, payload: Fields<'_>) -> Result<(), AdminStatus> {
        let (queue_pair, events) = self.attachment(payload)?;
        self.event_counter(payload)?.attach(queue_pair, events)
    }

    pub(super) fn detach_event_counter(&mut self, payload: Fields<'_>) -> Result<(), AdminStatus> {
        let (queue_pair, events) = self.attachment(payload)?;
        self.event_counter(payload)?.detach(queue_pair, events);
        Ok(())
    }

    pub(super) fn modify_event_counter(&mut self, payload: Fields<'_>) -> Result<(), AdminStatus> {
        let host = self.host.clone();
        let counter = self.event_counter(payload)?;
        match payload.u8(4) {
            SET => counter.set(&*host, payload.u64(12)),
            ADD => counter.add(&*host, payload.u64(12)),
            _ => return Err(AdminStatus::IllegalParameter),
        }
        Ok(())
    }

    fn event_counter(&mut self, payload: Fields<'_>) -> Result<&mut EventCounter, AdminStatus> {
        self.event_counters.get_mut(payload.u32(0)).ok_or(AdminStatus::IllegalParameter)
    }

    /// The queue pair and its events that an attach or detach command names.
    fn attachment(&self, payload: Fields<'_>) -> Result<(u16, Events), AdminStatus> {
        let queue_pair = low_u16(payload.u32(8));
        if payload.u8(4) != QUEUE_PAIR_EVENTS || self.queue_pairs.get(queue_pair).is_none() {
            return Err(AdminStatus::IllegalParameter);
        }
        Ok((queue_pair, Events(payload.u32(12))))
    }
}
