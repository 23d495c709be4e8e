//! A client's connection, request after request: read a head, know the caller,
//! decide who answers, and answer, hand the connection over, or relay.
//!
//! Frontends and backends run the same loop: whoever holds a connection reads
//! its next request.

use std::io;
use std::rc::Rc;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use prism_config::{Config, Credential, HandOffMode};
use prism_handoff::{Connection, Exported};
use prism_http::{BodyFraming, Exchange, HeadError, Method, RequestHead, ResponseHead};
use prism_s3::auth::with_hoisted;
use prism_s3::{
    Anonymous, Authenticator, Code, Credentials, Operation, Payload, Principal, S3Error,
};
use time::OffsetDateTime;

use crate::cluster::Held;

use super::Worker;
use super::answer::{discard_body, send, send_error};
use super::io::Asker;
use super::relay::{RelayError, Relayed};
use super::relayed::preamble;

/// Knows callers by their signatures.
pub(crate) struct Auth {
    /// With the users as they are now.
    authenticator: RwLock<Arc<Authenticator>>,
    region: String,
    anonymous: Anonymous,
    /// Policies of buckets say what everybody may read.
    by_policy: bool,
}

impl Auth {
    pub(crate) fn new(config: &Config, users: &[Credential]) -> Self {
        let anonymous = match config.s3.anonymous {
            prism_config::Anonymous::Deny => Anonymous::ByPolicy,
            prism_config::Anonymous::Read => Anonymous::Read,
        };
        let region = config.cluster.region.clone();
        Self {
            authenticator: RwLock::new(authenticator(users, &region, anonymous)),
            region,
            anonymous,
            by_policy: anonymous == Anonymous::ByPolicy,
        }
    }

    /// From the next request on, these may call and no others.
    pub(super) fn replace(&self, users: &[Credential]) {
        let new = authenticator(users, &self.region, self.anonymous);
        *self
            .authenticator
            .write()
            .unwrap_or_else(PoisonError::into_inner) = new;
    }

