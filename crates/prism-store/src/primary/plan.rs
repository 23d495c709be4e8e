//! The plan of a change at its primary: the checks of its conditions, the changes that the
//! other replicas prepare, and the operation that is committed here. `primary` carries it out.

use std::fs::File;

use prism_cluster::replica::Stamp;

use crate::{
    commit::{
        CompleteOp, Condition, Failure, Op, Outcome, PutOp, check, check_quota, check_version,
        effective_versioning, open_bucket, present, replaced_bytes, version_of,
    },
    error::Error,
    layout::FileId,
    record::{Payload, PutBytes, Record},
    replicas::Bytes,
    scope::{Change, Keeps, Scope, ScopedChange},
    types::{Removed, VERSIONS_MAX, VersionId, Versioning},
    view::{View, holds},
};

/// The file of a change's bytes, and its name to be.
pub(super) type Unnamed<'a> = Option<(&'a File, FileId)>;

/// A change whose conditions hold.
pub(super) struct Plan {
    /// For the other replicas. Without any, the change has no effect.
    pub(super) changes: Vec<ScopedChange>,
    pub(super) bytes: Bytes,
    /// For this store.
    pub(super) op: Op,
    /// The bucket's versioning at the time of the plan. It may change before the commit.
    pub(super) versioning: Versioning,
    /// The bucket's life.
    pub(super) life: Stamp,
    /// The result of a change without effect.
    pub(super) outcome: Outcome,
}

/// A scope at the time of the plan.
struct Planner<'a> {
    view: &'a View<'a>,
    versioning: Versioning,
    scope: &'a Scope,
    object_key: Vec<u8>,
}

/// Plans an operation on `scopes`, of which the first is the changed one.
pub(super) fn plan(
    view: &View<'_>,
    scopes: &[Scope],
    op: Op,
    file: Unnamed<'_>,
) -> Result<Plan, Failure> {
    let scope = scopes.first().ok_or(Error::WritesDisabled)?;
    let bucket = view.existing_bucket(&scope.bucket)?;
    let planner = |scope| Planner {
        view,
        versioning: bucket.versioning,
        scope,
        object_key: Scope::object_key(scope),
    };
    let mut plan = Plan {
        changes: Vec::new(),
        bytes: Bytes::None,
        op,
        versioning: bucket.versioning,
        life: bucket.which.life,
        outcome: Outcome::default(),
    };
    let change = match &mut plan.op {
        Op::Put(put) => {
            let change = planner(scope).put(put)?;
            plan.bytes = match &put.bytes {
                PutBytes::Inline(bytes) => Bytes::Inline(bytes.clone()),
                // Another handle of the file, for the other replicas.
                PutBytes::File(_) => {
                    let (file, _) = file.ok_or(Error::WritesDisabled)?;
                    Bytes::File(file.try_clone().map_err(Error::from)?)
                }
            };
            change
        }
        Op::Delete(delete) => {
            for (scope, (_, version)) in scopes.iter().zip(&delete.deletions) {
                let change = planner(scope).deletion(*version, delete.condition.as_ref())?;
                plan.changes.extend(change);
                // The result if no deletion has an effect. Otherwise the commit answers all.
                let removed = version.map(Removed::version);
                plan.outcome.removed.push(removed);
            }
            return Ok(plan);
        }
        Op::Change {
            object_key,
            version,
            change: edit,
        } => {
            let mut record = match version {
                None => present(view, object_key)?,
                Some(id) => version_of(view, object_key, *id)?.0,
            };
            std::mem::replace(edit, Box::new(|_| ()))(&mut record.meta);
            record.encode()?;
            let change = planner(scope).meta(*version, &record)?;
            *edit = Box::new(|meta| *meta = record.meta);
            change
        }
        Op::CreateUpload { record, .. } => {
            open_bucket(view, &scope.bucket)?;
            planner(scope).of_scope(Change::Begin(record.meta.clone()))?
        }
        Op::Complete(complete) => planner(scope).complete(complete)?,
        Op::Abort { .. } => {
            let change = planner(scope).of_scope(Change::Remove)?;
            change.before.ok_or(Error::NoSuchUpload)?;
            change
        }
        _ => return Err(Error::WritesDisabled.into()),
    };
    plan.changes.push(change);
    Ok(plan)
}

