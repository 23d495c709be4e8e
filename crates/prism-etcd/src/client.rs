//! The client, and its calls that have one answer.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prism_config::Endpoint;
use rustls::ClientConfig;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::connection::Connection;
use crate::error::Error;
use crate::message::{
    Compare, Entry, GrantRequest, LeaseRequest, LeaseResponse, Line, Number, RangeRequest,
    RangeResponse, RequestOp, TxnRequest, TxnResponse, message_of,
};
use crate::tls::{TlsError, TlsFiles};
use crate::watch::Watch;

/// Longest answer in bytes: 64 nodes and 10,000 users take 4 MiB in JSON.
const MAX_ANSWER_BYTES: u64 = 32 << 20;
/// Most idle connections. A node makes at most two calls at once.
const MAX_IDLE: usize = 4;
/// Most changes of one call: etcd's default of `--max-txn-ops`.
pub(crate) const MAX_CHANGES: usize = 128;

/// The settings of a client.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The members of etcd; at least one.
    pub endpoints: Vec<Endpoint>,
    /// The files for TLS; needed with endpoints of `https`.
    pub tls: Option<TlsFiles>,
    /// Timeout of one endpoint's answer, dial included.
    pub timeout: Duration,
}

/// A lease that etcd has granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseId(u64);

/// All keys below a prefix, as of one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The revision of etcd.
    pub revision: u64,
    /// The entries, in the order of their keys.
    pub entries: Vec<Entry>,
}

/// A condition of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The key does not exist.
    Absent(String),
    /// The key's last change has this revision.
    At(String, u64),
}

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A key gets a value.
    Put {
        /// The key.
        key: String,
        /// Its new value.
        value: Vec<u8>,
        /// The lease whose end deletes the key.
        lease: Option<LeaseId>,
    },
    /// A key is deleted.
    Delete(String),
}

impl Change {
    /// A key gets a value, without a lease.
    #[must_use]
    pub fn put(key: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        Self::Put {
            key: key.into(),
            value: value.into(),
            lease: None,
        }
    }
}

/// The outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// True: all conditions held, and all changes were made. False: none was made.
    pub done: bool,
    /// The revision of etcd afterwards.
    pub revision: u64,
}

/// A client of one etcd. Calls may be made at the same time.
pub struct Client {
    endpoints: Vec<Endpoint>,
    tls: Option<Arc<ClientConfig>>,
    timeout: Duration,
    /// The endpoint that answered last, modulo their number.
    current: AtomicUsize,
    idle: Mutex<Vec<(usize, Connection)>>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("endpoints", &self.endpoints)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Makes a client, without calling etcd.
    ///
    /// # Errors
    /// The files for TLS cannot be used.
    pub fn new(settings: &Settings) -> Result<Self, TlsError> {
        let tls = settings.tls.as_ref().map(TlsFiles::load).transpose()?;
        Ok(Self {
            endpoints: settings.endpoints.clone(),
            tls,
            timeout: settings.timeout,
            current: AtomicUsize::new(0),
            idle: Mutex::default(),
        })
    }

