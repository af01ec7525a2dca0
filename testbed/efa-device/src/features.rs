//! Features: what the device tells the driver about itself, and what the driver tells it.

use crate::admin_queue::{Command, RESPONSE_DATA, Response};
use crate::async_events::SUPPORTED_GROUPS;
use crate::bytes::PutFields;
use crate::config::Capabilities;
use crate::device::Device;
use crate::event_counter::{Events, MAX_COUNTERS, MAX_VALUE};
use crate::layout::{DOORBELL_BAR, EVENT_QUEUES};
use crate::memory_region::{MAX_PAGES, PAGE_SIZES};
use crate::page_list::ControlBuffer;
use crate::queue_pair::{MAX_RECEIVE_DESCRIPTORS, MAX_SEND_REQUESTS, SEND_QUEUE_BYTES};
use crate::registers::ADDRESS_BITS;
use crate::status::AdminStatus;
use crate::work_request::{MAX_RDMA_BUFFERS, MAX_RECEIVE_BUFFERS, MAX_SEND_BUFFERS};

/// Where a feature command names its feature, and where a set command's data begins.
const FEATURE: usize = 13;
const SET_DATA: usize = 16;

const DEVICE_ATTRIBUTES: u8 = 1;
const ASYNC_EVENTS: u8 = 2;
const NETWORK_ATTRIBUTES: u8 = 3;
const QUEUE_ATTRIBUTES: u8 = 4;
const HARDWARE_HINTS: u8 = 5;
const HOST_INFORMATION: u8 = 6;
const EVENT_QUEUE_ATTRIBUTES: u8 = 7;
const MORE_QUEUE_ATTRIBUTES: u8 = 9;

/// Bytes that fit inline into a 64-byte and into a 128-byte send request.
const INLINE_BYTES: u32 = 32;
const WIDE_INLINE_BYTES: u16 = 80;
/// The largest rings that guests get.
pub(crate) const MAX_COMPLETIONS: u16 = 32_768;
pub(crate) const MAX_EVENTS: u16 = 1024;
/// Completion rings that one completion queue is made of.
pub(crate) const RINGS_PER_COMPLETION_QUEUE: u16 = 1;
/// What a device of the second hardware generation calls itself.
const DEVICE_VERSION: u32 = 0xefa2;
const FIRMWARE_VERSION: u32 = 1;
const ADMIN_VERSION: u32 = 3;
const VIRTUAL_ADDRESS_BITS: u8 = 57;
const GIGABITS_PER_SECOND: u16 = 200;
/// Send requests, in units of 64 bytes, between two doorbells; 0 would mean any number.
const MAX_BATCH: u16 = 16;
/// Bytes of host information worth a line in the log.
const DISTRIBUTION_BYTES: usize = 128;

fn capability_bits(capabilities: Capabilities) -> u32 {
    let Capabilities {
        rdma_read,
        rdma_write,
        rnr_retry,
        data_polling_128,
        unsolicited_write_receive,
        event_counters,
        wide_request_ids,
    } = capabilities;
    u32::from(rdma_read)
        | u32::from(rnr_retry) << 1
        | u32::from(data_polling_128) << 2
        | u32::from(rdma_write) << 3
        | u32::from(unsolicited_write_receive) << 4
        | u32::from(event_counters) << 5
        | u32::from(wide_request_ids) << 10
}

impl Device {
    pub(crate) fn get_feature(
        &self,
        command: &Command,
        response: &mut Response,
    ) -> Result<(), AdminStatus> {
        let data = response.get_mut(RESPONSE_DATA..).unwrap_or_default();
        match command.payload().u8(FEATURE) {
            DEVICE_ATTRIBUTES => self.device_attributes(data),
            ASYNC_EVENTS => {
                data.put_u32(0, SUPPORTED_GROUPS);
                data.put_u32(4, self.async_events.enabled);
            }
            NETWORK_ATTRIBUTES => {
                data.put(0, self.gid);
                data.put_u32(16, self.config.mtu.into());
            }
            QUEUE_ATTRIBUTES => self.queue_attributes(data),
            // All zero: the driver keeps its own time-outs.
            HARDWARE_HINTS => {}
            EVENT_QUEUE_ATTRIBUTES => {
                data.put_u32(0, EVENT_QUEUES.into());
                data.put_u32(4, MAX_EVENTS.into());
                data.put_u32(8, 1);
            }
            MORE_QUEUE_ATTRIBUTES => {
                data.put_u16(0, WIDE_INLINE_BYTES);
                if self.config.capabilities.event_counters {
                    data.put_u32(8, Events::ALL.0);
                    data.put_u32(12, MAX_COUNTERS);
                    data.put_u64(16, MAX_VALUE);
                }
            }
            _ => return Err(AdminStatus::UnsupportedOpcode),
        }
        Ok(())
    }

