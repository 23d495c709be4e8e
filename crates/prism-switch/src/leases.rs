//! Which owners live: each part of a node that commands flows holds a TCP
//! connection to the agent for as long as it lives (docs/protocol.md, 1.7).
//!
//! The end of the connection is the sign, not silence: the kernel of a process
//! that is slow, stopped or busy keeps the connection open, and one that has
//! died closes it at once. Only where the host itself is out of reach do
//! unanswered keepalives end it, 6 s later. Nobody is judged who never had a
//! lease here, so an agent that starts anew harms no one.
//!
//! Not here: what becomes of the flows (`agent`), and how nodes hold their
//! leases (`prism-handoff`).

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prism_proto::control::{
    ControlKey, FlowState, MESSAGE_BYTES, Ops, Owner, Request, RunId, Status,
};
use prism_proto::lease::{CHALLENGE_BYTES, LEAVING, NewClients, PlacementVerdict, TAKES_NO_MORE};
use prism_proto::newcomers::{Entered, Most, Newcomers, Seldom};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};

use table::{Ending, Run, Said, Table};

mod placements;
mod table;

/// How long a run whose connection has ended may take to come back before it
/// counts as dead. A node that lost only the connection dials again after 50 ms.
pub const LEASE_GRACE: Duration = Duration::from_millis(500);

/// The same where the host was out of reach. Its link may come and go, in step with the
/// keepalives, and the node needs a moment to notice that it has no lease.
const OUT_OF_REACH_GRACE: Duration = Duration::from_millis(4500);
/// Most connections, those that have not yet said who they are included. A node
/// has one for each worker.
const MAX_CONNECTIONS: usize = 16_384;
/// How long a connection may take to say who it is.
const HANDSHAKE: Duration = Duration::from_secs(2);
/// Connections that have not yet said who they are. A node that starts opens one for each of
/// its workers.
const MOST_HANDSHAKES: Most = Most {
    per_address: 256,
    in_all: 1024,
};
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A host that answers no keepalive for 2 + 4 * 1 = 6 s is out of reach.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(2);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(1);
const KEEPALIVE_PROBES: u32 = 4;
/// The same for one that does not acknowledge a byte: the kernel sends no keepalives then.
const UNACKNOWLEDGED: Duration = Duration::from_secs(6);

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// Without a word: its clients wait in vain.
    Died,
    /// In order: its kernel finishes what is under way.
    Left,
}

/// How the connection of a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parting {
    /// It said so.
    Left,
    /// Its kernel closed it.
    Closed,
    /// Its host did not answer.
    OutOfReach,
}

impl Parting {
    fn of(error: &io::Error) -> Self {
        use io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
        match error.kind() {
            // An ICMP error that came back for a keepalive takes the place of the timeout.
            TimedOut | HostUnreachable | NetworkUnreachable => Self::OutOfReach,
            _ => Self::Closed,
        }
    }

    fn end(self) -> RunEnd {
        match self {
            Self::Left => RunEnd::Left,
            Self::Closed | Self::OutOfReach => RunEnd::Died,
        }
    }

    /// How long the run may take to come back.
    fn grace(self) -> Duration {
        match self {
            Self::Left | Self::Closed => LEASE_GRACE,
            Self::OutOfReach => OUT_OF_REACH_GRACE,
        }
    }
}

/// News of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Ended {
        node: IpAddr,
        run: RunId,
        end: RunEnd,
    },
    /// It has a lease (again).
    Returned { node: IpAddr, run: RunId },
}

/// The leases of one switch.
#[derive(Debug)]
pub struct Leases {
    nodes: Mutex<HashSet<IpAddr>>,
    key_id: u32,
    key: ControlKey,
    table: Mutex<Table>,
    /// The table has news for the agent.
    news: Condvar,
    /// Runs have been answered.
    answers: Notify,
    /// There are other verdicts on placements.
    verdicts: Notify,
    newcomers: Mutex<Newcomers<Arc<Notify>>>,
    refusals: Mutex<Seldom>,
}

/// The nodes that have a lease, or lost it within the grace.
#[derive(Debug, Default)]
pub(crate) struct Alive {
    /// All of them.
    pub(crate) nodes: HashSet<IpAddr>,
    /// The nodes that take new clients.
    pub(crate) taking: HashSet<IpAddr>,
}

impl Leases {
    /// Leases for `nodes`, which know the key `key_id`.
    pub fn new(nodes: impl IntoIterator<Item = IpAddr>, key_id: u32, key: ControlKey) -> Self {
        Self {
            nodes: Mutex::new(nodes.into_iter().collect()),
            key_id,
            key,
            table: Mutex::new(Table::new(Instant::now())),
            news: Condvar::new(),
            answers: Notify::new(),
            verdicts: Notify::new(),
            newcomers: Mutex::default(),
            refusals: Mutex::default(),
        }
    }

    /// Grants leases to these nodes from now on. What others have they keep.
    pub fn set_nodes(&self, nodes: impl IntoIterator<Item = IpAddr>) {
        let nodes: HashSet<IpAddr> = nodes.into_iter().collect();
        self.table().placements.retain(&nodes);
        *locked(&self.nodes) = nodes;
    }