    fn authenticator(&self) -> Arc<Authenticator> {
        let present = self.authenticator.read();
        present.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn authenticator(users: &[Credential], region: &str, anonymous: Anonymous) -> Arc<Authenticator> {
    let mut credentials = Credentials::new();
    for credential in users {
        let (key, secret) = (&credential.access_key, &credential.secret_key);
        credentials.insert(key.as_str(), secret.as_str());
    }
    Arc::new(Authenticator::new(credentials, region, anonymous))
}

/// A caller whom another node has verified, as it travels with a hand-off:
/// empty for an anonymous client, else the access key after a byte 1.
fn vouch(principal: &Principal) -> Vec<u8> {
    match principal {
        Principal::Anonymous => vec![0],
        Principal::AccessKey(key) => [&[1], key.as_bytes()].concat(),
    }
}

fn vouched(context: &[u8]) -> Option<Principal> {
    match context.split_first()? {
        (0, []) => Some(Principal::Anonymous),
        (1, key) => String::from_utf8(key.to_vec())
            .ok()
            .map(Principal::AccessKey),
        _ => None,
    }
}

/// One request, parsed and allowed.
pub(crate) struct Request {
    pub(crate) head: RequestHead,
    /// Bytes of the head, still unconsumed.
    pub(crate) head_bytes: usize,
    pub(crate) operation: Operation,
    pub(crate) principal: Principal,
    pub(crate) payload: Payload,
    /// Another node asks, for itself.
    pub(crate) for_node: bool,
    /// Longest body of an object that whoever relays the answer wants to relay.
    pub(crate) most_bytes: Option<u32>,
    /// Whether this node might serve what it stores when it read the request.
    pub(crate) held: Option<Held>,
}

/// Who answers.
enum Route {
    /// This node's store.
    Here,
    /// The first of these nodes, to the client itself; or through this one, the
    /// first that is in reach.
    HandOff(Vec<String>),
    /// The first of these nodes that is in reach, through this one.
    Relay(Vec<String>),
    /// Every backend, put together here.
    Everyone,
}

/// What becomes of a connection after a request.
pub(super) enum Next {
    Again(Connection),
    Close(Connection),
    Gone,
}

/// The name or address of a `Host` field.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Why no request was read.
enum NoRequest {
    /// The client is done, or broke off, or the node stops.
    End,
    Malformed(HeadError),
    TimedOut,
}

impl Worker {
    /// Serves a client until its connection ends or moves.
    pub(crate) async fn serve_client(self: Rc<Self>, mut client: Connection) {
        client.set_io_timeout(self.node.config.limits.stall_timeout());
        let mut caller = vouched(client.context());
        loop {
            let read = self.read_head(&mut client).await;
            // What answers takes memory while it runs: not to be held by a connection that
            // waits for its next request, as most do. And it is moved there, which takes time:
            // what is large and not for every request is apart.
            let next = Box::pin(self.serve_request(client, read, caller.take())).await;
            match next {
                Next::Again(connection) => client = connection,
                Next::Close(connection) => return connection.close().await,
                Next::Gone => return,
            }
        }
    }

    async fn serve_request(
        &self,
        mut client: Connection,
        read: Result<(RequestHead, usize), NoRequest>,
        caller: Option<Principal>,
    ) -> Next {
        let (head, head_bytes) = match read {
            Ok(read) => read,
            Err(NoRequest::End) => return Next::Close(client),
            Err(refused) => return self.refuse_head(client, refused).await,
        };
        if !client.is_tls() && self.node.redirects() {
            return self.redirect(client, &head).await;
        }
        // A hand-off brings the caller along; it was counted where it was read.
        let known = caller.is_some();
        if !known {
            self.node.counters.requests.add_one();
        }
        let request = match self.understand(head, head_bytes, caller) {
            Ok(request) => request,
            Err((head, error)) => {
                let count = match error.status() {
                    403 => &self.node.counters.unauthenticated,
                    _ => &self.node.counters.malformed,
                };
                count.add_one();
                client.consume(head_bytes);
                return self.refuse(client, &head, &error).await;
            }
        };
        // A hand-off brings a caller along who was let in where the request was read.
        let asks_policy = !known
            && self.node.auth.by_policy
            && request.principal == Principal::Anonymous
            && !matches!(request.operation, Operation::Preflight { .. });
        if asks_policy && !self.everybody_may(&request).await {
            self.node.counters.unauthenticated.add_one();
            client.consume(head_bytes);
            return self
                .refuse(client, &request.head, &Code::AccessDenied.into())
                .await;
        }
        match self.route(&request) {
            Route::Here => self.serve_here(client, &request).await,
            // Each of these is larger than all that answers a GET here.
            Route::HandOff(peers) => {
                if let Some(guess) = self.guess(&request, &peers) {
                    let relayed = Box::pin(self.relay_if_short(client, &request, guess));
                    match relayed.await {
                        Ok(next) => return next,
                        Err(same) => client = same,
                    }
                }
                Box::pin(self.hand_off(client, &request, &peers)).await
            }
            Route::Relay(peers) => Box::pin(self.relay_to(client, &request, &peers)).await,
            Route::Everyone => {
                client.consume(request.head_bytes);
                let mut asker = Asker::Client(&mut client);
                let done = Box::pin(self.serve_together(&mut asker, &request)).await;
                next(client, done)
            }
        }
    }

    /// Waits for a whole request head. Consumes nothing.
    async fn read_head(&self, client: &mut Connection) -> Result<(RequestHead, usize), NoRequest> {
        let limits = &self.node.config.limits;
        let mut waited = limits.idle_timeout();
        let mut deadline = None;
        loop {
            match RequestHead::parse(client.buffered(), &self.node.limits) {
                Ok(Some(read)) => return Ok(read),
                Ok(None) => {}
                Err(error) => return Err(NoRequest::Malformed(error)),
            }
            if !client.buffered().is_empty() {
                let now = tokio::time::Instant::now();
                let end = *deadline.get_or_insert(now + limits.head_timeout());
                waited = end.saturating_duration_since(now);
            }
            client.set_io_timeout(waited.max(Duration::from_millis(1)));
            let idle = client.buffered().is_empty();
            if idle {
                client.rest();
            }
            let filled = tokio::select! {
                filled = client.fill() => filled,
                () = self.told_to_stop(), if idle => return Err(NoRequest::End),
            };
            client.set_io_timeout(limits.stall_timeout());
            match filled {
                Ok(0) => return Err(NoRequest::End),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::TimedOut && !idle => {
                    return Err(NoRequest::TimedOut);
                }
                Err(_) => return Err(NoRequest::End),
            }
        }
    }

    async fn refuse_head(&self, mut client: Connection, refused: NoRequest) -> Next {
        self.node.counters.malformed.add_one();
        let error = match refused {
            NoRequest::End => return Next::Close(client),
            NoRequest::TimedOut => Code::RequestTimeout.into(),
            NoRequest::Malformed(error) => S3Error::from(error),
        };
        tracing::debug!(client = %client.client(), %error, "request refused");
        let date = self.date();
        let exchange = Exchange {
            method: &Method::Get,
            version: prism_http::Version::Http11,
            keep_alive: false,
            date: &date,
            extra: None,
        };
        let _ = send_error(&mut client, &exchange, &error, "").await;
        Next::Close(client)
    }

    /// Sends a client that speaks HTTP to the same resource over HTTPS. 308 keeps
    /// method and body (RFC 9110, section 15.4.9).
    async fn redirect(&self, mut client: Connection, head: &RequestHead) -> Next {
        let service = self.node.config.tls_address().map(|tls| tls.port());
        let host = head.host().map(|host| without_port(host).to_owned());
        let host = host.unwrap_or_else(|| self.node.config.service.address.ip().to_string());
        let port = match service {
            None | Some(443) => String::new(),
            Some(port) => format!(":{port}"),
        };
        let query = head.query().map(|query| format!("?{query}"));
        let query = query.unwrap_or_default();
        let location = format!("https://{host}{port}{}{query}", head.path());
        let date = self.date();
        let exchange = Exchange {
            keep_alive: false,
            ..head.exchange(&date)
        };
        if let Ok(answer) = ResponseHead::new(308).with("Location", location) {
            let _ = send(&mut client, &exchange, answer, &[]).await;
        }
        Next::Close(client)
    }

    /// Who is calling, what is wanted, and whether that is allowed.
    #[allow(
        clippy::result_large_err,
        reason = "the head is needed to answer the error"
    )]
    pub(super) fn understand(
        &self,
        head: RequestHead,
        head_bytes: usize,
        caller: Option<Principal>,
    ) -> Result<Request, (RequestHead, S3Error)> {
        // Before anything is decided by how the cluster is.
        let held = self.node.replication.begin();
        let authenticator = self.node.auth.authenticator();
        let known = match caller {
            Some(principal) => authenticator
                .payload(&head, &principal)
                .map(|payload| (principal, payload)),
            None => authenticator
                .authenticate(&head, OffsetDateTime::now_utc())
                .map(|known| (known.principal, known.payload)),
        };
        let understood = known.and_then(|(principal, payload)| {
            let hoisted = with_hoisted(&head)?;
            let operation = Operation::parse(hoisted.as_ref().unwrap_or(&head), None)?;
            principal.authorize(&operation)?;
            Ok((principal, payload, operation, hoisted))
        });
        match understood {
            Ok((principal, payload, operation, hoisted)) => Ok(Request {
                head: hoisted.unwrap_or(head),
                head_bytes,
                operation,
                principal,
                payload,
                for_node: false,
                most_bytes: None,
                held,
            }),
            Err(error) => Err((head, error)),
        }
    }

