//! A change at its primary. Its scopes are locked, and the change is planned. The other
//! replicas prepare it while its bytes become durable here. Then it is committed, and the
//! other replicas are told. A store that is alone commits at once.

mod plan;

use std::sync::{Arc, OnceLock};

use prism_cluster::replica::Refusal;

use crate::{
    commit::{Committer, Given, Op, OpResult, Outcome, When},
    config::Config,
    error::Error,
    keys::split_object_key,
    replicas::{Decided, Replicas},
    scope::{Prepare, Scope},
    storage::Storage,
    under_way::Locks,
};
use plan::{Unnamed, plan};

/// A store that makes changes: alone, or as the primary of their keys.
pub(crate) struct Primary {
    pub(crate) committer: Committer,
    pub(crate) storage: Arc<Storage>,
    /// The other nodes; unset where each key has one replica.
    pub(crate) replicas: OnceLock<Arc<dyn Replicas>>,
    /// The scopes whose changes are under way.
    pub(crate) locks: Locks,
    pub(crate) config: Config,
}

impl Primary {
    /// Commits on all replicas, and removes what was replaced. Blocks.
    pub(crate) fn commit(&self, op: Op, file: Unnamed<'_>) -> Result<Outcome, Error> {
        self.committer.finish(self.submit(op, file))
    }

    /// Commits on all replicas, or here if there are no others. Names the file, and removes it
    /// unless the operation may still take effect. Blocks.
    pub(crate) fn submit(&self, op: Op, file: Unnamed<'_>) -> OpResult {
        let Some(replicas) = self.replicas.get() else {
            return self.submit_here(op, When::Always, file);
        };
        let scopes = scopes(&op)?;
        if scopes.is_empty() {
            return self.submit_here(op, When::Always, file);
        }
        let epoch = replicas.epoch();
        let others = others(replicas, &scopes)?;
        self.submit_everywhere(replicas, epoch, others, &scopes, op, file)
    }

    /// The other replicas of a key.
    pub(crate) fn others_of(&self, bucket: &str, key: &str) -> Result<Vec<String>, Error> {
        match self.replicas.get() {
            Some(replicas) => replicas.others(bucket, key),
            None => Ok(Vec::new()),
        }
    }

    /// Checks that enough copies of the key are in sync, before any bytes are taken. The commit
    /// checks again.
    pub(crate) fn check_copies(&self, object_key: &[u8]) -> Result<(), Error> {
        let (bucket, key) = split_object_key(object_key).unwrap_or_default();
        match self.others_of(bucket, key) {
            Err(error @ Error::TooFewCopies { .. }) => Err(error),
            _ => Ok(()),
        }
    }

    fn submit_here(&self, op: Op, when: When, file: Unnamed<'_>) -> OpResult {
        if let Some((file, id)) = file {
            self.storage.files.publish(file, id)?;
        }
        self.commit_named(op, None, when, file)
    }

    fn commit_named(
        &self,
        op: Op,
        given: Option<Given>,
        when: When,
        file: Unnamed<'_>,
    ) -> OpResult {
        let result = self.committer.submit(op, given, when);
        match (&result, file) {
            (Err(failure), Some((_, id))) if !failure.in_doubt => self.storage.files.remove(id),
            _ => {}
        }
        result
    }

    fn submit_everywhere(
        &self,
        replicas: &Arc<dyn Replicas>,
        // Asked for before the others: if those are of a later epoch, the change does not
        // count.
        epoch: u64,
        others: Vec<String>,
        scopes: &[Scope],
        op: Op,
        file: Unnamed<'_>,
    ) -> OpResult {
        if others.is_empty() {
            self.check_settled(scopes)?;
            return self.submit_here(op, When::In(epoch), file);
        }
        let locked = self.locks.lock(scopes)?;
        self.check_settled(scopes)?;
        let plan = plan(&self.storage.lsm.view(), scopes, op, file)?;
        if plan.changes.is_empty() {
            return Ok(plan.outcome);
        }
        let above = plan.changes.iter().filter_map(|change| change.before).max();
        let stamp = self.committer.stamp(epoch, above);
        let decided = |committed| Decided {
            scopes: plan.changes.iter().map(|c| c.scope.clone()).collect(),
            stamp,
            committed,
            epoch,
        };
        let committed = decided(true);
        let aborted = decided(false);
        locked.begin(stamp);
        let prepare = Prepare {
            epoch,
            life: plan.life,
            stamp,
            changes: plan.changes,
        };
        let answer = replicas.prepare(&others, prepare, plan.bytes);
        let named = file.map_or(Ok(()), |(file, id)| self.storage.files.publish(file, id));
        // Waits even if naming failed, so that no replica is still at work afterwards.
        // Without an answer this node has too many changes under way.
        let prepared = answer.recv().unwrap_or(Err(Error::Stalled));
        if let Err(Error::Unreplicated {
            refusal: Some(Refusal::Newer(newer)),
            ..
        }) = &prepared
        {
            self.committer.observe(*newer);
        }
        if let Err(error) = named.and(prepared) {
            drop(locked);
            if let Some((_, id)) = file {
                self.storage.files.remove(id);
            }
            replicas.decided(others, aborted);
            return Err(error.into());
        }
        let given = Given {
            stamp,
            versioning: plan.versioning,
        };
        let result = self.commit_named(plan.op, Some(given), When::In(epoch), file);
        match &result {
            Err(failure) if failure.in_doubt => locked.leak(),
            result => {
                drop(locked);
                let decided = if result.is_ok() { committed } else { aborted };
                replicas.decided(others, decided);
            }
        }
        result
    }

    /// Checks that no earlier change of the scopes is open.
    fn check_settled(&self, scopes: &[Scope]) -> Result<(), Error> {
        let index = &self.committer.index;
        if scopes.iter().any(|scope| index.get(scope).is_some()) {
            Err(Error::Unsettled)
        } else {
            Ok(())
        }
    }
}

/// The other replicas of all scopes. [`Error::OtherEpoch`] if they differ, because the cluster
/// has changed since the scopes were put together.
fn others(replicas: &Arc<dyn Replicas>, scopes: &[Scope]) -> Result<Vec<String>, Error> {
    let others_of = |scope: &Scope| replicas.others(&scope.bucket, &scope.key);
    let first = scopes.first().ok_or(Error::WritesDisabled)?;
    let others = others_of(first)?;
    let mut rest = scopes.iter().skip(1);
    if rest.all(|scope| others_of(scope).is_ok_and(|found| found == others)) {
        Ok(others)
    } else {
        Err(Error::OtherEpoch)
    }
}

/// The scopes that a change locks, none if only this store makes it. A deletion changes all of
/// them, other changes the first.
fn scopes(op: &Op) -> Result<Vec<Scope>, Error> {
    let (object_key, upload) = match op {
        Op::Delete(delete) => {
            let keys = delete.deletions.iter();
            return keys.map(|(key, _)| Scope::of_object_key(key)).collect();
        }
        Op::Complete(complete) => {
            let object = Scope::of_object_key(&complete.object_key)?;
            let upload = object.clone().with_upload(complete.upload, None);
            return Ok(vec![object, upload]);
        }
        Op::Put(put) => (
            &put.object_key,
            put.part.map(|(id, number)| (id, Some(number))),
        ),
        Op::Change { object_key, .. } => (object_key, None),
        Op::CreateUpload { object_key, id, .. } | Op::Abort { object_key, id } => {
            (object_key, Some((*id, None)))
        }
        _ => return Ok(Vec::new()),
    };
    let object = Scope::of_object_key(object_key)?;
    Ok(vec![Scope { upload, ..object }])
}
