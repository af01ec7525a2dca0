//! Completion queue and event queue commands.

use crate::admin_queue::{RESPONSE_DATA, Response};
use crate::bytes::{Fields, PutFields, low_u16, low_u32};
use crate::completion_queue::{CompletionQueue, CompletionQueueParameters};
use crate::device::Device;
use crate::event_queue::EventQueue;
use crate::features::{MAX_COMPLETIONS, MAX_EVENTS, RINGS_PER_COMPLETION_QUEUE};
use crate::layout::EVENT_QUEUES;
use crate::status::AdminStatus;

const INTERRUPTS: u8 = 1 << 5;
const VIRTUAL_RING: u8 = 1 << 6;
const ENTRY_WORDS: u8 = 0x1f;
const SOURCE_ADDRESSES: u8 = 1 << 5;
const WIDE_REQUEST_IDS: u8 = 1 << 6;
const DOORBELL_VALID: u32 = 1;
const EVENT_WORDS: u8 = 4;

impl Device {
    pub(super) fn create_completion_queue(
        &mut self,
        payload: Fields<'_>,
        response: &mut Response,
    ) -> Result<(), AdminStatus> {
        let (ring, entries) = (payload.u8(0), payload.u8(1));
        let entry_bytes = usize::from(entries & ENTRY_WORDS) * 4;
        let depth = payload.u16(2);
        let event_queue = (ring & INTERRUPTS != 0).then(|| payload.u16(4));
        let wide_request_ids = entries & WIDE_REQUEST_IDS != 0;
        let fits = depth.is_power_of_two()
            && depth <= MAX_COMPLETIONS
            && matches!(entry_bytes, 16 | 32)
            && (entry_bytes == 32 || entries & SOURCE_ADDRESSES == 0)
            && ring & VIRTUAL_RING == 0
            && payload.u16(20) == RINGS_PER_COMPLETION_QUEUE
            && (!wide_request_ids || self.config.capabilities.wide_request_ids)
            && event_queue.is_none_or(|number| self.event_queues.get(number.into()).is_some());
        if !fits {
            return Err(AdminStatus::IllegalParameter);
        }
        let number =
            self.completion_queues.insert(CompletionQueue::new(CompletionQueueParameters {
                base: payload.u64(8),
                depth,
                entry_bytes,
                source_addresses: entries & SOURCE_ADDRESSES != 0,
                wide_request_ids,
                event_queue,
            }))?;
        let number = low_u16(number);
        response.put_u16(RESPONSE_DATA, number);
        response.put_u16(RESPONSE_DATA + 2, depth);
        let doorbell = self.layout.completion_queue_doorbell(number);
        response.put_u32(RESPONSE_DATA + 4, low_u32(doorbell));
        response.put_u32(RESPONSE_DATA + 8, DOORBELL_VALID);
        Ok(())
    }

    pub(super) fn destroy_completion_queue(&mut self, number: u16) -> Result<(), AdminStatus> {
        let queue = self.completion_queues.get(number.into());
        if queue.ok_or(AdminStatus::IllegalParameter)?.users > 0 {
            return Err(AdminStatus::Busy);
        }
        self.completion_queues.remove(number.into());
        Ok(())
    }

    pub(super) fn create_event_queue(
        &mut self,
        payload: Fields<'_>,
        response: &mut Response,
    ) -> Result<(), AdminStatus> {
        let (depth, vector) = (payload.u16(0), payload.u8(2));
        let fits = depth.is_power_of_two()
            && depth <= MAX_EVENTS
            && (1..=EVENT_QUEUES).contains(&vector)
            && payload.u8(3) & ENTRY_WORDS == EVENT_WORDS;
        if !fits {
            return Err(AdminStatus::IllegalParameter);
        }
        let queue = EventQueue::new(payload.u64(4), depth, vector);
        let number = self.event_queues.insert(queue)?;
        response.put_u16(RESPONSE_DATA, low_u16(number));
        Ok(())
    }

    pub(super) fn destroy_event_queue(&mut self, number: u16) -> Result<(), AdminStatus> {
        if self.completion_queues.iter().any(|queue| queue.event_queue == Some(number)) {
            return Err(AdminStatus::Busy);
        }
        let gone = self.event_queues.remove(number.into());
        gone.map(drop).ok_or(AdminStatus::IllegalParameter)
    }
}
