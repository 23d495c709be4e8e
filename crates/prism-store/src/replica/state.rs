//! The facts that a store remembers as a replica: its epoch, the cluster's state, how many
//! replicas a key has, and which objects were deleted.

use std::{cmp::Ordering, sync::Arc, time::Duration};

use prism_cluster::replica::Stamp;

use crate::{
    commit::{Op, When},
    error::{Error, OpenError},
    replicas::Replicas,
    scope::Scope,
    store::Store,
};

/// The record of the tree `system` that says with how many replicas of each key the store was
/// filled.
const REPLICAS_KEY: &str = "replicas";
/// The least time for which a deletion is remembered. Nothing that was sent before it is
/// still on its way then, because nodes give each other up much earlier.
const DELETION_AGE: Duration = Duration::from_secs(600);
/// Deletions looked at in one call.
const DELETIONS_PAGE: usize = 1000;

/// A deletion that could be forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deletion {
    /// The deleted object.
    pub scope: Scope,
    /// The stamp of the deletion.
    pub stamp: Stamp,
}

impl Store {
    /// Makes every later change on these replicas too. Call it once, before the first write:
    /// a second call has no effect.
    pub fn replicate(&self, replicas: Arc<dyn Replicas>) {
        let _ = self.primary.replicas.set(replicas);
    }

    /// Records how many replicas each key has, or compares the number with the recorded one.
    /// Blocks on disk.
    ///
    /// # Errors
    /// [`OpenError::Replicas`] if the store has buckets and was filled with another number.
    pub fn expect_replicas(&self, replicas: u32) -> Result<(), OpenError> {
        let buckets = self.view().buckets(1)?;
        let lsm = &self.storage().lsm;
        let recorded = lsm.system_value(REPLICAS_KEY)?.map(u32::from_be_bytes);
        let is_filled = !buckets.is_empty();
        match recorded.or(is_filled.then_some(1)) {
            Some(noted) if noted == replicas => Ok(()),
            Some(noted) if is_filled => Err(OpenError::Replicas {
                noted,
                wanted: replicas,
            }),
            _ => Ok(lsm.record(REPLICAS_KEY, &replicas.to_be_bytes())?),
        }
    }

    /// The epoch by which this store acts. It is durable. Does not block.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.committer().epoch()
    }

    /// Adopts an epoch, and saves the cluster's state with it: from now on no change of an
    /// earlier epoch is prepared or committed. Every change that was under way has ended when
    /// this returns. In the store's present epoch only the state is written, if it differs.
    /// Blocks on disk.
    pub fn adopt(&self, epoch: u64, state: Option<Vec<u8>>) -> Result<(), Error> {
        let is_new = match epoch.cmp(&self.epoch()) {
            Ordering::Greater => true,
            Ordering::Equal => state.is_some() && state != self.saved_state()?,
            Ordering::Less => false,
        };
        if is_new {
            self.committer()
                .commit(Op::Adopt(epoch, state), When::Always)?;
        }
        Ok(())
    }

    /// The cluster's state that was saved last, if any was. May block on disk.
    pub fn saved_state(&self) -> Result<Option<Vec<u8>>, Error> {
        self.committer().saved_state()
    }

    /// Deletions behind the object key `after` that are old enough at `now_ms` to be
    /// forgotten, in order of keys; and where to continue, if there are more. Their primary
    /// first makes sure that all replicas have applied them. May block on disk.
    pub fn old_deletions(
        &self,
        after: &[u8],
        now_ms: u64,
    ) -> Result<(Vec<Deletion>, Option<Vec<u8>>), Error> {
        let limit = Duration::from_millis(now_ms).saturating_sub(DELETION_AGE);
        let mut found = Vec::new();
        let mut seen = 0;
        for deletion in self.view().deletions(after) {
            let (object_key, stamp) = deletion?;
            seen += 1;
            if Duration::from_micros(stamp.time_us) <= limit {
                let scope = Scope::of_object_key(&object_key)?;
                found.push(Deletion { scope, stamp });
            }
            if seen == DELETIONS_PAGE {
                return Ok((found, Some(object_key)));
            }
        }
        Ok((found, None))
    }

    /// Forgets deletions, except those whose key has changed since. Blocks on disk.
    pub fn forget_deletions(&self, deletions: &[Deletion]) -> Result<(), Error> {
        let items = deletions
            .iter()
            .map(|deletion| (deletion.scope.object_key(), deletion.stamp));
        self.submit(Op::Forget(items.collect()))?;
        Ok(())
    }
}
