//! The soft device through the raw verbs.

#[cfg(test)]
mod connection;
#[cfg(test)]
mod control;
#[cfg(test)]
mod datagrams;
#[cfg(test)]
mod engine;
#[cfg(test)]
mod ethernet;
#[cfg(test)]
mod events;
#[cfg(test)]
mod kept;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod objects;
#[cfg(test)]
mod reliable;
#[cfg(test)]
mod scalable;
#[cfg(test)]
mod shared;
#[cfg(test)]
mod storm;
#[cfg(test)]
mod support;
#[cfg(test)]
mod windows;