    /// Reads all keys that begin with `prefix`, from the leader of etcd.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn read(&self, prefix: &str) -> Result<Snapshot, Error> {
        let request = RangeRequest {
            key: prefix.into(),
            range_end: range_end(prefix),
        };
        let answer: RangeResponse = self.call("/v3/kv/range", &request).await?;
        let entries = answer.kvs.into_iter();
        Ok(Snapshot {
            revision: answer.header.revision.0,
            entries: entries.filter_map(|kv| kv.into_entry()).collect(),
        })
    }

    /// Makes all `changes` in one transaction if all `conditions` hold. A call that fails may
    /// have been carried out. A call that was repeated may find that its own change breaks
    /// the conditions.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn change(
        &self,
        conditions: &[Condition],
        changes: &[Change],
    ) -> Result<Outcome, Error> {
        if changes.len() > MAX_CHANGES {
            return Err(Error::malformed(format_args!(
                "more than {MAX_CHANGES} changes at once"
            )));
        }
        let request = TxnRequest {
            compare: conditions.iter().map(compare).collect(),
            success: changes.iter().map(operation).collect(),
        };
        let answer: TxnResponse = self.call("/v3/kv/txn", &request).await?;
        Ok(Outcome {
            done: answer.succeeded,
            revision: answer.header.revision.0,
        })
    }

    /// Obtains a lease. Returns the time that it lasts without [`Self::keep_alive`]: at least
    /// `ttl`, rounded up to whole seconds.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn grant(&self, ttl: Duration) -> Result<(LeaseId, Duration), Error> {
        let request = GrantRequest {
            ttl: Number(ttl.as_secs()),
        };
        let answer: LeaseResponse = self.call("/v3/lease/grant", &request).await?;
        let granted = Duration::from_secs(answer.ttl.0);
        if granted.is_zero() {
            return Err(Error::malformed("a lease of 0 s"));
        }
        Ok((LeaseId(answer.id.0), granted))
    }

    /// Renews a lease, from the moment when etcd gets the call. Returns the time that it lasts,
    /// or `None` if it has ended.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn keep_alive(&self, lease: LeaseId) -> Result<Option<Duration>, Error> {
        let request = LeaseRequest {
            id: Number(lease.0),
        };
        let line: Line<LeaseResponse> = self.call("/v3/lease/keepalive", &request).await?;
        let answer = line.into_result()?;
        let left = Duration::from_secs(answer.ttl.0);
        Ok(Some(left).filter(|left| !left.is_zero()))
    }

    /// Ends a lease, and deletes all keys that are bound to it.
    ///
    /// # Errors
    /// See [`Error`]. etcd refuses a lease that has ended.
    pub async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        let request = LeaseRequest {
            id: Number(lease.0),
        };
        let done: Result<serde_json::Value, Error> = self.call("/v3/lease/revoke", &request).await;
        done.map(drop)
    }

    /// Watches the keys that begin with `prefix`, from `revision` on. It asks only the endpoint
    /// that answered last, so read first.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn watch(&self, prefix: &str, revision: u64) -> Result<Watch, Error> {
        let endpoint = self.endpoint(self.current.load(Ordering::Relaxed))?;
        let opened = tokio::time::timeout(self.timeout, async {
            let connection = Connection::open(endpoint, self.tls.as_ref()).await;
            let connection = connection.map_err(|error| unreachable(endpoint, error))?;
            Watch::begin(connection, endpoint, prefix, revision).await
        });
        match opened.await {
            Ok(watch) => watch,
            Err(_) => Err(unreachable(endpoint, io::ErrorKind::TimedOut.into())),
        }
    }

    /// Asks the endpoint that answered last, then each of the others.
    async fn call<A: DeserializeOwned>(
        &self,
        path: &str,
        request: &impl Serialize,
    ) -> Result<A, Error> {
        let body = serde_json::to_vec(request).map_err(Error::malformed)?;
        let first = self.current.load(Ordering::Relaxed);
        let mut failure = Error::malformed("no endpoint is configured");
        for turn in 0..self.endpoints.len() {
            let at = first.wrapping_add(turn);
            match self.call_at(at, path, &body).await {
                Err(error) if is_members_own(&error) => {
                    self.idle().retain(|(kept, _)| *kept != at);
                    failure = error;
                }
                answer => {
                    self.current.store(at, Ordering::Relaxed);
                    return serde_json::from_slice(&answer?).map_err(Error::malformed);
                }
            }
        }
        // The next call begins at the next endpoint, because this one may have hung.
        self.current.store(first.wrapping_add(1), Ordering::Relaxed);
        Err(failure)
    }

    async fn call_at(&self, at: usize, path: &str, body: &[u8]) -> Result<Vec<u8>, Error> {
        let endpoint = self.endpoint(at)?;
        let answered = tokio::time::timeout(self.timeout, self.exchange(at, endpoint, path, body));
        let answered = match answered.await {
            Ok(answered) => answered,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        let (status, text) = answered.map_err(|error| unreachable(endpoint, error))?;
        if status == 200 {
            return Ok(text);
        }
        let message = match serde_json::from_slice(&text) {
            Ok(value) => message_of(&value),
            Err(_) => String::from_utf8_lossy(&text).trim().to_owned(),
        };
        Err(Error::Refused { status, message })
    }

    /// One exchange. It uses a new connection if the idle one has been closed.
    async fn exchange(
        &self,
        at: usize,
        endpoint: &Endpoint,
        path: &str,
        body: &[u8],
    ) -> io::Result<(u16, Vec<u8>)> {
        let kept = {
            let mut idle = self.idle();
            let found = idle.iter().position(|(kept, _)| *kept == at);
            found.map(|found| idle.swap_remove(found).1)
        };
        if let Some(connection) = kept
            && let Ok(answer) = self.exchange_on(connection, at, endpoint, path, body).await
        {
            return Ok(answer);
        }
        let connection = Connection::open(endpoint, self.tls.as_ref()).await?;
        self.exchange_on(connection, at, endpoint, path, body).await
    }

    async fn exchange_on(
        &self,
        mut connection: Connection,
        at: usize,
        endpoint: &Endpoint,
        path: &str,
        body: &[u8],
    ) -> io::Result<(u16, Vec<u8>)> {
        let head = connection.ask(endpoint, path, body).await?;
        let (text, reusable) = connection.read_all(&head, MAX_ANSWER_BYTES).await?;
        if reusable {
            let mut idle = self.idle();
            if idle.len() < MAX_IDLE {
                idle.push((at, connection));
            }
        }
        Ok((head.status(), text))
    }

    fn endpoint(&self, at: usize) -> Result<&Endpoint, Error> {
        let count = self.endpoints.len().max(1);
        let endpoint = self.endpoints.get(at % count);
        endpoint.ok_or_else(|| Error::malformed("no endpoint is configured"))
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(usize, Connection)>> {
        // A panic cannot leave a list of connections half-changed.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether another member may succeed: this one is out of reach, has no leader, or is too
/// busy.
fn is_members_own(error: &Error) -> bool {
    matches!(
        error,
        Error::Unreachable { .. }
            | Error::Refused {
                status: 408 | 429 | 500..=599,
                ..
            }
            | Error::Ended(_)
    )
}

pub(crate) fn unreachable(endpoint: &Endpoint, source: io::Error) -> Error {
    Error::Unreachable {
        endpoint: endpoint.to_string(),
        source,
    }
}

/// The first key after all those that begin with `prefix`.
pub(crate) fn range_end(prefix: &str) -> crate::message::Bytes {
    let mut end = prefix.as_bytes().to_vec();
    // A byte of UTF-8 is never 0xff.
    match end.last_mut() {
        Some(last) => *last = last.saturating_add(1),
        // etcd takes a zero byte for the end of all keys.
        None => end.push(0),
    }
    crate::message::Bytes(end)
}

fn compare(condition: &Condition) -> Compare {
    match condition {
        Condition::Absent(key) => Compare {
            key: key.as_str().into(),
            result: "EQUAL",
            target: "CREATE",
            create_revision: Some(Number(0)),
            mod_revision: None,
        },
        Condition::At(key, revision) => Compare {
            key: key.as_str().into(),
            result: "EQUAL",
            target: "MOD",
            create_revision: None,
            mod_revision: Some(Number(*revision)),
        },
    }
}

fn operation(change: &Change) -> RequestOp {
    match change {
        Change::Put { key, value, lease } => RequestOp::RequestPut {
            key: key.as_str().into(),
            value: crate::message::Bytes(value.clone()),
            lease: Number(lease.map_or(0, |lease| lease.0)),
        },
        Change::Delete(key) => RequestOp::RequestDeleteRange {
            key: key.as_str().into(),
        },
    }
}
