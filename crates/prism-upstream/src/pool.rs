//! An upstream while the node runs: its backends and its addresses, as all threads know them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use prism_config::{Balance, Upstream};
use prism_figures::ServerState as ServerFigures;
use prism_http::RequestHead;
use prism_rules::Matcher;

use crate::affinity::{self, Affinity};
use crate::backend::{Backend, Report};
use crate::choice::{self, Candidate, is_overloaded};
use crate::duty::Duty;
use crate::figures::{self, Errors};
use crate::health::{Bounds, Check, Health, Outcome, Reason};
use crate::idle::IdleLimit;
use crate::sources::{BackendServers, PlacedServer, Source};

/// An upstream.
pub(crate) struct Pool {
    pub(crate) settings: Upstream,
    /// The requests that it gets.
    pub(crate) matcher: Arc<Matcher>,
    /// Its name for operators.
    pub(crate) name: String,
    /// Its addresses as this node reaches them; empty if this node does not.
    pub(crate) addresses: Vec<Arc<Address>>,
    /// The backends that reach it.
    pub(crate) backends: Vec<Backend>,
    /// Requests at this node's addresses so far, and those sent to other backends.
    turns_here: AtomicUsize,
    turns_there: AtomicUsize,
}

/// An address of a server.
#[derive(Debug)]
pub(crate) struct Address {
    pub(crate) address: SocketAddr,
    name: String,
    /// Its name in cookies.
    pub(crate) server: String,
    under_way: AtomicU32,
    /// Ejections so far.
    ejected: AtomicU64,
    errors: Errors,
    health: Mutex<Health>,
    pub(crate) idle_limit: IdleLimit,
}

/// A request under way at an address, which is counted until this is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay {
    address: Arc<Address>,
}

impl UnderWay {
    pub(crate) fn at(address: &Arc<Address>) -> Self {
        address.under_way.fetch_add(1, Ordering::Relaxed);
        let address = address.clone();
        Self { address }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.address.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Address {
    fn new(address: SocketAddr, backend: &str, is_only: bool) -> Self {
        Self {
            address,
            name: address.to_string(),
            server: affinity::server_name(backend, address, is_only),
            under_way: AtomicU32::new(0),
            ejected: AtomicU64::new(0),
            errors: Errors::default(),
            health: Mutex::default(),
            idle_limit: IdleLimit::default(),
        }
    }

    pub(crate) fn is_in(&self) -> bool {
        self.health().is_in()
    }

    pub(crate) fn set_duty(&self, duty: Duty) {
        self.health().set_duty(duty);
    }

    /// Whether operators let it get a request of a client that is its own or not.
    pub(crate) fn is_open_to(&self, is_own_client: bool) -> bool {
        match self.health().duty() {
            Duty::Up => true,
            Duty::Drain => is_own_client,
            Duty::Down => false,
        }
    }

    /// Whether it is open to everybody, and well.
    fn is_up(&self) -> bool {
        self.is_open_to(false) && self.is_in()
    }

    /// Whether it drains, and is well.
    fn drains(&self) -> bool {
        self.is_open_to(true) && !self.is_open_to(false) && self.is_in()
    }

    /// Whether both are the same server, by all its names.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.address == other.address && self.server == other.server
    }

    /// Whether something was heard of it within `time`.
    pub(crate) fn is_heard_within(&self, time: Duration) -> bool {
        self.health().is_heard_within(time, Instant::now())
    }

    /// Learns that it has taken a connection, which says nothing of its answers.
    pub(crate) fn connected(&self) {
        self.health().hear(Instant::now());
    }

    /// Learns the outcome of a request, by which it may be ejected or not.
    fn learn(&self, outcome: Outcome, may_eject: bool) {
        let fault = outcome.fault();
        if let Some(reason) = fault {
            self.errors.add(reason);
        }
        if self.health().request(outcome, may_eject, Instant::now()) {
            self.ejected.fetch_add(1, Ordering::Relaxed);
            let reason = fault.map(tracing::field::display);
            tracing::warn!(address = %self.address, reason, "a server is ejected");
        }
    }

    /// Learns the outcome of a check.
    pub(crate) fn checked(&self, check: Check, bounds: Bounds) {
        if !self.health().check(check, bounds, Instant::now()) {
            return;
        }
        match check {
            Check::Connected | Check::Answered => {
                tracing::info!(address = %self.address, "a server is back");
            }
            Check::Failed(reason) => {
                self.ejected.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(address = %self.address, %reason, "a server fails its checks");
            }
        }
    }

    /// Its figures as a server of the upstream called `upstream`.
    pub(crate) fn figures(&self, upstream: &str, source: Option<Source>) -> ServerFigures {
        let figures = ServerFigures {
            under_way: self.under_way.load(Ordering::Relaxed).into(),
            ejections: self.ejected.load(Ordering::Relaxed),
            errors: self.errors.counts(),
            ..figures::unknown(upstream, self.address, source)
        };
        figures::judged(figures, &self.health().verdict(), Instant::now())
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock()
    }
}

impl Pool {
    /// The upstream of these settings, with its servers, at the node called `own`. `former` is the
    /// one that had its requests.
    pub(crate) fn new(
        name: String,
        settings: &Upstream,
        placed: Vec<BackendServers>,
        own: &str,
        former: Option<&Self>,
    ) -> Self {
        let here = placed.iter().filter(|one| one.backend == own);
        let here = here.flat_map(|one| {
            let servers = one.servers.iter();
            servers.map(|server| Address::new(server.address, own, server.is_only))
        });
        let addresses = here.map(Arc::new).collect();
        let backends = placed.into_iter().map(|one| {
            let is_own = one.backend == own;
            Backend::new(one, is_own)
        });
        let same = former.filter(|one| one.settings.ambiguous_paths == settings.ambiguous_paths);
        let matcher = same.map(|one| one.matcher.clone()).unwrap_or_else(|| {
            Arc::new(Matcher::new(
                &settings.conditions(),
                settings.ambiguous_paths,
            ))
        });
        let new = Self {
            settings: settings.clone(),
            matcher,
            name,
            addresses,
            backends: backends.collect(),
            turns_here: AtomicUsize::new(0),
            turns_there: AtomicUsize::new(0),
        };
        if let Some(former) = former {
            new.take_over(former);
        }
        new
    }

