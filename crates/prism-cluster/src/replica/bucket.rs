//! The agreed record of a bucket, and how it changes.
//!
//! Every name that was ever used has one record in the *registry*. A change replaces the
//! record only if that has not changed meanwhile, so the changes of a name have an order.
//! Every backend has a copy and acts by it. The record with the
//! greatest stamp counts.
//!
//! A bucket has *lives*: one that is deleted and created again has another one. A backend
//! deletes its objects of an earlier life before it accepts the next one.
//!
//! A deletion has three steps:
//!
//! 1. The registry says that the bucket is being deleted.
//! 2. All backends accept that record, refuse writes, and say whether they have objects.
//! 3. The registry says that the bucket is gone, or that it is live again.
//!
//! Any backend that finds an abandoned deletion may change the record back to live. A bucket
//! that is gone leaves its record behind: no backend deletes objects because a record is
//! missing somewhere. The record keeps the quota of the name, which counts for the next bucket.
//!
//! The registry may be put back from an older copy, or lose its records. Therefore:
//!
//! - An earlier life never replaces a later one ([`take_bucket`]).
//! - A backend in sync deletes the objects of a life only by proof that this life has ended
//!   ([`Ancestry`]). A bucket that was created while the registry had lost its records
//!   has no such proof.
//! - A backend in sync puts back what the registry has lost ([`Bucket::correction`]).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::stamp::Stamp;

/// How far a bucket's life has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// It exists.
    Live,
    /// It exists, and takes nothing in.
    Deleting,
    /// It does not exist.
    Gone,
}

/// Identifies a record of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketStamp {
    /// The stamp of the record's last change.
    pub stamp: Stamp,
    /// The stamp of the bucket's creation, which names this life.
    pub life: Stamp,
    /// How far this life has come.
    pub phase: Phase,
}

/// The registry's proof that earlier lives of a bucket have ended. A deletion ends only when
/// every backend has taken part in it. The end of one life therefore proves the ends of all
/// lives before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ancestry {
    /// The life that replaced them.
    pub life: Stamp,
    /// All other lives up to this one have ended; [`Stamp::NONE`] if none is known to have.
    pub ended: Stamp,
}

/// The reason to believe that the life that a backend knows has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// The registry's ancestry. None for records of earlier releases and without etcd, which
    /// are trusted.
    Registry(Option<Ancestry>),
    /// The backend catches up, and has the registry's present record. Its own objects do not
    /// count: catch-up deletes what backends in sync lack.
    CatchUp,
}

/// The agreed record of a bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    /// The stamp of this record's last change.
    pub stamp: Stamp,
    /// The stamp of the bucket's creation; [`Stamp::NONE`] for a bucket that is older than
    /// records.
    pub life: Stamp,
    /// How far this life has come.
    pub phase: Phase,
    /// When it was created, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// Whether versions are kept; none if they never were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions: Option<bool>,
    /// Documents by their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub documents: BTreeMap<String, String>,
}

/// Why a bucket is not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BucketRefusal {
    /// A bucket of that name exists.
    Exists,
    /// No bucket of that name exists.
    Missing,
    /// The bucket is being deleted.
    Deleting,
}

/// A backend's decision on a record that it receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeBucket {
    /// Ignore the record: the backend has the same or a later one.
    Nothing,
    /// Act by the record from now on.
    Take,
    /// Act by the record once nothing is left of the life that the backend knows.
    TakeWhenEmpty,
    /// Refuse the record: nothing proves that the life that the backend knows has ended.
    Refuse,
}

impl Proof {
    /// That of records without an ancestry.
    pub const TRUSTED: Self = Self::Registry(None);
}

/// A change that puts back what the registry has lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Correction {
    /// The record that counts again.
    pub record: Bucket,
    /// Its ancestry.
    pub ancestry: Ancestry,
}

impl Bucket {
    /// The document that belongs to the name: it outlives the bucket.
    pub const QUOTA: &str = "quota";

