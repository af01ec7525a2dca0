//! The counters behind `hw_counters` of the driver.

use crate::bytes::PutFields;

/// Counts since the device was made. Names follow the driver's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Statistics {
    pub(crate) tx_bytes: u64,
    pub(crate) tx_packets: u64,
    pub(crate) rx_bytes: u64,
    pub(crate) rx_packets: u64,
    pub(crate) rx_drops: u64,
    pub(crate) queue_key_violations: u64,
    pub(crate) send_bytes: u64,
    pub(crate) send_requests: u64,
    pub(crate) receive_bytes: u64,
    pub(crate) receive_requests: u64,
    pub(crate) read_requests: u64,
    pub(crate) read_bytes: u64,
    pub(crate) read_errors: u64,
    pub(crate) read_response_bytes: u64,
    pub(crate) write_requests: u64,
    pub(crate) write_bytes: u64,
    pub(crate) write_errors: u64,
    pub(crate) write_receive_bytes: u64,
    pub(crate) retransmitted_bytes: u64,
    pub(crate) retransmitted_packets: u64,
    pub(crate) retransmit_timeouts: u64,
    pub(crate) unresponsive_remotes: u64,
    pub(crate) impaired_connections: u64,
}

impl Statistics {
    /// Writes the counts of group `kind` from `offset` of `entry` on; false if there is no such
    /// group.
    pub(crate) fn encode(&self, kind: u8, entry: &mut [u8], offset: usize) -> bool {
        let counts: &[u64] = match kind {
            0 => &[
                self.tx_bytes,
                self.tx_packets,
                self.rx_bytes,
                self.rx_packets,
                self.rx_drops,
                self.queue_key_violations,
            ],
            1 => &[self.send_bytes, self.send_requests, self.receive_bytes, self.receive_requests],
            2 => &[self.read_requests, self.read_bytes, self.read_errors, self.read_response_bytes],
            3 => &[
                self.write_requests,
                self.write_bytes,
                self.write_errors,
                self.write_receive_bytes,
            ],
            4 => &[
                self.retransmitted_bytes,
                self.retransmitted_packets,
                self.retransmit_timeouts,
                self.unresponsive_remotes,
                self.impaired_connections,
            ],
            _ => return false,
        };
        for (number, &count) in counts.iter().enumerate() {
            entry.put_u64(offset + 8 * number, count);
        }
        true
    }
}
