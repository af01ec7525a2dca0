//! Objects by number.

use std::collections::VecDeque;

/// Objects under small numbers. Numbers are reused, the longest free one first.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    base: u32,
    entries: Vec<Option<T>>,
    free: VecDeque<u32>,
}

impl<T> Slab<T> {
    /// An empty slab whose first object gets the number `base`.
    pub(crate) const fn starting_at(base: u32) -> Self {
        Self { base, entries: Vec::new(), free: VecDeque::new() }
    }

    /// Adds the object that `make` returns for its number.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(u32) -> T) -> u32 {
        let number = self.free.pop_front().unwrap_or_else(|| {
            self.entries.push(None);
            self.base + u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)
        });
        let object = make(number);
        let place = self.place(number);
        if let Some(entry) = self.entries.get_mut(place) {
            *entry = Some(object);
        }
        number
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.entries.get(self.place(number))?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let place = self.place(number);
        self.entries.get_mut(place)?.as_mut()
    }

    /// Takes an object out; its number may be given to another.
    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let object = self.retire(number)?;
        self.free.push_back(number);
        Some(object)
    }

    /// Takes an object out and never gives its number to another.
    pub(crate) fn retire(&mut self, number: u32) -> Option<T> {
        let place = self.place(number);
        self.entries.get_mut(place)?.take()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.entries.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (self.base..)
            .zip(&self.entries)
            .filter_map(|(number, entry)| Some((number, entry.as_ref()?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        (self.base..)
            .zip(&mut self.entries)
            .filter_map(|(number, entry)| Some((number, entry.as_mut()?)))
    }

    fn place(&self, number: u32) -> usize {
        usize::try_from(number.wrapping_sub(self.base)).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_reused_but_retired_ones_are_not() {
        let mut slab = Slab::starting_at(17);
        assert_eq!(slab.insert_with(|number| number), 17);
        assert_eq!(slab.insert_with(|number| number), 18);
        assert_eq!(slab.remove(17), Some(17));
        assert_eq!(slab.retire(18), Some(18));
        assert_eq!(slab.get(18), None);
        assert_eq!(slab.insert_with(|_| 0), 17);
        assert_eq!(slab.insert_with(|_| 0), 19);
        assert_eq!(slab.get(3), None);
    }
}
