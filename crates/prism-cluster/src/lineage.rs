//! The lineage of a cluster's contents in etcd, by which an older copy of them is noticed.
//!
//! Every change of the state, the wish, the users and the buckets adds a random number to the
//! lineage, in the same transaction. A node that acts by the contents notes the [`LineageMark`]
//! first. From then on it acts by nothing that does not descend from that mark: a copy that was put
//! back is older, and a copy that was changed apart has other numbers.
//!
//! The lineage does not depend on etcd's revisions or identity. An etcd whose members, hosts or
//! revisions change keeps it.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Age of a noted change from which on other nodes have to know it too.
const SETTLED_AFTER: Duration = Duration::from_secs(1);

/// Changes whose numbers are known. An older mark counts as an ancestor.
const IDS_MAX: usize = 256;

/// The distance from the last known change to the first one after a recovery. All marks from
/// before are older than the known numbers then.
const GAP: u64 = 1_000_000;

/// The number of changes so far, and the numbers of the last ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lineage {
    /// The number of changes.
    count: u64,
    /// The random numbers of the last changes, the latest one last; at least one.
    ids: Vec<u64>,
}

/// One change: how many came before it, and its random number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LineageMark {
    /// The number of changes up to this one.
    pub count: u64,
    /// The random number of this one.
    pub id: u64,
}

impl Lineage {
    /// The lineage after a further change with the random number `id`. `before` is `None` for the
    /// first change.
    #[must_use]
    pub fn next(before: Option<&Self>, id: u64) -> Self {
        let (count, ids) = before.map_or((0, &[][..]), |before| (before.count, &before.ids));
        let kept = ids.len().saturating_sub(IDS_MAX - 1);
        let mut ids: Vec<u64> = ids.iter().skip(kept).copied().collect();
        ids.push(id);
        Self {
            count: count.saturating_add(1),
            ids,
        }
    }

    /// The lineage after a recovery with the random number `id`. It descends from all these marks
    /// and from `before`.
    #[must_use]
    pub fn recovered(
        before: Option<&Self>,
        marks: impl IntoIterator<Item = LineageMark>,
        id: u64,
    ) -> Self {
        let marks = marks.into_iter().chain(before.map(Self::mark));
        let last = marks.map(|mark| mark.count).max();
        Self {
            count: last.unwrap_or_default().saturating_add(GAP),
            ids: vec![id],
        }
    }

    /// The last change.
    pub fn mark(&self) -> LineageMark {
        LineageMark {
            count: self.count,
            id: self.ids.last().copied().unwrap_or_default(),
        }
    }

    /// Whether the contents were made from those with this mark. A mark that is older than the
    /// known numbers counts as an ancestor.
    pub fn descends_from(&self, mark: LineageMark) -> bool {
        let Some(later) = self.count.checked_sub(mark.count) else {
            return false;
        };
        let later = usize::try_from(later).unwrap_or(usize::MAX);
        let id = self.ids.iter().rev().nth(later);
        id.is_none_or(|id| *id == mark.id)
    }

    /// Whether so many changes came after this mark that its number is not known any more. A
    /// recovery makes it so for every mark.
    pub fn is_far_from(&self, mark: LineageMark) -> bool {
        self.count.saturating_sub(mark.count) >= self.ids.len() as u64
    }

    /// Whether one of the last changes has this number.
    pub fn has(&self, id: u64) -> bool {
        self.ids.contains(&id)
    }

    /// Whether this can be a lineage. One that comes from outside has to be checked.
    pub fn is_valid(&self) -> bool {
        (1..=IDS_MAX).contains(&self.ids.len()) && self.ids.len() as u64 <= self.count
    }
}

/// The last change that a node has noted some time ago, so that every other node has heard of it
/// unless it acts by an older copy of the contents. It travels with requests between nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct SettledMark {
    settled: Option<LineageMark>,
    next: Option<(LineageMark, Instant)>,
}

