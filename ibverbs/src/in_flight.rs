//! The list of what a queue pair's requests own while they are outstanding.

use crate::{Error, Result};

/// Things that were moved into requests, found again by the number of the request.
///
/// Numbers are a place in the list and how often it was used, so that one that comes twice, or was never
/// given, finds nothing. Allocates when it is made, not later.
#[derive(Debug)]
pub(crate) struct InFlight<V> {
    places: Vec<Place<V>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Place<V> {
    uses: u32,
    value: Option<V>,
}

impl<V> InFlight<V> {
    pub(crate) fn with_capacity(capacity: u32) -> Self {
        let places = (0..capacity).map(|_| Place { uses: 0, value: None }).collect();
        Self { places, free: (0..capacity).rev().collect() }
    }

    /// How many are outstanding.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// How many there can be.
    pub(crate) fn capacity(&self) -> usize {
        self.places.len()
    }

    /// The number that the next one will get; `None` if there is no room.
    #[inline]
    pub(crate) fn next(&self) -> Option<u64> {
        let index = *self.free.last()?;
        let place = self.places.get(usize::try_from(index).ok()?)?;
        Some(u64::from(place.uses) << 32 | u64::from(index))
    }

    /// Keeps something under the number that [`next`](Self::next) told.
    #[inline]
    pub(crate) fn insert(&mut self, value: V) {
        let Some(index) = self.free.pop() else { return };
        if let Some(place) = usize::try_from(index).ok().and_then(|at| self.places.get_mut(at)) {
            place.value = Some(value);
        }
    }

    /// Takes out what was kept under a number.
    #[inline]
    pub(crate) fn remove(&mut self, id: u64) -> Result<V> {
        let (uses, index) = (id >> 32, id & u64::from(u32::MAX));
        let place = usize::try_from(index).ok().and_then(|at| self.places.get_mut(at));
        let place = place.filter(|place| u64::from(place.uses) == uses);
        let Some((place, value)) = place.and_then(|place| {
            let value = place.value.take()?;
            Some((place, value))
        }) else {
            return Err(Error::UnknownWork { id });
        };
        // The highest bit of a number is for its user.
        place.uses = place.uses.wrapping_add(1) & (u32::MAX >> 1);
        self.free.extend(u32::try_from(index));
        Ok(value)
    }

    /// Takes out everything.
    pub(crate) fn drain(&mut self) -> Vec<V> {
        self.places.iter_mut().filter_map(|place| place.value.take()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_finds_its_value_once() {
        let mut list = InFlight::with_capacity(2);
        let (a, b);
        (a, _) = (list.next().unwrap(), list.insert("a"));
        (b, _) = (list.next().unwrap(), list.insert("b"));
        assert_eq!((list.len(), list.next()), (2, None));
        assert_eq!(list.remove(a).unwrap(), "a");
        assert!(matches!(list.remove(a), Err(Error::UnknownWork { id }) if id == a));
        let again = list.next().unwrap();
        list.insert("c");
        assert_ne!(a, again);
        list.remove(a).unwrap_err();
        list.remove(u64::MAX).unwrap_err();
        assert_eq!(list.remove(b).unwrap(), "b");
        assert_eq!(list.drain(), ["c"]);
    }
}
