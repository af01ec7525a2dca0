//! Percentiles and histograms.

use serde_json::{Value, json};

/// Buckets in which a histogram doubles.
const PER_OCTAVE: u32 = 4;

/// What there is to say about some times in nanoseconds; they are sorted by it.
pub(crate) fn summary(samples: &mut [u64]) -> Value {
    samples.sort_unstable();
    let (Some(least), Some(most)) = (samples.first(), samples.last()) else {
        return Value::Null;
    };
    let sum: u128 = samples.iter().map(|sample| u128::from(*sample)).sum();
    json!({
        "min": least,
        "p50": percentile(samples, 500),
        "p90": percentile(samples, 900),
        "p99": percentile(samples, 990),
        "p99_9": percentile(samples, 999),
        "max": most,
        "mean": u64::try_from(sum / samples.len() as u128).unwrap_or(u64::MAX),
    })
}

/// The least value that `per_mille` of the sorted values do not exceed.
fn percentile(sorted: &[u64], per_mille: usize) -> u64 {
    let rank = (sorted.len() * per_mille).div_ceil(1000).max(1);
    sorted[rank - 1]
}

/// How many of the sorted values are in each bucket: `[from, below, count]`, empty ones in between included.
pub(crate) fn histogram(sorted: &[u64]) -> Vec<[u64; 3]> {
    let mut buckets: Vec<[u64; 3]> = Vec::new();
    let Some(least) = sorted.first() else { return buckets };
    let mut bucket = bucket_of(*least);
    let mut rest = sorted;
    while !rest.is_empty() {
        let below = start_of(bucket + 1);
        let count = rest.partition_point(|value| *value < below);
        buckets.push([start_of(bucket), below, count as u64]);
        rest = &rest[count..];
        bucket += 1;
    }
    buckets
}

/// Below eight each value has its own bucket; from there on each octave has four.
fn bucket_of(value: u64) -> u32 {
    if value < 8 {
        return u32::try_from(value).unwrap_or(0);
    }
    let octave = value.ilog2();
    let part = (value >> (octave - PER_OCTAVE.ilog2())) & u64::from(PER_OCTAVE - 1);
    8 + (octave - 3) * PER_OCTAVE + u32::try_from(part).unwrap_or(0)
}

fn start_of(bucket: u32) -> u64 {
    if bucket < 8 {
        return bucket.into();
    }
    let (octave, part) = ((bucket - 8) / PER_OCTAVE + 3, (bucket - 8) % PER_OCTAVE);
    if octave >= 64 { u64::MAX } else { u64::from(PER_OCTAVE + part) << (octave - 2) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let mut samples: Vec<u64> = (1..=1000).rev().collect();
        let summary = summary(&mut samples);
        for (name, value) in [("min", 1), ("p50", 500), ("p90", 900), ("p99", 990), ("p99_9", 999)]
        {
            assert_eq!(summary[name], value, "{name}");
        }
        assert_eq!((&summary["max"], &summary["mean"]), (&json!(1000), &json!(500)));
        assert_eq!(super::summary(&mut [7])["p99_9"], 7);
        assert!(super::summary(&mut []).is_null());
    }

    #[test]
    fn buckets_are_without_gaps_and_hold_everything() {
        for value in (0..100_000).chain([u64::MAX / 2, 1 << 62]) {
            let bucket = bucket_of(value);
            assert!(start_of(bucket) <= value && value < start_of(bucket + 1), "{value}: {bucket}");
        }
        let sorted = [3, 3, 100, 101, 900];
        let buckets = histogram(&sorted);
        assert_eq!(buckets.iter().map(|bucket| bucket[2]).sum::<u64>(), 5);
        assert_eq!(buckets.first(), Some(&[3, 4, 2]));
        assert!(buckets.windows(2).all(|pair| pair[0][1] == pair[1][0]));
        assert!(histogram(&[]).is_empty());
    }
}
