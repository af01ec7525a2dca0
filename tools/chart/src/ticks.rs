//! Where the axes have marks, and what is written there.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "places in a picture are rounded"
)]

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};

/// An axis that is linear for plotters and has its marks where we want them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Axis {
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) marks: Vec<f64>,
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let part = (value - self.low) / (self.high - self.low);
        from + (part * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // Light lines are asked for with more points than bold ones; there are none.
        if hint.weight().allow_light_points() { Vec::new() } else { self.marks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

/// Powers of two that span `least` to `most`, at most thirteen marks among them.
pub(crate) fn of_sizes(least: u64, most: u64) -> Axis {
    let low = least.max(1).ilog2();
    let mut high = most.max(1).ilog2();
    if !most.is_power_of_two() || high == low {
        high += 1;
    }
    // At whole multiples of the step, which divides ten, so that 1 KiB and 1 MiB are among them.
    let step = [1, 2, 5].into_iter().find(|step| (high - low) / step <= 12).unwrap_or(10);
    let marks = (low..=high).filter(|power| power.is_multiple_of(step)).map(f64::from).collect();
    Axis { low: f64::from(low), high: f64::from(high), marks }
}

/// `64 KiB` for 16.
pub(crate) fn size_label(power: f64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut number = power.exp2();
    let mut unit = 0;
    while number >= 1024.0 && unit + 1 < UNITS.len() {
        number /= 1024.0;
        unit += 1;
    }
    format!("{number:.0} {}", UNITS[unit])
}

/// From zero in round steps to above `most`.
pub(crate) fn linear(most: f64) -> Axis {
    let raw = most / 5.0;
    let power = 10_f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|round| round * power);
    let step = step.into_iter().find(|step| *step >= raw * 0.999).unwrap_or(10.0 * power);
    let mut marks = vec![0.0];
    while marks.last().is_some_and(|mark| *mark < most * 1.02) {
        let next = step * marks.len() as f64;
        marks.push(next);
    }
    let top = marks.last().copied().unwrap_or(most);
    Axis { low: 0.0, high: top, marks }
}

/// Powers of ten around `least` and `most`, as exponents; with 2 and 5 between them if they are few.
pub(crate) fn logarithmic(least: f64, most: f64) -> Axis {
    let round = [1.0_f64, 2.0, 5.0].map(f64::log10);
    let below = least.log10().floor();
    let candidates: Vec<f64> = (0..60)
        .flat_map(|decade| round.map(|part| below + f64::from(decade) + part))
        .take_while(|mark| *mark < most.log10() + 1.0)
        .collect();
    let low = candidates.iter().rev().find(|mark| **mark <= least.log10()).copied();
    let high = candidates.iter().find(|mark| **mark >= most.log10() + 0.02).copied();
    let (low, high) = (low.unwrap_or(below), high.unwrap_or_else(|| most.log10() + 0.1));
    let few = high - low < 3.5;
    let is_decade = |mark: f64| (mark - mark.round()).abs() < 1e-9;
    let inside = |mark: &f64| *mark >= low - 1e-9 && *mark <= high + 1e-9;
    let marks = candidates.into_iter().filter(inside).filter(|mark| few || is_decade(*mark));
    Axis { low, high, marks: marks.collect() }
}

/// A number with as many digits as it needs, at most three behind the point.
pub(crate) fn number_label(value: f64) -> String {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    let (whole, rest) = text.split_once('.').map_or((text, None), |(a, b)| (a, Some(b)));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 && whole.len() > 3 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if let Some(rest) = rest {
        grouped = format!("{grouped}.{rest}");
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_labelled_in_binary_units() {
        assert_eq!(size_label(3.0), "8 B");
        assert_eq!(size_label(16.0), "64 KiB");
        assert_eq!(size_label(30.0), "1 GiB");
        let Axis { low, high, marks } = of_sizes(2, 8 << 20);
        assert_eq!((low, high), (1.0, 23.0));
        assert!(marks.len() <= 12 && marks.contains(&10.0) && marks.contains(&20.0), "{marks:?}");
        assert_eq!(of_sizes(4096, 4096).marks, [12.0, 13.0]);
        assert_eq!(of_sizes(8, 1500).high, 11.0);
    }

    #[test]
    fn linear_marks_reach_above_the_largest_value() {
        assert_eq!(linear(9.7).marks, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        for most in [0.003, 1.0, 5.0, 49.0, 99.9, 12_345.0] {
            let Axis { high: top, marks, .. } = linear(most);
            assert!(top >= most && top <= most * 1.6, "{most}: {marks:?}");
            assert!((4..=9).contains(&marks.len()), "{most}: {marks:?}");
        }
    }

    #[test]
    fn logarithmic_marks_enclose_the_values() {
        for (least, most) in [(1.3, 7.9), (0.02, 900.0), (5.0, 5.0), (1.0, 1e9)] {
            let Axis { low, high, marks } = logarithmic(least, most);
            assert!(low <= least.log10() && high > most.log10(), "{least} {most}: {low} {high}");
            assert!((2..=12).contains(&marks.len()), "{least} {most}: {marks:?}");
        }
    }

    #[test]
    fn numbers_have_no_needless_digits() {
        let labels = [0.0, 2.5, 10.0, 1_000.0, 1_234_567.0, 0.125].map(number_label);
        assert_eq!(labels, ["0", "2.5", "10", "1,000", "1,234,567", "0.125"]);
    }
}
