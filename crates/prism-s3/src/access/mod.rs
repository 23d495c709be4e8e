//! Whether a caller may do an operation: the rights of its key, and the policy of the bucket.
//!
//! [`decide`] is the one place that answers this, for every node. The operation's row
//! ([`crate::op::Row`]) says what it needs. Not here: the caller's identity ([`crate::auth`]), and
//! where rights and policies are stored.
//!
//! A copy is two operations, and a DeleteObjects one for each key: the caller of this crate also
//! asks about [`Operation::read_of_source`] and [`Operation::deletion_of`].

mod needs;

use self::needs::{Needs, needs};
pub use crate::policy::Circumstances;
use crate::policy::actions::Actions;
use crate::policy::{Policy, PolicyQuestion, Verdict};
pub use crate::rights::{KeyRights, Rights};
use crate::{BucketName, Code, ObjectOperation, Operation, S3Error};

/// The caller of an operation.
#[derive(Debug, Clone, Copy)]
pub enum Caller<'a> {
    /// A caller without a signature.
    Anonymous {
        /// The right that everybody has on every bucket: `read`, or none.
        rights: Rights,
    },
    /// The holder of a key.
    Key {
        /// Its public part.
        access_key: &'a str,
        /// Its rights.
        rights: &'a KeyRights,
    },
}

impl Caller<'_> {
    fn rights_on(&self, bucket: &BucketName) -> Rights {
        match self {
            Self::Anonymous { rights } => *rights,
            Self::Key { rights, .. } => rights.on(bucket),
        }
    }

    const fn access_key(&self) -> Option<&str> {
        match self {
            Self::Anonymous { .. } => None,
            Self::Key { access_key, .. } => Some(access_key),
        }
    }
}

/// Decides whether a caller may do an operation. `policy`: that of the operation's bucket, if
/// there is one.
///
/// A denial of the policy counts before everything else, except that owners may always read,
/// replace and delete the policy. Otherwise a right of the caller is enough, or that the policy
/// allows every action of the operation.
///
/// # Errors
/// `AccessDenied`; `InvalidRequest` for an anonymous caller that sets headers of the answer.
pub fn decide(
    operation: &Operation,
    caller: &Caller<'_>,
    policy: Option<&Policy>,
    circumstances: &Circumstances,
) -> Result<(), S3Error> {
    if let (Caller::Anonymous { .. }, Operation::Object(_, operation)) = (caller, operation) {
        check_overrides(operation)?;
    }
    let (need, is_for_some_key) = match needs(operation) {
        Needs::Nothing => return Ok(()),
        Needs::AnyKey => return allowed(caller.access_key().is_some()),
        Needs::Permission(need) => (need, false),
        Needs::ForSomeKey(need) => (need, true),
    };
    if policy.is_some_and(|policy| policy.bucket() != need.bucket) {
        return allowed(false);
    }
    let rights = caller.rights_on(need.bucket);
    let is_right = rights.intersects(need.rights);
    let Some(policy) = policy else {
        return allowed(is_right);
    };
    let question = PolicyQuestion {
        access_key: caller.access_key(),
        actions: need.actions,
        key: need.key,
        prefix: need.prefix,
        circumstances,
    };
    if is_for_some_key {
        return allowed(is_right || policy.allows_for_some_key(&question));
    }
    allowed(match policy.verdict(&question) {
        Verdict::Denied => need.is_policy && rights.contains(Rights::OWNER),
        Verdict::Allowed => true,
        Verdict::Silent => is_right,
    })
}

/// Whether [`decide`] depends on the bucket's policy, so that it has to be known. If not, the
/// decision is the same without one.
pub fn depends_on_policy(operation: &Operation, caller: &Caller<'_>) -> bool {
    match needs(operation) {
        Needs::Nothing | Needs::AnyKey => false,
        Needs::Permission(need) | Needs::ForSomeKey(need) => {
            !(need.is_policy && caller.rights_on(need.bucket).contains(Rights::OWNER))
        }
    }
}

/// Whether the caller of an allowed read must not learn that the object is missing, because it may
/// not list the bucket (<https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html>).
/// The right `read` allows both, so without a policy nothing is hidden.
pub fn hides_missing(
    operation: &Operation,
    caller: &Caller<'_>,
    policy: Option<&Policy>,
    circumstances: &Circumstances,
) -> bool {
    let (Some(policy), Some(object)) = (policy, operation.object()) else {
        return false;
    };
    if !operation.only_reads_object() {
        return false;
    }
    let listing = PolicyQuestion {
        access_key: caller.access_key(),
        actions: Actions::ListBucket,
        key: None,
        prefix: None,
        circumstances,
    };
    match policy.verdict(&listing) {
        Verdict::Denied => true,
        Verdict::Allowed => false,
        Verdict::Silent => !caller.rights_on(&object.bucket).contains(Rights::READ),
    }
}

fn allowed(is_allowed: bool) -> Result<(), S3Error> {
    if is_allowed {
        Ok(())
    } else {
        Err(Code::AccessDenied.into())
    }
}

/// Only callers who are known may set headers of the answer, as in S3.
fn check_overrides(operation: &ObjectOperation) -> Result<(), S3Error> {
    match operation {
        ObjectOperation::Get(read) | ObjectOperation::Head(read) if !read.overrides.is_empty() => {
            Err(Code::InvalidRequest
                .with_message("Headers of the answer can be set by signed requests only."))
        }
        _ => Ok(()),
    }
}
