//! A client's connection, request after request: read a head, know the caller,
//! decide who answers, and answer, hand the connection over, or relay.
//!
//! Frontends and backends run the same loop: whoever holds a connection reads
//! its next request.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use prism_handoff::Connection;
use prism_http::{Exchange, HeadError, Method, RequestHead, ResponseHead};
use prism_proto::verified::{Policy, Verified};
use prism_s3::auth::with_hoisted;
use prism_s3::{BucketOperation, Code, Operation, Payload, Principal, S3Error};

use prism_membership::LeaseTerm;

use super::Worker;
use super::answer::{send, send_error};
use super::fence::differs;
use super::io::Asker;
use super::pause::UnderWay;
use super::request_body::{MAX_SKIP_BYTES, RequestBody};

/// One request, parsed and allowed.
pub(crate) struct Request {
    pub(crate) head: RequestHead,
    /// Bytes of the head, still unconsumed.
    pub(crate) head_bytes: usize,
    pub(crate) operation: Operation,
    pub(crate) principal: Principal,
    pub(crate) payload: Payload,
    /// The bucket policy's answer for an anonymous caller, if it was asked.
    pub(crate) policy: Policy,
    /// Whether it is another node's own request.
    pub(crate) for_node: bool,
    /// Longest body of an object that the relaying node accepts.
    pub(crate) most_bytes: Option<u32>,
    /// Whether this node might serve what it stores when it read the request.
    pub(crate) held: Option<LeaseTerm>,
    /// Whether the body has an owner.
    pub(super) is_body_taken: Cell<bool>,
}

impl Request {
    /// The body, of which at most `max_bytes` are read where it is chunked. It has one owner:
    /// to anybody else nothing is known of it.
    pub(super) fn take_body(&self, max_bytes: u64) -> RequestBody {
        match self.is_body_taken.replace(true) {
            false => RequestBody::new(&self.head, max_bytes),
            true => RequestBody::unknown(),
        }
    }

    /// Lets the body be taken again, of which nothing was read.
    pub(super) fn give_body_back(&self) {
        self.is_body_taken.set(false);
    }
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
    /// The connection is to go to another node.
    Move,
    Malformed(HeadError),
    TimedOut,
}

