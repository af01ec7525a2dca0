//! Whether what arrived is what was sent.

use std::ops::Range;

use example_support::AnyError;

use super::{
    memory::Memory,
    options::{Metric, Verb},
    plan::Operation,
    rig::Rig,
    wire::{SWAPPED, Wire},
};

/// What memory holds where nothing came; no pattern has it.
const NOTHING: u8 = 0xee;

/// What a rank sends.
pub(crate) fn pattern(rank: usize, length: usize) -> Vec<u8> {
    let mut bytes = example_support::pattern(rank as u64 + 1, length);
    for byte in &mut bytes {
        if *byte == NOTHING {
            *byte = 0x11;
        }
    }
    bytes
}

/// Makes sure that what a round brings is not there before it.
pub(crate) fn prepare<T: Wire>(
    rig: &Rig<'_, '_, T>,
    memory: &mut Memory<'_>,
    size: usize,
) -> Result<(), AnyError> {
    let atomic = rig.plan.verb == Verb::Atomic;
    rig.atomics.set(0);
    let nothing = vec![if atomic { 0 } else { NOTHING }; size];
    for lane in 0..rig.lanes.len() {
        memory.write(rig.layout.inbox(lane, size).start, &nothing)?;
        if atomic {
            memory.write(rig.layout.outbox(lane, size).start, &nothing)?;
        }
    }
    if let (Some(bytes), false) = (memory.shared(), atomic) {
        // The byte that pings are counted in goes on where it was.
        let [last, ..] = rig.pings.get().to_le_bytes();
        bytes.set(rig.layout.inbox(0, size).end - 1, last)?;
    }
    Ok(())
}

/// Looks at what the rounds of one size left.
pub(crate) fn check<T: Wire>(
    rig: &Rig<'_, '_, T>,
    memory: &Memory<'_>,
    metric: Metric,
    size: usize,
) -> Result<(), AnyError> {
    let operation = rig.plan.operation(metric, memory.shared().is_some() && T::ORDERED);
    let both = rig.plan.bidirectional;
    let gets = match operation {
        Operation::Read => rig.initiator || both,
        Operation::FetchAndAdd | Operation::CompareAndSwap => !rig.initiator || both,
        _ if metric == Metric::Latency => true,
        _ => !rig.initiator || both,
    };
    if !gets {
        return Ok(());
    }
    let sent = pattern(1 - rig.world.rank(), rig.longest);
    for lane in 0..rig.lanes.len() {
        let inbox = rig.layout.inbox(lane, size);
        match operation {
            Operation::FetchAndAdd | Operation::CompareAndSwap => {
                check_word(rig, memory, operation, lane, inbox)?;
            }
            _ => {
                // The last byte of pings in memory is their number.
                let counted = operation == Operation::Write && metric == Metric::Latency;
                let length = size - usize::from(counted);
                let mut came = vec![0; length];
                memory.read(inbox.start, &mut came)?;
                check_bytes(&came, &sent[..length], lane, T::LOSSY)?;
            }
        }
    }
    Ok(())
}

fn check_bytes(came: &[u8], sent: &[u8], lane: usize, lossy: bool) -> Result<(), AnyError> {
    // Where messages may get lost, all may be.
    if lossy && came.iter().all(|byte| *byte == NOTHING) {
        return Ok(());
    }
    let differs = came.iter().zip(sent).position(|(came, sent)| came != sent);
    let Some(at) = differs else { return Ok(()) };
    Err(format!(
        "verification failed: byte {at} of queue pair {lane}'s message is {:#04x}, {:#04x} was sent",
        came[at], sent[at]
    )
    .into())
}

fn check_word<T: Wire>(
    rig: &Rig<'_, '_, T>,
    memory: &Memory<'_>,
    operation: Operation,
    lane: usize,
    inbox: Range<usize>,
) -> Result<(), AnyError> {
    let mut word = [0; 8];
    memory.read(inbox.start, &mut word)?;
    let word = u64::from_ne_bytes(word);
    let expected = match operation {
        Operation::CompareAndSwap => SWAPPED,
        _ => rig.atomics.get(),
    };
    if word == expected {
        return Ok(());
    }
    Err(format!(
        "verification failed: queue pair {lane}'s word is {word:#x} after its atomics, not {expected:#x}"
    )
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_is_told_with_its_place() {
        let sent = pattern(0, 300);
        assert!(!sent.contains(&NOTHING) && sent != pattern(1, 300));
        check_bytes(&sent, &sent, 0, false).unwrap();
        let mut came = sent.clone();
        came[257] ^= 1;
        let error = check_bytes(&came, &sent, 3, true).unwrap_err().to_string();
        assert!(error.contains("byte 257 of queue pair 3"), "{error}");
        check_bytes(&[NOTHING; 300], &sent, 0, false).unwrap_err();
        check_bytes(&[NOTHING; 300], &sent, 0, true).unwrap();
    }
}
