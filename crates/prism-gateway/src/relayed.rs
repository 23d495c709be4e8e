//! Answers requests of other nodes, for their clients or for themselves: the other end of
//! `relay.rs` and of `prism_service::Peers`.

use std::io;
use std::rc::Rc;
use std::time::Instant;

use prism_config::seconds;
use prism_handoff::RelayStream;
use prism_http::{Method, RequestHead, ResponseHead};
use prism_proto::relay::{
    ANSWER_ELSEWHERE, ANSWER_FIELD, ANSWER_REDIRECT, HAND_OVER, Preamble, RETRIES_FIELD,
    STATUS_FIELD,
};
use prism_service::{
    About, Exchange, Fault, Http1, Http1Parts, NodeRequests, Request, RequestSpan, Route, Served,
    Service, send, set, span_below,
};

use crate::gateway::Gateway;
use crate::observe::span_of;
use crate::usage_reports;

impl<S: Service> Gateway<S> {
    /// Answers the requests that another node relays, until it closes.
    pub(crate) async fn serve_relay(self: Rc<Self>, stream: RelayStream, peer: String) {
        let mut io = stream;
        io.set_io_timeout(seconds(self.config().limits.stall_timeout_s));
        loop {
            // An idle stream must not delay the end of the node.
            let begun = tokio::select! {
                filled = io.fill(), if io.is_clean() => filled,
                () = self.ordered_until(|| self.is_ending()), if io.is_clean() => return io.close().await,
                else => Ok(1),
            };
            if !matches!(begun, Ok(1..)) {
                return io.close().await;
            }
            match self.serve_relayed(&mut io, &peer).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::debug!(peer, %error, "relay connection ended");
                    return;
                }
            }
        }
    }

    /// Answers the next request of another node. Returns whether the stream lives on.
    async fn serve_relayed(&self, io: &mut RelayStream, peer: &str) -> io::Result<bool> {
        let (preamble, len) = match read_next(io, Preamble::decode).await? {
            Some(Ok(read)) => read,
            // The start of the next request is unknown.
            Some(Err(error)) => {
                self.shared.counters.malformed.add_one();
                tracing::warn!(peer, %error, "a node's request has a malformed preamble; its stream is closed");
                return Ok(false);
            }
            None => return Ok(false),
        };
        io.consume(len);
        // The description of a change precedes its body.
        let more = if preamble.alone {
            S::Nodes::HEADER_BYTES
        } else {
            0
        };
        let limits = prism_http::Limits {
            body_bytes: self.service.limits().body_bytes.saturating_add(more),
            ..self.service.limits().of_relayed()
        };
        let parts = Http1Parts {
            id: preamble.facts.request_id,
            date: self.date.now(),
            ..Http1Parts::default()
        };
        let parse = |bytes: &[u8]| RequestHead::parse(bytes, &limits);
        let (head, len) = match read_next(io, parse).await? {
            Some(Ok(read)) => read,
            Some(Err(error)) => {
                self.shared.counters.malformed.add_one();
                let error = self.service.error_for(Fault::Head(error), None);
                let mut exchange = Http1::without_head(io, parts);
                self.service.send_error(&mut exchange, &error, "").await?;
                return Ok(false);
            }
            None => return Ok(false),
        };
        io.consume(len);
        self.shared.counters.served_relayed.add_one();
        let mut exchange = Http1::new(io, &head, parts);
        if preamble.alone && matches!(*head.method(), Method::PUT | Method::POST) {
            if head.path() == usage_reports::PATH {
                self.take_report(&mut exchange, peer).await?;
                return Ok(exchange.is_open());
            }
            let nodes = self.service.nodes();
            nodes
                .serve_node(&mut exchange, &head, peer, &preamble.facts)
                .await?;
            return Ok(exchange.is_open());
        }
        let answered = self.answer_node(&mut exchange, head, &preamble, peer).await;
        answered.map(|()| exchange.is_open())
    }

    /// Answers a client's request that another node relays.
    async fn answer_node(
        &self,
        exchange: &mut impl Exchange,
        mut head: RequestHead,
        preamble: &Preamble,
        peer: &str,
    ) -> io::Result<()> {
        let begun = Instant::now();
        let verified = &preamble.facts;
        let span = span_below(verified);
        let understood = match self.service.hear_of(verified).await {
            Ok(()) => self.service.understand(&mut head, Some(verified.clone())),
            Err(error) => Err(error),
        };
        let mut request = match understood {
            Ok(meaning) => Request::relayed(head, preamble, meaning).traced(span),
            Err(error) => {
                let refused = self.refuse(exchange, &head, &error).await;
                self.trace(span, || RequestSpan {
                    peer: Some(peer),
                    ..span_of(
                        verified.request_id,
                        About::UNKNOWN,
                        begun,
                        exchange.record(),
                    )
                });
                return refused;
            }
        };
        // The relaying node has admitted it.
        exchange.record_mut().retries = request.retries;
        let answered = match self.service.confirm(&mut request.meaning).await {
            Ok(()) => self.answer_relayed(exchange, &mut request).await,
            Err(error) => self.refuse(exchange, &request.head, &error).await,
        };
        let about = self.service.about(&request.meaning);
        self.trace(span, || RequestSpan {
            peer: Some(peer),
            ..span_of(request.id, about, begun, exchange.record())
        });
        answered
    }

    /// Answers a request, or sends it back if other nodes answer it. The relaying node knows
    /// them, or is about to.
    async fn answer_relayed(
        &self,
        exchange: &mut impl Exchange,
        request: &mut Request<S::Meaning>,
    ) -> io::Result<()> {
        // Decided after a pause, by the cluster's state of then.
        let _change = self.service.hold(&request.meaning).await;
        let mut head = ResponseHead::new(HAND_OVER);
        if !request.is_for_node {
            request.decided_in = Some(self.service.epoch());
        }
        if request.is_for_node || !self.service.is_elsewhere(&request.meaning) {
            exchange.replace_fields(request.replaced_fields());
            match self.service.serve(exchange, request.view()).await? {
                Served::Answered => return Ok(()),
                Served::Redirected(answer) => {
                    // They are for the client.
                    exchange.replace_fields(None);
                    head = asks_to_follow(&answer)?;
                }
                Served::Elsewhere(error) => {
                    tracing::debug!(%error, path = request.head.path(), "cannot answer");
                    // Nobody else may answer.
                    if self.service.route(&request.meaning, true) == Route::Here {
                        return self.refuse(exchange, &request.head, &error).await;
                    }
                    let retries = exchange.record().retries.to_string();
                    let told = head.with(ANSWER_FIELD, ANSWER_ELSEWHERE);
                    let told = told.and_then(|head| head.with(RETRIES_FIELD, retries));
                    head = told.map_err(io::Error::other)?;
                }
            }
        } else {
            let error = self
                .service
                .error_for(Fault::Elsewhere, Some(&request.meaning));
            tracing::info!(%error, path = request.head.path(), "sent a request back to the relaying node");
        }
        send(exchange, head, &[]).await
    }
}

/// The answer that has the relaying node follow that of a server.
fn asks_to_follow(answer: &ResponseHead) -> io::Result<ResponseHead> {
    let mut head = ResponseHead::new(HAND_OVER);
    *head.headers_mut() = answer.headers().clone();
    head.remove_hop_by_hop();
    for (name, value) in [
        (ANSWER_FIELD, ANSWER_REDIRECT),
        (STATUS_FIELD, answer.status().to_string().as_str()),
    ] {
        set(&mut head, name, value)?;
    }
    Ok(head)
}

/// The next part of a request with its length, or its error; `None` at the end of the stream.
async fn read_next<T, E>(
    io: &mut RelayStream,
    parse: impl Fn(&[u8]) -> Result<Option<T>, E>,
) -> io::Result<Option<Result<T, E>>> {
    loop {
        match parse(io.buffered()).transpose() {
            None if io.fill().await? == 0 => return Ok(None),
            None => {}
            read => return Ok(read),
        }
    }
}
