//! A change on its way to all replicas, at its primary: locked, judged, prepared
//! by the others while its bytes become durable here, committed, told.

use std::{fs::File, slice, sync::Arc};

use prism_replica::{Refusal, Stamp};

use super::{Bytes, Change, Decided, Prepare, Replicas, Scope, ScopedChange, Unprepared};
use crate::{
    commit::{
        DeleteOp, Failure, Op, OpResult, Outcome, PutBytes, When, check, holds, present, version_of,
    },
    error::Error,
    layout::FileId,
    record::{Payload, split_object_key},
    store::Inner,
    uploads::split_upload_key,
    versions::Versioning,
    view::View,
};

/// A change that may be made: what others are told, and what is committed here.
struct Plan {
    changes: Vec<ScopedChange>,
    bytes: Bytes,
    op: Op,
}

/// The file of a change's bytes, and its name to be.
pub(crate) type Unnamed<'a> = Option<(&'a File, FileId)>;

impl Inner {
    /// Commits on all replicas, or here if there are no others. Names the file,
    /// and removes it if the commit certainly failed. Blocks.
    pub(crate) fn submit(&self, op: Op, file: Unnamed<'_>) -> OpResult {
        match self.replicas.get() {
            Some(replicas) if op.is_replicated() => match op {
                Op::Delete(delete) => self.delete_everywhere(replicas, delete),
                op => {
                    let scopes = scopes(&op)?;
                    let epoch = replicas.epoch();
                    let others = others(replicas, &scopes)?;
                    self.submit_everywhere(replicas, (epoch, &others), &scopes, op, file)
                }
            },
            _ => self.submit_here(op, When::Always, file),
        }
    }

    fn submit_here(&self, op: Op, when: When, file: Unnamed<'_>) -> OpResult {
        if let Some((file, id)) = file {
            self.files.publish(file, id)?;
        }
        self.commit_named(op, None, when, file)
    }

    fn commit_named(
        &self,
        op: Op,
        stamp: Option<Stamp>,
        when: When,
        file: Unnamed<'_>,
    ) -> OpResult {
        let result = self.committer.submit_when(op, stamp, when);
        match (&result, file) {
            (Err(failure), Some((_, id))) if !failure.in_doubt => self.files.remove(id),
            _ => {}
        }
        result
    }

    /// Keys whose other replicas are the same go together.
    fn delete_everywhere(&self, replicas: &Arc<dyn Replicas>, delete: DeleteOp) -> OpResult {
        let mut groups: Vec<(Vec<String>, Vec<usize>)> = Vec::new();
        let epoch = replicas.epoch();
        for (index, object_key) in delete.object_keys.iter().enumerate() {
            let others = others(replicas, slice::from_ref(&scope_of(object_key)?))?;
            match groups.iter_mut().find(|(known, _)| *known == others) {
                Some((_, indexes)) => indexes.push(index),
                None => groups.push((others, vec![index])),
            }
        }
        let mut whole = Outcome {
            removed: vec![None; delete.object_keys.len()],
            ..Outcome::default()
        };
        let mut condition = delete.condition;
        for (others, indexes) in groups {
            let of_group = |index: &usize| delete.object_keys.get(*index).cloned();
            let object_keys: Vec<_> = indexes.iter().filter_map(of_group).collect();
            let version_of = |index: &usize| delete.versions.get(*index).copied().flatten();
            let mut versions: Vec<_> = indexes.iter().map(version_of).collect();
            if versions.iter().all(Option::is_none) {
                versions.clear();
            }
            let scopes: Vec<_> = object_keys
                .iter()
                .map(|key| scope_of(key))
                .collect::<Result<_, _>>()?;
            let op = Op::Delete(DeleteOp {
                bucket: delete.bucket.clone(),
                object_keys,
                versions,
                // Only a single key has one.
                condition: condition.take(),
            });
            let outcome = self.submit_everywhere(replicas, (epoch, &others), &scopes, op, None)?;
            whole.found += outcome.found;
            for (index, done) in indexes.iter().zip(outcome.removed) {
                if let Some(place) = whole.removed.get_mut(*index) {
                    *place = done;
                }
            }
            whole.freed.extend(outcome.freed);
        }
        Ok(whole)
    }

