//! Changes that this store prepares for other primaries, and what became of them. The rules
//! are those of [`prism_cluster::replica::happened`] and [`prism_cluster::replica::settle`].

use std::time::Duration;

use prism_cluster::replica::{Pending, Stamp, Standing, has};

use crate::{
    commit::{Op, When},
    error::Error,
    put::{PutWriter, Target},
    replicas::Decided,
    scope::{Prepare, Scope},
    store::Store,
    view::holds,
};

/// The prepared changes of which a store does not know yet whether they were committed.
#[derive(Debug, Clone, Copy)]
pub struct OpenChanges<'a> {
    pub(crate) store: &'a Store,
}

impl Store {
    /// The prepared changes of other primaries.
    #[must_use]
    pub fn open_changes(&self) -> OpenChanges<'_> {
        OpenChanges { store: self }
    }
}

impl OpenChanges<'_> {
    /// Begins to prepare a change of another primary. Write its bytes, and then
    /// [prepare](PutWriter::prepare) it. May block on disk.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooLarge`], [`Error::InvalidName`].
    pub fn begin_prepare(&self, prepare: Prepare) -> Result<PutWriter, Error> {
        for change in &prepare.changes {
            change.scope.check()?;
        }
        let object_key = prepare.changes.first().map(|c| c.scope.object_key());
        let len = prepare.body_len();
        PutWriter::new(
            &self.store.primary,
            Target::Prepare(prepare),
            object_key.unwrap_or_default(),
            Some(len),
        )
    }

    /// The standing of a change whose primary is this node. May block on disk.
    pub fn standing(&self, scope: &Scope, stamp: Stamp) -> Result<Standing, Error> {
        // Before the view is taken: the view has every change that is no longer under way.
        let under_way = self.store.primary.locks.is_under_way(scope, stamp);
        let holds = holds(&self.store.view(), scope)?;
        Ok(if under_way && holds != Some(stamp) {
            Standing::UnderWay
        } else {
            holds.into()
        })
    }

    /// Whether no change is open. Does not block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.store.committer().index.is_empty()
    }

    /// Whether a change of this scope is open. Does not block.
    #[must_use]
    pub fn contains(&self, scope: &Scope) -> bool {
        self.store.committer().index.get(scope).is_some()
    }

    /// The open change of an object. Does not block.
    #[must_use]
    pub fn of_object(&self, bucket: &str, key: &str) -> Option<(Scope, Pending)> {
        let scope = Scope::object(bucket, key);
        let pending = self.store.committer().index.get(&scope)?;
        Some((scope, pending))
    }

    /// The open changes of a key, of its uploads and of their parts. Does not block.
    #[must_use]
    pub fn of_key(&self, bucket: &str, key: &str) -> Vec<(Scope, Pending)> {
        let index = &self.store.committer().index;
        index.select(|scope, _| scope.key == key && scope.bucket == bucket)
    }

    /// The open changes that were begun before an epoch. Does not block.
    #[must_use]
    pub fn begun_before(&self, epoch: u64) -> Vec<(Scope, Pending)> {
        let index = &self.store.committer().index;
        index.select(|_, open| open.pending.epoch < epoch)
    }

    /// The changes that have been open for at least `age`, of one bucket or of all. Does not
    /// block.
    #[must_use]
    pub fn older_than(&self, age: Duration, bucket: Option<&str>) -> Vec<(Scope, Stamp)> {
        let found = self.store.committer().index.select(|scope, open| {
            bucket.is_none_or(|bucket| scope.bucket == bucket) && open.since.elapsed() >= age
        });
        let found = found.into_iter();
        found.map(|(scope, open)| (scope, open.stamp)).collect()
    }

    /// Ends prepared changes by their standings, as a node in epoch `said` knows them. If
    /// that is an earlier epoch than this store's, it has no effect. Blocks on disk.
    pub fn settle(&self, items: Vec<(Scope, Stamp, Standing)>, said: u64) -> Result<(), Error> {
        match self.settle_when(items, When::Until(said)) {
            Err(Error::OtherEpoch) => Ok(()),
            result => result,
        }
    }

    fn settle_when(&self, items: Vec<(Scope, Stamp, Standing)>, when: When) -> Result<(), Error> {
        let index = &self.store.committer().index;
        let open = |(scope, stamp, standing): &(Scope, Stamp, Standing)| {
            let open = index.get(scope);
            *standing != Standing::UnderWay && open.is_some_and(|open| open.stamp == *stamp)
        };
        let items: Vec<_> = items.into_iter().filter(open).collect();
        if items.is_empty() {
            return Ok(());
        }
        self.store.committer().commit(Op::Settle(items), when)?;
        Ok(())
    }

    /// Ends prepared changes as their primary has decided. Blocks on disk.
    pub fn decided(&self, decided: Decided) -> Result<(), Error> {
        let standing = standing_of(decided.stamp, decided.committed);
        let items = decided.scopes.into_iter();
        let items = items.map(|scope| (scope, decided.stamp, standing));
        self.settle(items.collect(), decided.epoch)
    }

    /// Ends changes that an earlier primary left open. A primary in `epoch` has found out
    /// whether each was committed. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::OtherEpoch`]: the primary has to find out again.
    pub fn resolve(&self, items: Vec<(Scope, Stamp, bool)>, epoch: u64) -> Result<(), Error> {
        let items = items.into_iter().map(|(scope, stamp, committed)| {
            let standing = standing_of(stamp, committed);
            (scope, stamp, standing)
        });
        self.settle_when(items.collect(), When::In(epoch))
    }

    /// Whether this store has a change that a later primary finds open. The answer counts
    /// only in that primary's `epoch`, in which no earlier change is prepared or committed
    /// here. May block on disk.
    ///
    /// # Errors
    /// [`Error::OtherEpoch`]; [`Error::Unsettled`] where this store was the change's primary
    /// and does not know whether it was committed.
    pub fn has_change(&self, scope: &Scope, open: Pending, epoch: u64) -> Result<bool, Error> {
        if self.store.epoch() != epoch {
            return Err(Error::OtherEpoch);
        }
        // Before the view is taken: the view has every change that is no longer under way.
        let under_way = self.store.primary.locks.is_under_way(scope, open.stamp);
        let view = self.store.view();
        let pending = view.pending(scope)?.map(|record| record.pending());
        let has = has(open, holds(&view, scope)?, pending);
        if under_way && !has {
            Err(Error::Unsettled)
        } else {
            Ok(has)
        }
    }
}

fn standing_of(stamp: Stamp, committed: bool) -> Standing {
    if committed {
        Standing::Holds(stamp)
    } else {
        // No change has this stamp.
        Standing::Holds(Stamp::NONE)
    }
}
