//! Many requests at a time.

use std::time::{Duration, Instant};

use example_support::AnyError;
use ibverbs::Completion;

use super::{
    bell::Queues,
    flow::{CREDIT, Inlet, Outlet, lane_of},
    memory::Memory,
    options::Metric,
    plan::Operation,
    rig::{Outcome, Rig},
    wire::Wire,
};

/// How long a receiver of what may get lost waits for more before it takes the rest for lost.
const SILENCE: Duration = Duration::from_millis(1000);

/// Moves `count` messages of `size` bytes over each lane.
pub(crate) fn round<T: Wire>(
    rig: &Rig<'_, '_, T>,
    memory: &Memory<'_>,
    size: usize,
    count: u64,
) -> Result<Outcome, AnyError> {
    let operation = rig.plan.operation(Metric::Bandwidth, true);
    let sends = rig.initiator || rig.plan.bidirectional;
    let receives = operation == Operation::Send && (!rig.initiator || rig.plan.bidirectional);
    let lanes = 0..rig.lanes.len();
    let mut outlets = Vec::new();
    let mut inlets = Vec::new();
    for lane in lanes {
        if sends {
            outlets.push(rig.outlet(memory, operation, lane, size, count)?);
        }
        if receives {
            inlets.push(rig.inlet(memory, lane, T::CREDITS)?);
        }
    }
    let start = Instant::now();
    match (sends, receives) {
        (true, false) => run::<T, true, false>(rig, &mut outlets, &mut inlets, size, count)?,
        (false, true) => run::<T, false, true>(rig, &mut outlets, &mut inlets, size, count)?,
        (true, true) => run::<T, true, true>(rig, &mut outlets, &mut inlets, size, count)?,
        (false, false) => {}
    }
    let elapsed = start.elapsed();
    for inlet in &mut inlets {
        inlet.refill()?;
    }
    Ok(Outcome {
        elapsed,
        sent: outlets.iter().map(Outlet::done).sum(),
        arrived: inlets.iter().map(|inlet| inlet.taken).sum(),
        samples: Vec::new(),
    })
}

/// The loop. What it does is known to the compiler, so that it holds just that.
fn run<T: Wire, const SEND: bool, const RECEIVE: bool>(
    rig: &Rig<'_, '_, T>,
    outlets: &mut [Outlet<'_, '_, T>],
    inlets: &mut [Inlet<'_, '_, T>],
    size: usize,
    count: u64,
) -> Result<(), AnyError> {
    let queues = match (SEND, RECEIVE) {
        (true, true) => Queues::Both,
        (true, false) => Queues::Sends,
        // A credit that arrived may make way for the next.
        _ if T::CREDITS => Queues::Both,
        _ => Queues::Receives,
    };
    let mut watch = rig.watch("requests to complete and messages to come", Some(queues));
    let mut slots = Completion::slots::<32>();
    let (mut sending, mut receiving) = (outlets.len(), inlets.len());
    let expected = size + T::HEADER;
    loop {
        let mut moved = 0;
        if SEND {
            for outlet in &mut *outlets {
                outlet.fill()?;
            }
        }
        if SEND || inlets.iter().any(Inlet::is_telling) {
            let completions = rig.sends.poll(&mut slots)?;
            moved += completions.len();
            for completion in completions {
                let id = completion.outcome().map_err(T::failure)?.id();
                if RECEIVE && id & CREDIT != 0 {
                    inlets[lane_of(id)].credited()?;
                } else if SEND && outlets[lane_of(id)].complete(id) {
                    sending -= 1;
                }
            }
        }
        if RECEIVE {
            let completions = rig.receives.poll(&mut slots)?;
            moved += completions.len();
            for completion in completions {
                let work = completion.outcome().map_err(T::failure)?;
                if work.byte_length() as usize != expected {
                    return Err(wrong_length(work.byte_length(), expected));
                }
                let inlet = &mut inlets[lane_of(work.id())];
                inlet.take()?;
                if inlet.taken == count {
                    receiving -= 1;
                }
            }
        }
        if moved > 0 {
            watch.progress();
            rig.progress.add(moved);
        } else if sending == 0 && receiving == 0 {
            if !inlets.iter().any(Inlet::is_telling) {
                return Ok(());
            }
            watch.idle_awake()?;
        } else if RECEIVE && T::LOSSY && sending == 0 && watch.silence() > SILENCE {
            return Ok(());
        } else if SEND && outlets.iter().any(Outlet::is_starved) {
            watch.idle_awake()?;
        } else {
            watch.idle()?;
        }
    }
}

#[cold]
fn wrong_length(came: u32, expected: usize) -> AnyError {
    format!("a message of {came} bytes came where one of {expected} was expected").into()
}
