//! What a primary finds open that another one has left, and the epochs by which a
//! store acts. The rules are those of [`prism_replica::Resolve`].

use prism_replica::{Pending, Stamp, Standing, has};

use super::Scope;
use crate::{
    commit::{Op, When, holds},
    error::Error,
    store::Store,
};

impl Store {
    /// The epoch by which this store acts; it outlasts the process. Does not block.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.inner.committer.epoch()
    }

    /// From here on nothing counts that was begun in an earlier epoch: it is not
    /// prepared, and not committed. What was under way before is over or given up
    /// when this returns. Blocks on disk.
    ///
    /// # Errors
    /// Where the tree takes no writes.
    pub fn adopt(&self, epoch: u64) -> Result<(), Error> {
        if epoch > self.epoch() {
            self.submit_when(Op::Adopt(epoch, None), When::Always)?;
        }
        Ok(())
    }

    /// [`Store::adopt`], and notes with it what the cluster has agreed on, which
    /// [`Store::noted`] gives again. In the epoch in which the store is already, only
    /// the note is written, if it differs. Blocks on disk.
    ///
    /// # Errors
    /// Where the tree takes no writes.
    pub fn adopt_noting(&self, epoch: u64, note: Vec<u8>) -> Result<(), Error> {
        let is_noted = || Ok::<_, Error>(self.noted()?.is_some_and(|noted| noted == note));
        if epoch > self.epoch() || (epoch == self.epoch() && !is_noted()?) {
            self.submit_when(Op::Adopt(epoch, Some(note)), When::Always)?;
        }
        Ok(())
    }

    /// What was noted with the epoch, if anything was. May block on disk.
    ///
    /// # Errors
    /// Where the tree cannot be read.
    pub fn noted(&self) -> Result<Option<Vec<u8>>, Error> {
        self.inner.lsm.noted()
    }

    /// Whether any change was prepared here and is not known to be over. Does not block.
    #[must_use]
    pub fn has_open(&self) -> bool {
        !self.inner.committer.index.is_empty()
    }

    /// Whether one of this scope was. Does not block.
    #[must_use]
    pub fn is_open(&self, scope: &Scope) -> bool {
        self.inner.committer.index.get(&scope.tree_key()).is_some()
    }

    /// All changes of a key, of its uploads and of their parts that were prepared here
    /// and are not known to be over. Does not block.
    #[must_use]
    pub fn left_open(&self, bucket: &str, key: &str) -> Vec<(Scope, Pending)> {
        let of_key = |scope: &Scope| scope.key == key && scope.bucket == bucket;
        self.all_open(|scope, _| of_key(scope))
    }

    /// All of these that were begun before an epoch. Does not block.
    #[must_use]
    pub fn open_before(&self, epoch: u64) -> Vec<(Scope, Pending)> {
        self.all_open(|_, pending| pending.epoch < epoch)
    }

    fn all_open(&self, wanted: impl Fn(&Scope, &Pending) -> bool) -> Vec<(Scope, Pending)> {
        self.inner
            .committer
            .index
            .all(|entry| wanted(&entry.scope, &entry.pending))
    }

    /// Whether this store has a change that a later primary has open. Says nothing
    /// unless it is in that primary's `epoch`: nothing of an earlier one is prepared
    /// here then, nor committed. May block on disk.
    ///
    /// # Errors
    /// [`Error::OtherEpoch`]; [`Error::Unsettled`] where this store was its primary,
    /// and does not know whether it was committed.
    pub fn has_change(&self, scope: &Scope, open: Pending, epoch: u64) -> Result<bool, Error> {
        let committer = &self.inner.committer;
        if committer.epoch() != epoch {
            return Err(Error::OtherEpoch);
        }
        let tree_key = scope.tree_key();
        // In this order: what is no longer under way is in the view.
        let under_way = committer.locks.is_under_way(&tree_key, open.stamp);
        let view = self.view();
        let pending = view.pending(&tree_key)?.map(|record| record.pending());
        let has = has(open, holds(&view, scope)?, pending);
        match under_way && !has {
            true => Err(Error::Unsettled),
            false => Ok(has),
        }
    }

    /// A primary in `epoch` has found out whether these have happened. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::OtherEpoch`]: it has to be found out again.
    pub fn resolve(&self, items: Vec<(Scope, Stamp, bool)>, epoch: u64) -> Result<(), Error> {
        let standing = |stamp, happened| match happened {
            true => Standing::Holds(stamp),
            // No change has this one.
            false => Standing::Holds(Stamp::NONE),
        };
        let items = items.into_iter();
        let items = items.map(|(scope, stamp, happened)| (scope, stamp, standing(stamp, happened)));
        self.settle_when(items.collect(), When::In(epoch))
    }
}
