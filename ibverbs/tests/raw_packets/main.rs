//! Raw packet queue pairs, flows, counters, work queues and receive-side scaling, on the software device: no kernel
//! device in software has them.

#[cfg(test)]
mod flows;
#[cfg(test)]
mod frames;
#[cfg(test)]
#[path = "../common/log.rs"]
mod log_lines;
#[cfg(test)]
mod owners;
#[cfg(test)]
mod segmented;
#[cfg(test)]
mod spreading;
#[cfg(test)]
mod storm;
#[cfg(test)]
mod support;
