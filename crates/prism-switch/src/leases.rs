//! Which owners live: each part of a node that commands flows holds a TCP
//! connection to the agent for as long as it lives (docs/protocol.md, 1.7).
//!
//! The end of the connection is the sign, not silence: the kernel of a process
//! that is slow, stopped or busy keeps the connection open, and one that has
//! died closes it at once. Only where the host itself is out of reach do
//! unanswered keepalives end it, 10 s later. Nobody is judged who never had a
//! lease here, so an agent that starts anew harms no one.
//!
//! Not here: what becomes of the flows (`agent`), and how nodes hold their
//! leases (`prism-handoff`).

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prism_proto::control::{
    ControlKey, FlowState, MESSAGE_BYTES, Ops, Owner, Request, RunId, Status,
};
use prism_proto::lease::{CHALLENGE_BYTES, LEAVING};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// How long a run whose connection has ended may take to come back before it
/// counts as dead. A node that lost only the connection dials again after 50 ms.
pub const LEASE_GRACE: Duration = Duration::from_millis(500);
/// Most connections, those that have not yet said who they are included. A node
/// has one for each worker.
const MAX_CONNECTIONS: usize = 16_384;
/// How long a connection may take to say who it is.
const HANDSHAKE: Duration = Duration::from_secs(2);
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A host that answers no keepalive for 2 + 4 * 2 = 10 s is out of reach.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(2);
const KEEPALIVE_PROBES: u32 = 4;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// Without a word: its clients wait in vain.
    Died,
    /// In order: its kernel finishes what is under way.
    Left,
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
}

type Run = (IpAddr, RunId);

/// Bounded by the connections: a run is forgotten when its end is told.
#[derive(Debug, Default)]
struct Table {
    held: HashMap<Run, usize>,
    ending: HashMap<Run, (RunEnd, Instant)>,
    returned: HashSet<Run>,
}

impl Leases {
    /// Leases for `nodes`, which know the key `key_id`.
    pub fn new(nodes: impl IntoIterator<Item = IpAddr>, key_id: u32, key: ControlKey) -> Self {
        Self {
            nodes: Mutex::new(nodes.into_iter().collect()),
            key_id,
            key,
            table: Mutex::default(),
        }
    }

    /// Grants leases to these nodes from now on. What others have they keep.
    pub fn set_nodes(&self, nodes: impl IntoIterator<Item = IpAddr>) {
        *self.nodes.lock().unwrap_or_else(PoisonError::into_inner) = nodes.into_iter().collect();
    }

    fn knows(&self, node: IpAddr) -> bool {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.contains(&node)
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
                    let leases = self.clone();
                    tokio::spawn(async move {
                        if let Err(error) = leases.hold(stream).await {
                            tracing::debug!(%from, %error, "no lease");
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

    /// One connection, from its first byte to its end.
    async fn hold(&self, mut stream: TcpStream) -> io::Result<()> {
        watch_host(&stream)?;
        let greeting = self.admit(&mut stream);
        let run = tokio::time::timeout(HANDSHAKE, greeting)
            .await
            .map_err(|_| io::ErrorKind::TimedOut)??;
        self.begin(run);
        let mut last = [0; 1];
        let end = match stream.read(&mut last).await {
            Ok(1) if last == [LEAVING] => RunEnd::Left,
            _ => RunEnd::Died,
        };
        self.end(run, end, Instant::now());
        Ok(())
    }

    /// Has the other side prove who it is: a request over a number that nobody
    /// has seen before.
    async fn admit(&self, stream: &mut TcpStream) -> io::Result<Run> {
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
            Status::Ok => Ok((node, run)),
            _ => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "no lease for this request",
            )),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, run: Run) {
        let mut table = self.table();
        table.ending.remove(&run);
        *table.held.entry(run).or_default() += 1;
        table.returned.insert(run);
    }

    fn end(&self, run: Run, end: RunEnd, now: Instant) {
        let mut table = self.table();
        let Some(count) = table.held.get_mut(&run) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            table.held.remove(&run);
            table.ending.insert(run, (end, now));
        }
    }

    /// What has happened, as far as it is certain at `now`.
    pub(crate) fn take_changes(&self, now: Instant) -> Vec<Change> {
        let mut table = self.table();
        let returned = std::mem::take(&mut table.returned).into_iter();
        let mut changes: Vec<_> = returned
            .map(|(node, run)| Change::Returned { node, run })
            .collect();
        let over = table
            .ending
            .extract_if(|_, (_, at)| now.saturating_duration_since(*at) >= LEASE_GRACE);
        changes.extend(over.map(|((node, run), (end, _))| Change::Ended { node, run, end }));
        changes
    }
}

/// Has the kernel find out when the other host is out of reach.
fn watch_host(stream: &TcpStream) -> io::Result<()> {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_IDLE)
        .with_retries(KEEPALIVE_PROBES);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Bytes that nobody can foresee.
fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    // Requests of up to 256 bytes are never cut short (getrandom(2)).
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
