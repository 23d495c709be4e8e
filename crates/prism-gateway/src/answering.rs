//! A request's way to its answer, as far as its connection stays here. Nothing here owns a
//! connection.

use std::io;
use std::net::SocketAddr;

use prism_http::RequestHead;
use prism_service::{Exchange, Fault, Request, Served, Service};

use crate::decision::{Decision, Onward};
use crate::gateway::Gateway;

impl<S: Service> Gateway<S> {
    /// The first decision about a request that was admitted. `relayed`: requests of its connection
    /// that were relayed because their answers were short.
    pub(crate) fn decide(
        &self,
        request: &Request<S::Meaning>,
        client: SocketAddr,
        relayed: u32,
    ) -> Decision<S::Error> {
        Decision::of_route(
            self.service.route(&request.meaning, false),
            |peer| self.handle.has_family_of(peer, client),
            |peers| self.guess(request, peers, relayed),
        )
    }

    /// Answers a request, and returns `None`; or returns the way that it goes on. `change` is held
    /// while this node answers.
    pub(crate) async fn answer<'s>(
        &'s self,
        exchange: &mut impl Exchange,
        request: &Request<S::Meaning>,
        mut decision: Decision<S::Error>,
        mut change: Option<S::Change<'s>>,
    ) -> io::Result<Option<Onward>> {
        loop {
            // A step of the cluster need not wait for other nodes' answers.
            if !matches!(decision, Decision::Here) {
                change = None;
            }
            let next = match decision {
                Decision::Here => {
                    if change.is_none() {
                        change = self.service.hold(&request.meaning).await;
                    }
                    self.answer_here(exchange, request).await?
                }
                Decision::HandOff(to) => return Ok(Some(Onward::Moves(to))),
                Decision::Redirect(answer) => return Ok(Some(Onward::Redirected(answer))),
                // Boxed, because each of these futures is larger than the one of a GET here.
                Decision::Ask(guess) => Box::pin(self.ask(exchange, request, guess)).await?,
                Decision::Relay(peers) => Box::pin(self.relay_to(exchange, request, peers)).await?,
                Decision::Fetch(peer) => Box::pin(self.fetch(exchange, request, peer)).await?,
                Decision::Refuse(error) => {
                    self.refuse_client(exchange, &request.head, &error, false)
                        .await?;
                    None
                }
            };
            match next {
                Some(next) => decision = next,
                None => return Ok(None),
            }
        }
    }

    async fn answer_here(
        &self,
        exchange: &mut impl Exchange,
        request: &Request<S::Meaning>,
    ) -> io::Result<Option<Decision<S::Error>>> {
        exchange.record_mut().peer = None;
        if !self.service.may_stay(&request.meaning) {
            exchange.close_after();
        }
        exchange.replace_fields(request.replaced_fields());
        let served = match request.head.headers().get("upgrade") {
            None => self.service.serve(exchange, request.view()).await?,
            Some(_) => Box::pin(self.serve_until_end(exchange, request)).await?,
        };
        let error = match served {
            Served::Answered => return Ok(None),
            Served::Redirected(answer) => return Ok(Some(Decision::Redirect(answer))),
            Served::Elsewhere(error) => error,
        };
        tracing::info!(%error, path = request.head.path(), "cannot answer here");
        let route = self.service.route(&request.meaning, true);
        let next = Decision::after_here(route, error, exchange.is_untouched());
        Ok(Some(next))
    }

    /// Answers a request that may have become a tunnel, which lasts for as long as its ends like.
    /// So the end of the node closes it, in order.
    async fn serve_until_end(
        &self,
        exchange: &mut impl Exchange,
        request: &Request<S::Meaning>,
    ) -> io::Result<Served<S::Error>> {
        tokio::select! {
            served = self.service.serve(exchange, request.view()) => served,
            () = self.ordered_until(|| self.is_ending()) => Ok(Served::Answered),
        }
    }

    /// Answers with an error at once. The connection lives on if the rest of the body is short
    /// and arrives in time.
    pub(crate) async fn refuse(
        &self,
        exchange: &mut impl Exchange,
        head: &RequestHead,
        error: &S::Error,
    ) -> io::Result<()> {
        tracing::debug!(request = exchange.request_id(), %error, "request refused");
        exchange.record_mut().peer = None;
        exchange.add_fields(self.service.extra_fields(head).await);
        self.service.send_error(exchange, error, head.path()).await
    }

    /// Answers a client with an error. Another frontend may serve it.
    pub(crate) async fn refuse_client(
        &self,
        exchange: &mut impl Exchange,
        head: &RequestHead,
        error: &S::Error,
        is_newcomer: bool,
    ) -> io::Result<()> {
        if let (_, true) = self.service.status_of(error) {
            self.shared.counters.failed.add_one();
        }
        // No more is read from an unknown caller.
        let is_unread = is_newcomer && !exchange.is_done();
        let may_others =
            self.shared.process.places_differently() || self.service.refuses_for_itself();
        if is_unread || may_others {
            exchange.close_after();
        }
        self.refuse(exchange, head, error).await
    }

    /// Admits a request, if this node's placement is that of most nodes.
    pub(crate) async fn admit(&self, request: &mut Request<S::Meaning>) -> Result<(), S::Error> {
        if self.shared.process.places_differently() {
            let meaning = Some(&request.meaning);
            return Err(self.service.error_for(Fault::Differs, meaning));
        }
        let (request, meaning) = request.parts();
        let admitted = self.service.admit(request, meaning).await;
        if admitted.is_err() {
            self.shared.counters.unauthenticated.add_one();
        }
        admitted
    }
}
