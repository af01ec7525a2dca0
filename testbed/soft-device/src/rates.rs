//! Rates of ports, in the units of InfiniBand.
#![expect(unsafe_code, reason = "verbs, called from C")]

use std::ffi::c_int;

use rdma_sys as c;

use crate::{errno::status, fabric::fabric, handle::ContextRef, verb::Verb};

/// Megabits a second of each rate.
const MEGABITS: [(c::ibv_rate, c_int); 23] = [
    (c::IBV_RATE_2_5_GBPS, 2500),
    (c::IBV_RATE_5_GBPS, 5000),
    (c::IBV_RATE_10_GBPS, 10000),
    (c::IBV_RATE_20_GBPS, 20000),
    (c::IBV_RATE_30_GBPS, 30000),
    (c::IBV_RATE_40_GBPS, 40000),
    (c::IBV_RATE_60_GBPS, 60000),
    (c::IBV_RATE_80_GBPS, 80000),
    (c::IBV_RATE_120_GBPS, 120_000),
    (c::IBV_RATE_14_GBPS, 14062),
    (c::IBV_RATE_56_GBPS, 56250),
    (c::IBV_RATE_112_GBPS, 112_500),
    (c::IBV_RATE_168_GBPS, 168_750),
    (c::IBV_RATE_25_GBPS, 25781),
    (c::IBV_RATE_100_GBPS, 103_125),
    (c::IBV_RATE_200_GBPS, 206_250),
    (c::IBV_RATE_300_GBPS, 309_375),
    (c::IBV_RATE_28_GBPS, 28125),
    (c::IBV_RATE_50_GBPS, 53125),
    (c::IBV_RATE_400_GBPS, 425_000),
    (c::IBV_RATE_600_GBPS, 637_500),
    (c::IBV_RATE_800_GBPS, 850_000),
    (c::IBV_RATE_1200_GBPS, 1_275_000),
];

/// See `ibv_rate_to_mbps(3)`: -1 for a rate that is none.
pub(crate) unsafe extern "C" fn ibv_rate_to_mbps(rate: c::ibv_rate) -> c_int {
    let found = MEGABITS.iter().find(|&&(known, _)| known == rate);
    found.map_or(-1, |&(_, megabits)| megabits)
}

/// See `ibv_rate_to_mult(3)`: in multiples of 2.5 Gbit/s, -1 for a rate that is none.
pub(crate) unsafe extern "C" fn ibv_rate_to_mult(rate: c::ibv_rate) -> c_int {
    let found = MEGABITS.iter().find(|&&(known, _)| known == rate);
    found.map_or(-1, |&(_, megabits)| megabits / 2500)
}

/// See `ibv_query_port_speed(3)`: in units of 100 Mbit/s.
pub(crate) unsafe extern "C" fn ibv_query_port_speed(
    context: *mut c::ibv_context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    // SAFETY: the caller gives an open context.
    let context = unsafe { ContextRef::of(context) };
    let mut fabric = fabric();
    status(fabric.enter(context.device, Verb::ibv_query_port_speed).and_then(|()| {
        let device = fabric.device(context.device).ok_or(libc::ENODEV)?;
        let port = u8::try_from(port).map_err(|_| libc::EINVAL)?;
        device.description.port(port).ok_or(libc::EINVAL)?;
        // SAFETY: the caller gives a place for the answer.
        unsafe { speed.write(1000) };
        Ok(())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_has_its_megabits() {
        let rate = |rate| {
            // SAFETY: the functions have no preconditions.
            unsafe { ibv_rate_to_mbps(rate) }
        };
        assert_eq!(rate(c::IBV_RATE_100_GBPS), 103_125);
        assert_eq!(rate(c::IBV_RATE_MAX), -1);
        assert_eq!(rate(1), -1);
    }
}
