//! The service: its implementation of [`Service`], and the request's way to a server.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use prism_config::Balance;
use prism_http::{BodyFraming, HeadError, Headers, Limits, Method, RequestHead, ResponseHead};
use prism_proto::facts::{Caller, Facts, MAX_NAME_BYTES, Progress};
use prism_proxy::wanted_protocol;
use prism_service::{
    About, Exchange, Fault, NodeRequests, Redirected, RequestMut, RequestRef, Route, Served,
    Service, Subject, request_id_text, send, set,
};

use crate::Shared;
use crate::affinity::Affinity;
use crate::backend::Backend;
use crate::error::Error;
use crate::forwarded::{self, REQUEST_ID};
use crate::idle::Idle;
use crate::pool::Pool;
use crate::private::Sharing;
use crate::proxy_header::Ends;
use crate::redirect::{Destination, RedirectFault};
use crate::shared::Pools;

/// The service, as one thread of a node serves it. `N` answers the requests of nodes that do not
/// concern upstreams.
pub struct Upstreams<N> {
    pub(crate) shared: Arc<Shared>,
    pub(crate) others: N,
    /// Idle connections by address.
    idle: RefCell<HashMap<SocketAddr, Rc<Idle>>>,
    /// The upstreams that have these addresses.
    of_pools: RefCell<Pools>,
}

/// A request as this service understands it.
pub struct Meaning {
    pub(crate) pool: Arc<Pool>,
    pub(crate) affinity: Affinity,
    path: Box<str>,
    /// The forecast of its answer's length is by host and target.
    host: Box<str>,
    target: Box<str>,
    operation: &'static str,
    /// The protocol that the client wants to go on with, such as `websocket`.
    pub(crate) upgrade: Option<Box<str>>,
    /// Whether it authenticates the server's connection.
    pub(crate) logs_in: bool,
    pub(crate) sharing: Sharing,
    /// Whether another node has chosen this one to answer it.
    is_sent: bool,
    /// Whether the connection has moved on already, and stays here.
    stays: bool,
    /// Whether its answer waits here.
    pub(crate) is_parked: bool,
}

impl<N> Upstreams<N> {
    /// The service for the calling thread.
    pub fn new(shared: Arc<Shared>, others: N) -> Self {
        Self {
            idle: RefCell::default(),
            of_pools: shared.pools().into(),
            shared,
            others,
        }
    }

    /// The idle connections to an address. One that a reload has removed, or that an operator has
    /// taken down, keeps none.
    pub(crate) fn idle_at(&self, address: SocketAddr) -> Rc<Idle> {
        let mut idle = self.idle.borrow_mut();
        let mut of_pools = self.of_pools.borrow_mut();
        let is_new = !self.shared.is_present(&of_pools);
        if is_new {
            *of_pools = self.shared.pools();
        }
        let is_known = |address: SocketAddr| {
            let mut addresses = of_pools.iter().flat_map(|pool| &pool.addresses);
            addresses.any(|known| known.address == address && known.is_open_to(true))
        };
        if is_new {
            idle.retain(|address, _| is_known(*address));
        }
        match idle.get(&address) {
            Some(idle) => idle.clone(),
            None if is_known(address) => idle.entry(address).or_default().clone(),
            None => Rc::default(),
        }
    }

    /// Whether this node answers a request from a server of its own.
    fn is_here(&self, meaning: &Meaning) -> bool {
        if meaning.is_parked {
            return true;
        }
        let pool = &meaning.pool;
        if pool.addresses.is_empty() {
            // A backend may have no server for a while. Nodes do not send such a request round.
            return meaning.stays && pool.backends.iter().any(|one| one.is_own);
        }
        if meaning.sharing == Sharing::Present {
            return true;
        }
        if meaning.is_sent {
            // One that has moved on comes from a backend that is no better off.
            return pool.is_tried(&meaning.affinity) || meaning.stays;
        }
        let backends = self.shared.backends(pool, &meaning.affinity);
        let name = self.shared.name.as_str();
        let moves = |best: &&Backend| pool.moves(name, best, &meaning.affinity);
        pool.is_tried(&meaning.affinity) && !backends.first().is_some_and(moves)
    }

