//! A request of the object store, and its exchange while it is answered.

use std::rc::Rc;
use std::sync::Arc;

use prism_membership::LeaseTerm;
use prism_s3::access::{Circumstances, KeyRights};
use prism_s3::{Code, Operation, Payload, Policy, Principal, S3Error};

/// A request as S3 understands it.
#[derive(Debug)]
pub struct Meaning {
    pub(crate) operation: Operation,
    pub(crate) principal: Principal,
    pub(crate) payload: Payload,
    /// The rights of the caller's key, if this node knows it.
    pub(crate) rights: Option<Arc<KeyRights>>,
    pub(crate) standing: Standing,
    /// Whether the caller must not learn that the object that it reads, or copies, is missing.
    pub(crate) hides_missing: bool,
    /// The lease that allowed this node to serve when it read the request.
    pub(crate) lease_term: Option<LeaseTerm>,
}

impl Meaning {
    /// Whether this error of a read would tell the caller that an object is missing.
    pub(crate) fn hides(&self, error: &S3Error) -> bool {
        self.hides_missing && matches!(error.code(), Code::NoSuchKey | Code::NoSuchVersion)
    }
}

/// Whether a request is allowed.
#[derive(Debug)]
pub(crate) enum Standing {
    /// Nobody has decided it.
    Open,
    /// Another node has allowed it.
    Vouched,
    /// This node has allowed it, by these facts.
    Allowed {
        /// The policy of the bucket, as far as the decision depends on it.
        policy: Option<Rc<Policy>>,
        circumstances: Circumstances,
    },
}

/// One request of the object store.
pub type Request<'r> = prism_service::RequestRef<'r, Meaning>;

/// A request under way: its exchange, and the facts that its answer depends on.
pub(crate) struct Call<'c, X> {
    pub(crate) exchange: &'c mut X,
    pub(crate) request: &'c Request<'c>,
}
