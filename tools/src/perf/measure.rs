//! One size: rounds before, the round that counts, and what both sides make of it.

use std::{fs, time::Duration};

use example_support::AnyError;
use serde_json::{Value, json};

use super::{
    bandwidth, latency,
    memory::Memory,
    options::Metric,
    rig::{Outcome, Rig},
    statistics, verify,
    wire::Wire,
};

/// The longest that a side waits for the other's round when its length is not known: an hour.
const LONGEST_ROUND: Duration = Duration::from_secs(3600);
/// How long a round must take to tell how many messages fit a given time.
const TELLING: Duration = Duration::from_millis(100);

/// Measures messages of one size; both sides get the row.
pub(crate) fn size<T: Wire>(
    rig: &Rig<'_, '_, T>,
    memory: &mut Memory<'_>,
    metric: Metric,
    size: usize,
) -> Result<Value, AnyError> {
    let plan = rig.plan;
    let name = if metric == Metric::Latency { "latency" } else { "bandwidth" };
    verify::prepare(rig, memory, size)?;
    let round = Round { rig, memory, metric, size };
    let iterations = match plan.duration {
        None => plan.iterations(metric),
        Some(duration) => round.fitting(duration)?,
    };
    let warm_up = plan.warm_up(iterations);
    let drawing =
        rig.progress.begin(&format!("{name} of {size} bytes"), iterations * u64::from(plan.lanes));
    let (count, skip) = match metric {
        // The rounds before are part of the one that counts, so that both sides are awake.
        Metric::Latency => (iterations + warm_up, warm_up),
        _ => {
            round.run(warm_up, 0)?;
            (iterations, 0)
        }
    };
    let (mut ours, theirs) = round.run(count, skip)?;
    drop(drawing);
    let total = round.total(&ours, &theirs);
    if plan.verify {
        verify::check(rig, memory, metric, size)?;
    }
    let row = row(rig, metric, size, iterations, &mut ours, &total);
    let initiator = if rig.initiator { rig.world.rank() } else { 1 - rig.world.rank() };
    let row = rig.world.broadcast(initiator, row.to_string().as_bytes())?;
    Ok(serde_json::from_slice(&row)?)
}

/// A round on this side, with the processor time that its thread took.
#[derive(Debug, Clone, Default)]
struct Taken {
    outcome: Outcome,
    processor: Duration,
}

impl Taken {
    fn to_bytes(&self) -> Vec<u8> {
        let Outcome { elapsed, sent, arrived, .. } = &self.outcome;
        let times = [elapsed, &self.processor].map(nanoseconds);
        [times[0], times[1], *sent, *arrived].into_iter().flat_map(u64::to_be_bytes).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, AnyError> {
        let words: Vec<u64> =
            bytes.as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word)).collect();
        let [elapsed, processor, sent, arrived] = words[..] else {
            return Err("the other side's result is garbled".into());
        };
        let elapsed = Duration::from_nanos(elapsed);
        let outcome = Outcome { elapsed, sent, arrived, samples: Vec::new() };
        Ok(Self { outcome, processor: Duration::from_nanos(processor) })
    }
}

/// What both sides did.
struct Total {
    elapsed: Duration,
    processor: Duration,
    messages: u64,
    per_second: f64,
    lost: Option<u64>,
}

struct Round<'m, 'r, 'a, T: Wire> {
    rig: &'m Rig<'r, 'a, T>,
    memory: &'m Memory<'m>,
    metric: Metric,
    size: usize,
}

