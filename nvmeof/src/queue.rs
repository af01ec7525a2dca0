//! Which commands of a queue are in flight: identifiers and credits. No input or output.
//!
//! The laws of this module:
//!
//! 1. A command has its identifier from [`CommandTable::start`] to [`CommandTable::finish`], and
//!    no other command has it in that time.
//! 2. A completion may name a command in flight and nothing else. Whatever it names otherwise was
//!    never sent or has completed before: the target broke the protocol.
//! 3. An identifier is the command's place and, above it, how often the place was used, so that a
//!    completion that comes twice is noticed even when the place is in use again.

use crate::Violation;

/// The commands of one queue.
#[derive(Debug)]
pub(crate) struct CommandTable<T> {
    places: Vec<Place<T>>,
    /// Places that are free; the last one is taken next.
    free: Vec<u16>,
    /// Bits of an identifier that are the place.
    place_bits: u32,
}

#[derive(Debug)]
struct Place<T> {
    /// How often the place was used, as far as there are bits for it.
    uses: u16,
    /// What the sender of the command in flight wants to know when it completes.
    tag: Option<T>,
}

impl<T> CommandTable<T> {
    /// A table for up to `capacity` commands at once, 1 to 32,768.
    pub(crate) fn new(capacity: u16) -> Self {
        let capacity = capacity.clamp(1, 1 << 15);
        Self {
            places: (0..capacity).map(|_| Place { uses: 0, tag: None }).collect(),
            free: (0..capacity).rev().collect(),
            place_bits: u16::BITS - (capacity - 1).leading_zeros(),
        }
    }

    /// How many commands can be in flight at once.
    pub(crate) fn capacity(&self) -> usize {
        self.places.len()
    }

    /// How many commands are in flight.
    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Whether one more command can start.
    pub(crate) fn has_credit(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes a place for a command; nothing if none is free. Gives the place and the identifier.
    pub(crate) fn start(&mut self, tag: T) -> Option<(u16, u16)> {
        let index = self.free.pop()?;
        let place_bits = self.place_bits;
        let place = self.places.get_mut(usize::from(index))?;
        place.uses = place.uses.wrapping_add(1);
        place.tag = Some(tag);
        // With all sixteen bits in the place none is left for the uses.
        let id = index | place.uses.checked_shl(place_bits).unwrap_or(0);
        Some((index, id))
    }

    /// Takes the command that a completion names out of the table, and gives its tag.
    ///
    /// # Errors
    ///
    /// [`Violation::UnknownCommand`] if no such command is in flight.
    pub(crate) fn finish(&mut self, id: u16) -> Result<T, Violation> {
        let unknown = Violation::UnknownCommand { command_id: id };
        let index = id & self.place_mask();
        let expected_uses = id.checked_shr(self.place_bits).unwrap_or(0);
        let uses_mask = u16::MAX.checked_shr(self.place_bits).unwrap_or(0);
        let place = self.places.get_mut(usize::from(index)).ok_or(unknown)?;
        if place.uses & uses_mask != expected_uses {
            return Err(unknown);
        }
        let tag = place.tag.take().ok_or(unknown)?;
        self.free.push(index);
        Ok(tag)
    }

    /// The commands in flight: identifiers and tags.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u16, &mut T)> + '_ {
        let place_bits = self.place_bits;
        self.places.iter_mut().zip(0_u16..).filter_map(move |(place, index)| {
            let id = index | place.uses.checked_shl(place_bits).unwrap_or(0);
            Some((id, place.tag.as_mut()?))
        })
    }

    /// Takes all commands out of the table, as when their connection is lost.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.free.clear();
        self.free.extend((0_u16..).take(self.places.len()));
        self.places.iter_mut().filter_map(|place| place.tag.take())
    }

    fn place_mask(&self) -> u16 {
        !u16::MAX.checked_shl(self.place_bits).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn a_full_table_gives_no_credit_and_a_completion_gives_one_back() {
        let mut table = CommandTable::new(2);
        let (_, first) = table.start('a').unwrap();
        let (_, second) = table.start('b').unwrap();
        assert!(!table.has_credit());
        assert_eq!(table.start('c'), None);
        assert_eq!(table.finish(second).unwrap(), 'b');
        assert!(table.has_credit());
        assert_eq!(table.finish(first).unwrap(), 'a');
        assert_eq!(table.in_flight(), 0);
    }

    #[test]
    fn a_completion_that_comes_twice_is_noticed_even_when_the_place_is_used_again() {
        let mut table = CommandTable::new(1);
        let (_, first) = table.start(()).unwrap();
        table.finish(first).unwrap();
        assert_eq!(
            table.finish(first).unwrap_err(),
            Violation::UnknownCommand { command_id: first }
        );
        let (_, second) = table.start(()).unwrap();
        assert_ne!(first, second);
        table.finish(first).unwrap_err();
        table.finish(second).unwrap();
    }

    #[test]
    fn identifiers_in_flight_are_different_at_every_capacity() {
        for capacity in [1, 2, 3, 32, 127, 128, 1023, 1024, 32_768] {
            let mut table = CommandTable::new(capacity);
            for _ in 0..3 {
                let ids: std::collections::HashSet<u16> =
                    std::iter::from_fn(|| table.start(())).map(|(_, id)| id).collect();
                assert_eq!(ids.len(), usize::from(capacity));
                assert_eq!(table.in_flight(), table.capacity());
                for id in ids {
                    table.finish(id).unwrap();
                }
            }
        }
    }

    #[test]
    fn only_commands_in_flight_can_be_finished() {
        let mut random = Random::new(11);
        let mut table = CommandTable::new(40);
        let mut ids = Vec::new();
        for _ in 0..200_000 {
            match random.below(3) {
                0 => ids.extend(table.start(()).map(|(_, id)| id)),
                1 if !ids.is_empty() => {
                    let id = ids.swap_remove(random.below(ids.len()));
                    table.finish(id).unwrap();
                }
                _ => {
                    let id = u16::try_from(random.below(1 << 16)).unwrap();
                    assert_eq!(table.finish(id).is_ok(), ids.contains(&id));
                    ids.retain(|known| *known != id);
                }
            }
            assert_eq!(table.in_flight(), ids.len());
        }
    }

    #[test]
    fn draining_frees_every_place() {
        let mut table = CommandTable::new(4);
        let (_, old) = table.start(1).unwrap();
        table.start(2).unwrap();
        assert_eq!(table.drain().sum::<i32>(), 3);
        assert_eq!(table.in_flight(), 0);
        table.finish(old).unwrap_err();
        assert_eq!(std::iter::from_fn(|| table.start(0)).count(), 4);
    }

    #[test]
    fn commands_in_flight_are_listed_by_identifier() {
        let mut table = CommandTable::new(4);
        let (_, first) = table.start('a').unwrap();
        let (_, second) = table.start('b').unwrap();
        table.finish(first).unwrap();
        let listed: Vec<(u16, char)> = table.iter_mut().map(|(id, tag)| (id, *tag)).collect();
        assert_eq!(listed, [(second, 'b')]);
    }
}