    /// A new bucket of a name whose agreed record is `known`. `stamp` is above that of
    /// `known`.
    ///
    /// # Errors
    /// [`BucketRefusal::Exists`], [`BucketRefusal::Deleting`].
    pub fn create(
        known: Option<&Self>,
        stamp: Stamp,
        created_ms: u64,
    ) -> Result<Self, BucketRefusal> {
        match known.map(|known| known.phase) {
            Some(Phase::Live) => Err(BucketRefusal::Exists),
            Some(Phase::Deleting) => Err(BucketRefusal::Deleting),
            Some(Phase::Gone) | None => Ok(Self {
                stamp,
                life: stamp,
                phase: Phase::Live,
                created_ms,
                versions: None,
                documents: known.map(Self::documents_of_name).unwrap_or_default(),
            }),
        }
    }

    /// The bucket as `change` changes it.
    ///
    /// # Errors
    /// [`BucketRefusal::Missing`], [`BucketRefusal::Deleting`].
    pub fn change(
        known: Option<&Self>,
        stamp: Stamp,
        change: impl FnOnce(&mut Self),
    ) -> Result<Self, BucketRefusal> {
        let mut next = Self::existing(known)?.clone();
        change(&mut next);
        next.stamp = stamp;
        Ok(next)
    }

    /// The record as `change` changes its quota, which a name without a bucket may have as well.
    ///
    /// # Errors
    /// [`BucketRefusal::Deleting`]; [`BucketRefusal::Missing`] if there is neither a bucket nor a
    /// quota.
    pub fn change_quota(
        known: Option<&Self>,
        stamp: Stamp,
        change: impl FnOnce(&mut Self),
    ) -> Result<Self, BucketRefusal> {
        match known.filter(|known| known.phase == Phase::Gone && known.has_quota()) {
            Some(gone) => {
                let mut next = gone.clone();
                change(&mut next);
                next.stamp = stamp;
                Ok(next)
            }
            None => Self::change(known, stamp, change),
        }
    }

    /// Whether the name has a quota.
    #[must_use]
    pub fn has_quota(&self) -> bool {
        self.documents.contains_key(Self::QUOTA)
    }

    /// The first step of a deletion.
    ///
    /// # Errors
    /// [`BucketRefusal::Missing`], [`BucketRefusal::Deleting`].
    pub fn begin_deletion(known: Option<&Self>, stamp: Stamp) -> Result<Self, BucketRefusal> {
        Self::change(known, stamp, |next| next.phase = Phase::Deleting)
    }

    /// The last step of a deletion. `is_empty` says whether every backend has accepted this
    /// record and has no object of the bucket.
    #[must_use]
    pub fn end_deletion(&self, stamp: Stamp, is_empty: bool) -> Self {
        if is_empty {
            self.buried(stamp)
        } else {
            Self {
                stamp,
                phase: Phase::Live,
                ..self.clone()
            }
        }
    }

    /// The record of this life's deletion.
    #[must_use]
    pub fn buried(&self, stamp: Stamp) -> Self {
        Self {
            stamp,
            life: self.life,
            phase: Phase::Gone,
            created_ms: self.created_ms,
            versions: None,
            documents: self.documents_of_name(),
        }
    }

    /// The ancestry of `next`, if it begins a life. `known` is the record that it replaces.
    #[must_use]
    pub fn ancestry(known: Option<&Self>, next: &Self) -> Option<Ancestry> {
        let ended = known.map_or(Stamp::NONE, |known| known.life);
        let begins = next.phase == Phase::Live && next.life == next.stamp;
        begins.then_some(Ancestry {
            life: next.life,
            ended,
        })
    }

    /// The correction of a registry that is older than the record `here` of a backend in
    /// sync. None if the registry is not older. `stamp` is above both records.
    ///
    /// A record that the registry has lost keeps its stamp, so that of several backends the
    /// one with the latest record wins. The caller has to know the latest record of all
    /// backends in sync where the registry has a later stamp in a life that does not count.
    #[must_use]
    pub fn correction(
        registry: Option<(&Self, Option<Ancestry>)>,
        here: &Self,
        stamp: Stamp,
    ) -> Option<Correction> {
        let mut record = here.clone();
        if let Some((known, ancestry)) = registry
            && known.stamp >= here.stamp
        {
            let take = take_bucket(Some(here.which()), known.which(), Proof::Registry(ancestry));
            if take != TakeBucket::Refuse {
                return None;
            }
            record.stamp = stamp;
        }
        let known_life = registry.map_or(Stamp::NONE, |(known, _)| known.life);
        let ancestry = Ancestry {
            life: here.life,
            ended: here.life.max(known_life),
        };
        Some(Correction { record, ancestry })
    }

