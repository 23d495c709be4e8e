//! Whether a client's request is allowed. The node that reads a request decides, and vouches for
//! it to the node that answers. The rules are in [`prism_s3::access`].
//!
//! A node that has not heard from etcd for the lease of its users admits no signed request, because
//! the key may have been deleted. A node that answers a request of a key that it does not know asks
//! etcd for that key.
//!
//! Two parts are decided where the request is answered: each key of a DeleteObjects, which the
//! node answers that has the connection, and the buckets that a ListBuckets shows.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prism_s3::access::{self, Caller, Circumstances, KeyRights, Rights};
use prism_s3::{BucketOperation, Code, ObjectRef, Operation, Policy, Principal, S3Error};
use prism_service::Remote;

use crate::objects::Objects;
use crate::request::{Meaning, Standing};

/// A decision by a policy that takes longer is followed by a rest of its caller.
const COSTLY_DECISION: Duration = Duration::from_micros(500);

/// The answer of a node that does not know the key for which another node vouches, and that cannot
/// find out about it.
pub(crate) fn unconfirmed() -> S3Error {
    Code::ServiceUnavailable.with_message(
        "This storage node does not know the access key yet, and etcd does not answer.",
    )
}

impl Objects {
    /// The error for every signed request, while this node cannot know which of its users still
    /// exist.
    pub(crate) fn doubt(&self) -> Option<S3Error> {
        let cluster = &self.node.core.cluster;
        if !cluster.has_doubtful_users() {
            return None;
        }
        if let Some(fault) = cluster.fault() {
            let message = format!("This node cannot know whether the access key exists: {fault}.");
            return Some(Code::ServiceUnavailable.with_message(message));
        }
        let silence_s = cluster.users_lease.silence().as_secs();
        Some(Code::ServiceUnavailable.with_message(format!(
            "This node has heard nothing from etcd for {silence_s} s, so it cannot know whether \
             the access key still exists. Repeat the request on a new connection, which may reach \
             another node. The operator has to restore this node's way to etcd."
        )))
    }

    /// Asks etcd for the caller for which another node vouches, if this node does not know its key.
    /// The key is new, or it was deleted and the other node has not heard of that.
    pub(crate) async fn confirm_caller(&self, meaning: &mut Meaning) -> Result<(), S3Error> {
        let cluster = &self.node.core.cluster;
        let (Standing::Vouched, Principal::AccessKey(key), None) =
            (&meaning.standing, &meaning.principal, &meaning.rights)
        else {
            return Ok(());
        };
        if !cluster.is_in_etcd() {
            return Ok(());
        }
        // Boxed, because it is rare, and larger than the rest.
        match Box::pin(cluster.ask_for_user(key)).await {
            Ok(Some(user)) => {
                meaning.rights = Some(Arc::new(user.rights()));
                Ok(())
            }
            Ok(None) => Err(Code::InvalidAccessKeyId.into()),
            Err(error) => {
                tracing::debug!(error = format!("{error:#}"), "cannot ask etcd for a key");
                Err(unconfirmed())
            }
        }
    }

    /// Decides whether a client's request is allowed, unless another node has.
    pub(crate) async fn admit_client(
        &self,
        meaning: &mut Meaning,
        client: Remote,
    ) -> Result<(), S3Error> {
        if let Standing::Vouched = meaning.standing {
            return Ok(());
        }
        let circumstances = Circumstances {
            address: client.address.ip(),
            is_tls: client.is_tls,
        };
        let caller = meaning.caller(self.shared.auth.everybody());
        let operation = &meaning.operation;
        let principal = &meaning.principal;
        let policy = self
            .decide(operation, &caller, principal, &circumstances)
            .await?;
        let hides = |operation: &Operation, policy: Option<&Policy>| {
            access::hides_missing(operation, &caller, policy, &circumstances)
        };
        let mut hides_missing = hides(operation, policy.as_deref());
        if let Some(read) = operation.read_of_source() {
            let deciding = self.decide(&read, &caller, principal, &circumstances);
            let policy = Box::pin(deciding).await?;
            hides_missing = hides(&read, policy.as_deref());
        }
        meaning.hides_missing = hides_missing;
        meaning.standing = Standing::Allowed {
            policy,
            circumstances,
        };
        Ok(())
    }

    /// Decides one operation. Returns the policy that it depends on. A stranger learns that a
    /// bucket is missing, as from S3.
    async fn decide(
        &self,
        operation: &Operation,
        caller: &Caller<'_>,
        principal: &Principal,
        circumstances: &Circumstances,
    ) -> Result<Option<Rc<Policy>>, S3Error> {
        let policy = match operation.bucket() {
            Some(bucket) if access::depends_on_policy(operation, caller) => {
                self.rules.policy(bucket).await
            }
            _ => Ok(None),
        };
        let (policy, missing) = match policy {
            Err(error) if error.code() == Code::NoSuchBucket => (None, Some(error)),
            policy => (policy?, None),
        };
        let begun = Instant::now();
        let decided = access::decide(operation, caller, policy.as_deref(), circumstances);
        let took = begun.elapsed();
        if took > COSTLY_DECISION {
            self.shared.callers.rest(principal, took).await;
        }
        let is_creation = matches!(operation, Operation::Bucket(_, BucketOperation::Create));
        match (decided, missing, caller) {
            (Err(_), Some(missing), Caller::Anonymous { .. }) if !is_creation => Err(missing),
            (decided, ..) => decided.map(|()| policy),
        }
    }

    /// Decides one deletion of a DeleteObjects.
    pub(crate) fn decide_deletion(
        &self,
        meaning: &Meaning,
        object: ObjectRef,
        version: Option<String>,
    ) -> Result<(), S3Error> {
        let Standing::Allowed {
            policy,
            circumstances,
        } = &meaning.standing
        else {
            return Err(Code::AccessDenied.into());
        };
        let deletion = Operation::deletion_of(object, version);
        let caller = meaning.caller(self.shared.auth.everybody());
        access::decide(&deletion, &caller, policy.as_deref(), circumstances)
    }
}

impl Meaning {
    /// The caller, if its changes of buckets have a rate. Administrators have none.
    pub(crate) fn caller_with_rate(&self) -> Option<&Principal> {
        let is_admin = matches!(self.rights.as_deref(), Some(KeyRights::Admin));
        (!is_admin).then_some(&self.principal)
    }

    /// The caller, whose rights count as none if this node does not know its key. `everybody`: the
    /// rights of anonymous callers.
    fn caller(&self, everybody: Rights) -> Caller<'_> {
        static NONE: KeyRights = KeyRights::NONE;
        match &self.principal {
            Principal::Anonymous => Caller::Anonymous { rights: everybody },
            Principal::AccessKey(access_key) => Caller::Key {
                access_key,
                rights: self.rights.as_deref().unwrap_or(&NONE),
            },
        }
    }
}