    fn knows(&self, node: IpAddr) -> bool {
        locked(&self.nodes).contains(&node)
    }

    /// Grants leases until dropped.
    pub async fn serve(self: Arc<Self>, listener: TcpListener) {
        let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            // Never closed.
            let Ok(permit) = room.clone().acquire_owned().await else {
                return;
            };
            match listener.accept().await {
                Ok((stream, from)) => {
                    let gives_way = Arc::new(Notify::new());
                    let Some(age) = self.enter(from.ip(), &gives_way) else {
                        self.refused(from, &"too many handshakes from its address");
                        continue;
                    };
                    let leases = self.clone();
                    tokio::spawn(async move {
                        let handshake = (age, &*gives_way);
                        if let Err(error) = leases.hold(stream, handshake).await {
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

    /// One more that has not yet said who it is; none where its address has too many.
    fn enter(&self, from: IpAddr, gives_way: &Arc<Notify>) -> Option<u64> {
        let mut newcomers = locked(&self.newcomers);
        let entered = newcomers.enter(from, MOST_HANDSHAKES, gives_way.clone());
        let Entered { age, gives_way } = entered?;
        if let Some(oldest) = gives_way {
            oldest.notify_one();
        }
        Some(age)
    }

    /// Says now and then that there was no lease for somebody.
    fn refused(&self, from: SocketAddr, why: &dyn std::fmt::Display) {
        if let Some(times) = locked(&self.refusals).again(Instant::now()) {
            tracing::warn!(%from, error = %why, times, "refused leases");
        }
    }

    /// One connection, from its first byte to its end.
    async fn hold(
        &self,
        mut stream: TcpStream,
        (age, gives_way): (u64, &Notify),
    ) -> io::Result<()> {
        let greeting = tokio::time::timeout(HANDSHAKE, self.admit(&mut stream));
        let admitted = tokio::select! {
            admitted = greeting => admitted.unwrap_or(Err(io::ErrorKind::TimedOut.into())),
            () = gives_way.notified() => Err(io::Error::other("it had to give way to others")),
        };
        locked(&self.newcomers).leave(age);
        let (run, digest) = admitted?;
        watch_host(&stream)?;
        self.begin(run, digest, Instant::now());
        let parting = self.listen(&mut stream, run, digest).await;
        self.end(run, parting, Instant::now());
        Ok(())
    }

    /// Hears what a run says, and answers, until its connection ends.
    async fn listen(&self, stream: &mut TcpStream, run: Run, digest: u64) -> Parting {
        let (mut said, mut awaits_answer, mut told) = ([0; 1], false, None);
        loop {
            let byte = tokio::select! {
                read = stream.read(&mut said) => match (read, said) {
                    (Ok(1), [TAKES_NO_MORE]) => {
                        self.withdraw(run, Instant::now());
                        awaits_answer = true;
                        continue;
                    }
                    (Ok(1), [LEAVING]) => return Parting::Left,
                    (Err(error), _) => return Parting::of(&error),
                    (Ok(_), _) => return Parting::Closed,
                },
                answer = self.answer(run), if awaits_answer => {
                    awaits_answer = false;
                    answer.byte()
                }
                verdict = self.verdict(digest, told) => {
                    told = Some(verdict);
                    verdict.byte()
                }
            };
            if let Err(error) = stream.write_all(&[byte]).await {
                return Parting::of(&error);
            }
        }
    }

    /// The verdict on a placement, once it is another one than the node was `told`.
    async fn verdict(&self, digest: u64, told: Option<PlacementVerdict>) -> PlacementVerdict {
        loop {
            let changed = self.verdicts.notified();
            let verdict = self.table().placements.verdict(digest);
            if let Some(verdict) = verdict.filter(|verdict| Some(*verdict) != told) {
                return verdict;
            }
            changed.await;
        }
    }

    /// The agent's answer to a run that has said that it takes no more clients.
    async fn answer(&self, run: Run) -> NewClients {
        loop {
            let answered = self.answers.notified();
            let answer = self.table().held.get(&run).and_then(|held| held.answer);
            if let Some(answer) = answer {
                return answer;
            }
            answered.await;
        }
    }

    /// Has the other side prove who it is: a request over a number that nobody
    /// has seen before. The run, and the digest of its placement.
    async fn admit(&self, stream: &mut TcpStream) -> io::Result<(Run, u64)> {
        let challenge: [u8; CHALLENGE_BYTES] = random()?;
        stream.write_all(&challenge).await?;
        let mut message = [0; MESSAGE_BYTES];
        stream.read_exact(&mut message).await?;
        let (request, run) = Request::decode_of(&message, self.key_id, &self.key)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let node = request.owner.via.to_canonical();
        let is_lease = request.ops == Ops::QUERY
            && run != RunId::NONE
            && request.request_id == u64::from_be_bytes(challenge);
        let status = match (is_lease, self.knows(node)) {
            (false, _) => Status::BadRequest,
            (true, false) => Status::Denied,
            (true, true) => Status::Ok,
        };
        let answer = request.answer(status, FlowState::Absent, 0, Owner::NONE, 0);
        stream.write_all(&answer.encode(&self.key)).await?;
        match status {
            Status::Ok => Ok(((node, run), request.epoch)),
            _ => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "no lease for this request",
            )),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        locked(&self.table)
    }

    fn begin(&self, run: Run, digest: u64, now: Instant) {
        let mut table = self.table();
        table.begun += 1;
        let number = table.begun;
        let before = table.ending.remove(&run);
        let held = table.held.entry(run).or_default();
        held.connections += 1;
        held.said = Said { number, digest };
        held.withdrawn = held
            .withdrawn
            .or(before.and_then(|before| before.withdrawn));
        table.returned.insert(run);
        // The node's first byte is of what it has just said.
        table.placements.say(run.0, digest);
        self.judge(&mut table, now);
        self.tell_agent(&mut table);
    }

    fn withdraw(&self, run: Run, now: Instant) {
        let mut table = self.table();
        if let Some(held) = table.held.get_mut(&run) {
            held.withdrawn.get_or_insert(now);
            self.tell_agent(&mut table);
        }
    }

    fn end(&self, run: Run, parting: Parting, now: Instant) {
        let mut table = self.table();
        let Some(held) = table.held.get_mut(&run) else {
            return;
        };
        held.connections -= 1;
        let (is_last, withdrawn, said) = (held.connections == 0, held.withdrawn, held.said);
        if is_last {
            table.held.remove(&run);
            let ending = Ending {
                end: parting.end(),
                until: now + parting.grace(),
                said,
                withdrawn: withdrawn.or((parting == Parting::Left).then_some(now)),
            };
            table.ending.insert(run, ending);
            self.tell_agent(&mut table);
        }
    }

    /// Compares placements, and tells the nodes where that changes something.
    fn judge(&self, table: &mut Table, now: Instant) {
        if table.placements.judge(now) {
            self.verdicts.notify_waiters();
        }
    }

    fn tell_agent(&self, table: &mut Table) {
        table.has_news = true;
        self.news.notify_all();
    }

    /// Waits until a run has got a lease, lost it, or taken its last client; for `limit` at
    /// most.
    pub(crate) fn wait_for_news(&self, limit: Duration) {
        let is_quiet = |table: &mut Table| !std::mem::take(&mut table.has_news);
        // After a panic elsewhere there may be news as well.
        let _ = self.news.wait_timeout_while(self.table(), limit, is_quiet);
    }

    /// Answers the runs that take no more clients, as far as `decide` can for their node and
    /// the time when they said so. `alive` is what the lists were written by: a node of which
    /// another run took clients then is not answered.
    pub(crate) fn answer_all(
        &self,
        alive: &Alive,
        decide: impl Fn(IpAddr, Instant) -> Option<NewClients>,
    ) {
        let mut table = self.table();
        let unanswered = table.held.iter_mut().filter(|(_, h)| h.answer.is_none());
        for ((node, _), held) in unanswered {
            if let Some(withdrawn) = held.withdrawn
                && !alive.taking.contains(node)
            {
                held.answer = decide(*node, withdrawn);
            }
        }
        drop(table);
        self.answers.notify_waiters();
    }

    /// The nodes that live, and may have new clients: those whose placement is that of most.
    pub(crate) fn alive(&self) -> Alive {
        let table = self.table();
        let held = table.held.iter().map(|(run, h)| (run.0, h.withdrawn));
        let ending = table.ending.iter().map(|(run, e)| (run.0, e.withdrawn));
        let mut alive = Alive::default();
        for (node, withdrawn) in held.chain(ending) {
            alive.nodes.insert(node);
            if withdrawn.is_none() && !table.placements.differs(node) {
                alive.taking.insert(node);
            }
        }
        alive
    }

    /// What has happened, as far as it is certain at `now`.
    pub(crate) fn take_changes(&self, now: Instant) -> Vec<Change> {
        let mut table = self.table();
        let returned = std::mem::take(&mut table.returned).into_iter();
        let mut changes: Vec<_> = returned
            .map(|(node, run)| Change::Returned { node, run })
            .collect();
        let over = table.ending.extract_if(|_, e| e.until <= now);
        let over: Vec<_> = over.collect();
        table.say_again(&over);
        self.judge(&mut table, now);
        let ended = |((node, run), e): (Run, Ending)| Change::Ended {
            node,
            run,
            end: e.end,
        };
        changes.extend(over.into_iter().map(ended));
        changes
    }
}

/// No lock here guards anything a panic could leave half-changed.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has the kernel find out when the other host is out of reach.
fn watch_host(stream: &TcpStream) -> io::Result<()> {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_EVERY)
        .with_retries(KEEPALIVE_PROBES);
    let socket = SockRef::from(stream);
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    socket.set_tcp_keepalive(&keepalive)
}

/// Bytes that nobody can foresee.
fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    // Requests of up to 256 bytes are never cut short (getrandom(2)).
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes)
}

#[cfg(test)]
#[path = "leases_tests.rs"]
mod tests;
