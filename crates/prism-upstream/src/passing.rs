//! The way of a request to a server of this node, and of the answer back.

use std::io;

use prism_http::{Exchange, ResponseHead};
use prism_proto::relay::{ANSWER_FIELD, ANSWER_FINAL, ANSWER_PARKED, HAND_OVER};
use prism_service::{BodyFailure, Io, NodeRequests, Request, RequestBody, Served, Service, send};

use crate::answer::{Answer, Passed};
use crate::at_work::AtWork;
use crate::error::Error;
use crate::exchange::{Fault, Transfer};
use crate::health::Outcome;
use crate::park::{Lease, Parked};
use crate::pool::{Address, UnderWay};
use crate::private::{self, Own, Sharing};
use crate::proxy_header::of_client;
use crate::retry::{self, Failure, Step};
use crate::server::Server;
use crate::service::{Meaning, State, Upstreams};
use crate::tunnel::SWITCHING;

/// The end of an exchange.
enum End {
    Passed(Passed),
    /// The answer is longer than the relaying node wants.
    TooLong(Answer),
}

impl<N> Upstreams<N> {
    /// A connection to a server of this node for a request.
    pub(crate) async fn connect(
        &self,
        meaning: &Meaning,
        may_be_idle: bool,
    ) -> Result<Lease, Error> {
        let pool = &meaning.pool;
        let mut error = Error::OutOfReach;
        for place in pool.addresses(&meaning.affinity) {
            let Some(address) = pool.addresses.get(place) else {
                continue;
            };
            let under_way = UnderWay::at(address);
            let says_client = pool.settings.proxy_protocol;
            let idle = (may_be_idle && !says_client).then(|| self.idle_at(address.address));
            if let Some(server) = idle.and_then(|idle| idle.take()) {
                return Ok(Lease { server, under_way });
            }
            let limit = pool.settings.connect_timeout();
            match Server::connect(address.address, limit).await {
                Ok(mut server) => {
                    if let Some(client) = meaning.client.get().filter(|_| says_client) {
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
}

impl<N> Upstreams<N> {
    /// The connection of a request whose client has one of its own.
    async fn own_connection(&self, io: &mut impl Io, meaning: &Meaning) -> Result<Lease, Error> {
        match private::take(io, &meaning.pool) {
            Own::Usable(lease) => Ok(lease),
            Own::Ended => self.connect(meaning, false).await,
            Own::Elsewhere => {
                // The client has one server's connection of its own at most.
                let logs_in = meaning.logs_in;
                if !logs_in {
                    meaning.sharing.set(Sharing::Everybody);
                }
                self.connect(meaning, !logs_in).await
            }
        }
    }
}

impl<N: NodeRequests> Upstreams<N> {
    /// Passes a request to a server of this node, and the answer back.
    pub(crate) async fn pass(
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
            State::Open if meaning.sharing.get() == Sharing::Present => {
                match self.own_connection(io, meaning).await {
                    Ok(lease) => lease,
                    Err(error) => return Ok(Served::Elsewhere(error)),
                }
            }
            State::Open => return Ok(Served::Elsewhere(Error::OutOfReach)),
            State::Parked(parked) => {
                return self.pass_parked(io, request, exchange, body, *parked).await;
            }
        };
        let mut is_again = false;
        loop {
            match self
                .exchange(io, request, exchange, &mut lease, &mut body)
                .await
            {
                Ok(End::Passed(passed)) => {
                    self.give_back(io, meaning, lease, &passed);
                    let open = passed.keep_alive && body.skip_rest(io).await;
                    return Ok(Served::answered(open));
                }
                Ok(End::TooLong(answer)) => {
                    return self.park(io, request, exchange, lease, answer).await;
                }
                Err(Fault::Connection(error)) => return Err(error),
                Err(Fault::Body(failure)) => {
                    let error = match failure {
                        BodyFailure::Connection(error) => return Err(error),
                        BodyFailure::TooLong => Error::BodyTooLong,
                        BodyFailure::Malformed(error) => Error::Body(error),
                    };
                    return self.refuse(io, request, exchange, body, &error).await;
                }
                Err(Fault::Server(failure)) => {
                    tracing::debug!(address = %lease.under_way.address().address, ?failure, "no answer");
                    if body.is_done() && failure != (Failure::Ended { was_idle: true }) {
                        let address = lease.under_way.address();
                        meaning.pool.learn(address, Outcome::Failed(failure.into()));
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
    ) -> Result<End, Fault> {
        let meaning = &request.meaning;
        let timeout = meaning.pool.settings.answer_timeout();
        let mut transfer = Transfer::new(io, &mut lease.server, body, request, timeout);
        let is_relayed = request.is_relayed;
        transfer.at_work = is_relayed.then(|| AtWork::new(self.shared.stall_timeout));
        let head = transfer.answer(exchange).await?;
        let mut answer = Answer::new(head, exchange.method)?;
        let is_asked = meaning.upgrade.is_some() && !request.is_relayed;
        if answer.status() == SWITCHING && !is_asked {
            return Err(Fault::Server(Failure::Malformed));
        }
        let address = lease.under_way.address();
        meaning
            .pool
            .learn(address, Outcome::Answered(answer.status()));
        if let Some(max_bytes) = request.max_answer_bytes
            && self.shared.parking.has_room()
            && !transfer.is_short(&answer, max_bytes).await?
        {
            return Ok(End::TooLong(answer));
        }
        self.finish_head(request, address, &mut answer);
        if answer.status() == SWITCHING {
            let limit = meaning.pool.settings.tunnel_timeout();
            let passed = transfer.tunnel(&answer, exchange, limit).await;
            return passed.map(End::Passed);
        }
        transfer.pass(answer, exchange).await.map(End::Passed)
    }

    /// Gives an answer that is about to be sent the fields of the configuration, counts it, and
    /// marks it for the node that relays it.
    fn finish_head(&self, request: &Request<Meaning>, address: &Address, answer: &mut Answer) {
        let Meaning {
            pool,
            affinity,
            sharing,
            ..
        } = &request.meaning;
        if answer.offers_login && !sharing.get().is_private() {
            sharing.set(Sharing::Client);
        }
        affinity.complete(&pool.settings, &address.server, answer.headers_mut());
        if !request.is_relayed {
            return self.shared.counters.served_direct.add_one();
        }
        let fields = answer.headers_mut();
        fields.remove(ANSWER_FIELD);
        if answer.status() == HAND_OVER {
            // Never an error: name and value are well-formed.
            let _ = answer.headers_mut().append(ANSWER_FIELD, ANSWER_FINAL);
        }
    }

    /// Keeps the connection of a request that is answered for another one.
    fn give_back(&self, io: &mut impl Io, meaning: &Meaning, lease: Lease, passed: &Passed) {
        let settings = &meaning.pool.settings;
        if !passed.is_reusable {
            return;
        }
        if meaning.sharing.get().is_private() {
            private::keep(io, lease);
        } else if !settings.proxy_protocol {
            let idle = self.idle_at(lease.under_way.address().address);
            idle.keep(lease.server, settings.idle_connections.into());
        }
    }

    /// Lets an answer wait for the client's connection, and asks the relaying node for that.
    async fn park(
        &self,
        io: &mut impl Io,
        request: &Request<Meaning>,
        exchange: &Exchange<'_>,
        lease: Lease,
        answer: Answer,
    ) -> io::Result<Served<Error>> {
        let parked = Parked::new(lease, answer, &request.meaning.pool)?;
        let id = request.head.noted().id();
        self.shared.parking.park(id, parked);
        let asks = ResponseHead::new(HAND_OVER).with(ANSWER_FIELD, ANSWER_PARKED);
        let asks = asks.map_err(io::Error::other)?;
        send(io, exchange, asks, &[]).await.map(Served::answered)
    }

    /// Passes an answer that has waited for its connection.
    async fn pass_parked(
        &self,
        io: &mut impl Io,
        request: &Request<Meaning>,
        exchange: &Exchange<'_>,
        mut body: RequestBody,
        parked: Parked,
    ) -> io::Result<Served<Error>> {
        let meaning = &request.meaning;
        let (mut answer, mut lease) = parked.resume()?;
        self.finish_head(request, lease.under_way.address(), &mut answer);
        let timeout = meaning.pool.settings.answer_timeout();
        let mut transfer = Transfer::begun(io, &mut lease.server, &mut body, timeout);
        match transfer.pass(answer, exchange).await {
            Ok(passed) => {
                self.give_back(io, meaning, lease, &passed);
                Ok(Served::answered(passed.keep_alive))
            }
            Err(Fault::Connection(error)) => Err(error),
            Err(Fault::Server(_) | Fault::Body(_)) => {
                self.refuse(io, request, exchange, body, &Error::Malformed)
                    .await
            }
        }
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
