//! A change as its primary judges it, before anybody else hears of it: whether it may be
//! made, what others are told, and what is committed here. Not here: when (`primary`).

use std::{fs::File, iter};

use prism_replica::Stamp;

use super::{Bytes, Change, Keeps, Scope, ScopedChange, primary::Unnamed};
use crate::{
    commit::{
        CompleteOp, Condition, DeleteOp, Failure, Op, Outcome, PartOp, PutBytes, PutOp, check,
        holds, is_of_versions, mode, present, version_of,
    },
    error::Error,
    record::{Payload, Record},
    store::Inner,
    types::ObjectMeta,
    versions::{Removed, VERSIONS_MAX, VersionId, Versioning},
    view::View,
};

/// What comes of judging a change.
pub(super) enum Planned {
    Change(Box<Plan>),
    /// There is nothing to be changed.
    Nothing(Outcome),
}

/// A change that may be made: what others are told, and what is committed here.
pub(super) struct Plan {
    pub(super) changes: Vec<ScopedChange>,
    pub(super) bytes: Bytes,
    pub(super) op: Op,
    /// Of the bucket, as it was judged: it may be told otherwise before the commit.
    pub(super) versioning: Versioning,
    /// The bucket's life.
    pub(super) life: Stamp,
}

/// What is known of a bucket and its keys.
struct Judge<'a> {
    view: &'a View<'a>,
    versioning: Versioning,
}

impl Judge<'_> {
    fn of_scope(&self, scope: &Scope, change: Change) -> Result<ScopedChange, Error> {
        Ok(ScopedChange {
            scope: scope.clone(),
            before: holds(self.view, scope)?,
            change,
        })
    }

    /// A change of an object, as one of a key with versions where those are kept.
    fn of_object(&self, scope: &Scope, change: Change) -> Result<ScopedChange, Error> {
        let change = match self.keeps(scope)? {
            None => change,
            Some(keeps) => Change::Kept(keeps, Box::new(change)),
        };
        self.of_scope(scope, change)
    }

    /// How the versions of a key are treated, if they are kept.
    fn keeps(&self, scope: &Scope) -> Result<Option<Keeps>, Error> {
        let object_key = scope.object_key();
        let versioning = mode(self.view, self.versioning, &object_key)?;
        if versioning == Versioning::Never {
            return Ok(None);
        }
        let has_versions = self.view.change(&object_key)?.is_some();
        let builds = has_versions || self.view.object(&object_key)?.is_some();
        Ok(Some(Keeps { versioning, builds }))
    }

    /// There may be one more version, if it is one.
    fn check_room(&self, scope: &Scope) -> Result<(), Error> {
        let is_new = self.keeps(scope)?.is_some_and(|keeps| keeps.builds);
        let count = || self.view.count_versions(&scope.object_key(), VERSIONS_MAX);
        match is_new && count()? >= VERSIONS_MAX {
            true => Err(Error::TooManyVersions),
            false => Ok(()),
        }
    }

    fn object(&self, scope: &Scope) -> Result<Option<Record>, Error> {
        self.view.object(&scope.object_key())
    }
}

