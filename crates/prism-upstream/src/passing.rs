//! The way of a request to a server of this node, and of the answer back.

use std::io;
use std::time::{Duration, Instant};

use prism_config::seconds;
use prism_http::{BodyFraming, Headers, RequestHead, ResponseHead};
use prism_proto::relay::{ANSWER_FIELD, ANSWER_FINAL, HAND_OVER};
use prism_proxy::{
    Answer, AnswerHead, DroppedBody, Failure, Fault, Forward, Outgoing, Passed, SWITCHING,
};
use prism_service::{
    BodyFailure, Exchange, NodeRequests, RequestRef, Served, Service, request_id_text,
};

use crate::error::Error;
use crate::forwarded::{self, REQUEST_ID};
use crate::health::Outcome;
use crate::park::Lease;
use crate::pool::UnderWay;
use crate::private::{self, Own, Sharing};
use crate::proxy_header::of_client;
use crate::retry::{self, Step, Tries};
use crate::server::Server;
use crate::service::{Meaning, Upstreams};

mod auth;
mod parked;
mod redirected;

use auth::Grant;

/// The longest wait for `100 Continue`, after which the body is sent nevertheless: a server may
/// not know `Expect` (RFC 9110, section 10.1.1).
const CONTINUE_WAIT: Duration = Duration::from_secs(1);

/// An answer and a request on their way, and a server that rounds down.
const SERVER_CLOCK_SLACK: Duration = Duration::from_secs(1);

/// The end of an exchange with a server.
enum End {
    Passed(Passed),
    /// The answer is longer than the relaying node wants.
    TooLong {
        answer: Answer,
        offers_login: bool,
    },
    /// The answer is not for the client: it names the resource that the client gets, or allows the
    /// request.
    Order(Box<ResponseHead>, DroppedBody),
}

/// A request on its way to servers.
struct Attempt<'a, N, X> {
    node: &'a Upstreams<N>,
    exchange: &'a mut X,
    request: RequestRef<'a, Meaning>,
    /// The requests that may use the server's connection afterwards.
    sharing: Sharing,
    /// The beginning of the body, from a try that failed; `None` if it cannot be sent again.
    replay: Option<Vec<u8>>,
    purpose: Purpose,
}

/// The reason why servers get a request.
enum Purpose {
    /// One of them is to answer it. It has this permission, if the upstream asks for one.
    Answer(Option<Grant>),
    /// One of them is to allow it.
    Permission,
}

impl<N: NodeRequests> Upstreams<N> {
    /// Passes a request to a server of this node, and the answer back.
    pub(crate) async fn pass(
        &self,
        exchange: &mut impl Exchange,
        request: RequestRef<'_, Meaning>,
    ) -> io::Result<Served<Error>> {
        let mut attempt = Attempt {
            node: self,
            exchange,
            request,
            sharing: request.meaning.sharing,
            replay: Some(Vec::new()),
            purpose: Purpose::Answer(None),
        };
        attempt.run().await
    }
}

