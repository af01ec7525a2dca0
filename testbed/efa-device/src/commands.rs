//! Admin commands: each makes, changes or ends one object.

mod counters;
mod queue_pairs;
mod queues;
mod regions;

use crate::admin_queue::{Command, RESPONSE_DATA, Response};
use crate::bytes::{PutFields, low_u16};
use crate::device::Device;
use crate::status::AdminStatus;

/// Opcodes of admin commands.
mod opcode {
    pub(super) const CREATE_QUEUE_PAIR: u8 = 1;
    pub(super) const MODIFY_QUEUE_PAIR: u8 = 2;
    pub(super) const QUERY_QUEUE_PAIR: u8 = 3;
    pub(super) const DESTROY_QUEUE_PAIR: u8 = 4;
    pub(super) const CREATE_ADDRESS_HANDLE: u8 = 5;
    pub(super) const DESTROY_ADDRESS_HANDLE: u8 = 6;
    pub(super) const REGISTER_REGION: u8 = 7;
    pub(super) const DEREGISTER_REGION: u8 = 8;
    pub(super) const CREATE_COMPLETION_QUEUE: u8 = 9;
    pub(super) const DESTROY_COMPLETION_QUEUE: u8 = 10;
    pub(super) const GET_FEATURE: u8 = 11;
    pub(super) const SET_FEATURE: u8 = 12;
    pub(super) const GET_STATISTICS: u8 = 13;
    pub(super) const ALLOCATE_DOMAIN: u8 = 14;
    pub(super) const DEALLOCATE_DOMAIN: u8 = 15;
    pub(super) const ALLOCATE_DOORBELL_PAGE: u8 = 16;
    pub(super) const DEALLOCATE_DOORBELL_PAGE: u8 = 17;
    pub(super) const CREATE_EVENT_QUEUE: u8 = 18;
    pub(super) const DESTROY_EVENT_QUEUE: u8 = 19;
    pub(super) const CREATE_EVENT_COUNTER: u8 = 25;
    pub(super) const DESTROY_EVENT_COUNTER: u8 = 26;
    pub(super) const ATTACH_EVENT_COUNTER: u8 = 27;
    pub(super) const MODIFY_EVENT_COUNTER: u8 = 28;
    pub(super) const DETACH_EVENT_COUNTER: u8 = 29;
}

impl Device {
    /// Executes a command and fills in the data of its response.
    pub(crate) fn execute(
        &mut self,
        command: &Command,
        response: &mut Response,
    ) -> Result<(), AdminStatus> {
        command.check()?;
        let payload = command.payload();
        match command.opcode {
            opcode::CREATE_QUEUE_PAIR => self.create_queue_pair(payload, response),
            opcode::MODIFY_QUEUE_PAIR => self.modify_queue_pair(payload),
            opcode::QUERY_QUEUE_PAIR => self.query_queue_pair(payload, response),
            opcode::DESTROY_QUEUE_PAIR => self.destroy_queue_pair(payload),
            opcode::CREATE_ADDRESS_HANDLE => {
                let domain = self.known_domain(payload.u16(16))?;
                let number = self.address_handles.create(payload.array(0), domain)?;
                response.put_u16(RESPONSE_DATA, number);
                Ok(())
            }
            opcode::DESTROY_ADDRESS_HANDLE => {
                self.address_handles.destroy(payload.u16(0), payload.u16(2))
            }
            opcode::REGISTER_REGION => self.register_region(command, response),
            opcode::DEREGISTER_REGION => self.regions.deregister(payload.u32(0)),
            opcode::CREATE_COMPLETION_QUEUE => self.create_completion_queue(payload, response),
            opcode::DESTROY_COMPLETION_QUEUE => self.destroy_completion_queue(payload.u16(0)),
            opcode::GET_FEATURE => self.get_feature(command, response),
            opcode::SET_FEATURE => self.set_feature(command),
            opcode::GET_STATISTICS => {
                if self.statistics.encode(payload.u8(12), response, RESPONSE_DATA) {
                    Ok(())
                } else {
                    Err(AdminStatus::UnsupportedOpcode)
                }
            }
            opcode::ALLOCATE_DOMAIN => {
                let number = self.domains.insert(())?;
                response.put_u16(RESPONSE_DATA, low_u16(number));
                Ok(())
            }
            opcode::DEALLOCATE_DOMAIN => self.deallocate_domain(payload.u16(0)),
            opcode::ALLOCATE_DOORBELL_PAGE => {
                let number = self.doorbell_pages.insert(())?;
                response.put_u16(RESPONSE_DATA, low_u16(number));
                Ok(())
            }
            opcode::DEALLOCATE_DOORBELL_PAGE => {
                let gone = self.doorbell_pages.remove(payload.u16(0).into());
                gone.ok_or(AdminStatus::IllegalParameter)
            }
            opcode::CREATE_EVENT_QUEUE => self.create_event_queue(payload, response),
            opcode::DESTROY_EVENT_QUEUE => self.destroy_event_queue(payload.u16(0)),
            opcode::CREATE_EVENT_COUNTER => self.create_event_counter(payload, response),
            opcode::DESTROY_EVENT_COUNTER => self.destroy_event_counter(payload),
            opcode::ATTACH_EVENT_COUNTER => self.attach_event_counter(payload),
            opcode::MODIFY_EVENT_COUNTER => self.modify_event_counter(payload),
            opcode::DETACH_EVENT_COUNTER => self.detach_event_counter(payload),
            _ => Err(AdminStatus::UnsupportedOpcode),
        }
    }

    fn deallocate_domain(&mut self, number: u16) -> Result<(), AdminStatus> {
        let domain = self.known_domain(number)?;
        let used = self.queue_pairs.iter().any(|queue_pair| queue_pair.domain == domain)
            || self.regions.uses_domain(domain)
            || self.address_handles.uses_domain(domain);
        if used {
            return Err(AdminStatus::Busy);
        }
        self.domains.remove(domain.into()).ok_or(AdminStatus::IllegalParameter)
    }

    /// `number`, if it is an allocated protection domain.
    fn known_domain(&self, number: u16) -> Result<u16, AdminStatus> {
        self.domains.get(number.into()).map(|()| number).ok_or(AdminStatus::IllegalParameter)
    }
}
