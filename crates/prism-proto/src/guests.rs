//! Connections of callers that nobody knows, on which a request was let in all the same.
//!
//! One request without authentication makes nobody trustworthy. So a guest gives way
//! while it rests, which is between two requests, and an address has a share of all connections
//! only. The guest that has rested longest gives way first.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

/// The state of a guest when it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// A request is under way.
    Busy,
    /// It has rested since this time, by the caller's clock.
    Since(u64),
}

/// All guests. `T` tells how long one rests, and tells it to give way.
///
/// A guest that begins or ends a rest does not touch this table. Its place in the order is that of
/// the last look, which is never later than its rest, and is put right when it is first.
#[derive(Debug)]
pub struct Guests<T> {
    next: u64,
    by_rest: BTreeMap<GuestOrder, (u64, IpAddr, T)>,
    /// By their numbers.
    places: HashMap<u64, GuestOrder>,
    by_address: HashMap<IpAddr, u32>,
}

/// The place of a guest in the order: a time, and a number by which later looks come last.
type GuestOrder = (u64, u64);

impl<T> Default for Guests<T> {
    fn default() -> Self {
        Self {
            next: 0,
            by_rest: BTreeMap::new(),
            places: HashMap::new(),
            by_address: HashMap::new(),
        }
    }
}

impl<T> Guests<T> {
    /// Adds one from `address` at the time `now`. Returns its number, for [`Self::leave`].
    pub fn enter(&mut self, address: IpAddr, now: u64, guest: T) -> u64 {
        let number = self.next;
        *self.by_address.entry(address).or_default() += 1;
        self.place(now, (number, address, guest));
        number
    }

    /// The number of guests from an address.
    #[must_use]
    pub fn of_address(&self, address: IpAddr) -> u32 {
        self.by_address.get(&address).copied().unwrap_or(0)
    }

    /// Removes one that has ended or is known now. `None` if it gave way.
    pub fn leave(&mut self, number: u64) -> Option<T> {
        let place = self.places.remove(&number)?;
        let (_, address, guest) = self.by_rest.remove(&place)?;
        if let Some(count) = self.by_address.get_mut(&address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
        Some(guest)
    }

    /// Removes the guest that has rested longest; `None` if all are busy. `look` tells how long one
    /// rests, at the time `now`.
    pub fn longest_rest_leaves(&mut self, now: u64, look: impl Fn(&T) -> Rest) -> Option<T> {
        let number = self.longest_rest(now, look)?;
        self.leave(number)
    }

    /// The number of the guest that has rested longest; `None` if all are busy.
    pub fn longest_rest(&mut self, now: u64, look: impl Fn(&T) -> Rest) -> Option<u64> {
        // Each look but the last moves a guest that was active behind the others.
        for _ in 0..=self.by_rest.len() {
            let (&place, &(number, _, ref guest)) = self.by_rest.first_key_value()?;
            let later = match look(guest) {
                Rest::Since(since) if since <= place.0 => return Some(number),
                Rest::Since(since) => since,
                Rest::Busy => now,
            };
            let moved = self.by_rest.remove(&place)?;
            self.place(later, moved);
        }
        None
    }

    fn place(&mut self, time: u64, guest: (u64, IpAddr, T)) {
        let place = (time, self.next);
        self.next += 1;
        self.places.insert(guest.0, place);
        self.by_rest.insert(place, guest);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    type Guest = Rc<Cell<Rest>>;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn the_one_that_has_rested_longest_gives_way_and_a_busy_one_never() {
        let mut all = Guests::<Guest>::default();
        let guests: Vec<Guest> = (0..5).map(|n| Rc::new(Cell::new(Rest::Since(n)))).collect();
        for (n, guest) in guests.iter().enumerate() {
            all.enter(address(1), n as u64, guest.clone());
        }
        guests[0].set(Rest::Busy);
        guests[1].set(Rest::Since(9));
        let mut leaves = |now| {
            let gone = all.longest_rest_leaves(now, |guest| guest.get());
            gone.map(|gone| guests.iter().position(|g| Rc::ptr_eq(g, &gone)).unwrap())
        };
        assert_eq!(
            (leaves(10), leaves(10), leaves(10)),
            (Some(2), Some(3), Some(4))
        );
        assert_eq!((leaves(10), leaves(10)), (Some(1), None));
        guests[0].set(Rest::Since(11));
        assert_eq!((leaves(12), leaves(12)), (Some(0), None));
    }

    #[test]
    fn a_random_history_agrees_with_a_plain_list() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut all = Guests::<Guest>::default();
        let mut list: Vec<(u64, u8, Guest)> = Vec::new();
        for now in 0..20_000 {
            match rng.u8(..5) {
                0 => {
                    let (from, guest) = (rng.u8(..4), Rc::new(Cell::new(Rest::Busy)));
                    let number = all.enter(address(from), now, guest.clone());
                    list.push((number, from, guest));
                }
                1 if !list.is_empty() => {
                    let (number, _, guest) = list.swap_remove(rng.usize(..list.len()));
                    assert!(Rc::ptr_eq(&all.leave(number).unwrap(), &guest));
                    assert!(all.leave(number).is_none());
                }
                2 => {
                    let gone = all.longest_rest_leaves(now, |guest| guest.get());
                    let oldest = list
                        .iter()
                        .filter_map(|(number, _, guest)| match guest.get() {
                            Rest::Since(since) => Some((since, *number)),
                            Rest::Busy => None,
                        });
                    let oldest = oldest.min();
                    assert_eq!(gone.is_some(), oldest.is_some());
                    if let (Some(gone), Some((since, _))) = (gone, oldest) {
                        assert_eq!(gone.get(), Rest::Since(since));
                        list.retain(|(_, _, guest)| !Rc::ptr_eq(guest, &gone));
                    }
                }
                _ => {
                    if let Some((_, _, guest)) = rng.choice(&list) {
                        guest.set(match guest.get() {
                            Rest::Busy => Rest::Since(now),
                            Rest::Since(_) => Rest::Busy,
                        });
                    }
                }
            }
            for from in 0..4 {
                let count = list.iter().filter(|(_, one, _)| *one == from).count();
                assert_eq!(all.of_address(address(from)) as usize, count);
            }
        }
        for (number, _, _) in list {
            all.leave(number);
        }
        assert!(all.by_rest.is_empty() && all.places.is_empty() && all.by_address.is_empty());
    }
}