impl<N: NodeRequests, X: Exchange> Attempt<'_, N, X> {
    /// Has the request answered.
    async fn run(&mut self) -> io::Result<Served<Error>> {
        let meaning = self.request.meaning;
        self.exchange.limit_body(meaning.pool.max_body_bytes());
        if meaning.is_parked
            && let Some(served) = self.answer_parked().await?
        {
            return Ok(served);
        }
        // Other nodes have tried.
        if self.exchange.record().retries > meaning.pool.settings.retries {
            return self.refuse(&Error::Ended).await;
        }
        if let Some(auth) = meaning.pool.settings.auth.as_ref()
            && let Some(served) = Box::pin(self.ask_for_permission(auth)).await?
        {
            return Ok(served);
        }
        match self.replaced_head() {
            Ok(replaced) => self.try_servers(replaced.as_ref()).await,
            Err(error) => self.refuse(&error).await,
        }
    }

    /// Tries servers of this node, one after the other. `replaced`: the request's head there, if
    /// that is another one.
    async fn try_servers(&mut self, replaced: Option<&RequestHead>) -> io::Result<Served<Error>> {
        let settings = &self.request.meaning.pool.settings;
        let mut lease = match self.first_connection().await {
            Ok(lease) => lease,
            Err(error) => return Ok(Served::Elsewhere(error)),
        };
        let mut is_again = false;
        loop {
            let failure = match self.forward(&mut lease, replaced).await {
                Ok(End::Passed(passed)) => {
                    self.give_back(lease, passed);
                    return Ok(Served::Answered);
                }
                Ok(End::TooLong {
                    answer,
                    offers_login,
                }) => return self.park(lease, answer, offers_login).await,
                Ok(End::Order(answer, body)) => {
                    self.drop_body(lease, body).await;
                    return match self.purpose {
                        Purpose::Answer(_) => self.redirect(answer).await,
                        Purpose::Permission => Ok(Served::Redirected(answer)),
                    };
                }
                Err(Fault::Connection(error)) => return Err(error),
                Err(Fault::Body(failure)) => {
                    let error = match failure {
                        BodyFailure::Connection(error) => return Err(error),
                        BodyFailure::TooLong => Error::BodyTooLong,
                        BodyFailure::Malformed(error) => Error::Body(error),
                    };
                    return self.refuse(&error).await;
                }
                Err(Fault::NoAnswer(failure, error)) => {
                    self.note_failure(&lease, failure, &error);
                    failure
                }
            };
            let error = error_of(failure);
            let tries = Tries {
                is_again,
                is_last: self.exchange.record().retries > settings.retries,
                has_begun: self.exchange.body().has_begun(),
                is_lost: self.replay.is_none(),
            };
            match retry::step(failure, self.request.head.method(), tries) {
                Step::Again => match self.connect(false).await {
                    Ok(fresh) => {
                        lease = fresh;
                        is_again = true;
                    }
                    Err(error) if self.exchange.body().has_begun() => {
                        return self.refuse(&error).await;
                    }
                    Err(error) => return Ok(Served::Elsewhere(error)),
                },
                Step::Elsewhere => return Ok(Served::Elsewhere(error)),
                Step::GiveUp => return self.refuse(&error).await,
            }
        }
    }

    /// Learns from a request that has no answer.
    fn note_failure(&mut self, lease: &Lease, failure: Failure, error: &io::Error) {
        let address = lease.under_way.address();
        let request = request_id_text(self.request.id);
        let retries = self.exchange.record().retries;
        tracing::info!(request, server = %address.address, retries, %error, "a server gave no answer");
        let (was_used, is_unsent) = match failure {
            Failure::Ended {
                was_used,
                is_unsent,
                ..
            } => (was_used, is_unsent),
            Failure::Silent | Failure::Malformed => (false, false),
        };
        if self.exchange.is_done() && !was_used {
            let pool = &self.request.meaning.pool;
            pool.learn(address, Outcome::Failed(failure.into()));
        }
        if !is_unsent {
            self.exchange.record_mut().add_retry();
        } else if let Some(idle_for) = lease.server.idle_for() {
            // A request cannot cause this end.
            address.idle_limit.learn(idle_for, Instant::now());
        }
    }

    /// The connection that the request is sent on first.
    async fn first_connection(&mut self) -> Result<Lease, Error> {
        let meaning = self.request.meaning;
        if self.sharing != Sharing::Present {
            return self.connect(self.sharing == Sharing::Everybody).await;
        }
        match private::take(self.exchange, &meaning.pool) {
            Own::Usable(lease) => Ok(lease),
            Own::Ended => self.connect(false).await,
            Own::Elsewhere => {
                // The client has one server's connection of its own at most.
                let logs_in = meaning.logs_in;
                if !logs_in {
                    self.sharing = Sharing::Everybody;
                }
                self.connect(!logs_in).await
            }
        }
    }

    /// A connection to a server of this node.
    async fn connect(&self, may_be_idle: bool) -> Result<Lease, Error> {
        let meaning = self.request.meaning;
        let pool = &meaning.pool;
        let mut error = Error::OutOfReach;
        for place in pool.addresses(&meaning.affinity) {
            let Some(address) = pool.addresses.get(place) else {
                continue;
            };
            let under_way = UnderWay::at(address);
            let says_client = pool.settings.proxy_protocol;
            let idle = (may_be_idle && !says_client).then(|| self.node.idle_at(address.address));
            if let Some(server) = idle.and_then(|idle| idle.take(&address.idle_limit)) {
                return Ok(Lease { server, under_way });
            }
            let limit = seconds(pool.settings.connect_timeout_s);
            match Server::connect(address.address, limit).await {
                Ok(mut server) => {
                    let ends = self.node.ends_of(self.request).filter(|_| says_client);
                    if let Some(client) = ends {
                        server.preface = of_client(&client);
                    }
                    return Ok(Lease { server, under_way });
                }
                Err(fault) => {
                    tracing::debug!(address = %address.address, error = %fault, "no connection");
                    pool.learn_fault(address, &fault);
                    error = match fault.kind() {
                        io::ErrorKind::TimedOut => Error::ConnectTimedOut,
                        _ => Error::NotConnected,
                    };
                }
            }
        }
        Err(error)
    }

    /// The request's head at the server, if that is another one than here.
    fn replaced_head(&self) -> Result<Option<RequestHead>, Error> {
        let head = self.request.head;
        let pool = &self.request.meaning.pool;
        let max_bytes = self.node.shared.limits.target_bytes;
        let replaced = forwarded::with_replaced_prefix(head, pool, max_bytes)?;
        let Purpose::Answer(Some(grant)) = &self.purpose else {
            return Ok(replaced);
        };
        let mut head = replaced.unwrap_or_else(|| head.clone());
        grant.give_to(&mut head)?;
        Ok(Some(head))
    }

    /// The request as the server of a connection gets it. `replaced`: its head there, if that is
    /// another one.
    fn outgoing(&mut self, server: &mut Server, replaced: Option<&RequestHead>) -> Outgoing {
        let head = replaced.unwrap_or(self.request.head);
        let is_relayed = self.request.is_relayed;
        // A relaying node holds every body back, and its client need not wait for the server.
        let leaves_body = matches!(self.purpose, Purpose::Permission);
        let has_body = head.framing() != BodyFraming::None && !self.exchange.is_done();
        let asks = has_body && !is_relayed && self.exchange.is_held_back();
        let mut extra = Headers::new();
        if asks {
            // Never an error: name and value are well-formed.
            let _ = extra.append("Expect", "100-continue");
        }
        // A relayed connection would not become a tunnel.
        let upgrade = self.request.meaning.upgrade.as_ref();
        if let Some(protocol) = upgrade.filter(|_| !is_relayed) {
            let _ = extra.append("Connection", "upgrade");
            let _ = extra.append("Upgrade", protocol.as_bytes());
        }
        let mut bytes = std::mem::take(&mut server.preface);
        bytes.reserve(1024);
        head.write_forward(head.framing(), &extra, &mut bytes);
        Outgoing {
            head: bytes,
            replay: self.replay.take().unwrap_or_default(),
            leaves_body,
            asks,
            invited_within: Some(CONTINUE_WAIT),
            timeout: Some(seconds(self.request.meaning.pool.settings.answer_timeout_s)),
            to_node: None,
        }
    }

    /// One exchange with the server of `lease`.
    async fn forward(
        &mut self,
        lease: &mut Lease,
        replaced: Option<&RequestHead>,
    ) -> Result<End, Fault> {
        let request = self.request;
        let meaning = &request.meaning;
        let shared = &self.node.shared;
        self.exchange.record_mut().server = Some(lease.under_way.address().address);
        let outgoing = self.outgoing(&mut lease.server, replaced);
        let mut forward = Forward::new(self.exchange, &mut lease.server, outgoing);
        if request.is_relayed {
            forward = forward.for_relaying_node(shared.stall_timeout);
        }
        let head = match forward.answer().await {
            Ok(AnswerHead::Parsed(head)) => head,
            Ok(AnswerHead::Plain(_)) => return Err(Fault::malformed("it is that of a node")),
            Err(fault) => {
                self.replay = forward.into_replay();
                return Err(fault);
            }
        };
        if self.purpose.is_order(meaning, &head) {
            let address = lease.under_way.address();
            let answered = Outcome::Answered(head.status());
            meaning.pool.learn(address, answered);
            let mut order = Box::new(head.clone());
            let own = &meaning.pool.settings;
            let fields = order.headers_mut();
            let server = &address.server;
            meaning.affinity.complete(own, server, request.head, fields);
            let answer = Answer::new(head, request.head.method())?;
            return Ok(End::Order(order, forward.drop_answer(&answer)));
        }
        let is_final = matches!(self.purpose, Purpose::Answer(_));
        let offers_login = is_final && private::is_offered(&head);
        let mut answer = Answer::new(head, request.head.method())?;
        if let Purpose::Answer(Some(grant)) = &self.purpose {
            grant.add_to(answer.headers_mut());
        }
        let is_asked = meaning.upgrade.is_some() && !request.is_relayed;
        if answer.status() == SWITCHING && !is_asked {
            return Err(Fault::malformed(
                "it switches to a protocol that nobody asked for",
            ));
        }
        let address = lease.under_way.address();
        let answered = Outcome::Answered(answer.status());
        meaning.pool.learn(address, answered);
        if let Some(max_bytes) = request.max_answer_bytes
            && shared.parking.has_room()
            && !forward.is_short(&answer, max_bytes).await?
        {
            return Ok(End::TooLong {
                answer,
                offers_login,
            });
        }
        finish_head(self.node, request, &lease.under_way, &mut answer);
        if offers_login && !self.sharing.is_private() {
            self.sharing = Sharing::Client;
        }
        if answer.status() == SWITCHING {
            let limit = meaning.pool.settings.tunnel_timeout_s.map(seconds);
            forward.tunnel(&answer, limit).await?;
            return Ok(End::Passed(Passed::LAST));
        }
        forward.pass(answer).await.map(End::Passed)
    }

    /// Keeps the connection of a request that is answered for another one.
    fn give_back(&mut self, lease: Lease, passed: Passed) {
        let settings = &self.request.meaning.pool.settings;
        if !passed.is_reusable {
            return;
        }
        if self.sharing.is_private() {
            private::keep(self.exchange, lease);
        } else if !settings.proxy_protocol {
            let idle = self.node.idle_at(lease.under_way.address().address);
            let idle_for = idle_time(seconds(settings.idle_timeout_s), passed.idle_for);
            idle.keep(lease.server, idle_for, settings.idle_connections.into());
        }
    }

    /// Sends an error in the place of an answer.
    async fn refuse(&mut self, error: &Error) -> io::Result<Served<Error>> {
        if error.status() >= 500 {
            self.node.shared.counters.failed.add_one();
        }
        let path = self.request.head.path();
        self.node.send_error(self.exchange, error, path).await?;
        Ok(Served::Answered)
    }
}