    /// The client's connection; of a relayed request as the node that has it says.
    pub(crate) fn ends_of(&self, request: RequestRef<'_, Meaning>) -> Option<Ends> {
        if let Some(client) = request.client {
            return Some(Ends {
                client: client.address,
                service: Some(client.service),
            });
        }
        // A node of the former release says it in the head alone.
        let head = request.head;
        let said = head.headers().get_str("X-Forwarded-For")?;
        let client: IpAddr = said.parse().ok()?;
        let is_tls = head.headers().get_str("X-Forwarded-Proto") == Some("https");
        Some(Ends {
            client: SocketAddr::new(client, 0),
            service: self.shared.service_of(client, is_tls),
        })
    }
}

impl Meaning {
    /// A request for `pool` that no other node has sent on.
    pub(crate) fn of(head: &RequestHead, pool: Arc<Pool>) -> Self {
        let sharing = Sharing::of(head);
        Self {
            logs_in: sharing.is_private(),
            sharing,
            affinity: pool.affinity(head),
            pool,
            path: head.path().into(),
            host: head.host_name().unwrap_or_default().into(),
            target: head.target().into(),
            operation: operation(head.method()),
            upgrade: wanted_protocol(head),
            is_sent: false,
            stays: false,
            is_parked: false,
        }
    }

    /// The access key with whose rights the object store answers redirects of the server.
    pub fn redirects_as(&self) -> Option<&str> {
        self.pool.settings.redirects.as_ref()?.access_key.as_deref()
    }
}

