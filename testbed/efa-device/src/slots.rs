//! Numbered objects: a table that hands out the lowest free number.

use crate::bytes::index;

/// The table is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// At most `limit` objects, numbered from 0.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    entries: Vec<Option<T>>,
    limit: u32,
}

impl<T> Slots<T> {
    pub(crate) const fn new(limit: u32) -> Self {
        Self { entries: Vec::new(), limit }
    }

    /// Stores what `make` builds from its number, and returns that number.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(u32) -> T) -> Result<u32, Full> {
        let free = self.entries.iter().position(Option::is_none).unwrap_or(self.entries.len());
        let number = u32::try_from(free).map_err(|_| Full)?;
        if number >= self.limit {
            return Err(Full);
        }
        if free == self.entries.len() {
            self.entries.push(None);
        }
        if let Some(entry) = self.entries.get_mut(free) {
            *entry = Some(make(number));
        }
        Ok(number)
    }

    pub(crate) fn insert(&mut self, object: T) -> Result<u32, Full> {
        self.insert_with(|_| object)
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.entries.get(index(number.into()))?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.entries.get_mut(index(number.into()))?.as_mut()
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        self.entries.get_mut(index(number.into()))?.take()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().flatten()
    }

    /// Every slot in order of its number, the free ones too.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = Option<&T>> {
        self.entries.iter().map(Option::as_ref)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().flatten()
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_number_is_handed_out_up_to_the_limit() {
        let mut slots = Slots::new(2);
        assert_eq!(slots.insert('a'), Ok(0));
        assert_eq!(slots.insert('b'), Ok(1));
        assert_eq!(slots.insert('c'), Err(Full));
        assert_eq!(slots.remove(0), Some('a'));
        assert_eq!(slots.remove(0), None);
        assert_eq!(slots.insert('d'), Ok(0));
        assert_eq!(slots.get(0), Some(&'d'));
        assert_eq!(slots.get(7), None);
    }
}
