//! The plan of a change at its primary: the checks of its conditions, the changes that the
//! other replicas prepare, and the operation that is committed here. `primary` carries it out.

use std::{fs::File, iter};

use prism_replica::Stamp;

use super::{Bytes, Change, Keeps, Scope, ScopedChange, primary::Unnamed};
use crate::{
    commit::{
        CompleteOp, Condition, DeleteOp, Failure, Op, Outcome, PartOp, PutOp, check,
        effective_versioning, is_of_versions, open_bucket, present, version_of,
    },
    error::Error,
    record::{Payload, PutBytes, Record},
    types::{ObjectMeta, Removed, VERSIONS_MAX, VersionId, Versioning},
    view::{View, holds},
};

/// The result of planning a change.
pub(super) enum Planned {
    Change(Box<Plan>),
    /// The change has no effect.
    Nothing(Outcome),
}

/// A change whose conditions hold.
pub(super) struct Plan {
    /// For the other replicas.
    pub(super) changes: Vec<ScopedChange>,
    pub(super) bytes: Bytes,
    /// For this store.
    pub(super) op: Op,
    /// The bucket's versioning at the time of the plan. It may change before the commit.
    pub(super) versioning: Versioning,
    /// The bucket's life.
    pub(super) life: Stamp,
}

/// A bucket and its keys at the time of the plan.
struct Planner<'a> {
    view: &'a View<'a>,
    versioning: Versioning,
}

impl Planner<'_> {
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

    /// How the change treats the versions of a key, if it has some.
    fn keeps(&self, scope: &Scope) -> Result<Option<Keeps>, Error> {
        let object_key = scope.object_key();
        let versioning = effective_versioning(self.view, self.versioning, &object_key)?;
        if versioning == Versioning::Never {
            return Ok(None);
        }
        let has_versions = self.view.change(&object_key)?.is_some();
        let builds = has_versions || self.view.object(&object_key)?.is_some();
        Ok(Some(Keeps { versioning, builds }))
    }

    /// Checks that the key has room for one more version, if the change adds one.
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

/// Plans an operation on `scopes`, of which the first is the changed one.
pub(super) fn plan(
    view: &View<'_>,
    scopes: &[Scope],
    op: Op,
    file: Unnamed<'_>,
) -> Result<Planned, Failure> {
    let scope = scopes.first().ok_or(Error::WritesDisabled)?;
    let bucket = view.bucket(&scope.bucket)?.ok_or(Error::NoSuchBucket)?;
    let planner = Planner {
        view,
        versioning: bucket.versioning,
    };
    let (changes, bytes, op) = match op {
        Op::Put(put) => {
            let (change, bytes) = plan_put(&planner, scope, &put, file)?;
            (vec![change], bytes, Op::Put(put))
        }
        Op::PutPart(part) => {
            let (change, bytes) = plan_part(&planner, scope, &part, file)?;
            (vec![change], bytes, Op::PutPart(part))
        }
        Op::Delete(delete) => match plan_delete(&planner, scopes, delete)? {
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
            let change = plan_meta(&planner, scope, version, &record)?;
            let op = Op::Change {
                bucket,
                object_key,
                version,
                change: Box::new(|meta| *meta = record.meta),
            };
            (vec![change], Bytes::None, op)
        }
        Op::CreateUpload(create) => {
            open_bucket(view, &create.bucket)?;
            let begin = Change::Begin(create.record.meta.clone());
            let change = planner.of_scope(scope, begin)?;
            (vec![change], Bytes::None, Op::CreateUpload(create))
        }
        Op::Complete(complete) => {
            let change = plan_complete(&planner, scope, &complete)?;
            (vec![change], Bytes::None, Op::Complete(complete))
        }
        op @ Op::Abort { .. } => {
            let change = planner.of_scope(scope, Change::Remove)?;
            change.before.ok_or(Error::NoSuchUpload)?;
            (vec![change], Bytes::None, op)
        }
        _ => return Err(Error::WritesDisabled.into()),
    };
    Ok(Planned::Change(Box::new(Plan {
        changes,
        bytes,
        op,
        versioning: planner.versioning,
        life: bucket.which.life,
    })))
}

fn plan_put(
    planner: &Planner<'_>,
    scope: &Scope,
    put: &PutOp,
    file: Unnamed<'_>,
) -> Result<(ScopedChange, Bytes), Error> {
    open_bucket(planner.view, &put.bucket)?;
    check(put.condition.as_ref(), planner.object(scope)?.as_ref())?;
    planner.check_room(scope)?;
    let (meta, len) = (put.record.meta.clone(), put.record.len);
    let change = planner.of_object(scope, Change::Write { meta, len })?;
    let bytes = match (&put.bytes, file) {
        (PutBytes::Inline(bytes), _) => Bytes::Inline(bytes.clone()),
        (PutBytes::File(_), Some((file, _))) => copy_of(file)?,
        (PutBytes::File(_), None) => return Err(Error::WritesDisabled),
    };
    Ok((change, bytes))
}