impl Inner {
    /// Judges a change by what there is, and says it so that others can make it.
    pub(super) fn plan(
        &self,
        view: &View<'_>,
        scopes: &[Scope],
        op: Op,
        file: Unnamed<'_>,
    ) -> Result<Planned, Failure> {
        let scope = scopes.first().ok_or(Error::WritesDisabled)?;
        let bucket = view.bucket(&scope.bucket)?.ok_or(Error::NoSuchBucket)?;
        let judge = Judge {
            view,
            versioning: bucket.versioning,
        };
        let (changes, bytes, op) = match op {
            Op::Put(put) => {
                let (change, bytes) = self.plan_put(&judge, scope, &put, file)?;
                (vec![change], bytes, Op::Put(put))
            }
            Op::PutPart(part) => {
                let (change, bytes) = plan_part(&judge, scope, &part, file)?;
                (vec![change], bytes, Op::PutPart(part))
            }
            Op::Delete(delete) => match plan_delete(&judge, scopes, delete)? {
                Deletions::Some(changes, op) => (changes, Bytes::None, *op),
                Deletions::None(outcome) => return Ok(Planned::Nothing(outcome)),
            },
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
                let change = plan_meta(&judge, scope, version, &record)?;
                let op = Op::Change {
                    bucket,
                    object_key,
                    version,
                    change: Box::new(|meta| *meta = record.meta),
                };
                (vec![change], Bytes::None, op)
            }
            Op::CreateUpload(create) => {
                self.committer.open_bucket(view, &create.bucket)?;
                let begin = Change::Begin(create.record.meta.clone());
                let change = judge.of_scope(scope, begin)?;
                (vec![change], Bytes::None, Op::CreateUpload(create))
            }
            Op::Complete(complete) => {
                let change = self.plan_complete(&judge, scope, &complete)?;
                (vec![change], Bytes::None, Op::Complete(complete))
            }
            op @ Op::Abort { .. } => {
                let change = judge.of_scope(scope, Change::Remove)?;
                change.before.ok_or(Error::NoSuchUpload)?;
                (vec![change], Bytes::None, op)
            }
            _ => return Err(Error::WritesDisabled.into()),
        };
        Ok(Planned::Change(Box::new(Plan {
            changes,
            bytes,
            op,
            versioning: judge.versioning,
            life: bucket.which.life,
        })))
    }

    fn plan_put(
        &self,
        judge: &Judge<'_>,
        scope: &Scope,
        put: &PutOp,
        file: Unnamed<'_>,
    ) -> Result<(ScopedChange, Bytes), Error> {
        self.committer.open_bucket(judge.view, &put.bucket)?;
        check(put.condition.as_ref(), judge.object(scope)?.as_ref())?;
        judge.check_room(scope)?;
        let (meta, len) = (put.record.meta.clone(), put.record.len);
        let change = judge.of_object(scope, Change::Write { meta, len })?;
        let bytes = match (&put.bytes, file) {
            (PutBytes::Inline(bytes), _) => Bytes::Inline(bytes.clone()),
            (PutBytes::File(_), Some((file, _))) => copy_of(file)?,
            (PutBytes::File(_), None) => return Err(Error::WritesDisabled),
        };
        Ok((change, bytes))
    }

    fn plan_complete(
        &self,
        judge: &Judge<'_>,
        scope: &Scope,
        complete: &CompleteOp,
    ) -> Result<ScopedChange, Error> {
        let view = judge.view;
        view.upload(&complete.upload_key)?
            .ok_or(Error::NoSuchUpload)?;
        self.committer.open_bucket(view, &complete.bucket)?;
        check(complete.condition.as_ref(), judge.object(scope)?.as_ref())?;
        judge.check_room(scope)?;
        let mut parts = Vec::with_capacity(complete.parts.len());
        for (number, seen) in &complete.parts {
            let record = view.part(complete.upload, *number)?;
            let record = record.filter(|r| r.payload == Payload::File { id: *seen });
            parts.push((*number, record.ok_or(Error::PartChanged)?.stamp));
        }
        let (upload, meta) = (complete.upload, complete.meta.clone());
        let whole = Change::Complete {
            upload,
            meta,
            parts,
        };
        judge.of_object(scope, whole)
    }
}

fn plan_part(
    judge: &Judge<'_>,
    scope: &Scope,
    part: &PartOp,
    file: Unnamed<'_>,
) -> Result<(ScopedChange, Bytes), Error> {
    let upload = judge.view.upload(&part.upload_key)?;
    upload.ok_or(Error::NoSuchUpload)?;
    let (meta, len) = (part.record.meta.clone(), part.record.len);
    let change = judge.of_scope(scope, Change::Write { meta, len })?;
    let (file, _) = file.ok_or(Error::WritesDisabled)?;
    Ok((change, copy_of(file)?))
}