impl<N> Upstreams<N> {
    /// Whether an upstream is for a request. `is_redirected`: a server has named the resource.
    ///
    /// # Errors
    /// [`Error::AmbiguousPath`] if the path does not tell.
    pub fn takes(&self, head: &RequestHead, is_redirected: bool) -> Result<bool, Error> {
        match self.shared.pool_of(head, is_redirected) {
            Ok(_) => Ok(true),
            Err(Error::NoUpstream) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The resource that a server's answer to a request names.
    ///
    /// # Errors
    /// The answer is no redirect that its upstream may make.
    pub fn destination(
        &self,
        request: RequestRef<'_, Meaning>,
        answer: &ResponseHead,
    ) -> Result<Destination, Error> {
        let settings = request.meaning.pool.settings.redirects.as_ref();
        let settings = settings.ok_or(RedirectFault::NotAllowed)?;
        let limits = &self.shared.limits;
        Ok(Destination::of(settings, request.head, answer, limits)?)
    }

    /// The request for a resource that an upstream has.
    ///
    /// # Errors
    /// No upstream has it.
    pub fn redirect_to(&self, destination: Destination) -> Result<Redirected<Meaning>, Error> {
        let Destination {
            part,
            head,
            head_bytes,
            fields,
            ..
        } = destination;
        let pool = match part {
            Some(name) => self.shared.pool_named(&name).ok_or(RedirectFault::Name)?,
            None => self.shared.pool_of(&head, true)?,
        };
        let meaning = Meaning::of(&head, pool);
        Ok(Redirected {
            head,
            head_bytes,
            meaning,
            fields,
        })
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
        verified: Option<Facts>,
    ) -> Result<Meaning, Error> {
        let is_signed = |facts: &Facts| facts.caller != Caller::Anonymous;
        if verified.as_ref().is_some_and(is_signed) {
            // The node that has read it takes it for one for objects.
            return Err(Error::Differs);
        }
        let parked = verified.as_ref();
        let parked = parked.and_then(|verified| self.shared.parking.pool_of(verified.request_id));
        let is_parked = parked.is_some();
        let is_spent = verified
            .as_ref()
            .is_some_and(|v| v.progress == Progress::AnswerWaits);
        if is_spent && !is_parked && !head.method().is_safe() {
            return Err(Error::Lost);
        }
        let pool = match parked {
            Some(pool) => pool,
            None => {
                // The node that admitted the request has chosen by the client's own head.
                let chosen = verified.as_ref().and_then(|facts| facts.upstream.as_ref());
                let chosen = chosen.and_then(|name| self.shared.pool_named(name));
                match chosen {
                    Some(chosen) => chosen,
                    None => self.shared.pool_of(head, false)?,
                }
            }
        };
        let max_bytes = pool.max_body_bytes();
        if matches!(head.framing(), BodyFraming::Length(bytes) if bytes > max_bytes) {
            return Err(Error::BodyTooLong);
        }
        Ok(Meaning {
            is_sent: verified.is_some(),
            stays: verified.is_some_and(|v| v.progress == Progress::MovedOn),
            is_parked,
            ..Meaning::of(head, pool)
        })
    }

    async fn admit(&self, request: RequestMut<'_>, meaning: &mut Meaning) -> Result<(), Error> {
        let Some(client) = request.client.filter(|_| !request.is_relayed) else {
            return Ok(());
        };
        if client.has_companion {
            meaning.sharing = Sharing::Present;
        }
        let own = &meaning.pool.settings.request_headers;
        let added = forwarded::add(request.head, request.id, &client, own);
        added.map_err(|_| Error::Head(HeadError::HeadTooLong))
    }

    fn route(&self, meaning: &Meaning, has_failed: bool) -> Route {
        if !has_failed && self.is_here(meaning) {
            return Route::Here;
        }
        let pool = &meaning.pool;
        let mut backends = self.shared.backends(pool, &meaning.affinity);
        backends.retain(|backend| backend.name != self.shared.name);
        let Some(best) = backends.first() else {
            return Route::Here;
        };
        pool.sends(best);
        let names = backends.iter().map(|backend| backend.name.clone());
        // A connection moves on once. It does not go round while all servers are down. One with a
        // server's connection of its own does not leave that.
        if meaning.stays || meaning.sharing == Sharing::Present {
            Route::Relay(names.collect())
        } else {
            Route::HandOff(names.collect())
        }
    }

    fn is_elsewhere(&self, _: &Meaning) -> bool {
        // The attempt to connect decides.
        false
    }

    fn may_stay(&self, _: &Meaning) -> bool {
        true
    }

    fn has_to_move(&self, meaning: &Meaning) -> bool {
        meaning.upgrade.is_some() || meaning.sharing.is_private()
    }

    fn epoch(&self) -> u64 {
        0
    }

    async fn has_moved_on(&self, _: &Meaning, _: u64, _: bool) -> bool {
        false
    }

    fn about<'m>(&self, meaning: &'m Meaning) -> About<'m> {
        About {
            operation: meaning.operation,
            key: Some(&meaning.path),
            upstream: Some(&meaning.pool.name),
            ..About::UNKNOWN
        }
    }

    fn facts(&self, meaning: &Meaning) -> Facts {
        let name = &meaning.pool.name;
        Facts {
            progress: if meaning.is_sent {
                Progress::MovedOn
            } else {
                Progress::First
            },
            upstream: (name.len() <= MAX_NAME_BYTES).then(|| name.clone()),
            ..Facts::of_anonymous(0)
        }
    }