    /// The servers of this node; empty if it is none of the backends.
    pub(crate) fn servers_here(&self) -> &[PlacedServer] {
        let mut own = self.backends.iter().filter(|backend| backend.is_own);
        own.next().map_or(&[], |backend| &backend.servers)
    }

    /// Whether `other` has the same settings and the same servers.
    pub(crate) fn is_alike(&self, other: &Self) -> bool {
        let servers_of = |pool: &'_ Self| -> Vec<_> {
            let backends = pool.backends.iter();
            let servers = backends.map(|one| (one.name.clone(), one.servers.clone()));
            servers.collect()
        };
        self.settings == other.settings && servers_of(self) == servers_of(other)
    }

    /// The figures of this node's servers.
    pub(crate) fn figures(&self) -> impl Iterator<Item = ServerFigures> {
        let servers = self.addresses.iter().zip(self.servers_here());
        servers.map(|(address, placed)| address.figures(&self.name, placed.source))
    }

    /// Takes over the reports of its backends from `former`.
    fn take_over(&self, former: &Self) {
        for backend in &self.backends {
            let mut known = former.backends.iter();
            if let Some(same) = known.find(|one| one.name == backend.name) {
                backend.learn(Some(same.last_report()));
            }
        }
    }

    /// Learns the outcome of a request at one of its addresses. A client can cause all bad outcomes
    /// but a connection that fails. By those others, at most half of its servers are out.
    pub(crate) fn learn(&self, address: &Address, outcome: Outcome) {
        let is_bad = outcome.fault().is_some();
        let may_eject = is_bad && (!outcome.is_by_client() || self.can_spare_one());
        address.learn(outcome, may_eject);
    }

    /// Learns that one of its addresses took no connection.
    pub(crate) fn learn_fault(&self, address: &Address, fault: &io::Error) {
        if let Some(reason) = Reason::of_connect(fault) {
            self.learn(address, Outcome::Failed(reason));
        }
    }

    /// Whether at least half of its servers are in without one that is in now. Another backend
    /// counts as one server. A server that an operator has taken down counts as none.
    fn can_spare_one(&self) -> bool {
        let own = self.addresses.iter();
        let own = own.filter(|address| address.is_open_to(false));
        let own = own.map(|address| address.is_in());
        let all: Vec<bool> = own.chain(self.others_are_up()).collect();
        let count_in = all.iter().filter(|is_in| **is_in).count();
        2 * count_in >= all.len() + 2
    }

    /// Whether a server is up at each other backend, by its last report.
    fn others_are_up(&self) -> impl Iterator<Item = bool> {
        let others = self.backends.iter().filter(|backend| !backend.is_own);
        others.map(Backend::is_up)
    }

    /// The parts of a request by which its server is chosen.
    pub(crate) fn affinity(&self, head: &RequestHead) -> Affinity {
        let cookie = self.settings.cookie.as_ref();
        Affinity {
            key: match &self.settings.balance {
                Balance::Hash(of) => affinity::key(of, head),
                Balance::LeastRequests | Balance::RoundRobin => String::new(),
            },
            server: cookie.and_then(|name| affinity::in_cookie(head, name)),
        }
    }

