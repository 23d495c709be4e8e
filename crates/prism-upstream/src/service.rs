//! The service: its implementation of [`Service`], and the request's way to a server.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use prism_http::{BodyFraming, Exchange, Headers, Limits, Method, RequestHead, ResponseHead};
use prism_proto::verified::{Body, Caller, Verified};
use prism_service::{
    About, BodyFailure, Fault, Io, NodeRequests, Remote, Request, RequestBody, Route, Served,
    Service, Subject, send,
};

use crate::Shared;
use crate::error::Error;
use crate::exchange::{self, Passed, Transfer};
use crate::forwarded;
use crate::health::Outcome;
use crate::pool::{Pool, UnderWay};
use crate::retry::{self, Failure, Step};
use crate::server::{Idle, Server};

/// The service, as one thread of a node serves it. `N` answers the requests of nodes that do not
/// concern upstreams.
pub struct Upstreams<N> {
    pub(crate) shared: Arc<Shared>,
    pub(crate) others: N,
    /// Idle connections by the places of upstreams and of their addresses.
    idle: Vec<Vec<Idle>>,
}

/// A request as this service understands it.
pub struct Meaning {
    pool: Arc<Pool>,
    /// The place of the pool.
    place: usize,
    /// The part of the request that is hashed.
    key: String,
    path: Box<str>,
    operation: &'static str,
    /// Whether another node has chosen this one to answer it.
    is_sent: bool,
    state: RefCell<State>,
}

/// The way of a request to a server of this node.
enum State {
    /// Nothing was tried.
    Open,
    /// A connection waits for it.
    Connected(Lease),
    /// No server took a connection.
    Failed(Error),
}

/// A connection to a server for one request.
struct Lease {
    server: Server,
    /// The place of its address.
    place: usize,
    under_way: UnderWay,
}

impl<N> Upstreams<N> {
    /// The service for the calling thread.
    pub fn new(shared: Arc<Shared>, others: N) -> Self {
        let pools = shared.pools.iter();
        let idle = pools.map(|pool| pool.addresses.iter().map(|_| Idle::default()).collect());
        Self {
            idle: idle.collect(),
            shared,
            others,
        }
    }

    /// Whether this node answers a request from a server of its own.
    fn is_here(&self, meaning: &Meaning) -> bool {
        match &*meaning.state.borrow() {
            State::Connected(_) => return true,
            State::Failed(_) => return false,
            State::Open => {}
        }
        let pool = &meaning.pool;
        if pool.addresses.is_empty() {
            return false;
        }
        let backends = self.shared.backends(pool, &meaning.key);
        let name = self.shared.name.as_str();
        let others_may = backends.iter().any(|backend| backend.name != name);
        match meaning.is_sent || !others_may {
            true => pool.is_up() || !others_may,
            false => {
                let best = backends.first();
                pool.is_up() && !best.is_some_and(|best| pool.moves(name, best))
            }
        }
    }

    /// A connection to a server of this node for a request.
    async fn connect(&self, meaning: &Meaning, may_be_idle: bool) -> Result<Lease, Error> {
        let pool = &meaning.pool;
        let mut error = Error::OutOfReach;
        for place in pool.addresses(&meaning.key) {
            let Some(address) = pool.addresses.get(place) else {
                continue;
            };
            let under_way = UnderWay::at(address);
            let idle = self.idle_of(meaning.place, place).filter(|_| may_be_idle);
            if let Some(server) = idle.and_then(Idle::take) {
                return Ok(Lease {
                    server,
                    place,
                    under_way,
                });
            }
            let limit = pool.settings.connect_timeout();
            match Server::connect(address.address, limit).await {
                Ok(server) => {
                    return Ok(Lease {
                        server,
                        place,
                        under_way,
                    });
                }
                Err(fault) => {
                    tracing::debug!(address = %address.address, error = %fault, "no connection");
                    address.learn(Outcome::Refused);
                    error = match fault.kind() {
                        io::ErrorKind::TimedOut => Error::ConnectTimedOut,
                        _ => Error::NotConnected,
                    };
                }
            }
        }
        Err(error)
    }

    fn idle_of(&self, pool: usize, address: usize) -> Option<&Idle> {
        self.idle.get(pool)?.get(address)
    }
}

impl<N: NodeRequests> Service for Upstreams<N> {
    type Meaning = Meaning;
    type Error = Error;
    type Change<'s> = ();
    type Nodes = Self;

    fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    fn understand(
        &self,
        head: &mut RequestHead,
        verified: Option<Verified>,
    ) -> Result<Meaning, Error> {
        let (place, pool) = self.shared.pool_of(head).ok_or(Error::NoUpstream)?;
        let max_bytes = pool.max_body_bytes();
        if matches!(head.framing(), BodyFraming::Length(bytes) if bytes > max_bytes) {
            return Err(Error::BodyTooLong);
        }
        Ok(Meaning {
            key: pool.key(head),
            pool: pool.clone(),
            place,
            path: head.path().into(),
            operation: operation(head.method()),
            is_sent: verified.is_some(),
            state: RefCell::new(State::Open),
        })
    }

    async fn admit(&self, request: &mut Request<Meaning>, client: Remote) -> Result<(), Error> {
        let added = forwarded::add(&mut request.head, client.address, client.is_tls);
        added.map_err(|_| Error::Head(prism_http::HeadError::HeadTooLong))
    }

    async fn begin(&self, meaning: &Meaning) -> Option<()> {
        if self.is_here(meaning) {
            let state = match self.connect(meaning, true).await {
                Ok(lease) => State::Connected(lease),
                Err(error) => State::Failed(error),
            };
            meaning.state.replace(state);
        }
        None
    }

    fn route(&self, meaning: &Meaning) -> Route {
        if self.is_here(meaning) {
            return Route::Here;
        }
        let pool = &meaning.pool;
        let mut backends = self.shared.backends(pool, &meaning.key);
        backends.retain(|backend| backend.name != self.shared.name);
        let Some(best) = backends.first() else {
            return Route::Here;
        };
        pool.sends(best);
        let names = backends.iter().map(|backend| backend.name.clone());
        // A connection that was sent here does not go round while all servers are down.
        match meaning.is_sent {
            true => Route::Relay(names.collect()),
            false => Route::HandOff(names.collect()),
        }
    }

    fn is_elsewhere(&self, meaning: &Meaning) -> bool {
        !matches!(&*meaning.state.borrow(), State::Connected(_))
    }

    fn may_stay(&self, _: &Meaning) -> bool {
        true
    }

    fn epoch(&self) -> u64 {
        0
    }

    async fn has_moved_on(&self, _: u64, _: bool) -> bool {
        false
    }

    fn about<'m>(&self, meaning: &'m Meaning) -> About<'m> {
        About {
            operation: meaning.operation,
            key: Some(&meaning.path),
            ..About::UNKNOWN
        }
    }

    fn vouch(&self, _: &Meaning) -> Verified {
        nobody()
    }

    fn subject<'m>(&self, _: &'m Meaning) -> Option<Subject<'m>> {
        None
    }

    async fn serve(
        &self,
        io: &mut impl Io,
        request: &Request<Meaning>,
        exchange: &Exchange<'_>,
    ) -> io::Result<Served<Error>> {
        self.pass(io, request, exchange).await
    }

    fn nodes(&self) -> &Self {
        self
    }

    async fn extra_fields(&self, _: &RequestHead) -> Option<Headers> {
        None
    }

    fn error_for(&self, fault: Fault) -> Error {
        match fault {
            Fault::Head(error) => error.into(),
            Fault::Body(error) => error.into(),
            Fault::TimedOut => Error::TimedOut,
            Fault::Elsewhere | Fault::OutOfReach => Error::OutOfReach,
            Fault::Differs => Error::Differs,
        }
    }

    fn status_of(&self, error: &Error) -> (u16, bool) {
        let status = error.status();
        (status, status >= 500)
    }

    async fn send_error(
        &self,
        io: &mut impl Io,
        exchange: &Exchange<'_>,
        error: &Error,
        _: &str,
    ) -> io::Result<bool> {
        if let Some(noted) = exchange.noted {
            noted.set_error(error.code());
        }
        let head = ResponseHead::new(error.status());
        let head = head.with("Content-Type", "text/plain; charset=utf-8");
        let text = format!("{error}\n");
        send(
            io,
            exchange,
            head.map_err(io::Error::other)?,
            text.as_bytes(),
        )
        .await
    }
}