    fn subject<'m>(&self, meaning: &'m Meaning) -> Option<Subject<'m>> {
        // A tunnel is long.
        (!self.has_to_move(meaning)).then_some(Subject {
            group: &meaning.host,
            name: &meaning.target,
            // With a hash each request has a backend of its own.
            is_settling: !matches!(meaning.pool.balance(&meaning.affinity), Balance::Hash(_)),
        })
    }

    async fn serve(
        &self,
        exchange: &mut impl Exchange,
        request: RequestRef<'_, Meaning>,
    ) -> io::Result<Served<Error>> {
        // Boxed, because it is larger than all that other services need for a request.
        Box::pin(self.pass(exchange, request)).await
    }

    fn redirected(
        &self,
        request: RequestRef<'_, Meaning>,
        answer: &ResponseHead,
    ) -> Result<Redirected<Meaning>, Error> {
        let destination = self.destination(request, answer)?;
        self.redirect_to(destination)
    }

    fn nodes(&self) -> &Self {
        self
    }

    async fn extra_fields(&self, _: &RequestHead) -> Option<Headers> {
        None
    }

    fn error_for(&self, fault: Fault, _: Option<&Meaning>) -> Error {
        match fault {
            Fault::Head(error) => error.into(),
            Fault::Body(error) => error.into(),
            Fault::TimedOut => Error::TimedOut,
            Fault::Elsewhere | Fault::OutOfReach => Error::OutOfReach,
            Fault::Differs => Error::Differs,
            Fault::AmbiguousPath => Error::AmbiguousPath,
            Fault::RedirectLoop => Error::RedirectLoop,
            Fault::TooMany(wait_s) => Error::TooMany(wait_s),
        }
    }

    fn status_of(&self, error: &Error) -> (u16, bool) {
        let status = error.status();
        (status, status >= 500)
    }

    async fn send_error(
        &self,
        exchange: &mut impl Exchange,
        error: &Error,
        _: &str,
    ) -> io::Result<()> {
        exchange.record_mut().error = Some(error.code());
        let head = ResponseHead::new(error.status());
        let head = head.with("Content-Type", "text/plain; charset=utf-8");
        let id = request_id_text(exchange.request_id());
        let head = head.and_then(|head| head.with(REQUEST_ID, id));
        let mut head = head.map_err(io::Error::other)?;
        if let Error::TooMany(wait_s) = error {
            set(&mut head, "Retry-After", wait_s.to_string())?;
        }
        send(exchange, head, format!("{error}\n").as_bytes()).await
    }
}

/// The operation of a request for logs and metrics.
const fn operation(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::PUT => "PUT",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        Method::PATCH => "PATCH",
        Method::TRACE => "TRACE",
        _ => "OTHER",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prism_config::Upstream;

    use super::*;
    use crate::pool::tests::{REFUSED, with_backends};

    #[test]
    fn if_everything_is_out_a_server_is_tried_nevertheless() {
        let mut config = with_backends(&["be0", "be1"]);
        let upstream = Upstream {
            address: SocketAddr::from(([127, 0, 0, 1], 9)).into(),
            ..Upstream::default()
        };
        config.service.upstream = Some(vec![upstream].into());
        let shared = Shared::new(&config, "be0", Arc::default(), Arc::default());
        let node = Upstreams::new(Arc::new(shared), ());
        let pool = node.shared.pools().first().unwrap().clone();
        let is_here = |is_sent: bool, stays: bool| {
            node.is_here(&Meaning {
                pool: pool.clone(),
                affinity: Affinity {
                    key: String::new(),
                    server: None,
                },
                path: "/".into(),
                host: "h".into(),
                target: "/".into(),
                operation: "GET",
                upgrade: None,
                logs_in: false,
                sharing: Sharing::Everybody,
                is_sent,
                stays,
                is_parked: false,
            })
        };
        assert!(is_here(false, false) && is_here(true, false));
        pool.learn(pool.addresses.first().unwrap(), REFUSED);
        assert!(!is_here(false, false) && !is_here(true, false));
        // The report of be1 is old: it has sent the request on.
        assert!(is_here(true, true));
        let mut backends = pool.backends.iter();
        backends.find(|one| one.name == "be1").unwrap().learn(None);
        assert!(is_here(false, false) && is_here(true, false));
    }
}