impl Planner<'_> {
    fn put(&self, put: &PutOp) -> Result<ScopedChange, Error> {
        let meta = put.record.meta.clone();
        let len = put.record.len;
        let write = Change::Write { meta, len };
        if let Some((id, number)) = put.part {
            self.view.existing_upload(&self.object_key, id)?;
            let replaced = self.view.part(id, number)?.map(|record| record.len);
            check_quota(put.quota.as_ref(), len, replaced)?;
            return self.of_scope(write);
        }
        open_bucket(self.view, &self.scope.bucket)?;
        let current = self.object()?;
        check(put.condition.as_ref(), current.as_ref())?;
        let replaced = replaced_bytes(self.versioning, current.as_ref());
        check_quota(put.quota.as_ref(), len, replaced)?;
        self.of_new_version(write)
    }

    fn complete(&self, complete: &CompleteOp) -> Result<ScopedChange, Error> {
        let view = self.view;
        let upload = complete.upload;
        view.existing_upload(&self.object_key, upload)?;
        open_bucket(view, &self.scope.bucket)?;
        let current = self.object()?;
        check(complete.condition.as_ref(), current.as_ref())?;
        // The bytes of the parts are counted already.
        let replaced = replaced_bytes(self.versioning, current.as_ref());
        check_quota(complete.quota.as_ref(), 0, replaced)?;
        let mut parts = Vec::with_capacity(complete.parts.len());
        for (number, seen) in &complete.parts {
            let record = view.part(upload, *number)?;
            let record = record.filter(|r| r.payload == Payload::File { id: *seen });
            parts.push((*number, record.ok_or(Error::PartChanged)?.stamp));
        }
        self.of_new_version(Change::Complete {
            upload,
            meta: complete.meta.clone(),
            parts,
        })
    }

    fn meta(&self, version: Option<VersionId>, record: &Record) -> Result<ScopedChange, Error> {
        if record.payload == Payload::Marker {
            return Err(Error::IsDeleteMarker);
        }
        let keeps = self.keeps()?;
        let meta = record.meta.clone();
        let change = match version.filter(|_| keeps.is_some()) {
            Some(version) => Change::SetMetaOf(version, meta),
            // Without versions, the null version is the object.
            None => Change::SetMeta(meta),
        };
        self.of_object(keeps, change)
    }

    /// A deletion, if it has an effect.
    fn deletion(
        &self,
        version: Option<VersionId>,
        condition: Option<&Condition>,
    ) -> Result<Option<ScopedChange>, Error> {
        let current = self.object()?;
        let keeps = self.keeps()?;
        let Some(id) = version else {
            check(condition, current.as_ref())?;
            if keeps.is_none() && current.is_none() {
                return Ok(None);
            }
            return self.of_new_version(Change::Remove).map(Some);
        };
        if !check_version(self.view, &self.object_key, id, condition)? {
            return Ok(None);
        }
        let change = match keeps {
            None => Change::Remove,
            Some(_) => {
                let others = self.view.count_versions(&self.object_key, 2)?;
                let is_last = others + usize::from(current.is_some()) == 1;
                Change::RemoveVersion {
                    version: id,
                    is_last,
                }
            }
        };
        self.of_object(keeps, change).map(Some)
    }

    /// A change that adds a version where those are kept, if the key has room for it.
    fn of_new_version(&self, change: Change) -> Result<ScopedChange, Error> {
        let keeps = self.keeps()?;
        let count = || self.view.count_versions(&self.object_key, VERSIONS_MAX);
        if keeps.is_some_and(|keeps| keeps.builds) && count()? >= VERSIONS_MAX {
            return Err(Error::TooManyVersions);
        }
        self.of_object(keeps, change)
    }

    /// A change of an object, as one of a key with versions where those are kept.
    fn of_object(&self, keeps: Option<Keeps>, change: Change) -> Result<ScopedChange, Error> {
        self.of_scope(match keeps {
            None => change,
            Some(keeps) => Change::Kept(keeps, Box::new(change)),
        })
    }

    fn of_scope(&self, change: Change) -> Result<ScopedChange, Error> {
        Ok(ScopedChange {
            scope: self.scope.clone(),
            before: holds(self.view, self.scope)?,
            change,
        })
    }

    /// How the change treats the versions of a key, if it has some.
    fn keeps(&self) -> Result<Option<Keeps>, Error> {
        let versioning = effective_versioning(self.view, self.versioning, &self.object_key)?;
        if versioning == Versioning::Never {
            return Ok(None);
        }
        let has_versions = self.view.change(&self.object_key)?.is_some();
        let builds = has_versions || self.object()?.is_some();
        Ok(Some(Keeps { versioning, builds }))
    }

    fn object(&self) -> Result<Option<Record>, Error> {
        self.view.object(&self.object_key)
    }
}