    pub(crate) fn set_feature(&mut self, command: &Command) -> Result<(), AdminStatus> {
        let payload = command.payload();
        match payload.u8(FEATURE) {
            ASYNC_EVENTS => {
                let enabled = payload.u32(SET_DATA + 4);
                if enabled & !SUPPORTED_GROUPS != 0 {
                    return Err(AdminStatus::IllegalParameter);
                }
                self.async_events.enabled = enabled;
                Ok(())
            }
            HOST_INFORMATION => {
                let buffer = ControlBuffer::parse(payload);
                let mut name = [0; DISTRIBUTION_BYTES];
                self.host
                    .read(buffer.address, &mut name)
                    .map_err(|_| AdminStatus::IllegalParameter)?;
                let name = String::from_utf8_lossy(&name);
                log::info!("driver of kernel {}", name.trim_end_matches('\0').escape_debug());
                Ok(())
            }
            _ => Err(AdminStatus::UnsupportedOpcode),
        }
    }

    fn device_attributes(&self, data: &mut [u8]) {
        let features = [
            DEVICE_ATTRIBUTES,
            ASYNC_EVENTS,
            NETWORK_ATTRIBUTES,
            QUEUE_ATTRIBUTES,
            HARDWARE_HINTS,
            HOST_INFORMATION,
            EVENT_QUEUE_ATTRIBUTES,
            MORE_QUEUE_ATTRIBUTES,
        ];
        data.put_u64(0, features.iter().fold(0, |bits, feature| bits | 1 << feature));
        data.put_u64(8, PAGE_SIZES);
        data.put_u32(16, FIRMWARE_VERSION);
        data.put_u32(20, ADMIN_VERSION);
        data.put_u32(24, DEVICE_VERSION);
        data.put_u16(28, DOORBELL_BAR.into());
        data.put_u8(30, ADDRESS_BITS);
        data.put_u8(31, VIRTUAL_ADDRESS_BITS);
        data.put_u32(32, capability_bits(self.config.capabilities));
        data.put_u32(36, self.config.max_rdma_size);
        data.put(40, self.guid());
        data.put_u16(48, GIGABITS_PER_SECOND);
    }

    fn queue_attributes(&self, data: &mut [u8]) {
        let small = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
        data.put_u32(0, self.config.max_queue_pairs);
        data.put_u32(4, MAX_SEND_REQUESTS);
        data.put_u32(8, INLINE_BYTES);
        data.put_u32(12, MAX_RECEIVE_DESCRIPTORS);
        data.put_u32(16, self.config.max_completion_queues);
        data.put_u32(20, MAX_COMPLETIONS.into());
        data.put_u16(24, RINGS_PER_COMPLETION_QUEUE);
        data.put_u16(26, 0);
        data.put_u16(28, small(MAX_SEND_BUFFERS));
        data.put_u16(30, small(MAX_RECEIVE_BUFFERS));
        data.put_u32(32, self.config.max_memory_regions);
        data.put_u32(36, u32::try_from(MAX_PAGES).unwrap_or(u32::MAX));
        data.put_u32(40, self.config.max_protection_domains);
        data.put_u32(44, self.config.max_address_handles);
        data.put_u32(48, crate::bytes::low_u32(SEND_QUEUE_BYTES));
        data.put_u16(52, small(MAX_RDMA_BUFFERS));
        data.put_u16(54, MAX_BATCH);
    }
}