    /// The balance of a request. Requests without the hashed part take turns.
    pub(crate) fn balance(&self, affinity: &Affinity) -> &Balance {
        match &self.settings.balance {
            Balance::Hash(_) if affinity.key.is_empty() => &Balance::RoundRobin,
            balance => balance,
        }
    }

    /// Longest body of a request, in bytes.
    pub(crate) fn max_body_bytes(&self) -> u64 {
        match self.settings.max_body_bytes {
            0 => u64::MAX,
            bytes => bytes,
        }
    }

    /// The report of this node.
    pub(crate) fn report(&self) -> Report {
        Report {
            is_up: self.addresses.iter().any(|address| address.is_up()),
            drains: self.addresses.iter().any(|address| address.drains()),
            under_way: self.under_way(),
        }
    }

    /// Whether a request is tried at this node: a server that is open to it is in here, or none is
    /// up anywhere else.
    pub(crate) fn is_tried(&self, affinity: &Affinity) -> bool {
        let mut open = self.open_to(affinity).map(|address| address.is_in());
        match open.next() {
            None => false,
            Some(is_in) => {
                is_in || open.any(|is_in| is_in) || !self.others_are_up().any(|is_up| is_up)
            }
        }
    }

    /// The addresses at this node that operators let get a request.
    fn open_to(&self, affinity: &Affinity) -> impl Iterator<Item = &Arc<Address>> {
        let all = self.addresses.iter();
        all.filter(|address| address.is_open_to(affinity.is_to(&address.server)))
    }

    fn under_way(&self) -> u32 {
        let counts = self.addresses.iter();
        let counts = counts.map(|address| address.under_way.load(Ordering::Relaxed));
        counts.fold(0, u32::saturating_add)
    }

    /// The addresses at this node that a request tries, best first. If all that are open to it are
    /// out, these are tried.
    pub(crate) fn addresses(&self, affinity: &Affinity) -> Vec<usize> {
        let one_is_in = self.open_to(affinity).any(|address| address.is_in());
        let is_up = |address: &Address| {
            address.is_open_to(affinity.is_to(&address.server)) && (!one_is_in || address.is_in())
        };
        let candidates = self.addresses.iter().map(|address| Candidate {
            name: &address.name,
            is_up: is_up(address),
            under_way: address.under_way.load(Ordering::Relaxed),
        });
        let turn = self.turns_here.fetch_add(1, Ordering::Relaxed);
        let mut places = self.order(&candidates.collect::<Vec<_>>(), turn, affinity);
        places.sort_by_key(|place| {
            let address = self.addresses.get(*place);
            !address.is_some_and(|address| affinity.is_to(&address.server))
        });
        places
    }

    /// The backends that may answer a request, best first. `is_last` says which are the last
    /// choice by what else is known of them.
    pub(crate) fn backends(
        &self,
        affinity: &Affinity,
        is_last: &dyn Fn(&str) -> bool,
    ) -> Vec<&Backend> {
        let turn = self.turns_there.load(Ordering::Relaxed);
        let of = |is_up: &dyn Fn(&Backend) -> bool| {
            let candidates = self.backends.iter().map(|backend| Candidate {
                name: &backend.name,
                is_up: is_up(backend),
                under_way: backend.under_way(),
            });
            let mut places = self.order(&candidates.collect::<Vec<_>>(), turn, affinity);
            places.sort_by_key(|place| {
                let backend = self.backends.get(*place);
                !backend.is_some_and(|backend| backend.has(affinity))
            });
            places
        };
        let is_well = |backend: &Backend| backend.is_up_for(affinity) && !is_last(&backend.name);
        let mut places = of(&is_well);
        // The others are tried if nobody else answers.
        places.extend(of(&|backend| !is_well(backend)));
        let backends = places.into_iter();
        backends.filter_map(|n| self.backends.get(n)).collect()
    }

    /// Whether this node, called `name`, gives its connection to the best of the backends.
    pub(crate) fn moves(&self, name: &str, best: &Backend, affinity: &Affinity) -> bool {
        let mut own = self.open_to(affinity);
        let is_own = own.any(|address| affinity.is_to(&address.server) && address.is_in());
        if best.name == name || is_own {
            return false;
        }
        if best.has(affinity) {
            return true;
        }
        match self.balance(affinity) {
            Balance::Hash(_) => true,
            Balance::RoundRobin => false,
            Balance::LeastRequests => is_overloaded(self.under_way(), best.under_way()),
        }
    }

    /// Counts a request that goes to `backend`.
    pub(crate) fn sends(&self, backend: &Backend) {
        backend.count_sent();
        self.turns_there.fetch_add(1, Ordering::Relaxed);
    }

    fn order(&self, candidates: &[Candidate<'_>], turn: usize, affinity: &Affinity) -> Vec<usize> {
        choice::order(self.balance(affinity), candidates, turn, &affinity.key)
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
pub(crate) mod tests;
