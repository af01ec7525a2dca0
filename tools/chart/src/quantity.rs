//! What goes upwards, and in which unit its axis is labelled.

/// A measured quantity, in its base unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Quantity {
    /// Bytes in a second; a kB has 1,000 of them.
    BytesPerSecond,
    /// Messages in a second.
    MessagesPerSecond,
    /// A duration in nanoseconds.
    Nanoseconds,
}

impl Quantity {
    /// The largest unit in which `most` is at least one, and how many base units it has.
    pub(crate) fn unit(self, most: f64) -> (&'static str, f64) {
        let units: &[(&str, f64)] = match self {
            Self::BytesPerSecond => &[("B/s", 1.0), ("kB/s", 1e3), ("MB/s", 1e6), ("GB/s", 1e9)],
            Self::MessagesPerSecond => {
                &[("messages/s", 1.0), ("thousand messages/s", 1e3), ("million messages/s", 1e6)]
            }
            Self::Nanoseconds => &[("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)],
        };
        let fitting = units.iter().rev().find(|(_, factor)| most >= *factor);
        fitting.copied().unwrap_or(units[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_suits_the_largest_value() {
        assert_eq!(Quantity::BytesPerSecond.unit(12.5e9), ("GB/s", 1e9));
        assert_eq!(Quantity::BytesPerSecond.unit(0.5), ("B/s", 1.0));
        assert_eq!(Quantity::Nanoseconds.unit(999.0), ("ns", 1.0));
        assert_eq!(Quantity::Nanoseconds.unit(1_000.0), ("µs", 1e3));
        assert_eq!(Quantity::MessagesPerSecond.unit(2e6).0, "million messages/s");
    }
}
