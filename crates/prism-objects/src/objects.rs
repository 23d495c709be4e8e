//! The service itself: its state, and its implementation of [`Service`].

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use prism_http::{HeadError, Headers, Limits, RequestHead};
use prism_proto::facts::Facts;
use prism_replicas::{Node, Replicator, UnderWay, elsewhere};
use prism_s3::auth::with_hoisted;
use prism_s3::query::Query;
use prism_s3::{BucketName, Code, ObjectOperation, ObjectRef, Operation, Principal, S3Error};
use prism_service::{About, Exchange, Fault, RequestMut, Route, Served, Service, Subject};

use crate::admit::unconfirmed;
use crate::answer::{is_ours, send_error};
use crate::bodies::Bodies;
use crate::request::{Call, Meaning, Request, Standing};
use crate::route;
use crate::rules::BucketRules;
use crate::shared::Shared;

/// Longest wait of a request for a newer view, when another node has one. A step takes a few
/// round trips to etcd, and the pause before it longer.
const NEWER_VIEW_WAIT: Duration = Duration::from_secs(2);

/// The object store, as one thread of a node serves it.
pub struct Objects {
    pub(crate) node: Arc<Node>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) replicator: Rc<Replicator>,
    pub(crate) rules: BucketRules,
    pub(crate) bodies: Bodies,
}

impl Objects {
    /// The object store for the calling thread.
    pub fn new(shared: Arc<Shared>, replicator: Rc<Replicator>) -> Self {
        let node = replicator.node.clone();
        Self {
            rules: BucketRules::new(replicator.clone(), shared.clone()),
            bodies: Bodies::new(replicator.clone(), shared.clone()),
            node,
            shared,
            replicator,
        }
    }

    /// Checks that this node may begin to answer a request from its store.
    pub(crate) fn may_answer(&self, request: &Request<'_>) -> Result<(), S3Error> {
        let operation = &request.meaning.operation;
        self.node.check_lease(request.meaning.lease_term)?;
        // To rank the owners of a key takes a part of the time of a short answer.
        let is_decided = request.decided_in == Some(self.epoch()) && route::ranks_owners(operation);
        if is_decided || route::may_answer(&self.node, operation) {
            Ok(())
        } else {
            Err(elsewhere())
        }
    }

    /// Understands a request for an object that a server has named. One without a signature is made
    /// with the rights of `access_key`. Nobody has admitted it.
    ///
    /// # Errors
    /// As [`Service::understand`].
    pub fn understand_redirected(
        &self,
        head: &mut RequestHead,
        access_key: Option<&str>,
    ) -> Result<Meaning, S3Error> {
        let meaning = self.understand(head, None)?;
        let (Principal::Anonymous, Some(access_key)) = (&meaning.principal, access_key) else {
            return Ok(meaning);
        };
        if let Some(doubt) = self.doubt() {
            return Err(doubt);
        }
        let rights = self.shared.auth.rights_of(access_key);
        Ok(Meaning {
            rights: Some(rights.ok_or(Code::InvalidAccessKeyId)?),
            principal: Principal::AccessKey(access_key.to_owned()),
            ..meaning
        })
    }

    /// Passes `result` on if this node was allowed to serve since it read the request.
    pub(crate) fn if_still<T>(
        &self,
        request: &Request<'_>,
        result: Result<T, S3Error>,
    ) -> Result<T, S3Error> {
        let term = request.meaning.lease_term;
        self.node.replication.if_still(term, result)
    }
}

impl Service for Objects {
    type Meaning = Meaning;
    type Error = S3Error;
    type Change<'s> = UnderWay<'s>;
    type Nodes = Replicator;

    fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    async fn hear_of(&self, facts: &Facts) -> Result<(), S3Error> {
        self.node.hear_of(facts).await
    }

    fn understand(
        &self,
        head: &mut RequestHead,
        verified: Option<Facts>,
    ) -> Result<Meaning, S3Error> {
        // The lease is taken before any decision uses the cluster's state.
        let lease_term = self.node.replication.begin();
        let standing = match verified {
            Some(_) => Standing::Vouched,
            None => Standing::Open,
        };
        let hides_missing = verified.as_ref().is_some_and(|facts| facts.hides_missing);
        let may_confirm = verified.is_some() && self.node.core.cluster.is_in_etcd();
        let query = Query::parse(head.query())?;
        let auth = &self.shared.auth;
        let known = auth.identify(head, &query, verified, self.doubt());
        // The signature is that of the head as it came. A node that gets the request later follows
        // the one that verified it, whatever its own domains are.
        if let Standing::Open = standing {
            self.shared.domains.move_bucket(head)?;
            if head.target().len() > self.shared.limits.target_bytes {
                return Err(HeadError::TargetTooLong.into());
            }
        }
        let (known, rights) = known.map_err(|error| match error.code() {
            // The secret for the signatures of chunks is needed here, before `confirm`.
            Code::InvalidAccessKeyId if may_confirm => unconfirmed(),
            _ => error,
        })?;
        let hoisted = with_hoisted(head, &query)?;
        let mut operation = Operation::of(hoisted.as_ref().unwrap_or(head), &query)?;
        if operation.is_preflight() && self.shared.allows_page(head) {
            operation = Operation::Preflight;
        }
        if let Some(hoisted) = hoisted {
            *head = hoisted;
        }
        Ok(Meaning {
            operation,
            principal: known.principal,
            payload: known.payload,
            rights,
            standing,
            hides_missing,
            lease_term,
        })
    }

