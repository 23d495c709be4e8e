//! The loop of a client's connection: read a head, find the caller and the nodes that answer,
//! then answer, hand the connection off, or relay.

use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use prism_handoff::{Connection, unguessable};
use prism_http::{Exchange, HeadError, Method, RequestHead, ResponseHead, Version};
use prism_proto::verified::Verified;
use prism_service::{
    About, Fault, Io, MAX_SKIP_BYTES, Remote, Request, RequestBody, Route, Served, Service, send,
    span_of_request,
};

use crate::connections::{Place, UnderWay};
use crate::gateway::Gateway;
use crate::observe::Sight;
use crate::short::Asked;

/// The fate of a connection after a request.
pub(crate) enum Next {
    /// The next request is read here.
    Again(Connection),
    Close(Connection),
    /// The connection has moved or broken.
    Gone,
}

/// An address as the host of a URL.
fn url_host(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("[{v6}]"),
    }
}

/// The reason why no request was read.
enum NoRequest {
    /// The client has ended the connection, or the node stops.
    End,
    /// The connection is to go to another node, or to this node's successor.
    Move,
    Malformed(HeadError),
    TimedOut,
}

impl<S: Service> Gateway<S> {
    /// Serves a client until its connection ends or moves.
    pub(crate) async fn serve_client(self: Rc<Self>, mut client: Connection) {
        client.set_io_timeout(self.config().limits.stall_timeout());
        let mut verified = verified_by_source(&client);
        let mut told = self.told_moves();
        let connections = self.shared.connections.clone();
        let place = connections.enter(&client);
        loop {
            let read = self.read_head(&mut client, told).await;
            if matches!(read, Err(NoRequest::Move)) {
                told = self.following.borrow().moves;
                match Box::pin(self.move_away(client)).await {
                    Some(stays) => client = stays,
                    None => return,
                }
                continue;
            }
            // The future is boxed, so that a connection that waits for its next request does
            // not hold its memory. Large and rare parts of it are boxed again, because moving
            // the future into the box takes time.
            let next = Box::pin(self.serve_request(client, read, verified.take(), &place)).await;
            place.ends();
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
        place: &Place<'_>,
    ) -> Next {
        let sight = Sight::of(&client);
        let (head, head_bytes) = match read {
            Ok(read) => read,
            Err(NoRequest::End) => return Next::Close(client),
            Err(refused) => return self.refuse_head(client, refused).await,
        };
        let id = verified.as_ref().map(|verified| verified.request_id);
        head.noted().set_id(id.unwrap_or_else(unguessable::number));
        let span = span_of_request(&head, verified.as_ref(), self.shared.requests.spans());
        head.noted().set_span(span);
        if let Some(answer) = self.challenge(&head, client.is_tls()) {
            let next = self.answer_challenge(client, &head, answer).await;
            self.observe(&sight, &head, About::UNKNOWN, &next);
            return next;
        }
        if !client.is_tls() && self.redirects() {
            let next = self.redirect(client, &head).await;
            self.observe(&sight, &head, About::UNKNOWN, &next);
            return next;
        }
        // The source of a hand-off has counted its request.
        if verified.is_none() {
            self.shared.counters.requests.add_one();
        }
        let mut head = head;
        let mut request = match self.service.understand(&mut head, verified) {
            Ok(meaning) => Request::new(head, head_bytes, meaning),
            Err(error) => {
                let count = match self.service.status_of(&error) {
                    (403, _) => &self.shared.counters.unauthenticated,
                    _ => &self.shared.counters.malformed,
                };
                count.add_one();
                client.consume(head_bytes);
                let body = RequestBody::new(&head, MAX_SKIP_BYTES);
                let next = self.refuse(client, &head, body, &error).await;
                self.observe(&sight, &head, About::UNKNOWN, &next);
                return next;
            }
        };
        let about = self.service.about(&request.meaning);
        place.begins(UnderWay {
            request_id: request.head.noted().id(),
            operation: about.operation,
            begun: sight.begun,
        });
        // A valid signature counts, also for a request that is then denied.
        if about.access_key.is_some() {
            client.caller_is_known();
        }
        let remote = Remote {
            address: client.client(),
            service: client.service(),
            is_tls: client.is_tls(),
            has_companion: client.companion().is_some(),
        };
        if let Err(error) = self.admit(&mut request, remote).await {
            client.consume(head_bytes);
            let body = request.take_body(MAX_SKIP_BYTES);
            let next = self.refuse(client, &request.head, body, &error).await;
            let about = self.service.about(&request.meaning);
            self.observe(&sight, &request.head, about, &next);
            return next;
        }
        client.caller_is_admitted();
        // Decided after a pause, by the cluster's state of then.
        let change = self.service.begin(&request.meaning).await;
        let route = self.service.route(&request.meaning);
        let change = change.filter(|_| matches!(route, Route::Here));
        let next = self.serve_routed(client, &request, route, place).await;
        drop(change);
        let about = self.service.about(&request.meaning);
        self.observe(&sight, &request.head, about, &next);
        next
    }

    /// Admits a request, if this node's placement is that of most nodes.
    async fn admit(
        &self,
        request: &mut Request<S::Meaning>,
        client: Remote,
    ) -> Result<(), S::Error> {
        if self.shared.process.places_differently() {
            return Err(self.service.error_for(Fault::Differs));
        }
        let admitted = self.service.admit(request, client).await;
        if admitted.is_err() {
            self.shared.counters.unauthenticated.add_one();
        }
        admitted
    }

    async fn serve_routed(
        &self,
        mut client: Connection,
        request: &Request<S::Meaning>,
        route: Route,
        place: &Place<'_>,
    ) -> Next {
        match route {
            Route::Here => self.serve_here(client, request).await,
            // Boxed, because each of these futures is larger than the one of a GET here.
            Route::HandOff(mut peers) => {
                // A connection moves only to an address of its client's family.
                let from = client.client();
                peers.sort_by_cached_key(|peer| !self.handle.has_family_of(peer, from));
                let first = peers.first();
                if !first.is_some_and(|peer| self.handle.has_family_of(peer, from)) {
                    return Box::pin(self.relay_to(client, request, &peers)).await;
                }
                if let Some(guess) = self.guess(request, &peers, place.relayed.get()) {
                    let peer = guess.peer;
                    let relayed = Box::pin(self.relay_if_short(client, request, guess));
                    match relayed.await {
                        Ok(next) => {
                            place.relayed.update(|count| count.saturating_add(1));
                            return next;
                        }
                        Err(Asked::Unanswered(same)) => client = same,
                        Err(Asked::Elsewhere(same)) => {
                            let others = peers.get(1..).unwrap_or_default();
                            return Box::pin(self.hand_off(same, request, others)).await;
                        }
                        Err(Asked::Parked(same)) => {
                            return Box::pin(self.move_to_answer(same, request, peer)).await;
                        }
                    }
                }
                Box::pin(self.hand_off(client, request, &peers)).await
            }
            Route::Relay(peers) => Box::pin(self.relay_to(client, request, &peers)).await,
        }
    }

    /// Waits for a whole request head. Consumes nothing.
    async fn read_head(
        &self,
        client: &mut Connection,
        told: u32,
    ) -> Result<(RequestHead, usize), NoRequest> {
        let config = self.config();
        let limits = &config.limits;
        let mut waited = limits.idle_timeout();
        let mut deadline = None;
        loop {
            match RequestHead::parse(client.buffered(), self.service.limits()) {
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
                client.rests();
            }
            let filled = tokio::select! {
                filled = client.fill() => filled,
                () = self.told_to_go(told), if idle => return Err(match self.stays_or_moves() {
                    true => NoRequest::Move,
                    false => NoRequest::End,
                }),
            };
            client.set_io_timeout(limits.stall_timeout());
            match filled {
                Ok(0) => return Err(NoRequest::End),
                Ok(_) if !client.wakes() => return Err(NoRequest::End),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::TimedOut && !idle => {
                    return Err(NoRequest::TimedOut);
                }
                Err(_) => return Err(NoRequest::End),
            }
        }
    }

    async fn refuse_head(&self, mut client: Connection, refused: NoRequest) -> Next {
        self.shared.counters.malformed.add_one();
        let error = match refused {
            NoRequest::End | NoRequest::Move => return Next::Close(client),
            NoRequest::TimedOut => self.service.error_for(Fault::TimedOut),
            NoRequest::Malformed(error) => self.service.error_for(Fault::Head(error)),
        };
        tracing::debug!(client = %client.client(), %error, "request refused");
        let _ = self.answer_malformed(&mut client, &error).await;
        Next::Close(client)
    }

    /// Sends an error without a resource. The connection ends, because the start of the next
    /// request is unknown.
    pub(crate) async fn answer_malformed(
        &self,
        io: &mut impl Io,
        error: &S::Error,
    ) -> io::Result<bool> {
        let date = self.date.now();
        let exchange = Exchange {
            method: &Method::Get,
            version: Version::Http11,
            keep_alive: false,
            date: &date,
            extra: None,
            noted: None,
        };
        self.service.send_error(io, &exchange, error, "").await
    }

    /// Sends a client that speaks HTTP to the same resource over HTTPS. 308 keeps
    /// method and body (RFC 9110, section 15.4.9).
    async fn redirect(&self, mut client: Connection, head: &RequestHead) -> Next {
        let config = self.config();
        let https = config.service.tls.as_ref().map(|tls| tls.port);
        let host = head.host_name().map(str::to_owned);
        let host = host.unwrap_or_else(|| url_host(client.service().ip()));
        let port = match https {
            None | Some(443) => String::new(),
            Some(port) => format!(":{port}"),
        };
        let query = head.query().map(|query| format!("?{query}"));
        let query = query.unwrap_or_default();
        let location = format!("https://{host}{port}{}{query}", head.path());
        let date = self.date.now();
        let extra = self.service.extra_fields(head).await;
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

    async fn serve_here(&self, mut client: Connection, request: &Request<S::Meaning>) -> Next {
        client.consume(request.head_bytes);
        self.serve_behind_head(client, request).await
    }

    /// Answers a request here whose head is consumed.
    pub(crate) async fn serve_behind_head(
        &self,
        mut client: Connection,
        request: &Request<S::Meaning>,
    ) -> Next {
        request.head.noted().set_peer(None);
        let date = self.date.now();
        let may_stay = self.service.may_stay(&request.meaning);
        let keep_alive = request.head.keep_alive() && !self.is_stopping() && may_stay;
        let exchange = Exchange {
            keep_alive,
            ..request.head.exchange(&date)
        };
        let served = match request.head.headers().get("upgrade") {
            None => self.service.serve(&mut client, request, &exchange).await,
            Some(_) => Box::pin(self.serve_until_end(&mut client, request, &exchange)).await,
        };
        match served {
            Ok(Served::Elsewhere(error)) => {
                request.give_body_back();
                Box::pin(self.serve_elsewhere(client, request, error)).await
            }
            Ok(Served::Open) => next(client, Ok(true)),
            Ok(Served::Closed) => next(client, Ok(false)),
            Err(error) => next(client, Err(error)),
        }
    }

    /// Answers a request that may have become a tunnel, which lasts for as long as its ends like.
    /// So the end of the node closes it, in order.
    async fn serve_until_end(
        &self,
        client: &mut Connection,
        request: &Request<S::Meaning>,
        exchange: &Exchange<'_>,
    ) -> io::Result<Served<S::Error>> {
        tokio::select! {
            served = self.service.serve(client, request, exchange) => served,
            () = self.ordered_until(|| self.is_ending()) => Ok(Served::Closed),
        }
    }

    /// Answers with an error at once. The connection lives on if the rest of the body is short
    /// and arrives in time.
    pub(crate) async fn refuse(
        &self,
        mut client: Connection,
        head: &RequestHead,
        mut body: RequestBody,
        error: &S::Error,
    ) -> Next {
        tracing::debug!(client = %client.client(), %error, "request refused");
        head.noted().set_peer(None);
        if let (_, true) = self.service.status_of(error) {
            self.shared.counters.failed.add_one();
        }
        if client.is_newcomer() && !body.is_done() {
            // No more is read from an unknown caller.
            body = RequestBody::unknown();
        }
        // Another frontend may serve the client.
        let is_last = self.is_stopping()
            || self.shared.process.places_differently()
            || self.service.refuses_for_itself();
        let may_live = head.keep_alive() && !is_last;
        let answered = self.answer_error(&mut client, head, body, error, may_live);
        let done = answered.await;
        next(client, done)
    }

    /// Sends an error in the place of an answer. `may_live`: the connection lives on, if the rest
    /// of the body can be skipped.
    pub(crate) async fn answer_error(
        &self,
        io: &mut impl Io,
        head: &RequestHead,
        mut body: RequestBody,
        error: &S::Error,
        may_live: bool,
    ) -> io::Result<bool> {
        let keep_alive = may_live && body.can_skip_rest(io).await;
        let date = self.date.now();
        let extra = self.service.extra_fields(head).await;
        let exchange = Exchange {
            keep_alive,
            extra: extra.as_ref(),
            ..head.exchange(&date)
        };
        let path = head.path();
        let answered = self.service.send_error(io, &exchange, error, path).await;
        body.skip_behind(io, answered).await
    }
}

/// The source's verification of a connection's next request. If it is missing or malformed,
/// the request is verified here.
fn verified_by_source(client: &Connection) -> Option<Verified> {
    let context = client.context();
    if context.is_empty() {
        return None;
    }
    let read = Verified::decode(context);
    let refused = |error| tracing::warn!(client = %client.client(), %error, "cannot read the verification of a hand-off; verifying again");
    read.map_err(refused).ok()
}

/// The fate of a connection by the result of its answer.
pub(crate) fn next(client: Connection, done: io::Result<bool>) -> Next {
    match done {
        Ok(true) => Next::Again(client),
        Ok(false) => Next::Close(client),
        Err(error) => {
            tracing::debug!(client = %client.client(), %error, "connection ended");
            Next::Gone
        }
    }
}
