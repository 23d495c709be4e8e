//! The table of the needs of each operation: one of some rights, or some actions.

use crate::policy::actions::{Action, Actions};
use crate::rights::{Right, Rights};
use crate::{BucketName, BucketOperation, Document, ObjectKey, ObjectOperation, Operation};

/// The needs of an operation, which its caller must meet.
#[derive(Debug)]
pub(super) enum Needs<'o> {
    /// Nothing.
    Nothing,
    /// A signature of any key.
    AnyKey,
    /// A right on the bucket, or a policy that allows it.
    Permission(Need<'o>),
    /// The same for some key. Each key is judged when it is known.
    ForSomeKey(Need<'o>),
}

/// The permission that a caller needs.
#[derive(Debug)]
pub(super) struct Need<'o> {
    pub(super) bucket: &'o BucketName,
    /// `None`: the bucket itself is concerned.
    pub(super) key: Option<&'o ObjectKey>,
    /// One of these rights is enough.
    pub(super) rights: Rights,
    /// A policy has to allow all of these.
    pub(super) actions: Actions,
    /// The prefix of a listing.
    pub(super) prefix: Option<&'o str>,
    /// Whether it is an operation on the policy, which an owner may always do.
    pub(super) is_policy: bool,
}

const READ: Rights = Rights::NONE.with(Right::Read);
const WRITE: Rights = Rights::NONE.with(Right::Write);
const OWNER: Rights = Rights::NONE.with(Right::Owner);
const READ_OR_OWNER: Rights = READ.and(OWNER);

/// The needs of an operation.
pub(super) fn needs(operation: &Operation) -> Needs<'_> {
    match operation {
        Operation::Preflight | Operation::Bucket(_, BucketOperation::Preflight) => Needs::Nothing,
        // An unsupported operation does nothing. Only callers who are known learn what is missing.
        Operation::ListBuckets | Operation::Unsupported { .. } => Needs::AnyKey,
        Operation::Bucket(bucket, operation) => {
            let (rights, actions) = of_bucket(operation);
            let need = Need {
                bucket,
                key: None,
                rights,
                actions: Actions::of(actions),
                prefix: prefix(operation),
                is_policy: is_policy(operation),
            };
            match operation {
                BucketOperation::DeleteObjects => Needs::ForSomeKey(need),
                _ => Needs::Permission(need),
            }
        }
        Operation::Object(object, operation) => {
            let (rights, actions) = of_object(operation);
            Needs::Permission(Need {
                bucket: &object.bucket,
                key: Some(&object.key),
                rights,
                actions,
                prefix: None,
                is_policy: false,
            })
        }
    }
}

const fn of_bucket(operation: &BucketOperation) -> (Rights, &'static [Action]) {
    use BucketOperation as Op;
    use Document::{Cors, Policy};
    match operation {
        Op::Create => (OWNER, &[Action::CreateBucket]),
        Op::Delete => (OWNER, &[Action::DeleteBucket]),
        Op::GetDocument(Cors) => (OWNER, &[Action::GetBucketCors]),
        // As in S3, which has no action of its own for the deletion.
        Op::PutDocument(Cors) | Op::DeleteDocument(Cors) => (OWNER, &[Action::PutBucketCors]),
        Op::GetDocument(Policy) => (OWNER, &[Action::GetBucketPolicy]),
        Op::PutDocument(Policy) => (OWNER, &[Action::PutBucketPolicy]),
        Op::DeleteDocument(Policy) => (OWNER, &[Action::DeleteBucketPolicy]),
        Op::PutVersioning => (OWNER, &[Action::PutBucketVersioning]),
        Op::GetVersioning => (READ_OR_OWNER, &[Action::GetBucketVersioning]),
        // Clients look for a bucket, and its region, before they write to it.
        Op::Head => (Rights::ALL, &[Action::ListBucket]),
        Op::GetLocation => (Rights::ALL, &[Action::GetBucketLocation]),
        Op::ListObjects(_) => (READ, &[Action::ListBucket]),
        Op::ListVersions(_) => (READ, &[Action::ListBucketVersions]),
        Op::ListUploads(_) => (WRITE, &[Action::ListBucketMultipartUploads]),
        Op::DeleteObjects => (WRITE, &[Action::DeleteObject, Action::DeleteObjectVersion]),
        Op::Preflight => (Rights::ALL, &[]),
    }
}

fn of_object(operation: &ObjectOperation) -> (Rights, Actions) {
    use ObjectOperation as Op;
    let (rights, actions): (_, &[Action]) = match operation {
        Op::Get(read) | Op::Head(read) => match read.version {
            None => (READ, &[Action::GetObject]),
            Some(_) => (READ, &[Action::GetObjectVersion]),
        },
        Op::GetAttributes(wanted) => match wanted.version {
            None => (READ, &[Action::GetObject, Action::GetObjectAttributes]),
            Some(_) => (
                READ,
                &[Action::GetObjectVersion, Action::GetObjectVersionAttributes],
            ),
        },
        Op::GetTagging { version: None } => (READ, &[Action::GetObjectTagging]),
        Op::GetTagging { .. } => (READ, &[Action::GetObjectVersionTagging]),
        Op::PutTagging { version: None } => (WRITE, &[Action::PutObjectTagging]),
        Op::PutTagging { .. } => (WRITE, &[Action::PutObjectVersionTagging]),
        Op::DeleteTagging { version: None } => (WRITE, &[Action::DeleteObjectTagging]),
        Op::DeleteTagging { .. } => (WRITE, &[Action::DeleteObjectVersionTagging]),
        Op::Delete { version: None, .. } => (WRITE, &[Action::DeleteObject]),
        Op::Delete { .. } => (WRITE, &[Action::DeleteObjectVersion]),
        Op::Put(_)
        | Op::Copy(_)
        | Op::CreateUpload(_)
        | Op::UploadPart(_)
        | Op::CopyPart(_)
        | Op::CompleteUpload(_) => (WRITE, &[Action::PutObject]),
        Op::ListParts(_) => (WRITE, &[Action::ListMultipartUploadParts]),
        Op::AbortUpload { .. } => (WRITE, &[Action::AbortMultipartUpload]),
    };
    let tags = match operation {
        Op::Put(put) => Some(&put.tags),
        Op::CreateUpload(create) => Some(&create.tags),
        Op::Copy(copy) => copy.tags.as_ref(),
        _ => None,
    };
    let actions = Actions::of(actions);
    let has_tags = tags.is_some_and(|tags| !tags.is_empty());
    match has_tags {
        true => (
            rights,
            actions.and(Actions::of(&[Action::PutObjectTagging])),
        ),
        false => (rights, actions),
    }
}

fn prefix(operation: &BucketOperation) -> Option<&str> {
    match operation {
        BucketOperation::ListObjects(list) => Some(&list.listing.prefix),
        BucketOperation::ListVersions(list) | BucketOperation::ListUploads(list) => {
            Some(&list.listing.prefix)
        }
        _ => None,
    }
}

const fn is_policy(operation: &BucketOperation) -> bool {
    matches!(
        operation,
        BucketOperation::GetDocument(Document::Policy)
            | BucketOperation::PutDocument(Document::Policy)
            | BucketOperation::DeleteDocument(Document::Policy)
    )
}
