//! Whether a client's request is allowed. The node that reads a request decides, and vouches for
//! it to the node that answers. The rules are in [`prism_s3::access`].
//!
//! Two parts are decided where the request is answered: each key of a DeleteObjects, which the
//! node answers that has the connection, and the buckets that a ListBuckets shows.

use std::rc::Rc;

use prism_s3::access::{self, Caller, Circumstances, KeyRights, Rights};
use prism_s3::{Code, ObjectRef, Operation, Policy, Principal, S3Error};
use prism_service::Remote;

use crate::objects::Objects;
use crate::request::{Meaning, Standing};

impl Objects {
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
        let policy = self.decide(operation, &caller, &circumstances).await?;
        if let Some(read) = operation.read_of_source() {
            Box::pin(self.decide(&read, &caller, &circumstances)).await?;
        }
        meaning.standing = Standing::Allowed {
            policy,
            circumstances,
        };
        Ok(())
    }

    /// Decides one operation. Returns the policy that it depends on.
    async fn decide(
        &self,
        operation: &Operation,
        caller: &Caller<'_>,
        circumstances: &Circumstances,
    ) -> Result<Option<Rc<Policy>>, S3Error> {
        let policy = match operation.bucket() {
            Some(bucket) if access::depends_on_policy(operation, caller) => {
                self.rules.policy(bucket).await?
            }
            _ => None,
        };
        access::decide(operation, caller, policy.as_deref(), circumstances)?;
        Ok(policy)
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