    /// Identifies this record.
    #[must_use]
    pub fn which(&self) -> BucketStamp {
        BucketStamp {
            stamp: self.stamp,
            life: self.life,
            phase: self.phase,
        }
    }

    fn documents_of_name(&self) -> BTreeMap<String, String> {
        let documents = self.documents.iter();
        let of_name = documents.filter(|(name, _)| *name == Self::QUOTA);
        of_name
            .map(|(name, text)| (name.clone(), text.clone()))
            .collect()
    }

    fn existing(known: Option<&Self>) -> Result<&Self, BucketRefusal> {
        match known.map(|known| (known, known.phase)) {
            Some((known, Phase::Live)) => Ok(known),
            Some((_, Phase::Deleting)) => Err(BucketRefusal::Deleting),
            Some((_, Phase::Gone)) | None => Err(BucketRefusal::Missing),
        }
    }
}

/// The action of a backend that has `mine` and receives `theirs`.
#[must_use]
pub fn take_bucket(mine: Option<BucketStamp>, theirs: BucketStamp, proof: Proof) -> TakeBucket {
    let Some(mine) = mine else {
        return TakeBucket::Take;
    };
    let has_ended = match proof {
        Proof::CatchUp if theirs == mine => return TakeBucket::Nothing,
        Proof::CatchUp => true,
        Proof::Registry(_) if theirs.stamp <= mine.stamp => return TakeBucket::Nothing,
        Proof::Registry(ancestry) => has_ended(mine, theirs, ancestry),
    };
    match theirs.phase {
        _ if theirs.life == mine.life => TakeBucket::Take,
        _ if !has_ended => TakeBucket::Refuse,
        Phase::Gone => TakeBucket::Take,
        Phase::Live | Phase::Deleting => TakeBucket::TakeWhenEmpty,
    }
}