/// Gives an answer that is about to be sent the fields of the configuration, counts it, and marks
/// it for the node that relays it.
fn finish_head<N>(
    node: &Upstreams<N>,
    request: RequestRef<'_, Meaning>,
    under_way: &UnderWay,
    answer: &mut Answer,
) {
    let meaning = &request.meaning;
    let server = &under_way.address().server;
    let settings = &meaning.pool.settings;
    let fields = answer.headers_mut();
    meaning
        .affinity
        .complete(settings, server, request.head, fields);
    if answer.headers_mut().get(REQUEST_ID).is_none() {
        // Never an error: name and value are well-formed.
        let _ = match request.head.headers().get(REQUEST_ID) {
            // As the server got it.
            Some(id) => answer.headers_mut().append(REQUEST_ID, id),
            None => answer
                .headers_mut()
                .append(REQUEST_ID, request_id_text(request.id)),
        };
    }
    if !request.is_relayed {
        return node.shared.counters.served_direct.add_one();
    }
    let is_hand_over = answer.status() == HAND_OVER;
    let fields = answer.headers_mut();
    fields.remove(ANSWER_FIELD);
    if is_hand_over {
        // Never an error: name and value are well-formed.
        let _ = fields.append(ANSWER_FIELD, ANSWER_FINAL);
    }
}

/// The time for which a connection waits for a request. A server that says when it ends an idle one
/// begins to count when its answer leaves.
fn idle_time(ours: Duration, of_server: Option<Duration>) -> Duration {
    let of_server = of_server.map(|time| time.saturating_sub(SERVER_CLOCK_SLACK));
    of_server.map_or(ours, |of_server| of_server.min(ours))
}

/// The error for a failure.
const fn error_of(failure: Failure) -> Error {
    match failure {
        Failure::Ended { .. } => Error::Ended,
        Failure::Silent => Error::Silent,
        Failure::Malformed => Error::Malformed,
    }
}
