//! The clock of a device.
#![expect(unsafe_code, reason = "queries the clock")]

use crate::{Context, Result, Verb};

impl Context {
    /// What the device's own clock says now, in the ticks of completion timestamps.
    ///
    /// It ticks [`clock_kilohertz`](crate::DeviceAttributes::clock_kilohertz) times in a millisecond, and its
    /// [`completion_timestamp_mask`](crate::DeviceAttributes::completion_timestamp_mask) says which bits count.
    /// Some providers read it without entering the kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::Error::Unsupported), or [`Error::Verb`](crate::Error::Verb) with `EOPNOTSUPP`, if
    /// the device has none. See `ibv_query_rt_values_ex(3)`.
    #[doc(alias = "ibv_query_rt_values_ex")]
    pub fn device_clock(&self) -> Result<u64> {
        let verb = Verb::new("ibv_query_rt_values_ex");
        let mut values = rdma_sys::ibv_values_ex {
            comp_mask: rdma_sys::IBV_VALUES_MASK_RAW_CLOCK,
            ..Default::default()
        };
        // SAFETY: the context is open, and the mask says which value is asked for.
        let returned = unsafe { rdma_sys::ibv_query_rt_values_ex(self.as_raw(), &raw mut values) };
        verb.status(verb.find(returned)?)?;
        if values.comp_mask & rdma_sys::IBV_VALUES_MASK_RAW_CLOCK == 0 {
            return Err(verb.unsupported());
        }
        // Providers keep ticks where a time has its nanoseconds; seconds are 0 unless a tick is one.
        let libc::timespec { tv_sec, tv_nsec } = values.raw_clock;
        let seconds = tv_sec.cast_unsigned().wrapping_mul(1_000_000_000);
        Ok(seconds.wrapping_add(tv_nsec.cast_unsigned()))
    }
}
