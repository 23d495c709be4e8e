//! A request of the object store.

use prism_membership::LeaseTerm;
use prism_proto::verified::Policy;
use prism_s3::{Operation, Payload, Principal};

/// A request as S3 understands it.
#[derive(Debug)]
pub struct Meaning {
    pub(crate) operation: Operation,
    pub(crate) principal: Principal,
    pub(crate) payload: Payload,
    /// The decision of the bucket's policy on an anonymous caller, if it was asked.
    pub(crate) policy: Policy,
    /// The lease that allowed this node to serve when it read the request.
    pub(crate) lease_term: Option<LeaseTerm>,
}

/// One request of the object store.
pub type Request = prism_service::Request<Meaning>;
