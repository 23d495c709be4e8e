//! The leases of owners: a TCP connection to the agent for each run that commands flows, for
//! as long as the run lives (docs/protocol.md, 1.7).
//!
//! A lease ends with its connection, not with silence. The kernel keeps the connection of a
//! slow, stopped or busy process open, and closes that of a dead one at once. If the host
//! itself is out of reach, unanswered keepalives end the connection after 6 s. A run that never
//! had a lease here is never declared dead, so a restart of the agent does no harm.
//!
//! Not here: the flows of ended runs (`agent`), and the nodes' side (`prism-handoff`).

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use prism_proto::control::{RunId, Term};
use prism_proto::lease::{Done, NewClients, TermNotice};
use prism_proto::newcomers::{Bounds, Entered, LogThrottle, Newcomers};
use prism_proto::term::KnownTerms;
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore};

use connection::Greeting;
use hosts::Hosts;
use keys::Keys;
use parting::Parting;
use table::{Announced, Ending, LeaseTable, Run};

mod connection;
mod hosts;
mod keys;
mod parting;
mod placements;
mod table;

pub use keys::LeaseKey;
pub use parting::LEASE_GRACE;
use placements::Placements;
pub(crate) use placements::SETTLING;
pub(crate) use table::Alive;
pub use table::RunEnd;

/// Most connections, unidentified ones included. A node has one for each worker.
const MAX_CONNECTIONS: usize = 16_384;
/// Bounds on unidentified connections. A node that starts opens one for each of its workers.
const HANDSHAKE_BOUNDS: Bounds = Bounds {
    per_address: 256,
    in_all: 1024,
};
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// News of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseChange {
    Ended {
        node: IpAddr,
        run: RunId,
        end: RunEnd,
    },
    /// It has a lease, perhaps again.
    Returned { node: IpAddr, run: RunId },
}

/// The leases of one switch.
#[derive(Debug)]
pub struct Leases {
    hosts: Mutex<Hosts>,
    keys: Mutex<Keys>,
    table: Mutex<LeaseTable>,
    /// Wakes the agent when the table has news.
    news: Condvar,
    /// Wakes connections when runs have been answered.
    answers: Notify,
    /// Wakes connections when verdicts on placements have changed.
    verdicts: Notify,
    /// Wakes connections when the term has changed, or all leases end.
    terms: Notify,
    newcomers: Mutex<Newcomers<Arc<Notify>>>,
    refusals: Mutex<LogThrottle>,
}

impl Leases {
    /// Leases for `nodes`, which know one of `keys`. Each node is the list of its addresses.
    pub fn new(
        nodes: impl IntoIterator<Item = Vec<IpAddr>>,
        keys: impl IntoIterator<Item = LeaseKey>,
    ) -> Self {
        Self {
            hosts: Mutex::new(Hosts::new(nodes)),
            keys: Mutex::new(Keys::new(keys)),
            table: Mutex::new(LeaseTable::new(Instant::now())),
            news: Condvar::new(),
            answers: Notify::new(),
            verdicts: Notify::new(),
            terms: Notify::new(),
            newcomers: Mutex::default(),
            refusals: Mutex::default(),
        }
    }

    /// Grants leases to these nodes from now on. Other nodes keep the leases that they have.
    pub fn set_nodes(&self, nodes: impl IntoIterator<Item = Vec<IpAddr>>) {
        let hosts = Hosts::new(nodes);
        let nodes = hosts.nodes();
        let mut table = self.table();
        table.placements.retain(&nodes);
        table.heard.retain(|node| nodes.contains(node));
        table.told.retain(|node, _| nodes.contains(node));
        drop(table);
        *self.hosts.lock() = hosts;
    }

    /// Grants leases by these keys from now on. A lease by another one goes on.
    pub fn set_keys(&self, keys: impl IntoIterator<Item = LeaseKey>) {
        *self.keys.lock() = Keys::new(keys);
    }

