//! How far the device has written a ring that the driver reads.

/// Counts entries; the driver recognises new ones by a phase bit that changes with each lap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Producer(u64);

/// A place in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) slot: u64,
    /// 1 in the first lap, 0 in the second, and so on.
    pub(crate) phase: u8,
}

impl Producer {
    /// At the first place of the first lap.
    pub(crate) const fn new() -> Self {
        Self(0)
    }

    /// The place of the next entry in a ring of `depth` entries; none if it has none.
    pub(crate) fn next(&mut self, depth: u16) -> Option<Place> {
        let depth = u64::from(depth);
        let lap = self.0.checked_div(depth)?;
        let slot = self.0 % depth;
        self.0 += 1;
        Some(Place { slot, phase: u8::from(lap.is_multiple_of(2)) })
    }

    /// Entries written so far, modulo 2^16.
    pub(crate) const fn count(self) -> u16 {
        let [low, high, ..] = self.0.to_le_bytes();
        u16::from_le_bytes([low, high])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_phase_changes_with_each_lap() {
        let mut producer = Producer::default();
        let places: Vec<(u64, u8)> = (0..5)
            .filter_map(|_| producer.next(2))
            .map(|place| (place.slot, place.phase))
            .collect();
        assert_eq!(places, [(0, 1), (1, 1), (0, 0), (1, 0), (0, 1)]);
        assert_eq!(producer.count(), 5);
        assert_eq!(producer.next(0), None);
    }
}
