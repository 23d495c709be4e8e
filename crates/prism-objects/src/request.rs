//! A request of the object store, and its connection while it is answered.

use std::rc::Rc;
use std::sync::Arc;

use prism_http::Exchange;
use prism_membership::LeaseTerm;
use prism_s3::access::{Circumstances, KeyRights};
use prism_s3::{Operation, Payload, Policy, Principal};
use prism_service::{Io, MAX_SKIP_BYTES, RequestBody};

/// A request as S3 understands it.
#[derive(Debug)]
pub struct Meaning {
    pub(crate) operation: Operation,
    pub(crate) principal: Principal,
    pub(crate) payload: Payload,
    /// The rights of the caller's key, if this node knows it.
    pub(crate) rights: Option<Arc<KeyRights>>,
    pub(crate) standing: Standing,
    /// The lease that allowed this node to serve when it read the request.
    pub(crate) lease_term: Option<LeaseTerm>,
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
pub type Request = prism_service::Request<Meaning>;

/// A request under way: its connection, and the facts that its answer depends on.
pub(crate) struct Call<'c, I> {
    pub(crate) io: &'c mut I,
    pub(crate) request: &'c Request,
    pub(crate) exchange: Exchange<'c>,
}

impl<I: Io> Call<'_, I> {
    /// Reads past the body of an operation that needs none.
    pub(crate) async fn skip_body(&mut self) {
        let mut body = self.request.take_body(MAX_SKIP_BYTES);
        self.skip_rest(&mut body).await;
    }

    /// Reads past the rest of a body. If the rest is too long, the connection ends with the
    /// answer.
    pub(crate) async fn skip_rest(&mut self, body: &mut RequestBody) {
        self.exchange.keep_alive = self.exchange.keep_alive && body.skip_rest(self.io).await;
    }
}