    /// Grants leases. The future never ends; drop it to stop.
    pub async fn serve(self: Arc<Self>, listener: TcpListener) {
        let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            // The semaphore is never closed.
            let Ok(permit) = room.clone().acquire_owned().await else {
                return;
            };
            match listener.accept().await {
                // Another switch grants leases; the node tries again.
                Ok(_) if self.table().is_closed => {}
                Ok((stream, from)) => {
                    let gives_way = Arc::new(Notify::new());
                    let Some(age) = self.enter(from.ip(), &gives_way) else {
                        self.refused(from, &"too many handshakes from its address");
                        continue;
                    };
                    let leases = self.clone();
                    tokio::spawn(async move {
                        let served = leases.serve_connection(stream, age, &gives_way);
                        if let Err(error) = served.await {
                            leases.refused(from, &error);
                        }
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a node");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Counts one more unidentified connection. `None` if its address has too many.
    fn enter(&self, from: IpAddr, gives_way: &Arc<Notify>) -> Option<u64> {
        let mut newcomers = self.newcomers.lock();
        let entered = newcomers.enter(from, HANDSHAKE_BOUNDS, gives_way.clone());
        let Entered { age, gives_way } = entered?;
        if let Some(oldest) = gives_way {
            oldest.notify_one();
        }
        Some(age)
    }

    /// Logs refused leases, at a limited rate.
    fn refused(&self, from: SocketAddr, why: &dyn std::fmt::Display) {
        if let Some(times) = self.refusals.lock().count_event(Instant::now()) {
            tracing::warn!(%from, error = %why, times, "refused leases");
        }
    }

    fn table(&self) -> MutexGuard<'_, LeaseTable> {
        self.table.lock()
    }

    /// Grants the lease. Returns whether it has: there are none while another switch grants them.
    fn begin(&self, greeting: &Greeting, now: Instant) -> bool {
        let Greeting {
            run,
            digest,
            key_id,
            ..
        } = *greeting;
        let mut table = self.table();
        if table.is_closed {
            return false;
        }
        table.note_told(run.0, greeting.term);
        table.begun += 1;
        let number = table.begun;
        let before = table.ending.remove(&run);
        let lease = table.leases.entry(run).or_default();
        lease.connections += 1;
        lease.announced = Announced { number, digest };
        lease.speaks_of_terms = greeting.term.is_some();
        lease.key_id = key_id;
        lease.withdrawn = lease
            .withdrawn
            .or(before.and_then(|before| before.withdrawn));
        table.returned.insert(run);
        table.heard.insert(run.0);
        // The node's first verdict is about this digest.
        table.placements.set_digest(run.0, digest);
        self.judge(&mut table, now);
        self.tell_agent(&mut table);
        true
    }

    /// Each run repeats its last message, which is news once.
    fn note_done(&self, run: Run, done: Done) {
        let mut table = self.table();
        if let Some(lease) = table.leases.get_mut(&run)
            && lease.done != Some(done)
        {
            lease.done = Some(done);
            let known = table.told.entry(run.0).or_default();
            *known = done.term.max(*known);
            self.tell_agent(&mut table);
        }
    }

    fn withdraw(&self, run: Run, now: Instant) {
        let mut table = self.table();
        if let Some(lease) = table.leases.get_mut(&run) {
            lease.withdrawn.get_or_insert(now);
            self.tell_agent(&mut table);
        }
    }

    /// A connection of the run has ended; without a parting the agent has closed it.
    fn end(&self, run: Run, parting: Option<Parting>, now: Instant) {
        let mut table = self.table();
        let Some(lease) = table.leases.get_mut(&run) else {
            return;
        };
        lease.connections -= 1;
        if lease.connections > 0 {
            return;
        }
        let lease = table.leases.remove(&run).unwrap_or_default();
        if let Some(parting) = parting {
            let left = (parting.end == RunEnd::Left).then_some(now);
            let ending = Ending {
                end: parting.end,
                until: now + parting.grace,
                announced: lease.announced,
                withdrawn: lease.withdrawn.or(left),
            };
            table.ending.insert(run, ending);
            self.tell_agent(&mut table);
        }
    }

    /// Whether as many nodes place objects one way as another, so that none is that of most nodes.
    pub fn has_placement_tie(&self) -> bool {
        self.table().placements.is_tie()
    }

    /// Compares placements, and tells nodes whose verdict changes.
    fn judge(&self, table: &mut LeaseTable, now: Instant) {
        if table.placements.judge(now) {
            self.verdicts.notify_waiters();
        }
    }

    fn tell_agent(&self, table: &mut LeaseTable) {
        table.has_news = true;
        self.news.notify_all();
    }

    /// Waits until a run has got a lease, lost it, or taken its last client, but not longer
    /// than `limit`.
    pub(crate) fn wait_for_news(&self, limit: Duration) {
        let is_quiet = |table: &mut LeaseTable| !std::mem::take(&mut table.has_news);
        self.news
            .wait_while_for(&mut self.table.lock(), is_quiet, limit);
    }

    /// Answers the runs that take no more clients. `decide` gets the addresses of their node and
    /// the time when they said so; it may give no answer yet. The lists of frontends follow from
    /// `alive`: a node of which another run still takes clients gets no answer.
    pub(crate) fn answer_all(
        &self,
        alive: &Alive,
        decide: impl Fn(&[IpAddr], Instant) -> Option<NewClients>,
    ) {
        let hosts = self.hosts.lock();
        let mut table = self.table();
        let unanswered = table.leases.iter_mut().filter(|(_, l)| l.answer.is_none());
        for ((node, _), lease) in unanswered {
            if let Some(withdrawn) = lease.withdrawn
                && !alive.taking.contains(node)
            {
                lease.answer = decide(&hosts.addresses(*node), withdrawn);
            }
        }
        drop((table, hosts));
        self.answers.notify_waiters();
    }

    /// The first addresses of all nodes.
    pub(crate) fn nodes(&self) -> HashSet<IpAddr> {
        self.hosts.lock().nodes()
    }

    /// The terms that the living nodes know. `expected` is the number of nodes to wait for.
    pub(crate) fn told(&self, expected: usize) -> KnownTerms {
        let mut table = self.table();
        table.forget_told();
        KnownTerms {
            known: table
                .told
                .iter()
                .map(|(node, term)| (*node, *term))
                .collect(),
            expected,
        }
    }

    /// Notes whether nodes know of a later term than this switch takes from them. Returns whether
    /// that is new.
    pub(crate) fn note_disbelief(&self, has_disbelieved: bool) -> bool {
        let before = &mut self.table().has_disbelieved;
        !std::mem::replace(before, has_disbelieved) && has_disbelieved
    }

    /// Whether nodes know of a later term than this switch takes from them: too few of them, or
    /// one that is too late.
    pub fn has_disbelieved(&self) -> bool {
        self.table().has_disbelieved
    }

    /// The runs with a lease, and what each has said last about its flows. A run that does not
    /// speak of terms has none to announce in `term`.
    pub(crate) fn runs(&self, term: Term) -> Vec<(IpAddr, RunId, Option<Done>)> {
        let old = Some(Done { term, runs: 1 });
        let table = self.table();
        let runs = table.leases.iter().map(|((node, run), lease)| {
            let done = if lease.speaks_of_terms {
                lease.done
            } else {
                old
            };
            (*node, *run, done)
        });
        runs.collect()
    }

    /// The nodes with a lease, each with the key of every run's newest connection.
    pub fn keys_in_use(&self) -> HashSet<(IpAddr, u32)> {
        let table = self.table();
        let runs = table.leases.iter();
        runs.map(|((node, _), lease)| (*node, lease.key_id))
            .collect()
    }

    /// The number of nodes whose flows the switch does not know yet.
    pub fn awaited(&self) -> usize {
        self.table().awaited
    }

    /// Tells all runs of a change of the term. The flows of `awaited` nodes are not known.
    pub(crate) fn publish(&self, notice: Option<TermNotice>, awaited: usize) {
        let mut table = self.table();
        table.awaited = awaited;
        if table.notice != notice {
            table.notice = notice;
            self.terms.notify_waiters();
        }
    }

    /// Grants leases again, as an agent that has just started.
    pub(crate) fn open(&self, now: Instant) {
        let mut table = self.table();
        if std::mem::take(&mut table.is_closed) {
            table.placements = Placements::new(now);
            table.heard.clear();
            table.told.clear();
        }
    }

    /// Ends all leases, without a judgement on the runs, and grants none.
    pub(crate) fn close(&self) {
        self.table().is_closed = true;
        self.terms.notify_waiters();
    }

    /// All addresses of the nodes that have a lease, or whose lease has just ended.
    pub fn living(&self) -> HashSet<IpAddr> {
        self.alive().nodes
    }

    /// The nodes that live, those of them that take new clients and place objects as most do, and
    /// the nodes that are known to have died.
    pub(crate) fn alive(&self) -> Alive {
        let hosts = self.hosts.lock();
        let table = self.table();
        let leases = table.leases.iter().map(|(run, l)| (run.0, l.withdrawn));
        let ending = table.ending.iter().map(|(run, e)| (run.0, e.withdrawn));
        let mut alive = Alive::default();
        for (node, withdrawn) in leases.chain(ending) {
            let addresses = hosts.addresses(node);
            alive.nodes.extend(addresses.iter());
            if withdrawn.is_none() && !table.placements.differs(node) {
                alive.taking.extend(addresses.iter());
            }
        }
        for node in &table.heard {
            if !alive.nodes.contains(node) {
                alive.lost.extend(hosts.addresses(*node).iter());
            }
        }
        alive
    }

    /// The changes since the last call that are certain at `now`: of each address of a node.
    pub(crate) fn take_changes(&self, now: Instant) -> Vec<LeaseChange> {
        let hosts = self.hosts.lock();
        let mut table = self.table();
        let mut changes = Vec::new();
        for (node, run) in std::mem::take(&mut table.returned) {
            let addresses = hosts.addresses(node);
            let returned = |node: &IpAddr| LeaseChange::Returned { node: *node, run };
            changes.extend(addresses.iter().map(returned));
        }
        let over = table.ending.extract_if(|_, e| e.until <= now);
        let over: Vec<_> = over.collect();
        table.forget_digests(&over);
        self.judge(&mut table, now);
        for ((node, run), Ending { end, .. }) in over {
            let addresses = hosts.addresses(node);
            let ended = |node: &IpAddr| LeaseChange::Ended {
                node: *node,
                run,
                end,
            };
            changes.extend(addresses.iter().map(ended));
        }
        changes
    }
}

#[cfg(test)]
#[path = "leases_tests.rs"]
mod tests;
