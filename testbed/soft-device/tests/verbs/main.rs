//! The soft device through the raw verbs.

#[cfg(test)]
mod control;
#[cfg(test)]
mod events;
#[cfg(test)]
mod objects;
#[cfg(test)]
mod reliable;
#[cfg(test)]
mod support;