    fn route(&self, request: &Request) -> Route {
        let node = &self.node;
        if let Some((bucket, key)) = request.operation.object() {
            let (bucket, key) = (bucket.as_str(), key.as_str());
            let (replication, operation) = (&node.replication, &request.operation);
            if node.store.is_some() && replication.answers_first(operation, bucket, key) {
                return Route::Here;
            }
            let answerers = replication.answerers(operation, bucket, key);
            return match operation.moves_data() {
                _ if answerers.first() == Some(&node.name) => Route::Here,
                true => Route::HandOff(answerers),
                false => Route::Relay(answerers),
            };
        }
        match &request.operation {
            Operation::CreateBucket { .. }
            | Operation::DeleteBucket { .. }
            | Operation::PutBucketDocument { .. }
            | Operation::DeleteBucketDocument { .. }
            | Operation::DeleteObjects { .. }
            | Operation::ListMultipartUploads { .. }
            | Operation::ListObjectVersions { .. }
            | Operation::PutBucketVersioning { .. }
            | Operation::ListObjects { .. } => Route::Everyone,
            Operation::Unsupported { .. } => Route::Here,
            _ if node.store.is_some() && node.replication.is_in_sync() => Route::Here,
            // Every backend knows every bucket.
            _ => Route::Relay(self.backends()),
        }
    }

