//! Two machines whose EFA devices are on one network, one for each rank. The model reorders, as SRD may.
#![cfg(test)]

#[path = "backend/kernel.rs"]
mod backend;
#[path = "support/meeting.rs"]
mod meeting;
#[path = "scenarios/pair.rs"]
mod pair;
#[expect(dead_code, unused_imports, reason = "these need few of the tools")]
mod support;
