//! The loop of a client's connection: read a head, find the caller and the nodes that answer,
//! then answer, hand the connection off, or relay. Only this file owns the connection.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use prism_config::seconds;
use prism_handoff::{Connection, unguessable};
use prism_http::{HeadError, RequestHead};
use prism_proto::facts::Facts;
use prism_service::{
    About, AnswerRecord, BodySource, Exchange, Fault, Http1, Http1Parts, Redirection, Remote,
    Request, Service, span_of_request,
};

use crate::connections::{ListedConnection, UnderWay};
use crate::decision::{Decision, Onward};
use crate::gateway::Gateway;
use crate::limits::Understood;
use crate::observe::{Sight, end_early};
use crate::proxied::of_proxies;

/// The time after a refused request until the next one of a client that does not wait for answers,
/// so that one connection has at most 1,000 refusals in a second.
const REST_AFTER_REFUSAL: Duration = Duration::from_millis(1);

/// The reason why no request was read.
enum NoRequest {
    /// The client has ended the connection, or the node stops.
    End,
    /// The connection is to go to another node, or to this node's successor.
    Move,
    Malformed(HeadError),
    TimedOut,
}

/// A request's head that was read.
struct ReadHead {
    head: RequestHead,
    /// Bytes of it, which the connection still holds.
    bytes: usize,
}

/// The end of an exchange on the client's connection.
pub(crate) struct End {
    pub(crate) record: AnswerRecord,
    /// Bytes of the request's head that the connection still holds.
    pub(crate) head_bytes: usize,
    /// Whether the request's body was read to its end.
    pub(crate) is_body_read: bool,
    /// Whether the connection lives on.
    is_open: bool,
    /// Whether the client would take the end of the connection for that of the answer.
    is_cut: bool,
}