impl Worker {
    /// Serves a client until its connection ends or moves.
    pub(crate) async fn serve_client(self: Rc<Self>, mut client: Connection) {
        client.set_io_timeout(self.node.config.limits.stall_timeout());
        let mut verified = brought(&client);
        let mut told = self.told_moves();
        loop {
            let read = self.read_head(&mut client, told).await;
            if matches!(read, Err(NoRequest::Move)) {
                told = self.orders.borrow().moves;
                match Box::pin(self.move_away(client)).await {
                    Some(stays) => client = stays,
                    None => return,
                }
                continue;
            }
            // What answers takes memory while it runs: not to be held by a connection that
            // waits for its next request, as most do. And it is moved there, which takes time:
            // what is large and not for every request is apart.
            let next = Box::pin(self.serve_request(client, read, verified.take())).await;
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
        verified: Option<Verified>,
    ) -> Next {
        let (head, head_bytes) = match read {
            Ok(read) => read,
            Err(NoRequest::End) => return Next::Close(client),
            Err(refused) => return self.refuse_head(client, refused).await,
        };
        if !client.is_tls() && self.node.redirects() {
            return self.redirect(client, &head).await;
        }
        // A request that came with a hand-off was counted where it was read.
        if verified.is_none() {
            self.node.counters.requests.add_one();
        }
        let mut request = match self.understand(head, head_bytes, verified) {
            Ok(request) => request,
            Err((head, error)) => {
                let count = match error.status() {
                    403 => &self.node.counters.unauthenticated,
                    _ => &self.node.counters.malformed,
                };
                count.add_one();
                client.consume(head_bytes);
                let body = RequestBody::new(&head, MAX_SKIP_BYTES);
                return self.refuse(client, &head, body, &error).await;
            }
        };
        if let Err(error) = self.admit(&mut request).await {
            client.consume(head_bytes);
            let body = request.take_body(MAX_SKIP_BYTES);
            return self.refuse(client, &request.head, body, &error).await;
        }
        client.caller_is_known();
        // Decided by the cluster as it is behind a pause.
        let write = self.begin_write(&request.operation).await;
        let route = self.route(&request);
        let write = write.filter(|_| matches!(route, Route::Here));
        let next = self.serve_routed(client, &request, route).await;
        drop(write);
        next
    }

    /// Lets a request in, where this node may say which nodes answer it.
    async fn admit(&self, request: &mut Request) -> Result<(), S3Error> {
        if self.node.process.places_differently() {
            return Err(differs());
        }
        let let_in = self.let_in(request).await;
        if let_in.is_err() {
            self.node.counters.unauthenticated.add_one();
        }
        let_in
    }

    async fn serve_routed(&self, mut client: Connection, request: &Request, route: Route) -> Next {
        match route {
            Route::Here => self.serve_here(client, request).await,
            // Each of these is larger than all that answers a GET here.
            Route::HandOff(peers) => {
                if let Some(guess) = self.guess(request, &peers) {
                    let relayed = Box::pin(self.relay_if_short(client, request, guess));
                    match relayed.await {
                        Ok(next) => return next,
                        Err(same) => client = same,
                    }
                }
                Box::pin(self.hand_off(client, request, &peers)).await
            }
            Route::Relay(peers) => Box::pin(self.relay_to(client, request, &peers)).await,
            Route::Everyone => {
                client.consume(request.head_bytes);
                let mut asker = Asker::Client(&mut client);
                let done = Box::pin(self.serve_together(&mut asker, request)).await;
                next(client, done)
            }
        }
    }

    /// Waits for a whole request head. Consumes nothing.
    async fn read_head(
        &self,
        client: &mut Connection,
        told: u32,
    ) -> Result<(RequestHead, usize), NoRequest> {
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
                client.release_buffer();
            }
            let filled = tokio::select! {
                filled = client.fill() => filled,
                () = self.told_to_go(told), if idle => return Err(self.where_to()),
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

    fn where_to(&self) -> NoRequest {
        match self.stays_or_moves() {
            true => NoRequest::Move,
            false => NoRequest::End,
        }
    }

    async fn refuse_head(&self, mut client: Connection, refused: NoRequest) -> Next {
        self.node.counters.malformed.add_one();
        let error = match refused {
            NoRequest::End | NoRequest::Move => return Next::Close(client),
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
        let extra = self.for_browsers(head).await;
        let exchange = Exchange {
            keep_alive: false,
            extra: extra.as_ref(),
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
        verified: Option<Verified>,
    ) -> Result<Request, (RequestHead, S3Error)> {
        // Before anything is decided by how the cluster is.
        let held = self.node.replication.begin();
        let understood = self.node.auth.know(&head, verified).and_then(|known| {
            let hoisted = with_hoisted(&head)?;
            let operation = Operation::parse(hoisted.as_ref().unwrap_or(&head), None)?;
            known.principal.authorize(&operation)?;
            Ok((known, operation, hoisted))
        });
        match understood {
            Ok((known, operation, hoisted)) => Ok(Request {
                head: hoisted.unwrap_or(head),
                head_bytes,
                operation,
                principal: known.principal,
                payload: known.payload,
                policy: known.policy,
                for_node: false,
                most_bytes: None,
                held,
                is_body_taken: Cell::new(false),
            }),
            Err(error) => Err((head, error)),
        }
    }

    /// Begins a request that changes something: behind a pause, if there is one.
    pub(super) async fn begin_write(&self, operation: &Operation) -> Option<UnderWay<'_>> {
        let writes = operation.object().is_some() && !operation.only_reads_object();
        match writes && self.node.cluster.is_in_etcd() {
            true => Some(self.node.pauses.begin().await),
            false => None,
        }
    }

    fn route(&self, request: &Request) -> Route {
        let node = &self.node;
        if let Some(object) = request.operation.object() {
            let (bucket, key) = (object.bucket.as_str(), object.key.as_str());
            let (replication, operation) = (&node.replication, &request.operation);
            if node.store.is_some() && replication.answers_first(operation, bucket, key) {
                return Route::Here;
            }
            let answerers = self.answerers(operation, bucket, key);
            return match operation.moves_data() {
                _ if answerers.first() == Some(&node.name) => Route::Here,
                true => Route::HandOff(answerers),
                false => Route::Relay(answerers),
            };
        }
        match &request.operation {
            Operation::Bucket(
                _,
                BucketOperation::Create
                | BucketOperation::Delete
                | BucketOperation::PutDocument(_)
                | BucketOperation::DeleteDocument(_)
                | BucketOperation::DeleteObjects
                | BucketOperation::ListUploads(_)
                | BucketOperation::ListVersions(_)
                | BucketOperation::PutVersioning
                | BucketOperation::ListObjects(_),
            ) => Route::Everyone,
            Operation::Unsupported { .. } => Route::Here,
            _ if node.store.is_some() && node.replication.is_in_sync() => Route::Here,
            // Every backend knows every bucket.
            _ => Route::Relay(self.backends()),
        }
    }

    /// The nodes that may answer an operation on a key; leaving ones come last.
    pub(super) fn answerers(&self, operation: &Operation, bucket: &str, key: &str) -> Vec<String> {
        let mut names = self.node.replication.answerers(operation, bucket, key);
        if names.len() > 1 {
            names.sort_by_key(|name| self.node.process.is_leaving(name));
        }
        names
    }

    /// All backends that are in sync, in an order that differs from call to call; those that
    /// leave come last.
    pub(super) fn backends(&self) -> Vec<String> {
        let mut names = self.node.replication.in_sync();
        fastrand::shuffle(&mut names);
        names.sort_by_key(|name| self.node.process.is_leaving(name));
        names
    }

    async fn serve_here(&self, mut client: Connection, request: &Request) -> Next {
        client.consume(request.head_bytes);
        self.serve_behind_head(client, request).await
    }

    /// The same where the head has been consumed.
    pub(super) async fn serve_behind_head(
        &self,
        mut client: Connection,
        request: &Request,
    ) -> Next {
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

    /// Answers with an error, at once; the connection lives on where the rest of the body is
    /// short, and comes.
    pub(super) async fn refuse(
        &self,
        mut client: Connection,
        head: &RequestHead,
        mut body: RequestBody,
        error: &S3Error,
    ) -> Next {
        tracing::debug!(client = %client.client(), %error, "request refused");
        if error.status() >= 500 && error.code() != Code::NotImplemented {
            self.node.counters.failed.add_one();
        }
        if client.is_newcomer() && !body.is_done() {
            // Nothing more is read from a caller who is not known.
            body = RequestBody::unknown();
        }
        // Another frontend may serve the client.
        let is_last = self.is_stopping() || self.node.process.places_differently();
        let may_live = head.keep_alive() && !is_last;
        let keep_alive = may_live && body.can_skip_rest(&mut client).await;
        let date = self.date();
        let extra = self.for_browsers(head).await;
        let exchange = Exchange {
            keep_alive,
            extra: extra.as_ref(),
            ..head.exchange(&date)
        };
        let done = send_error(&mut client, &exchange, error, head.path()).await;
        let done = body.skip_behind(&mut client, done).await;
        next(client, done)
    }
}

/// The source's verification of a connection's next request. If it is missing or malformed,
/// the request is verified here.
fn brought(client: &Connection) -> Option<Verified> {
    let context = client.context();
    if context.is_empty() {
        return None;
    }
    let read = Verified::decode(context);
    let refused = |error| tracing::warn!(client = %client.client(), %error, "verified again");
    read.map_err(refused).ok()
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
