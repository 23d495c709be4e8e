//! The life of a store, by which an older copy of it is told from the store itself: a reverted
//! machine, a restored backup, or a copy beside the original.
//!
//! A store counts its commits and numbers its openings. At each opening it draws a random id, and
//! lists the id with the count of commits that it found. It reports a [`StoreMark`] of itself,
//! which is kept outside of it. A copy shares the past of the store, but its own next opening has
//! another id. [`StoreLife::has_lived`] is the rule by which a store is compared with a mark.
//!
//! Commits after the last report are not known outside of the store: a copy that lacks only
//! those is not noticed.

use std::{cmp::Ordering, collections::BTreeMap, ops::Bound};

use serde::{Deserialize, Serialize};

/// Most openings that a store lists. A list takes some 12 KiB, and is written once an opening.
pub const OPENINGS_MAX: usize = 256;

/// A store's report of itself at a moment. It is kept outside of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreMark {
    /// The store's identity.
    pub store: u64,
    /// The number of its present opening, from 1 on.
    pub opening: u64,
    /// The random id of that opening.
    pub id: u64,
    /// The commits that the opening found.
    pub found: u64,
    /// The commits of its whole life up to now.
    pub commits: u64,
}

impl StoreMark {
    /// Whether a store with this mark may have gone on from the one with the earlier mark. It has
    /// not if it is before it, or if its opening found fewer commits: then an older copy was
    /// opened. The store itself knows for sure: see [`StoreLife::has_lived`].
    pub fn may_continue(&self, earlier: &Self) -> bool {
        let goes_on = match self.opening.cmp(&earlier.opening) {
            Ordering::Less => false,
            Ordering::Equal => self.id == earlier.id && self.commits >= earlier.commits,
            Ordering::Greater => self.found >= earlier.commits,
        };
        self.store == earlier.store && goes_on
    }

    /// The mark to put in the place of `present` if a node has noted `self` of the store that
    /// counts; `None` if the present one may stay.
    ///
    /// If neither of two marks of one store may continue the other, two copies of it have reported
    /// them. No copy has all commits of both. The result is then a mark that no copy has lived, so
    /// each of them becomes another store.
    #[must_use]
    pub fn restored(&self, present: Option<&Self>) -> Option<Self> {
        match present.filter(|present| present.store == self.store) {
            Some(present) if present.may_continue(self) => None,
            Some(present) if !self.may_continue(present) => Some(Self::of_no_copy(self.store)),
            Some(_) | None => Some(*self),
        }
    }

    /// A mark that no copy of a store has lived, and that may continue each mark of the store. No
    /// store has that many openings.
    fn of_no_copy(store: u64) -> Self {
        Self {
            store,
            opening: u64::MAX,
            id: 0,
            found: u64::MAX,
            commits: u64::MAX,
        }
    }
}

/// One opening of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub struct Opening {
    /// Drawn at random.
    pub id: u64,
    /// The commits that the opening found, without its own.
    pub commits: u64,
}

impl From<(u64, u64)> for Opening {
    fn from((id, commits): (u64, u64)) -> Self {
        Self { id, commits }
    }
}

impl From<Opening> for (u64, u64) {
    fn from(Opening { id, commits }: Opening) -> Self {
        (id, commits)
    }
}

/// A store's list of its own openings, the last [`OPENINGS_MAX`] of them. Openings by a release
/// that kept no list are missing in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreLife {
    /// The number of the last opening that was dropped from the list; 0 if none was.
    forgotten: u64,
    openings: BTreeMap<u64, Opening>,
}

impl StoreLife {
    /// Lists a new opening, whose number is above all others, and drops the oldest one of a full
    /// list.
    pub fn begin(&mut self, number: u64, opening: Opening) {
        self.openings.insert(number, opening);
        while self.openings.len() > OPENINGS_MAX
            && let Some((dropped, _)) = self.openings.pop_first()
        {
            self.forgotten = dropped;
        }
    }

    /// The listed openings, by their numbers.
    pub fn openings(&self) -> &BTreeMap<u64, Opening> {
        &self.openings
    }

    /// Whether this store is the one that reported the mark, or goes on from it: it has every
    /// commit that the mark counts. `commits_now` is the present count of commits. The caller
    /// compares the identities of the stores.
    ///
    /// - The mark's opening is listed with the same id: the commits that the next listed opening
    ///   found, or after the last one the present commits, are at least those of the mark. The
    ///   commits of later openings do not count, because a copy may have made them.
    /// - It is listed with another id: no. Two copies were opened.
    /// - It was dropped from a full list: yes, because nothing is known of it any more.
    /// - It is in no list: no. A store lists an opening before it reports any mark of it, so
    ///   another copy has reported this one. The same holds for an empty list.
    ///
    /// A process that was reverted together with its memory goes on with the id of its opening.
    /// It is noticed only until it has made as many commits again.
    pub fn has_lived(&self, mark: &StoreMark, commits_now: u64) -> bool {
        if (1..=self.forgotten).contains(&mark.opening) {
            return true;
        }
        let listed = self.openings.get(&mark.opening);
        listed.is_some_and(|opening| opening.id == mark.id)
            && self.commits_by_the_end_of(mark.opening, commits_now) >= mark.commits
    }