    /// All backends that are in sync, in an order that differs from call to call.
    pub(super) fn backends(&self) -> Vec<String> {
        let mut names = self.node.replication.in_sync();
        fastrand::shuffle(&mut names);
        names
    }

    async fn serve_here(&self, mut client: Connection, request: &Request) -> Next {
        client.consume(request.head_bytes);
        self.node.counters.served_direct.add_one();
        let date = self.date();
        // Who has no lease sends its clients back to a frontend.
        let may_serve = request.held.is_some();
        let keep_alive = request.head.keep_alive() && !self.is_stopping() && may_serve;
        let exchange = Exchange {
            keep_alive,
            ..request.head.exchange(&date)
        };
        let mut asker = Asker::Client(&mut client);
        let done = self.serve_from_store(&mut asker, request, &exchange).await;
        next(client, done)
    }

    /// Moves the connection to whom it is for; relays where that fails.
    async fn hand_off(&self, client: Connection, request: &Request, peers: &[String]) -> Next {
        let returns = self.node.config.service.hand_off == HandOffMode::Return
            && client.origin() != self.node.name;
        let target = if returns {
            client.origin().to_owned()
        } else {
            peers.first().cloned().unwrap_or_default()
        };
        if !matches!(
            request.head.framing(),
            BodyFraming::None | BodyFraming::Length(0)
        ) {
            client.acknowledge();
        }
        let context = vouch(&request.principal);
        match self.handle.export(client, &target, &context).await {
            Exported::Moved | Exported::Lost => Next::Gone,
            Exported::Kept { connection, reason } => {
                tracing::debug!(client = %connection.client(), ?reason, "relaying instead");
                Box::pin(self.relay_to(connection, request, peers)).await
            }
        }
    }

    /// Relays to the first of `peers` that is in reach.
    pub(super) async fn relay_to(
        &self,
        mut client: Connection,
        request: &Request,
        peers: &[String],
    ) -> Next {
        client.consume(request.head_bytes);
        let relayed = Relayed {
            head: &request.head,
            preamble: preamble(&request.principal, false),
            max_body_bytes: self.node.limits.body_bytes,
        };
        let mut failure = None;
        for peer in peers {
            match self.relay(&mut client, peer, &relayed).await {
                Ok(done) if done.keep_alive && !self.is_stopping() => return Next::Again(client),
                Ok(_) => return Next::Close(client),
                Err(error @ RelayError::Peer(_)) => {
                    self.node.replication.avoid(peer);
                    failure = Some(error);
                }
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        let error = match failure {
            Some(RelayError::Connection(error)) => {
                tracing::debug!(client = %client.client(), %error, "relay ended");
                return Next::Gone;
            }
            Some(RelayError::Body(error)) => S3Error::from(error),
            failure => {
                tracing::warn!(?peers, ?failure, "cannot relay");
                Code::ServiceUnavailable.into()
            }
        };
        self.refuse(client, &request.head, &error).await
    }

    /// Answers with an error; the connection lives on where the body, if any, is
    /// small enough to be read past.
    async fn refuse(&self, mut client: Connection, head: &RequestHead, error: &S3Error) -> Next {
        tracing::debug!(client = %client.client(), %error, "request refused");
        if error.status() >= 500 && error.code() != Code::NotImplemented {
            self.node.counters.failed.add_one();
        }
        let skipped = discard_body(&mut client, head).await;
        let date = self.date();
        let keep_alive = head.keep_alive() && skipped && !self.is_stopping();
        let exchange = Exchange {
            keep_alive,
            ..head.exchange(&date)
        };
        let done = send_error(&mut client, &exchange, error, head.path()).await;
        next(client, done)
    }
}

/// What to do with a connection whose request was answered, or was not.
pub(super) fn next(client: Connection, done: io::Result<bool>) -> Next {
    match done {
        Ok(true) => Next::Again(client),
        Ok(false) => Next::Close(client),
        Err(error) => {
            tracing::debug!(client = %client.client(), %error, "connection ended");
            Next::Gone
        }
    }
}
