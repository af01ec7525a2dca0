//! Completion, events and owned transfers, on the device in software.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

mod async_events;
mod asynchronous;
mod channels;
mod extended;
mod owned;
mod queues;
mod support;
