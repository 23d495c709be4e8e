//! The store of a replica: taking in what it is to prepare, saying what became
//! of its own changes, and learning what became of others'.

use std::{sync::Arc, time::Duration};

use prism_replica::{Pending, Stamp, Standing};

use super::{Decided, Prepare, Replicas, Scope};
use crate::{
    commit::{Op, SettleOp, When, holds},
    error::{Error, OpenError},
    put::PutWriter,
    record::split_object_key,
    store::Store,
    types::{check_bucket, check_key},
};

/// A deletion is remembered for at least so long: nothing that was sent before
/// it is still under way then, for nodes give each other up much earlier.
const DELETION_AGE: Duration = Duration::from_secs(600);
/// Deletions looked at in one go.
const DELETIONS_PAGE: usize = 1000;

/// A deletion that could be forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deletion {
    /// Of what.
    pub scope: Scope,
    /// Of the deletion.
    pub stamp: Stamp,
}

impl Store {
    /// From here on every change is made together with these. To be called once,
    /// before anything is written.
    pub fn replicate(&self, replicas: Arc<dyn Replicas>) {
        // A second caller would find the first one's at work.
        let _ = self.inner.replicas.set(replicas);
    }

    /// Notes how many replicas there are of each key, or compares with what was
    /// noted. Blocks on disk.
    ///
    /// # Errors
    /// [`OpenError::Replicas`] if a store that is not empty has been filled with
    /// another number.
    pub fn expect_replicas(&self, replicas: u32) -> Result<(), OpenError> {
        let is_empty = self
            .list_buckets()
            .map_err(OpenError::from_store)?
            .is_empty();
        let noted = self.inner.lsm.replicas()?;
        match noted.or((!is_empty).then_some(1)) {
            Some(noted) if noted == replicas => Ok(()),
            Some(noted) if !is_empty => Err(OpenError::Replicas {
                noted,
                wanted: replicas,
            }),
            _ => self.inner.lsm.note_replicas(replicas),
        }
    }

    /// Begins to take in a change that another node is the primary of: its bytes
    /// are to be written, and it is then to be [prepared](PutWriter::prepare).
    /// May block on disk.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooLarge`], [`Error::InvalidName`].
    pub fn begin_prepare(&self, prepare: Prepare) -> Result<PutWriter, Error> {
        for change in &prepare.changes {
            check_bucket(&change.scope.bucket)?;
            check_key(&change.scope.key)?;
        }
        PutWriter::begin_prepare(Arc::clone(&self.inner), prepare)
    }

    /// What became of a change that this node is the primary of. May block on
    /// disk.
    pub fn standing(&self, scope: &Scope, stamp: Stamp) -> Result<Standing, Error> {
        // In this order: what is no longer under way is in the view.
        let under_way = self
            .inner
            .committer
            .locks
            .is_under_way(&scope.tree_key(), stamp);
        let holds = holds(&self.view(), scope)?;
        Ok(match under_way && holds != Some(stamp) {
            true => Standing::UnderWay,
            false => holds.into(),
        })
    }

    /// A change of an object that was prepared here and is not known to be over.
    /// Does not block.
    #[must_use]
    pub fn pending(&self, bucket: &str, key: &str) -> Option<(Scope, Pending)> {
        let scope = Scope::object(bucket, key);
        let entry = self.inner.committer.index.get(&scope.tree_key())?;
        Some((scope, entry.pending))
    }

    /// All of these that have waited for at least so long, of all buckets or of
    /// one. Does not block.
    #[must_use]
    pub fn all_pending(&self, bucket: Option<&str>, for_at_least: Duration) -> Vec<(Scope, Stamp)> {
        self.inner.committer.index.select(|entry| {
            bucket.is_none_or(|bucket| entry.scope.bucket == bucket)
                && entry.since.elapsed() >= for_at_least
        })
    }

    /// Takes note of what became of prepared changes, says somebody in epoch `said`:
    /// if that is an earlier one than this store's, it says nothing. Blocks on disk.
    pub fn settle(&self, items: Vec<(Scope, Stamp, Standing)>, said: u64) -> Result<(), Error> {
        match self.settle_when(items, When::Until(said)) {
            Err(Error::OtherEpoch) => Ok(()),
            result => result,
        }
    }

    pub(super) fn settle_when(
        &self,
        items: Vec<(Scope, Stamp, Standing)>,
        when: When,
    ) -> Result<(), Error> {
        let index = &self.inner.committer.index;
        let open = |(scope, stamp, standing): &(Scope, Stamp, Standing)| {
            let entry = index.get(&scope.tree_key());
            *standing != Standing::UnderWay && entry.is_some_and(|e| e.pending.stamp == *stamp)
        };
        let items: Vec<_> = items.into_iter().filter(open).collect();
        if items.is_empty() {
            return Ok(());
        }
        self.submit_when(Op::Settle(SettleOp::new(items)), when)?;
        Ok(())
    }

    /// The same, as their primary tells it.
    pub fn decided(&self, decided: Decided) -> Result<(), Error> {
        let standing = match decided.committed {
            true => Standing::Holds(decided.stamp),
            // No change has this one.
            false => Standing::Holds(Stamp::NONE),
        };
        let scopes = decided.scopes.into_iter();
        self.settle(
            scopes
                .map(|scope| (scope, decided.stamp, standing))
                .collect(),
            decided.epoch,
        )
    }

    /// Remembered deletions, in the order of their keys, behind `after`, that are
    /// old enough to be forgotten at `now_ms`; and behind what to look next, if there
    /// are more. Whoever is their primary first makes sure that all others have
    /// applied them. May block on disk.
    pub fn old_deletions(
        &self,
        after: &[u8],
        now_ms: u64,
    ) -> Result<(Vec<Deletion>, Option<Vec<u8>>), Error> {
        let limit = Duration::from_millis(now_ms).saturating_sub(DELETION_AGE);
        let (mut found, mut seen) = (Vec::new(), 0);
        for deletion in self.view().deletions(after) {
            let (object_key, stamp) = deletion?;
            seen += 1;
            let split = split_object_key(&object_key);
            let (bucket, key) = split.ok_or_else(|| Error::corrupt("object key"))?;
            if Duration::from_micros(stamp.time_us) <= limit {
                let scope = Scope::object(bucket, key);
                found.push(Deletion { scope, stamp });
            }
            if seen == DELETIONS_PAGE {
                return Ok((found, Some(object_key)));
            }
        }
        Ok((found, None))
    }

    /// Forgets deletions, unless something has happened since. Blocks on disk.
    pub fn forget(&self, deletions: &[Deletion]) -> Result<(), Error> {
        let items = deletions
            .iter()
            .map(|deletion| (deletion.scope.object_key(), deletion.stamp));
        self.submit(Op::Forget(items.collect()))?;
        Ok(())
    }
}

impl PutWriter {
    /// Prepares the change, durably as configured: it counts when the primary says
    /// so. Blocks on disk.
    ///
    /// # Errors
    /// Why it cannot be, in terms of the disk, of the bucket ([`Error::Busy`],
    /// [`Error::NoSuchBucket`]), or of the other replicas: [`Error::Refused`].
    pub fn prepare(self) -> Result<(), Error> {
        match self.finish_prepare()?.refusal {
            None => Ok(()),
            Some(refusal) => Err(Error::Refused(refusal)),
        }
    }
}