    fn submit_everywhere(
        &self,
        replicas: &Arc<dyn Replicas>,
        // The epoch was asked for first: if the others are of a later one, this
        // change does not count.
        (epoch, others): (u64, &[String]),
        scopes: &[Scope],
        op: Op,
        file: Unnamed<'_>,
    ) -> OpResult {
        if others.is_empty() {
            self.check_settled(scopes)?;
            return self.submit_here(op, When::In(epoch), file);
        }
        let locked = self.committer.locks.lock(scopes)?;
        self.check_settled(scopes)?;
        let Some(plan) = self.plan(&self.lsm.view(), scopes, op, file)? else {
            return Ok(Outcome::default());
        };
        let above = plan.changes.iter().filter_map(|change| change.before).max();
        let stamp = self.committer.stamp(epoch, above);
        let decided = |committed| Decided {
            scopes: plan.changes.iter().map(|c| c.scope.clone()).collect(),
            stamp,
            committed,
            epoch,
        };
        let (committed, aborted) = (decided(true), decided(false));
        locked.begin(stamp);
        let prepare = Prepare {
            epoch,
            stamp,
            changes: plan.changes,
        };
        let answer = replicas.prepare(others, prepare, plan.bytes);
        let named = file.map_or(Ok(()), |(file, id)| self.files.publish(file, id));
        // Also waits where naming has failed: nobody is left at work behind us.
        let prepared = answer.recv().unwrap_or(Err(Unprepared::Overloaded));
        if let Err(Unprepared::Refused(_, Refusal::Newer(newer))) = &prepared {
            self.committer.observe(*newer);
        }
        if let Err(error) = named.and(prepared.map_err(Error::from)) {
            drop(locked);
            if let Some((_, id)) = file {
                self.files.remove(id);
            }
            replicas.decided(others, aborted);
            return Err(error.into());
        }
        let result = self.commit_named(plan.op, Some(stamp), When::In(epoch), file);
        match &result {
            Err(failure) if failure.in_doubt => locked.keep(),
            result => {
                drop(locked);
                let decided = if result.is_ok() { committed } else { aborted };
                replicas.decided(others, decided);
            }
        }
        result
    }

    /// Whoever makes changes knows what became of those before.
    fn check_settled(&self, scopes: &[Scope]) -> Result<(), Error> {
        let index = &self.committer.index;
        match scopes.iter().any(|s| index.get(&s.tree_key()).is_some()) {
            true => Err(Error::Unsettled),
            false => Ok(()),
        }
    }