fn plan_meta(
    judge: &Judge<'_>,
    scope: &Scope,
    version: Option<VersionId>,
    record: &Record,
) -> Result<ScopedChange, Error> {
    if record.payload == Payload::Marker {
        return Err(Error::IsDeleteMarker);
    }
    let meta: ObjectMeta = record.meta.clone();
    match (version, judge.keeps(scope)?) {
        (Some(version), Some(_)) => judge.of_object(scope, Change::SetMetaOf(version, meta)),
        // Where none are kept, the null version is the object.
        _ => judge.of_object(scope, Change::SetMeta(meta)),
    }
}

/// What comes of deletions.
enum Deletions {
    Some(Vec<ScopedChange>, Box<Op>),
    /// There is nothing to be deleted; that may have to be said of each key.
    None(Outcome),
}

fn plan_delete(judge: &Judge<'_>, scopes: &[Scope], delete: DeleteOp) -> Result<Deletions, Error> {
    let view = judge.view;
    if !is_of_versions(view, judge.versioning, &delete)? {
        return plan_plain_delete(judge, scopes, delete);
    }
    let named = delete.versions.iter().copied().chain(iter::repeat(None));
    let mut outcome = Outcome::default();
    let mut changes = Vec::new();
    for (scope, version) in scopes.iter().zip(named) {
        let change = plan_deletion(judge, scope, version, delete.condition.as_ref())?;
        outcome.removed.push(version.map(|version| Removed {
            version,
            is_marker: false,
        }));
        changes.extend(change);
    }
    Ok(match changes.is_empty() {
        true => Deletions::None(outcome),
        // Those without a change are answered by the commit.
        false => Deletions::Some(changes, Box::new(Op::Delete(delete))),
    })
}

/// One key of which versions are kept, or one that has none in a bucket where others do.
fn plan_deletion(
    judge: &Judge<'_>,
    scope: &Scope,
    version: Option<VersionId>,
    condition: Option<&Condition>,
) -> Result<Option<ScopedChange>, Error> {
    let object_key = scope.object_key();
    let Some(id) = version else {
        let current = judge.object(scope)?;
        check(condition, current.as_ref())?;
        if judge.keeps(scope)?.is_none() && current.is_none() {
            return Ok(None);
        }
        judge.check_room(scope)?;
        return judge.of_object(scope, Change::Remove).map(Some);
    };
    match version_of(judge.view, &scope.bucket, &object_key, id) {
        Ok((record, _)) => check(condition, Some(&record))?,
        Err(Error::NoSuchVersion) => {
            check(condition, None)?;
            return Ok(None);
        }
        Err(error) => return Err(error),
    }
    if judge.keeps(scope)?.is_none() {
        return judge.of_object(scope, Change::Remove).map(Some);
    }
    let others = judge.view.count_versions(&object_key, 2)?;
    let current = usize::from(judge.object(scope)?.is_some());
    let is_last = others + current == 1;
    let change = Change::RemoveVersion {
        version: id,
        is_last,
    };
    judge.of_object(scope, change).map(Some)
}

/// Keys without versions, of which none is named: those that there are.
fn plan_plain_delete(
    judge: &Judge<'_>,
    scopes: &[Scope],
    mut delete: DeleteOp,
) -> Result<Deletions, Error> {
    let (mut changes, mut kept) = (Vec::new(), Vec::new());
    for (scope, object_key) in scopes.iter().zip(delete.object_keys) {
        let current = judge.object(scope)?;
        check(delete.condition.as_ref(), current.as_ref())?;
        if current.is_some() {
            changes.push(judge.of_scope(scope, Change::Remove)?);
            kept.push(object_key);
        }
    }
    delete.object_keys = kept;
    Ok(match changes.is_empty() {
        true => Deletions::None(Outcome::default()),
        false => Deletions::Some(changes, Box::new(Op::Delete(delete))),
    })
}

/// The same file, for somebody else.
fn copy_of(file: &File) -> Result<Bytes, Error> {
    Ok(Bytes::File(file.try_clone()?))
}