    async fn admit(&self, request: RequestMut<'_>, meaning: &mut Meaning) -> Result<(), S3Error> {
        self.confirm_caller(meaning).await?;
        match request.client {
            Some(client) => self.admit_client(meaning, client).await,
            None => Ok(()),
        }
    }

    async fn confirm(&self, meaning: &mut Meaning) -> Result<(), S3Error> {
        self.confirm_caller(meaning).await
    }

    fn refuses_for_itself(&self) -> bool {
        self.node.core.cluster.has_doubtful_users()
    }

    async fn hold(&self, meaning: &Meaning) -> Option<UnderWay<'_>> {
        if route::changes_object(&meaning.operation) && self.node.core.cluster.is_in_etcd() {
            Some(self.node.pauses.begin().await)
        } else {
            None
        }
    }

    fn route(&self, meaning: &Meaning, _: bool) -> Route {
        route::route(&self.node, &meaning.operation)
    }

    fn is_elsewhere(&self, meaning: &Meaning) -> bool {
        let may_act = self.node.check_lease(meaning.lease_term);
        meaning.lease_term.is_some()
            && (may_act.is_err() || !route::may_answer(&self.node, &meaning.operation))
    }

    fn may_stay(&self, meaning: &Meaning) -> bool {
        // A backend without a lease sends its clients back to a frontend.
        meaning.lease_term.is_some() || route::concerns_all(&meaning.operation)
    }

    fn epoch(&self) -> u64 {
        self.node.replication.view().epoch()
    }

    async fn has_moved_on(&self, _: &Meaning, epoch: u64, was_sent_elsewhere: bool) -> bool {
        let limit = if was_sent_elsewhere && self.node.core.cluster.is_in_etcd() {
            NEWER_VIEW_WAIT
        } else {
            Duration::ZERO
        };
        self.node.core.view.wait_beyond(epoch, limit).await
    }

    fn about<'m>(&self, meaning: &'m Meaning) -> About<'m> {
        let operation = &meaning.operation;
        About {
            is_administrative: operation.changes_bucket(),
            operation: operation.name(),
            access_key: match &meaning.principal {
                Principal::AccessKey(key) => Some(key),
                Principal::Anonymous => None,
            },
            bucket: operation.bucket().map(BucketName::as_str),
            key: operation.object().map(|object| object.key.as_str()),
            version: operation.version(),
            upstream: None,
        }
    }

    fn facts(&self, meaning: &Meaning) -> Facts {
        Facts {
            lineage: self.node.lineage_facts(),
            ..meaning.facts()
        }
    }

    fn subject<'m>(&self, meaning: &'m Meaning) -> Option<Subject<'m>> {
        match &meaning.operation {
            Operation::Object(ObjectRef { bucket, key }, ObjectOperation::Get(_)) => {
                Some(Subject {
                    group: bucket.as_str(),
                    name: key.as_str(),
                    is_settling: false,
                })
            }
            _ => None,
        }
    }

    async fn serve(
        &self,
        exchange: &mut impl Exchange,
        request: Request<'_>,
    ) -> io::Result<Served<S3Error>> {
        let concerns_all = route::concerns_all(&request.meaning.operation);
        if !concerns_all && !request.is_relayed {
            self.node.core.counters.served_direct.add_one();
        }
        // An operation that concerns all backends may change the rules, and looks them up itself.
        if !concerns_all {
            exchange.add_fields(self.rules.cors_fields(request.head).await);
        }
        let request = &request;
        let mut call = Call { exchange, request };
        self.answer_here(&mut call).await?;
        Ok(Served::Answered)
    }

    fn nodes(&self) -> &Replicator {
        &self.replicator
    }

    async fn extra_fields(&self, head: &RequestHead) -> Option<Headers> {
        self.rules.cors_fields(head).await
    }

    fn error_for(&self, fault: Fault, _: Option<&Meaning>) -> S3Error {
        match fault {
            Fault::Head(error) => error.into(),
            Fault::Body(error) => error.into(),
            Fault::TimedOut => Code::RequestTimeout.into(),
            Fault::Elsewhere => elsewhere(),
            Fault::OutOfReach => Code::ServiceUnavailable.into(),
            Fault::Differs => prism_replicas::differs(),
            // No object redirects a request.
            Fault::RedirectLoop => Code::InternalError.into(),
            Fault::TooMany(wait_s) => Code::SlowDown
                .with_message(
                    "This is more than a limit of the service allows. Repeat the request after the \
                 time of Retry-After.",
                )
                .until(wait_s),
            Fault::AmbiguousPath => Code::InvalidURI.with_message(
                "The path can be read in two ways: it has an escaped slash, a backslash, `..;` or \
                 a malformed escape, or leads above the root.",
            ),
        }
    }

    fn status_of(&self, error: &S3Error) -> (u16, bool) {
        (error.status(), is_ours(error))
    }

    async fn send_error(
        &self,
        exchange: &mut impl Exchange,
        error: &S3Error,
        path: &str,
    ) -> io::Result<()> {
        send_error(exchange, error, Headers::new(), path).await
    }
}