    fn commits_by_the_end_of(&self, opening: u64, commits_now: u64) -> u64 {
        let later = (Bound::Excluded(opening), Bound::Unbounded);
        let next = self.openings.range(later).next();
        next.map_or(commits_now, |(_, next)| next.commits)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn mark(opening: u64, id: u64, commits: u64) -> StoreMark {
        StoreMark {
            store: 1,
            opening,
            id,
            found: 0,
            commits,
        }
    }

    /// A life of openings: the number, the id, and the commits found.
    fn life(openings: &[(u64, u64, u64)]) -> StoreLife {
        let mut life = StoreLife::default();
        for (number, id, commits) in openings {
            life.begin(*number, (*id, *commits).into());
        }
        life
    }

    #[test]
    fn a_store_has_lived_its_own_marks() {
        let life = life(&[(1, 11, 0), (2, 12, 5), (4, 14, 9)]);
        for own in [
            mark(1, 11, 1),
            mark(1, 11, 5),
            mark(2, 12, 9),
            mark(4, 14, 20),
        ] {
            assert!(life.has_lived(&own, 20), "{own:?}");
        }
    }

    #[test]
    fn a_store_that_lacks_commits_of_an_opening_has_not_lived_its_mark() {
        let life = life(&[(1, 11, 0), (2, 12, 5), (4, 14, 9)]);
        for other in [mark(1, 11, 6), mark(2, 12, 10), mark(4, 14, 21)] {
            assert!(!life.has_lived(&other, 20), "{other:?}");
        }
    }

    #[test]
    fn openings_of_another_copy_are_foreign() {
        let life = life(&[(2, 12, 5), (4, 14, 9)]);
        // With another id, later than the last, not listed, and before the list was kept.
        for other in [
            mark(4, 99, 1),
            mark(5, 15, 1),
            mark(3, 13, 1),
            mark(1, 11, 1),
        ] {
            assert!(!life.has_lived(&other, 20), "{other:?}");
        }
    }

    #[test]
    fn a_store_without_a_list_has_reported_no_mark() {
        let empty = StoreLife::default();
        assert!(!empty.has_lived(&mark(0, 0, 0), 20));
        assert!(!empty.has_lived(&mark(1, 11, 1), 20));
    }

    #[test]
    fn openings_that_a_full_list_has_dropped_count_as_lived() {
        let last = OPENINGS_MAX as u64 + 3;
        let all: Vec<_> = (1..=last).map(|n| (n, 10 + n, n)).collect();
        let life = life(&all);
        assert_eq!(life.openings().len(), OPENINGS_MAX);
        assert!(life.has_lived(&mark(3, 99, 1_000), last));
        assert!(life.has_lived(&mark(4, 14, 5), last));
        assert!(!life.has_lived(&mark(4, 99, 5), last));
        assert!(!life.has_lived(&mark(0, 0, 0), last));
    }

    #[test]
    fn a_mark_that_cannot_continue_another_one_is_of_an_older_copy() {
        let earlier = mark(2, 12, 9);
        let opened = |opening, found| StoreMark {
            found,
            ..mark(opening, 99, 1_000)
        };
        assert!(earlier.may_continue(&earlier));
        assert!(mark(2, 12, 10).may_continue(&earlier));
        assert!(opened(3, 9).may_continue(&earlier) && opened(5, 30).may_continue(&earlier));
        for older in [
            mark(2, 12, 8),
            mark(2, 13, 10),
            mark(1, 11, 50),
            opened(3, 8),
            StoreMark {
                store: 2,
                ..opened(3, 9)
            },
        ] {
            assert!(!older.may_continue(&earlier), "{older:?}");
        }
    }

    #[test]
    fn a_mark_is_put_back_unless_the_present_one_may_continue_it() {
        let (earlier, later) = (mark(2, 12, 8), mark(2, 12, 9));
        assert_eq!(later.restored(None), Some(later));
        assert_eq!(later.restored(Some(&earlier)), Some(later));
        assert_eq!(earlier.restored(Some(&later)), None);
        let other_store = StoreMark { store: 2, ..later };
        assert_eq!(earlier.restored(Some(&other_store)), Some(earlier));
    }

    #[test]
    fn no_copy_has_lived_the_mark_that_replaces_those_of_two_copies() {
        let (one, other) = (mark(2, 12, 9), mark(2, 13, 7));
        let replacing = one.restored(Some(&other)).unwrap();
        assert_eq!(other.restored(Some(&one)), Some(replacing));
        let lives = [
            life(&[(1, 11, 0), (2, 12, 5)]),
            life(&[(1, 11, 0), (2, 13, 5)]),
            life(&(1..=300).map(|n| (n, n, n)).collect::<Vec<_>>()),
        ];
        for life in lives {
            assert!(!life.has_lived(&replacing, u64::MAX - 1));
        }
        for mark in [one, other, replacing] {
            assert_eq!(mark.restored(Some(&replacing)), None);
        }
    }

    #[test]
    fn a_life_and_a_mark_are_read_as_they_were_written() {
        let all: Vec<_> = (1..=300)
            .map(|n| (n, u64::MAX - n, u64::MAX - 300 + n))
            .collect();
        let life = life(&all);
        let text = serde_json::to_vec(&life).unwrap();
        assert!(text.len() < 13_000, "{} bytes", text.len());
        let read: StoreLife = serde_json::from_slice(&text).unwrap();
        assert_eq!(read, life);
        let mark = mark(1, u64::MAX, 3);
        let text = serde_json::to_string(&mark).unwrap();
        let read: StoreMark = serde_json::from_str(&text).unwrap();
        assert_eq!(read, mark);
        let more = text.replace("\"id\"", "\"other\":1,\"id\"");
        assert!(serde_json::from_str::<StoreMark>(&more).is_err());
    }
}
