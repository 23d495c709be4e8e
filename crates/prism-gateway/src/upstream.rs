//! Answers requests of other nodes, for their clients or for themselves: the other end of
//! `relay.rs` and of `prism_service::Peers`.

use std::io;
use std::rc::Rc;
use std::time::Instant;

use prism_handoff::RelayStream;
use prism_http::{Exchange, Method, RequestHead, ResponseHead};
use prism_proto::relay::{ANSWER_ELSEWHERE, ANSWER_FIELD, HAND_OVER, Preamble};
use prism_service::{
    About, Fault, MAX_SKIP_BYTES, NodeRequests, Request, RequestBody, RequestSpan, Route, Served,
    Service, send, span_below,
};

use crate::gateway::Gateway;

impl<S: Service> Gateway<S> {
    /// Answers the requests that another node relays, until it closes.
    pub(crate) async fn serve_relay(self: Rc<Self>, stream: RelayStream, peer: String) {
        let mut io = stream;
        io.set_io_timeout(self.config().limits.stall_timeout());
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
        let more = match preamble.alone {
            true => S::Nodes::HEADER_BYTES,
            false => 0,
        };
        let limits = prism_http::Limits {
            body_bytes: self.service.limits().body_bytes.saturating_add(more),
            // The relaying node has checked their number, and may have added one.
            headers: prism_http::Limits::MAX_HEADERS,
            ..*self.service.limits()
        };
        let parse = |bytes: &[u8]| RequestHead::parse(bytes, &limits);
        let (mut head, len) = match read_next(io, parse).await? {
            Some(Ok(read)) => read,
            Some(Err(error)) => {
                self.shared.counters.malformed.add_one();
                let error = self.service.error_for(Fault::Head(error));
                self.answer_malformed(io, &error).await?;
                return Ok(false);
            }
            None => return Ok(false),
        };
        io.consume(len);
        self.shared.counters.served_relayed.add_one();
        if preamble.alone && matches!(head.method(), Method::Put | Method::Post) {
            let date = self.date.now();
            let exchange = head.exchange(&date);
            let nodes = self.service.nodes();
            return nodes.serve_node(io, &head, peer, &exchange).await;
        }
        let begun = Instant::now();
        head.noted().set_id(preamble.verified.request_id);
        head.noted().set_span(span_below(&preamble.verified));
        let trace = |head: &RequestHead, about| {
            self.trace(head, about, begun, |span| RequestSpan {
                peer: Some(peer),
                ..span
            });
        };
        let verified = Some(preamble.verified.clone());
        let mut request = match self.service.understand(&mut head, verified) {
            Ok(meaning) => Request::relayed(head, &preamble, meaning),
            Err(error) => {
                let refused = self.refuse_relayed(io, &head, &error).await;
                trace(&head, About::UNKNOWN);
                return refused;
            }
        };
        // The relaying node has admitted it.
        if let Err(error) = self.service.confirm(&mut request).await {
            let refused = self.refuse_relayed(io, &request.head, &error).await;
            trace(&request.head, self.service.about(&request.meaning));
            return refused;
        }
        let answered = self.answer_relayed(io, &request).await;
        trace(&request.head, self.service.about(&request.meaning));
        answered
    }

    async fn refuse_relayed(
        &self,
        io: &mut RelayStream,
        head: &RequestHead,
        error: &S::Error,
    ) -> io::Result<bool> {
        let body = RequestBody::new(head, MAX_SKIP_BYTES);
        let may_live = head.keep_alive();
        self.answer_error(io, head, body, error, may_live).await
    }

    /// Answers a request, or sends it back if other nodes answer it. The relaying node knows
    /// them, or is about to.
    async fn answer_relayed(
        &self,
        io: &mut RelayStream,
        request: &Request<S::Meaning>,
    ) -> io::Result<bool> {
        let date = self.date.now();
        let exchange = request.head.exchange(&date);
        // Decided after a pause, by the cluster's state of then.
        let _change = self.service.begin(&request.meaning).await;
        let mut head = ResponseHead::new(HAND_OVER);
        if request.is_for_node || !self.service.is_elsewhere(&request.meaning) {
            match self.service.serve(io, request, &exchange).await? {
                Served::Open => return Ok(true),
                Served::Closed => return Ok(false),
                Served::Elsewhere(error) => {
                    tracing::debug!(%error, path = request.head.path(), "cannot answer");
                    request.give_body_back();
                    // Nobody else may answer.
                    if self.service.route(&request.meaning) == Route::Here {
                        return self.refuse_relayed(io, &request.head, &error).await;
                    }
                    let told = head.with(ANSWER_FIELD, ANSWER_ELSEWHERE);
                    head = told.map_err(io::Error::other)?;
                }
            }
        } else {
            let error = self.service.error_for(Fault::Elsewhere);
            tracing::info!(%error, path = request.head.path(), "sent a request back to the relaying node");
        }
        let mut body = request.take_body(MAX_SKIP_BYTES);
        let exchange = Exchange {
            keep_alive: exchange.keep_alive && body.can_skip_rest(io).await,
            ..exchange
        };
        let answered = send(io, &exchange, head, &[]).await;
        body.skip_behind(io, answered).await
    }
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
