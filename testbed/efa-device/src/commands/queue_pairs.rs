//! Queue pair commands.

use crate::admin_queue::{RESPONSE_DATA, Response};
use crate::bytes::{Fields, PutFields, low_u16, low_u32};
use crate::device::Device;
use crate::queue_pair::{QueuePairParameters, State, Transport};
use crate::status::AdminStatus;

const UD: u8 = 1;
const SRD: u8 = 2;

const VIRTUAL_RINGS: u8 = 0b11;
const UNSOLICITED_WRITES: u8 = 1 << 2;
const WIDE_REQUEST_IDS: u8 = 1 << 3;

/// Fields that a modify command changes, by their bit.
const SET_STATE: u32 = 1;
const SET_QUEUE_KEY: u32 = 1 << 2;
const SET_PACKET_SEQUENCE: u32 = 1 << 3;
const SET_RETRIES: u32 = 1 << 5;

impl Device {
    pub(super) fn create_queue_pair(
        &mut self,
        payload: Fields<'_>,
        response: &mut Response,
    ) -> Result<(), AdminStatus> {
        let parameters = self.queue_pair_parameters(payload)?;
        let (number, slot) = self.queue_pairs.create(parameters)?;
        for queue in [parameters.send_completion_queue, parameters.receive_completion_queue] {
            if let Some(queue) = self.completion_queues.get_mut(queue.into()) {
                queue.users += 1;
            }
        }
        let (send, receive) = self.layout.queue_pair_doorbells(slot);
        response.put_u32(RESPONSE_DATA, number.into());
        response.put_u16(RESPONSE_DATA + 4, number);
        // Both queues complete on the only ring of their completion queue: index 0.
        response.put_u32(RESPONSE_DATA + 12, low_u32(send));
        response.put_u32(RESPONSE_DATA + 16, low_u32(receive));
        response.put_u32(RESPONSE_DATA + 20, low_u32(self.layout.send_queue_offset(slot)));
        Ok(())
    }

    fn queue_pair_parameters(
        &self,
        payload: Fields<'_>,
    ) -> Result<QueuePairParameters, AdminStatus> {
        let flags = payload.u8(3);
        let transport = match payload.u8(2) {
            UD => Transport::Ud,
            SRD => Transport::Srd,
            _ => return Err(AdminStatus::IllegalParameter),
        };
        let parameters = QueuePairParameters {
            domain: self.known_domain(payload.u16(0))?,
            transport,
            unsolicited_writes: flags & UNSOLICITED_WRITES != 0,
            send_completion_queue: low_u16(payload.u32(20)),
            receive_completion_queue: low_u16(payload.u32(24)),
            send_ring_bytes: payload.u32(36),
            send_depth: payload.u32(40),
            receive_base: payload.u64(12),
            receive_ring_bytes: payload.u32(44),
        };
        let wide = flags & WIDE_REQUEST_IDS != 0;
        let send_queue = self.completion_queues.get(parameters.send_completion_queue.into());
        let receive_queue = self.completion_queues.get(parameters.receive_completion_queue.into());
        let fits = flags & VIRTUAL_RINGS == 0
            && send_queue.is_some_and(|queue| !wide || queue.wide_request_ids)
            && receive_queue.is_some()
            && (!parameters.unsolicited_writes
                || self.config.capabilities.unsolicited_write_receive);
        if fits { Ok(parameters) } else { Err(AdminStatus::IllegalParameter) }
    }

    pub(super) fn modify_queue_pair(&mut self, payload: Fields<'_>) -> Result<(), AdminStatus> {
        let mask = payload.u32(0);
        let number = low_u16(payload.u32(4));
        let rnr_retry = self.config.capabilities.rnr_retry;
        let queue_pair = self.queue_pairs.get_mut(number).ok_or(AdminStatus::IllegalParameter)?;
        if mask & SET_RETRIES != 0 && !rnr_retry {
            return Err(AdminStatus::IllegalParameter);
        }
        if mask & SET_STATE != 0 {
            let state = State::from_code(payload.u32(8)).ok_or(AdminStatus::IllegalParameter)?;
            queue_pair.enter(state)?;
        }
        if mask & SET_QUEUE_KEY != 0 {
            queue_pair.queue_key = payload.u32(16);
        }
        if mask & SET_PACKET_SEQUENCE != 0 {
            queue_pair.packet_sequence = payload.u32(20);
        }
        if mask & SET_RETRIES != 0 {
            queue_pair.not_ready_retries = payload.u8(25);
        }
        match queue_pair.state {
            State::Error => {
                self.flush(number);
            }
            _ => self.launch(number),
        }
        Ok(())
    }

    pub(super) fn query_queue_pair(
        &self,
        payload: Fields<'_>,
        response: &mut Response,
    ) -> Result<(), AdminStatus> {
        let queue_pair =
            self.queue_pairs.get(low_u16(payload.u32(0))).ok_or(AdminStatus::IllegalParameter)?;
        let draining =
            queue_pair.state == State::SendQueueDrained && !queue_pair.outstanding.is_empty();
        response.put_u32(RESPONSE_DATA, queue_pair.state as u32);
        response.put_u32(RESPONSE_DATA + 4, queue_pair.queue_key);
        response.put_u32(RESPONSE_DATA + 8, queue_pair.packet_sequence);
        response.put_u8(RESPONSE_DATA + 12, draining.into());
        response.put_u8(RESPONSE_DATA + 13, queue_pair.not_ready_retries);
        Ok(())
    }

    pub(super) fn destroy_queue_pair(&mut self, payload: Fields<'_>) -> Result<(), AdminStatus> {
        let number = low_u16(payload.u32(0));
        if self.queue_pairs.get(number).is_none() {
            return Err(AdminStatus::IllegalParameter);
        }
        if self.flush_on_destroy {
            self.flush(number);
        }
        let gone = self.queue_pairs.remove(number).ok_or(AdminStatus::IllegalParameter)?;
        for queue in [gone.send_completion_queue, gone.receive_completion_queue] {
            if let Some(queue) = self.completion_queues.get_mut(queue.into()) {
                queue.users = queue.users.saturating_sub(1);
            }
        }
        for counter in self.event_counters.iter_mut() {
            counter.detach(number, crate::event_counter::Events::ALL);
        }
        Ok(())
    }
}