    /// Judges a change by what there is, and says it so that others can make it.
    /// None if there is nothing to be changed.
    fn plan(
        &self,
        view: &View<'_>,
        scopes: &[Scope],
        op: Op,
        file: Unnamed<'_>,
    ) -> Result<Option<Plan>, Failure> {
        let (mut changes, mut bytes) = (Vec::new(), Bytes::None);
        let scope = scopes.first().ok_or(Error::WritesDisabled)?;
        // Others are told of one state of a key, not of several.
        let bucket = view.bucket(&scope.bucket)?;
        if bucket.is_some_and(|info| info.versioning != Versioning::Never) {
            return Err(Error::VersionsOfReplicas.into());
        }
        let mut change = |scope: &Scope, change: Change| -> Result<(), Error> {
            let before = holds(view, scope)?;
            let scope = scope.clone();
            changes.push(ScopedChange {
                scope,
                before,
                change,
            });
            Ok(())
        };
        let op = match op {
            Op::Put(put) => {
                self.committer.open_bucket(view, &put.bucket)?;
                check(
                    put.condition.as_ref(),
                    view.object(&put.object_key)?.as_ref(),
                )?;
                let (meta, len) = (put.record.meta.clone(), put.record.len);
                change(scope, Change::Write { meta, len })?;
                bytes = match (&put.bytes, file) {
                    (PutBytes::Inline(bytes), _) => Bytes::Inline(bytes.clone()),
                    (PutBytes::File(_), Some((file, _))) => copy_of(file)?,
                    (PutBytes::File(_), None) => return Err(Error::WritesDisabled.into()),
                };
                Op::Put(put)
            }
            Op::PutPart(part) => {
                view.upload(&part.upload_key)?.ok_or(Error::NoSuchUpload)?;
                let (meta, len) = (part.record.meta.clone(), part.record.len);
                change(scope, Change::Write { meta, len })?;
                let (file, _) = file.ok_or(Error::WritesDisabled)?;
                bytes = copy_of(file)?;
                Op::PutPart(part)
            }
            Op::Delete(mut delete) => {
                let mut kept = Vec::new();
                let versions = std::mem::take(&mut delete.versions).into_iter();
                let versions = versions.chain(std::iter::repeat(None));
                for ((scope, object_key), version) in
                    scopes.iter().zip(delete.object_keys).zip(versions)
                {
                    let current = view.object(&object_key)?;
                    let current = current.filter(|r| version.is_none_or(|id| id == r.id()));
                    check(delete.condition.as_ref(), current.as_ref())?;
                    if current.is_some() {
                        change(scope, Change::Remove)?;
                        kept.push(object_key);
                    }
                }
                if kept.is_empty() {
                    view.bucket(&delete.bucket)?.ok_or(Error::NoSuchBucket)?;
                    return Ok(None);
                }
                delete.object_keys = kept;
                Op::Delete(delete)
            }
            Op::Change {
                bucket,
                object_key,
                version,
                change: edit,
            } => {
                let mut record = match version {
                    None => present(view, &bucket, &object_key)?,
                    Some(id) => version_of(view, &bucket, &object_key, id)?.0,
                };
                edit(&mut record.meta);
                record.encode()?;
                change(scope, Change::SetMeta(record.meta.clone()))?;
                Op::Change {
                    bucket,
                    object_key,
                    version,
                    change: Box::new(|meta| *meta = record.meta),
                }
            }
            Op::CreateUpload(create) => {
                self.committer.open_bucket(view, &create.bucket)?;
                change(scope, Change::Begin(create.record.meta.clone()))?;
                Op::CreateUpload(create)
            }
            Op::Complete(complete) => {
                view.upload(&complete.upload_key)?
                    .ok_or(Error::NoSuchUpload)?;
                self.committer.open_bucket(view, &complete.bucket)?;
                check(
                    complete.condition.as_ref(),
                    view.object(&complete.object_key)?.as_ref(),
                )?;
                let mut parts = Vec::with_capacity(complete.parts.len());
                for (number, seen) in &complete.parts {
                    let record = view.part(complete.upload, *number)?;
                    let record = record.filter(|r| r.payload == Payload::File { id: *seen });
                    parts.push((*number, record.ok_or(Error::PartChanged)?.stamp));
                }
                let (upload, meta) = (complete.upload, complete.meta.clone());
                change(
                    scope,
                    Change::Complete {
                        upload,
                        meta,
                        parts,
                    },
                )?;
                Op::Complete(complete)
            }
            op @ Op::Abort { .. } => {
                if holds(view, scope)?.is_none() {
                    return Err(Error::NoSuchUpload.into());
                }
                change(scope, Change::Remove)?;
                op
            }
            _ => return Err(Error::WritesDisabled.into()),
        };
        Ok(Some(Plan { changes, bytes, op }))
    }
}

/// The same file, for somebody else.
fn copy_of(file: &File) -> Result<Bytes, Error> {
    Ok(Bytes::File(file.try_clone()?))
}

fn others(replicas: &Arc<dyn Replicas>, scopes: &[Scope]) -> Result<Vec<String>, Error> {
    let scope = scopes.first().ok_or(Error::WritesDisabled)?;
    let others = replicas.others(&scope.bucket, &scope.key);
    others.ok_or(Error::NotPrimary)
}

fn scope_of(object_key: &[u8]) -> Result<Scope, Error> {
    let (bucket, key) = split_object_key(object_key).ok_or_else(|| Error::corrupt("object key"))?;
    Ok(Scope::object(bucket, key))
}

/// What a change locks; the first is what it changes, but for a deletion, which
/// changes all.
fn scopes(op: &Op) -> Result<Vec<Scope>, Error> {
    match op {
        Op::Put(put) => Ok(vec![scope_of(&put.object_key)?]),
        Op::Change { object_key, .. } => Ok(vec![scope_of(object_key)?]),
        Op::PutPart(part) => {
            let upload = Some((part.upload, Some(part.number)));
            let scope = scope_of(&part.object_key)?;
            Ok(vec![Scope { upload, ..scope }])
        }
        Op::Complete(complete) => {
            let object = scope_of(&complete.object_key)?;
            let upload = Scope {
                upload: Some((complete.upload, None)),
                ..object.clone()
            };
            Ok(vec![object, upload])
        }
        Op::CreateUpload(create) => upload_scope(&create.object_key, &create.upload_key),
        Op::Abort {
            object_key,
            upload_key,
            ..
        } => upload_scope(object_key, upload_key),
        _ => Err(Error::WritesDisabled),
    }
}

fn upload_scope(object_key: &[u8], upload_key: &[u8]) -> Result<Vec<Scope>, Error> {
    let (_, id) = split_upload_key(upload_key).ok_or_else(|| Error::corrupt("upload key"))?;
    let upload = Some((id, None));
    let scope = scope_of(object_key)?;
    Ok(vec![Scope { upload, ..scope }])
}
