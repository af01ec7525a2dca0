//! The device model under a driver that is played by these tests, without QEMU.
#![cfg(test)]
#![expect(
    clippy::panic_in_result_fn,
    clippy::unwrap_in_result,
    reason = "the driver of these tests gives up where a test does"
)]
#![expect(clippy::cast_possible_truncation, reason = "patterns and noise are cut on purpose")]

mod admin;
mod counters;
mod driver;
mod faults;
mod hostile;
mod objects;
mod queue_states;
mod registers;
mod reordering;
mod srd;
mod ud;
