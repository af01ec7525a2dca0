//! The crate on the software device: every operation, every refusal, every order of dropping.

#[cfg(test)]
#[path = "../common/mod.rs"]
mod common;
#[cfg(test)]
mod deregistration;
#[cfg(test)]
mod dma_buf;
#[cfg(test)]
mod in_flight;
#[cfg(test)]
mod kinds;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod operations;
#[cfg(test)]
mod ownership;
#[cfg(test)]
mod posting;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod remedies;
#[cfg(test)]
mod scope;
#[cfg(test)]
mod selection;
#[cfg(test)]
#[path = "../common/soft.rs"]
mod support;
#[cfg(test)]
#[path = "../common/udmabuf.rs"]
mod udmabuf;