impl SettledMark {
    /// Takes the last noted change at the time `now`. A change that is passed again and again
    /// settles after at most twice [`SETTLED_AFTER`].
    pub fn note(&mut self, mark: LineageMark, now: Instant) {
        self.settled = self.at(now);
        match self.next {
            Some((next, _)) if self.settled != Some(next) => {}
            _ => self.next = Some((mark, now)),
        }
    }

    /// The change that has settled by the time `now`.
    pub fn at(&self, now: Instant) -> Option<LineageMark> {
        match self.next {
            Some((next, since)) if now.duration_since(since) >= SETTLED_AFTER => Some(next),
            _ => self.settled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_settles_also_while_others_follow_it() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let change = |count| LineageMark { count, id: count };
        let mut marks = SettledMark::default();
        for ms in (0..3_000).step_by(100) {
            marks.note(change(ms), at(ms));
            let settled = marks.at(at(ms)).map_or(0, |mark| mark.count);
            assert!(settled + 1_000 <= ms.max(1_000), "{settled} at {ms}");
            assert!(settled + 2_000 >= ms, "{settled} at {ms}");
        }
        // The last one is passed again.
        for ms in [3_500, 4_000, 4_500] {
            marks.note(change(2_900), at(ms));
        }
        assert_eq!(marks.at(at(5_000)), Some(change(2_900)));
        assert_eq!(SettledMark::default().at(begin), None);
    }

    fn after(changes: u64) -> Lineage {
        (2..=changes).fold(Lineage::next(None, 1), |before, id| {
            Lineage::next(Some(&before), id)
        })
    }

    #[test]
    fn contents_descend_from_every_mark_that_they_had() {
        let mut lineage = after(1);
        let mut marks = vec![lineage.mark()];
        for id in 2..=3 * IDS_MAX as u64 {
            lineage = Lineage::next(Some(&lineage), id);
            marks.push(lineage.mark());
            assert!(lineage.is_valid());
        }
        assert!(marks.iter().all(|mark| lineage.descends_from(*mark)));
        assert_eq!(lineage.ids.len(), IDS_MAX);
    }

    #[test]
    fn an_older_copy_and_one_that_was_changed_apart_do_not_descend() {
        let copy = after(5);
        let last = (6..9).fold(copy.clone(), |before, id| Lineage::next(Some(&before), id));
        assert!(!copy.descends_from(last.mark()));
        let mut apart = copy;
        for id in 100..100 + IDS_MAX as u64 {
            apart = Lineage::next(Some(&apart), id);
            let is_noticed = apart.count - last.mark().count.min(apart.count) < IDS_MAX as u64;
            assert!(is_noticed && !apart.descends_from(last.mark()), "{id}");
        }
    }

    #[test]
    fn recovered_contents_descend_from_all_that_was_there() {
        let (one, other) = (after(5), after(900));
        let recovered = Lineage::recovered(Some(&one), [other.mark()], 7);
        assert!(recovered.is_valid());
        for mark in [one.mark(), other.mark(), after(903).mark()] {
            assert!(recovered.descends_from(mark) && recovered.is_far_from(mark));
        }
        assert!(!other.is_far_from(after(700).mark()) && other.is_far_from(one.mark()));
        assert!(!other.descends_from(recovered.mark()));
        assert!(Lineage::recovered(None, [], 7).is_valid());
    }

    #[test]
    fn what_cannot_be_a_lineage_is_refused() {
        let invalid = |text: &str| {
            let read: Result<Lineage, _> = serde_json::from_str(text);
            read.is_ok_and(|lineage| !lineage.is_valid())
        };
        assert!(invalid(r#"{"count":0,"ids":[]}"#));
        assert!(invalid(r#"{"count":1,"ids":[1,2]}"#));
        assert!(invalid(r#"{"count":9,"ids":[]}"#));
    }
}
