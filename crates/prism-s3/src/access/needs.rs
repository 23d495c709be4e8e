//! The needs of an operation: one of some rights, or some actions. Its row has them, and its
//! parameters add to them.

use crate::op::Permission;
use crate::policy::actions::Actions;
use crate::rights::Rights;
use crate::{BucketName, BucketOperation, ObjectKey, ObjectOperation, Operation};

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

/// The needs of an operation.
pub(super) fn needs(operation: &Operation) -> Needs<'_> {
    let permission = operation.row().permission;
    let Some(bucket) = operation.bucket() else {
        return match permission {
            Permission::Nothing => Needs::Nothing,
            _ => Needs::AnyKey,
        };
    };
    let (rights, actions) = match permission {
        Permission::Nothing => return Needs::Nothing,
        Permission::AnyKey => return Needs::AnyKey,
        Permission::OfVersion(rights, _, actions) if operation.version().is_some() => {
            (rights, actions)
        }
        Permission::OneOf(rights, actions)
        | Permission::OfVersion(rights, actions, _)
        | Permission::ForSomeKey(rights, actions)
        | Permission::OfPolicy(rights, actions) => (rights, actions),
    };
    let need = Need {
        bucket,
        key: operation.object().map(|object| &object.key),
        rights,
        actions: actions.union(actions_on_tags(operation)),
        prefix: prefix(operation),
        is_policy: matches!(permission, Permission::OfPolicy(..)),
    };
    match permission {
        Permission::ForSomeKey(..) => Needs::ForSomeKey(need),
        _ => Needs::Permission(need),
    }
}

/// The action of an operation that also sets an object's tags.
fn actions_on_tags(operation: &Operation) -> Actions {
    let tags = match operation {
        Operation::Object(_, ObjectOperation::Put(put)) => Some(&put.tags),
        Operation::Object(_, ObjectOperation::CreateUpload(create)) => Some(&create.tags),
        Operation::Object(_, ObjectOperation::Copy(copy)) => copy.tags.as_ref(),
        _ => None,
    };
    if tags.is_some_and(|tags| !tags.is_empty()) {
        Actions::PutObjectTagging
    } else {
        Actions::default()
    }
}

fn prefix(operation: &Operation) -> Option<&str> {
    let Operation::Bucket(_, operation) = operation else {
        return None;
    };
    match operation {
        BucketOperation::ListObjects(list) => Some(&list.listing.prefix),
        BucketOperation::ListVersions(list) | BucketOperation::ListUploads(list) => {
            Some(&list.listing.prefix)
        }
        _ => None,
    }
}