fn plan_complete(
    planner: &Planner<'_>,
    scope: &Scope,
    complete: &CompleteOp,
) -> Result<ScopedChange, Error> {
    let view = planner.view;
    view.upload(&complete.upload_key)?
        .ok_or(Error::NoSuchUpload)?;
    open_bucket(view, &complete.bucket)?;
    check(complete.condition.as_ref(), planner.object(scope)?.as_ref())?;
    planner.check_room(scope)?;
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
    planner.of_object(scope, whole)
}

fn plan_part(
    planner: &Planner<'_>,
    scope: &Scope,
    part: &PartOp,
    file: Unnamed<'_>,
) -> Result<(ScopedChange, Bytes), Error> {
    let upload = planner.view.upload(&part.upload_key)?;
    upload.ok_or(Error::NoSuchUpload)?;
    let (meta, len) = (part.record.meta.clone(), part.record.len);
    let change = planner.of_scope(scope, Change::Write { meta, len })?;
    let (file, _) = file.ok_or(Error::WritesDisabled)?;
    Ok((change, copy_of(file)?))
}

fn plan_meta(
    planner: &Planner<'_>,
    scope: &Scope,
    version: Option<VersionId>,
    record: &Record,
) -> Result<ScopedChange, Error> {
    if record.payload == Payload::Marker {
        return Err(Error::IsDeleteMarker);
    }
    let meta: ObjectMeta = record.meta.clone();
    match (version, planner.keeps(scope)?) {
        (Some(version), Some(_)) => planner.of_object(scope, Change::SetMetaOf(version, meta)),
        // Without versions, the null version is the object.
        _ => planner.of_object(scope, Change::SetMeta(meta)),
    }
}

/// The plan of several deletions.
enum Deletions {
    Some(Vec<ScopedChange>, Box<Op>),
    /// There is nothing to delete. The outcome says so of each key.
    None(Outcome),
}

fn plan_delete(
    planner: &Planner<'_>,
    scopes: &[Scope],
    delete: DeleteOp,
) -> Result<Deletions, Error> {
    let view = planner.view;
    if !is_of_versions(view, planner.versioning, &delete)? {
        return plan_plain_delete(planner, scopes, delete);
    }
    let named = delete.versions.iter().copied().chain(iter::repeat(None));
    let mut outcome = Outcome::default();
    let mut changes = Vec::new();
    for (scope, version) in scopes.iter().zip(named) {
        let change = plan_deletion(planner, scope, version, delete.condition.as_ref())?;
        outcome.removed.push(version.map(|version| Removed {
            version,
            is_marker: false,
        }));
        changes.extend(change);
    }
    Ok(match changes.is_empty() {
        true => Deletions::None(outcome),
        // The commit answers the keys without a change too.
        false => Deletions::Some(changes, Box::new(Op::Delete(delete))),
    })
}

/// A deletion in a bucket of which some keys have versions.
fn plan_deletion(
    planner: &Planner<'_>,
    scope: &Scope,
    version: Option<VersionId>,
    condition: Option<&Condition>,
) -> Result<Option<ScopedChange>, Error> {
    let object_key = scope.object_key();
    let Some(id) = version else {
        let current = planner.object(scope)?;
        check(condition, current.as_ref())?;
        if planner.keeps(scope)?.is_none() && current.is_none() {
            return Ok(None);
        }
        planner.check_room(scope)?;
        return planner.of_object(scope, Change::Remove).map(Some);
    };
    match version_of(planner.view, &scope.bucket, &object_key, id) {
        Ok((record, _)) => check(condition, Some(&record))?,
        Err(Error::NoSuchVersion) => {
            check(condition, None)?;
            return Ok(None);
        }
        Err(error) => return Err(error),
    }
    if planner.keeps(scope)?.is_none() {
        return planner.of_object(scope, Change::Remove).map(Some);
    }
    let others = planner.view.count_versions(&object_key, 2)?;
    let current = usize::from(planner.object(scope)?.is_some());
    let is_last = others + current == 1;
    let change = Change::RemoveVersion {
        version: id,
        is_last,
    };
    planner.of_object(scope, change).map(Some)
}

/// Deletions of objects without versions. Keys without an object are left out.
fn plan_plain_delete(
    planner: &Planner<'_>,
    scopes: &[Scope],
    mut delete: DeleteOp,
) -> Result<Deletions, Error> {
    let (mut changes, mut kept) = (Vec::new(), Vec::new());
    for (scope, object_key) in scopes.iter().zip(delete.object_keys) {
        let current = planner.object(scope)?;
        check(delete.condition.as_ref(), current.as_ref())?;
        if current.is_some() {
            changes.push(planner.of_scope(scope, Change::Remove)?);
            kept.push(object_key);
        }
    }
    delete.object_keys = kept;
    Ok(match changes.is_empty() {
        true => Deletions::None(Outcome::default()),
        false => Deletions::Some(changes, Box::new(Op::Delete(delete))),
    })
}

/// Another handle of the file, for the other replicas.
fn copy_of(file: &File) -> Result<Bytes, Error> {
    Ok(Bytes::File(file.try_clone()?))
}
