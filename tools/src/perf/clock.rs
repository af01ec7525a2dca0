//! A clock for the time of one message: the processor's counter where the kernel itself keeps time by it.
#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "reads the time-stamp counter"))]

use std::{fs, time::Instant};

/// A clock whose ticks are told in nanoseconds afterwards, when it is known how long they were.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    counts: bool,
    start: Instant,
    first: u64,
}

impl Clock {
    /// Starts it.
    pub(crate) fn new() -> Self {
        // Where the kernel does not trust the counter, it may stop, or differ between processors.
        let file = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        let counts = cfg!(target_arch = "x86_64")
            && fs::read_to_string(file).is_ok_and(|name| name.trim() == "tsc");
        let clock = Self { counts, start: Instant::now(), first: 0 };
        Self { first: clock.now(), ..clock }
    }

    /// Now, in ticks.
    #[inline(always)]
    pub(crate) fn now(&self) -> u64 {
        #[cfg(target_arch = "x86_64")]
        if self.counts {
            // SAFETY: every x86-64 processor has the instruction, which touches no memory.
            return unsafe { std::arch::x86_64::_rdtsc() };
        }
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Turns differences of ticks into nanoseconds, each divided by `parts`.
    pub(crate) fn to_nanoseconds(self, ticks: &mut [u64], parts: u64) {
        let (nanoseconds, passed) = if self.counts {
            let passed = self.now().saturating_sub(self.first);
            (self.start.elapsed().as_nanos(), u128::from(passed.max(1)))
        } else {
            (1, 1)
        };
        for tick in ticks {
            let scaled = u128::from(*tick) * nanoseconds / passed / u128::from(parts);
            *tick = u64::try_from(scaled).unwrap_or(u64::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn ticks_are_as_long_as_time() {
        let clock = Clock::new();
        let before = clock.now();
        std::thread::sleep(Duration::from_millis(20));
        let mut ticks = [clock.now() - before, 0];
        clock.to_nanoseconds(&mut ticks, 2);
        // Half of it, whatever the machine does meanwhile.
        assert!(ticks[0] >= 9_900_000 && ticks[1] == 0, "{ticks:?}");
    }
}