impl<N: NodeRequests> Upstreams<N> {
    /// Passes a request to a server of this node, and the answer back.
    async fn pass(
        &self,
        io: &mut impl Io,
        request: &Request<Meaning>,
        exchange: &Exchange<'_>,
    ) -> io::Result<Served<Error>> {
        let meaning = &request.meaning;
        let mut body = request.take_body(meaning.pool.max_body_bytes());
        let mut lease = match meaning.state.replace(State::Failed(Error::OutOfReach)) {
            State::Connected(lease) => lease,
            State::Failed(error) => return Ok(Served::Elsewhere(error)),
            State::Open => return Ok(Served::Elsewhere(Error::OutOfReach)),
        };
        let mut is_again = false;
        loop {
            match self
                .exchange(io, request, exchange, &mut lease, &mut body)
                .await
            {
                Ok(passed) => {
                    let idle = self.idle_of(meaning.place, lease.place);
                    if let Some(idle) = idle.filter(|_| passed.is_reusable) {
                        let max = meaning.pool.settings.idle_connections;
                        idle.keep(lease.server, max.into());
                    }
                    let open = passed.keep_alive && body.skip_rest(io).await;
                    return Ok(Served::answered(open));
                }
                Err(exchange::Fault::Connection(error)) => return Err(error),
                Err(exchange::Fault::Body(failure)) => {
                    let error = match failure {
                        BodyFailure::Connection(error) => return Err(error),
                        BodyFailure::TooLong => Error::BodyTooLong,
                        BodyFailure::Malformed(error) => Error::Body(error),
                    };
                    return self.refuse(io, request, exchange, body, &error).await;
                }
                Err(exchange::Fault::Server(failure)) => {
                    tracing::debug!(address = %lease.under_way.address().address, ?failure, "no answer");
                    if !matches!(failure, Failure::Ended { was_idle: true }) {
                        lease.under_way.address().learn(Outcome::Silent);
                    }
                    let method = request.head.method();
                    let error = error_of(failure);
                    match retry::step(failure, method, body.has_begun(), is_again) {
                        Step::Again => match self.connect(meaning, false).await {
                            Ok(fresh) => (lease, is_again) = (fresh, true),
                            Err(error) => return Ok(Served::Elsewhere(error)),
                        },
                        Step::Elsewhere => return Ok(Served::Elsewhere(error)),
                        Step::GiveUp => {
                            return self.refuse(io, request, exchange, body, &error).await;
                        }
                    }
                }
            }
        }
    }

    /// One exchange with the server of `lease`.
    async fn exchange(
        &self,
        io: &mut impl Io,
        request: &Request<Meaning>,
        exchange: &Exchange<'_>,
        lease: &mut Lease,
        body: &mut RequestBody,
    ) -> Result<Passed, exchange::Fault> {
        let meaning = &request.meaning;
        let timeout = meaning.pool.settings.answer_timeout();
        let mut transfer = Transfer::new(io, &mut lease.server, body, request, timeout);
        let answer = transfer.answer(exchange).await?;
        let address = lease.under_way.address();
        address.learn(Outcome::Answered(answer.status()));
        if !request.is_relayed {
            self.shared.counters.served_direct.add_one();
        }
        transfer.pass(answer, exchange).await
    }

    /// Sends an error in the place of an answer.
    async fn refuse(
        &self,
        io: &mut impl Io,
        request: &Request<Meaning>,
        exchange: &Exchange<'_>,
        mut body: RequestBody,
        error: &Error,
    ) -> io::Result<Served<Error>> {
        if error.status() >= 500 {
            self.shared.counters.failed.add_one();
        }
        let exchange = Exchange {
            keep_alive: exchange.keep_alive && body.can_skip_rest(io).await,
            ..*exchange
        };
        let sent = self.send_error(io, &exchange, error, request.head.path());
        let sent = sent.await;
        body.skip_behind(io, sent).await.map(Served::answered)
    }
}

/// The error for a failure.
const fn error_of(failure: Failure) -> Error {
    match failure {
        Failure::Ended { .. } => Error::Ended,
        Failure::Silent => Error::Silent,
        Failure::Malformed => Error::Malformed,
    }
}

/// The verification of a request: its upstream verifies callers.
pub(crate) const fn nobody() -> Verified {
    Verified {
        request_id: 0,
        trace: None,
        caller: Caller::Anonymous,
        body: Body::Unsaid,
    }
}

/// The operation of a request for logs and metrics.
const fn operation(method: &Method) -> &'static str {
    match method {
        Method::Get => "GET",
        Method::Head => "HEAD",
        Method::Put => "PUT",
        Method::Post => "POST",
        Method::Delete => "DELETE",
        Method::Options => "OPTIONS",
        Method::Patch => "PATCH",
        Method::Trace => "TRACE",
        Method::Other(_) => "OTHER",
    }
}