impl<T: Wire> Round<'_, '_, '_, T> {
    /// A round of `count` messages of each lane, as the initiator says. What this side and the other did.
    fn run(&self, count: u64, skip: u64) -> Result<(Taken, Taken), AnyError> {
        let Self { rig, memory, metric, size } = *self;
        let count = self.told(count)?;
        for lane in 0..rig.lanes.len() {
            rig.credit_word(lane)?.store(0, std::sync::atomic::Ordering::Release);
        }
        if count == 0 {
            return Ok(Default::default());
        }
        rig.atomics.set(rig.atomics.get() + count);
        // Nobody sends before the other side's words are zero.
        rig.world.barrier()?;
        let before = processor_time();
        let outcome = match metric {
            Metric::Latency => latency::round(rig, memory, size, count, skip)?,
            _ => bandwidth::round(rig, memory, size, count)?,
        };
        let processor = processor_time().saturating_sub(before);
        let ours = Taken { outcome, processor };
        let patience = rig.plan.duration.map_or(LONGEST_ROUND, |duration| duration * 4);
        let patience = patience + rig.world.timeout();
        let mut both = rig.world.exchange_within(patience, &ours.to_bytes())?;
        let theirs = Taken::from_bytes(&both.swap_remove(1 - rig.world.rank()))?;
        Ok((ours, theirs))
    }

    /// What the initiator says.
    fn told(&self, number: u64) -> Result<u64, AnyError> {
        let rig = self.rig;
        let initiator = if rig.initiator { rig.world.rank() } else { 1 - rig.world.rank() };
        let bytes = rig.world.broadcast(initiator, &number.to_be_bytes())?;
        Ok(<[u8; 8]>::try_from(bytes.as_slice()).map(u64::from_be_bytes)?)
    }

    /// How many messages take about this long, by rounds that grow until they tell.
    fn fitting(&self, duration: Duration) -> Result<u64, AnyError> {
        let enough = TELLING.min(duration / 4);
        let mut count = 16;
        loop {
            let (ours, _) = self.run(count, 0)?;
            let elapsed = ours.outcome.elapsed;
            let next = if elapsed < enough && count < 1 << 40 { count * 4 } else { 0 };
            let next = self.told(next)?;
            if next == 0 {
                let messages = u128::from(count) * duration.as_nanos() / elapsed.as_nanos().max(1);
                return self.told(u64::try_from(messages).unwrap_or(u64::MAX).max(1));
            }
            count = next;
        }
    }

    fn total(&self, ours: &Taken, theirs: &Taken) -> Total {
        let both = [&ours.outcome, &theirs.outcome];
        let takes_messages = ours.outcome.arrived + theirs.outcome.arrived > 0;
        let rate = |sender: &Outcome, receiver: &Outcome| {
            let moved = if takes_messages { receiver.arrived } else { sender.sent };
            if moved == 0 { 0.0 } else { rounded(moved) / sender.elapsed.as_secs_f64().max(1e-9) }
        };
        let sent: u64 = both.iter().map(|side| side.sent).sum();
        let arrived: u64 = both.iter().map(|side| side.arrived).sum();
        Total {
            elapsed: ours.outcome.elapsed,
            processor: ours.processor,
            messages: if takes_messages { arrived } else { sent },
            per_second: rate(both[0], both[1]) + rate(both[1], both[0]),
            lost: takes_messages.then(|| sent.saturating_sub(arrived)),
        }
    }
}

/// What programs and the table get of one size.
fn row<T: Wire>(
    rig: &Rig<'_, '_, T>,
    metric: Metric,
    size: usize,
    iterations: u64,
    ours: &mut Taken,
    total: &Total,
) -> Value {
    let mut row = json!({
        "size": size,
        "iterations": iterations,
        "seconds": total.elapsed.as_secs_f64(),
        "cpu_seconds": total.processor.as_secs_f64(),
        "messages": total.messages,
        "verified": rig.plan.verify,
    });
    if metric == Metric::Latency {
        row["metric"] = "latency".into();
        row["latency_ns"] = statistics::summary(&mut ours.outcome.samples);
        row["histogram_ns"] = json!(statistics::histogram(&ours.outcome.samples));
    } else {
        row["metric"] = "bandwidth".into();
        row["messages_per_second"] = total.per_second.into();
        row["bytes_per_second"] = (total.per_second * rounded(size as u64)).into();
        row["lost"] = total.lost.into();
    }
    row
}

/// How long this thread has had a processor; zero where the kernel does not count it.
fn processor_time() -> Duration {
    // "time on the processor, time waiting for it, slices"
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text.split_whitespace().next().and_then(|word| word.parse().ok());
    Duration::from_nanos(first.unwrap_or(0))
}

fn nanoseconds(duration: &Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// For rates, which need no more digits.
#[expect(clippy::cast_precision_loss, reason = "rates need no more digits")]
fn rounded(count: u64) -> f64 {
    count as f64
}