impl<S: Service> Gateway<S> {
    /// Serves a client until its connection ends or moves.
    pub(crate) async fn serve_client(self: Rc<Self>, mut client: Connection) {
        client.set_io_timeout(seconds(self.config().limits.stall_timeout_s));
        let mut verified = verified_by_source(&client);
        let mut told = self.told_moves();
        let connections = self.shared.connections.clone();
        let listed = connections.enter(&client);
        loop {
            let head = match self.read_head(&mut client, told).await {
                Ok(head) => head,
                Err(NoRequest::End) => return client.close().await,
                Err(NoRequest::Move) => {
                    told = self.following.borrow().moves;
                    match Box::pin(self.move_away(client)).await {
                        Some(stays) => client = stays,
                        None => return,
                    }
                    continue;
                }
                Err(NoRequest::Malformed(error)) => {
                    return self.refuse_head(client, Fault::Head(error)).await;
                }
                Err(NoRequest::TimedOut) => return self.refuse_head(client, Fault::TimedOut).await,
            };
            // The future is boxed, so that a connection that waits for its next request does
            // not hold its memory. Large and rare parts of it are boxed again, because moving
            // the future into the box takes time.
            let served = Box::pin(self.serve_request(client, head, verified.take(), &listed)).await;
            listed.ends();
            match served {
                Some(stays) => client = stays,
                None => return,
            }
            // A client that sends requests without waiting for answers takes turns with others.
            if !client.buffered().is_empty() {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Serves one request. Returns the connection, if it lives on here.
    async fn serve_request(
        &self,
        mut client: Connection,
        read: ReadHead,
        verified: Option<Facts>,
        listed: &ListedConnection<'_>,
    ) -> Option<Connection> {
        let ReadHead { mut head, bytes } = read;
        let id = verified.as_ref().map(|verified| verified.request_id);
        let id = id.unwrap_or_else(unguessable::number);
        let span = span_of_request(&head, id, verified.as_ref(), self.shared.requests.spans());
        let config = self.config();
        let said = verified.as_ref().and_then(|facts| facts.client);
        let peer = remote_of(&mut client);
        // The words of proxies are in the request's head, for every node that reads it.
        let remote = of_proxies(&head, peer, &config.service.trusted_proxies);
        let remote = remote.unwrap_or(Remote {
            // The node that accepted the connection may know better than the flow.
            address: said.map_or(peer.address, |said| said.address),
            ..peer
        });
        let sight = Sight::of(&client, &remote, id, span);
        let is_new = verified.is_none();
        if self.answers_before_service(&client, is_new)
            && let Some(end) =
                Box::pin(self.answer_before_service(&mut client, &head, id, bytes, &remote, is_new))
                    .await
        {
            let about = About::by_rule(head.path());
            return self.ended(client, &sight, about, Some(&head), end).await;
        }
        // The source of a hand-off has counted its request.
        if is_new {
            self.shared.counters.requests.add_one();
        }
        if let Some(facts) = &verified
            && let Err(error) = self.service.hear_of(facts).await
        {
            let end = self
                .refuse_request(&mut client, &head, id, bytes, &error, true)
                .await;
            let head = Some(&head);
            return self.ended(client, &sight, About::UNKNOWN, head, end).await;
        }
        let retries = verified.as_ref().map_or(0, |facts| facts.retries);
        let redirection = verified.as_ref().map(Redirection::of).unwrap_or_default();
        let mut request = match self.understand(&mut head, verified, &remote) {
            Ok(Understood { meaning, holds }) => {
                let request = Request::new(head, id, remote, meaning);
                request.traced(span).counted(holds)
            }
            Err(error) => {
                let end = self
                    .refuse_request(&mut client, &head, id, bytes, &error, false)
                    .await;
                let head = Some(&head);
                return self.ended(client, &sight, About::UNKNOWN, head, end).await;
            }
        };
        request.retries = retries;
        request.redirection = redirection;
        let bytes = rewrite(&mut client, &mut request.head, bytes);
        let about = self.service.about(&request.meaning);
        listed.begins(UnderWay {
            request_id: id,
            operation: about.operation,
            begun: sight.begun,
        });
        // A valid signature counts, also for a request that is then denied.
        // The key of a redirect is not the client's.
        if about.access_key.is_some() && request.redirection.steps() == 0 {
            client.caller_is_known();
        }
        if let Err(error) = self.admit(&mut request).await {
            let end = self
                .refuse_request(&mut client, &request.head, id, bytes, &error, false)
                .await;
            let about = self.service.about(&request.meaning);
            let head = Some(&request.head);
            return self.ended(client, &sight, about, head, end).await;
        }
        client.caller_is_admitted();
        self.serve_admitted(client, &mut request, &sight, bytes, listed)
            .await
    }

    /// Has a request answered, and moves its connection where it is answered best.
    pub(crate) async fn serve_admitted(
        &self,
        mut client: Connection,
        request: &mut Request<S::Meaning>,
        sight: &Sight,
        head_bytes: usize,
        listed: &ListedConnection<'_>,
    ) -> Option<Connection> {
        // Decided after a pause, by the cluster's state of then.
        let mut change = self.service.hold(&request.meaning).await;
        request.decided_in = Some(self.service.epoch());
        let about = self.service.about(&request.meaning);
        let mut decision = self.decide(request, client.client(), listed.relayed.get());
        loop {
            let is_asked = matches!(decision, Decision::Ask(_));
            let mut exchange = self.exchange(&mut client, &request.head, request.id, head_bytes);
            let record = exchange.record_mut();
            record.retries = request.retries;
            record.redirects = request.redirection.steps();
            let answered = self
                .answer(&mut exchange, request, decision, change.take())
                .await;
            let mut end = self.end(exchange);
            request.retries = end.record.retries;
            let to = match answered {
                Ok(None) => {
                    if is_asked && end.record.peer.is_some() {
                        listed.relayed.update(|count| count.saturating_add(1));
                    }
                    let head = Some(&request.head);
                    return self.ended(client, sight, about, head, end).await;
                }
                Ok(Some(Onward::Moves(to))) => to,
                Ok(Some(Onward::Redirected(answer))) => {
                    let following =
                        self.follow_redirect(client, request, &answer, end, sight, listed);
                    return Box::pin(following).await;
                }
                Err(error) => {
                    tracing::debug!(client = %client.client(), %error, "connection ended");
                    end_early(&mut end.record, &error);
                    let head = Some(&request.head);
                    self.observe(sight, about, head, &end.record, None);
                    if end.is_cut {
                        client.reset();
                    }
                    return None;
                }
            };
            match Box::pin(self.hand_off(client, request, &to)).await {
                Some(stays) => client = stays,
                None => {
                    self.count_moved(std::mem::take(&mut request.holds));
                    let head = Some(&request.head);
                    self.observe(sight, about, head, &AnswerRecord::default(), None);
                    return None;
                }
            }
            decision = Decision::after_move(to);
        }
    }

    /// Answers a request with an error before it is admitted. `is_last`: the connection ends.
    pub(crate) async fn refuse_request(
        &self,
        client: &mut Connection,
        head: &RequestHead,
        id: u64,
        head_bytes: usize,
        error: &S::Error,
        is_last: bool,
    ) -> End {
        let is_newcomer = client.is_newcomer();
        let mut exchange = self.exchange(client, head, id, head_bytes);
        if is_last {
            exchange.close_after();
        }
        let refused = self
            .refuse_client(&mut exchange, head, error, is_newcomer)
            .await;
        if refused.is_err() {
            exchange.close_after();
        }
        self.end(exchange)
    }

    /// Answers a head that cannot be read. The connection ends, because the start of the next
    /// request is unknown.
    async fn refuse_head(&self, mut client: Connection, fault: Fault) {
        self.shared.counters.malformed.add_one();
        let error = self.service.error_for(fault, None);
        tracing::debug!(client = %client.client(), %error, "request refused");
        let parts = Http1Parts {
            id: unguessable::number(),
            date: self.date.now(),
            ..Http1Parts::default()
        };
        let remote = remote_of(&mut client);
        let sight = Sight::of(&client, &remote, parts.id, None);
        let mut exchange = Http1::without_head(&mut client, parts);
        // The connection ends anyway.
        let _ = self.service.send_error(&mut exchange, &error, "").await;
        let end = self.end(exchange);
        self.ended(client, &sight, About::UNKNOWN, None, end).await;
    }

    /// The exchange of a request on its client's connection.
    pub(crate) fn exchange<'c>(
        &self,
        client: &'c mut Connection,
        head: &RequestHead,
        id: u64,
        head_bytes: usize,
    ) -> Http1<'c, Connection> {
        let parts = Http1Parts {
            id,
            head_bytes,
            date: self.date.now(),
            closes: self.is_stopping(),
            buffer: self.buffer.take(),
        };
        Http1::new(client, head, parts)
    }

    pub(crate) fn end(&self, exchange: Http1<'_, Connection>) -> End {
        let is_open = exchange.is_open();
        let is_cut = exchange.is_cut();
        let head_bytes = exchange.head_bytes();
        let is_body_read = exchange.is_done();
        let (record, buffer) = exchange.end_exchange();
        self.buffer.replace(buffer);
        End {
            record,
            head_bytes,
            is_body_read,
            is_open,
            is_cut,
        }
    }

    /// Records a request whose answer has ended, and returns its connection if it lives on.
    pub(crate) async fn ended(
        &self,
        client: Connection,
        sight: &Sight,
        about: About<'_>,
        head: Option<&RequestHead>,
        end: End,
    ) -> Option<Connection> {
        self.observe(sight, about, head, &end.record, client.wrote_at());
        if end.is_open && !self.is_stopping() {
            let is_refused = end.record.status.is_some_and(|status| status >= 400);
            if is_refused && !client.buffered().is_empty() {
                tokio::time::sleep(REST_AFTER_REFUSAL).await;
            }
            return Some(client);
        }
        client.close().await;
        None
    }

    /// The reason why a connection that waits for a request reads no more here.
    fn why_told(&self) -> NoRequest {
        if self.stays_or_moves() {
            NoRequest::Move
        } else {
            NoRequest::End
        }
    }

    /// Waits for a whole request head. Consumes nothing.
    async fn read_head(&self, client: &mut Connection, told: u32) -> Result<ReadHead, NoRequest> {
        let config = self.config();
        let limits = &config.limits;
        let mut waited = seconds(limits.idle_timeout_s);
        let mut deadline = None;
        loop {
            match RequestHead::parse(client.buffered(), self.service.limits()) {
                Ok(Some((head, bytes))) => return Ok(ReadHead { head, bytes }),
                Ok(None) => {}
                Err(error) => return Err(NoRequest::Malformed(error)),
            }
            if !client.buffered().is_empty() {
                let now = tokio::time::Instant::now();
                let end = *deadline.get_or_insert(now + seconds(limits.head_timeout_s));
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
                () = self.told_to_go(told), if idle => return Err(self.why_told()),
            };
            client.set_io_timeout(seconds(limits.stall_timeout_s));
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
}

/// The client of a connection.
fn remote_of(client: &mut Connection) -> Remote {
    let remote = client.remote();
    Remote {
        address: remote.address,
        service: remote.service,
        is_tls: remote.is_tls,
        has_companion: client.companion().is_some(),
        is_proxied: false,
    }
}

/// The source's verification of a connection's next request. If it is missing or malformed,
/// the request is verified here.
fn verified_by_source(client: &Connection) -> Option<Facts> {
    let context = client.context();
    if context.is_empty() {
        return None;
    }
    let read = Facts::decode(context);
    let refused = |error| tracing::warn!(client = %client.client(), %error, "cannot read the verification of a hand-off; verifying again");
    read.map_err(refused).ok()
}

/// Puts a head that this node has rewritten in the place of the `bytes` that the client sent, so
/// that the node that answers reads what this node has understood. Returns its length.
fn rewrite(client: &mut Connection, head: &mut RequestHead, bytes: usize) -> usize {
    let Some(rewritten) = head.take_rewritten() else {
        return bytes;
    };
    client.replace(bytes, &rewritten);
    rewritten.len()
}