/// Whether the life of `mine` has ended, by a later record `theirs` of another life.
fn has_ended(mine: BucketStamp, theirs: BucketStamp, ancestry: Option<Ancestry>) -> bool {
    let ancestry = ancestry.filter(|ancestry| ancestry.life == theirs.life);
    if ancestry.is_some_and(|ancestry| mine.life <= ancestry.ended) {
        return true;
    }
    // Nothing is lost with a life that is gone. The end of a life proves the ends before it.
    let needs_no_proof =
        ancestry.is_none() || mine.phase == Phase::Gone || theirs.phase == Phase::Gone;
    mine.life < theirs.life && needs_no_proof
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn stamp(time_us: u64) -> Stamp {
        Stamp {
            epoch: 1,
            time_us,
            origin: 1,
        }
    }

    #[test]
    fn a_bucket_is_created_deleted_and_created_again_with_another_life() {
        let first = Bucket::create(None, stamp(1), 7).unwrap();
        let again = Bucket::create(Some(&first), stamp(2), 8);
        assert_eq!(again, Err(BucketRefusal::Exists));
        let deleting = Bucket::begin_deletion(Some(&first), stamp(2)).unwrap();
        for refused in [
            Bucket::create(Some(&deleting), stamp(3), 8),
            Bucket::begin_deletion(Some(&deleting), stamp(3)),
            Bucket::change(Some(&deleting), stamp(3), |_| {}),
        ] {
            assert_eq!(refused, Err(BucketRefusal::Deleting));
        }
        let kept = deleting.end_deletion(stamp(3), false);
        assert_eq!((kept.phase, kept.life), (Phase::Live, first.life));
        let gone = deleting.end_deletion(stamp(3), true);
        let refused = Bucket::change(Some(&gone), stamp(4), |_| {});
        assert_eq!(refused, Err(BucketRefusal::Missing));
        let second = Bucket::create(Some(&gone), stamp(4), 9).unwrap();
        assert_ne!(second.life, first.life);
    }

    #[test]
    fn documents_live_as_long_as_the_bucket() {
        let bucket = Bucket::create(None, stamp(1), 7).unwrap();
        let with = Bucket::change(Some(&bucket), stamp(2), |next| {
            next.versions = Some(true);
            next.documents.insert("cors".into(), "<a/>".into());
        });
        let deleting = Bucket::begin_deletion(with.as_ref().ok(), stamp(3)).unwrap();
        let kept = deleting.end_deletion(stamp(4), false);
        assert_eq!(kept.documents, with.unwrap().documents);
        let gone = deleting.end_deletion(stamp(4), true);
        assert!(gone.documents.is_empty() && gone.versions.is_none());
    }

    #[test]
    fn a_quota_outlives_the_bucket_and_counts_for_the_next_one_of_its_name() {
        let set = |text: Option<&str>| {
            let text = text.map(str::to_owned);
            move |next: &mut Bucket| match text {
                Some(text) => drop(next.documents.insert(Bucket::QUOTA.into(), text)),
                None => drop(next.documents.remove(Bucket::QUOTA)),
            }
        };
        let bucket = Bucket::create(None, stamp(1), 7).unwrap();
        let limited = Bucket::change_quota(Some(&bucket), stamp(2), set(Some("1"))).unwrap();
        let gone = limited.buried(stamp(3));
        let next = Bucket::create(Some(&gone), stamp(4), 7).unwrap();
        assert_eq!(next.documents, limited.documents);
        let changed = Bucket::change_quota(Some(&gone), stamp(4), set(Some("2"))).unwrap();
        assert_eq!(
            (changed.stamp, changed.life, changed.phase),
            (stamp(4), gone.life, Phase::Gone)
        );
        let free = Bucket::change_quota(Some(&changed), stamp(5), set(None)).unwrap();
        let again = Bucket::create(Some(&free), stamp(6), 7).unwrap();
        assert!(!again.has_quota());
        for unused in [None, Some(&free)] {
            let refused = Bucket::change_quota(unused, stamp(6), set(Some("1")));
            assert_eq!(refused, Err(BucketRefusal::Missing));
        }
    }

    #[test]
    fn a_backend_takes_what_is_newer_and_another_life_only_when_it_has_nothing_left() {
        let record = |time, life, phase| BucketStamp {
            stamp: stamp(time),
            life: stamp(life),
            phase,
        };
        let (live, gone) = (record(2, 1, Phase::Live), record(5, 1, Phase::Gone));
        assert_eq!(take_bucket(None, live, Proof::TRUSTED), TakeBucket::Take);
        assert_eq!(
            take_bucket(Some(live), live, Proof::TRUSTED),
            TakeBucket::Nothing
        );
        assert_eq!(
            take_bucket(Some(gone), live, Proof::TRUSTED),
            TakeBucket::Nothing
        );
        assert_eq!(
            take_bucket(Some(live), gone, Proof::TRUSTED),
            TakeBucket::Take
        );
        let next = record(6, 6, Phase::Live);
        assert_eq!(
            take_bucket(Some(gone), next, Proof::TRUSTED),
            TakeBucket::TakeWhenEmpty
        );
        assert_eq!(
            take_bucket(Some(live), next, Proof::TRUSTED),
            TakeBucket::TakeWhenEmpty
        );
    }

    fn record_of(time: u64, life: u64, phase: Phase) -> Bucket {
        let mut bucket = Bucket::create(None, stamp(life), 7).unwrap();
        (bucket.stamp, bucket.phase) = (stamp(time), phase);
        bucket
    }

    #[test]
    fn an_earlier_life_never_replaces_a_later_one() {
        let mine = record_of(5, 4, Phase::Live);
        for phase in [Phase::Live, Phase::Deleting, Phase::Gone] {
            let theirs = record_of(9, 1, phase);
            let proof = Bucket::ancestry(None, &record_of(1, 1, Phase::Live));
            for ancestry in [None, proof] {
                let take = take_bucket(
                    Some(mine.which()),
                    theirs.which(),
                    Proof::Registry(ancestry),
                );
                assert_eq!(take, TakeBucket::Refuse, "{phase:?} {ancestry:?}");
            }
        }
    }

    #[test]
    fn objects_are_deleted_only_by_proof_that_their_life_has_ended() {
        let (mine, gone) = (record_of(2, 1, Phase::Live), record_of(3, 1, Phase::Gone));
        let again = Bucket::create(Some(&gone), stamp(4), 7).unwrap();
        let out_of_nothing = Bucket::create(None, stamp(4), 7).unwrap();
        let take = |known: Option<&Bucket>, mine: &Bucket, next: &Bucket| {
            take_bucket(
                Some(mine.which()),
                next.which(),
                Proof::Registry(Bucket::ancestry(known, next)),
            )
        };
        assert_eq!(take(Some(&gone), &mine, &again), TakeBucket::TakeWhenEmpty);
        assert_eq!(take(None, &mine, &out_of_nothing), TakeBucket::Refuse);
        assert_eq!(
            take(None, &gone, &out_of_nothing),
            TakeBucket::TakeWhenEmpty
        );
        // A change does not begin a life, and its ancestry stays the one in the registry.
        let changed = Bucket::change(Some(&again), stamp(5), |_| {}).unwrap();
        assert_eq!(Bucket::ancestry(Some(&again), &changed), None);
    }

    #[test]
    fn what_the_registry_has_lost_is_put_back_with_the_stamp_that_it_had() {
        let (old, here) = (record_of(2, 1, Phase::Live), record_of(5, 4, Phase::Live));
        let back = Bucket::correction(None, &here, stamp(9)).unwrap();
        assert_eq!(back.record, here);
        let back = Bucket::correction(Some((&old, None)), &here, stamp(9)).unwrap();
        assert_eq!(back.record, here);
        // Another backend that has the record of before takes it.
        let take = take_bucket(
            Some(old.which()),
            here.which(),
            Proof::Registry(Some(back.ancestry)),
        );
        assert_eq!(take, TakeBucket::TakeWhenEmpty);
        let same = Some((&here, None));
        assert_eq!(Bucket::correction(same, &here, stamp(9)), None);
        assert_eq!(Bucket::correction(same, &old, stamp(9)), None);
    }

    #[test]
    fn a_backend_that_catches_up_takes_what_the_registry_has() {
        let mine = record_of(9, 8, Phase::Live);
        let theirs = record_of(5, 4, Phase::Live);
        let take = |mine: &Bucket, theirs: &Bucket| {
            take_bucket(Some(mine.which()), theirs.which(), Proof::CatchUp)
        };
        assert_eq!(take(&mine, &theirs), TakeBucket::TakeWhenEmpty);
        assert_eq!(
            take(&record_of(9, 4, Phase::Live), &theirs),
            TakeBucket::Take
        );
        assert_eq!(take(&mine, &record_of(5, 4, Phase::Gone)), TakeBucket::Take);
        assert_eq!(take(&theirs, &theirs), TakeBucket::Nothing);
    }

    #[test]
    fn a_life_that_does_not_count_is_replaced_by_the_one_before() {
        let here = record_of(5, 4, Phase::Live);
        // Both were agreed by a registry that was put back: a change of an earlier life, and
        // another life that began out of nothing.
        let changed = record_of(7, 1, Phase::Live);
        let created = record_of(7, 7, Phase::Live);
        let nothing = Bucket::ancestry(None, &created);
        for (known, ancestry) in [(changed, None), (created, nothing)] {
            let back = Bucket::correction(Some((&known, ancestry)), &here, stamp(9)).unwrap();
            assert_eq!((back.record.stamp, back.record.life), (stamp(9), stamp(4)));
            let mine = Some(known.which());
            let take = take_bucket(
                mine,
                back.record.which(),
                Proof::Registry(Some(back.ancestry)),
            );
            assert_eq!(take, TakeBucket::TakeWhenEmpty);
        }
    }
}
