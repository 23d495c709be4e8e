//! The client, and its calls that have one answer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use data_encoding::BASE64;
use parking_lot::Mutex;
use rustls::ClientConfig;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::connection::MemberConnection;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::message::{
    Change, Condition, Database, KeyEntry, KeyValue, LeaseId, LeaseResponse, RangeResponse,
    StatusResponse, StreamLine, TxnResponse, last_changed, range,
};
use crate::watch::Watch;

/// Longest answer in bytes: 64 nodes and 10,000 users take 4 MiB in JSON.
const MAX_ANSWER_BYTES: usize = 32 << 20;
/// The bounds of the time that one member has for an answer.
const MIN_TIMEOUT: Duration = Duration::from_millis(500);
const MAX_TIMEOUT: Duration = Duration::from_secs(3);
/// Most idle connections. A node makes at most two calls at once.
const MAX_IDLE: usize = 4;
/// Most changes of one call: etcd's default of `--max-txn-ops`.
const MAX_CHANGES: usize = 128;

/// All keys below a prefix, as of one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The revision of etcd.
    pub revision: u64,
    /// The entries, in the order of their keys.
    pub entries: Vec<KeyEntry>,
}

/// A fingerprint of all keys below a prefix. Any change of them makes another one: a put raises
/// the revision of the last change, and deletions alone lower the number of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// The number of keys.
    pub keys: u64,
    /// The greatest revision of a key's last change; 0 without keys.
    pub last_change: u64,
}

/// A client of one etcd. Calls may be made at the same time.
pub struct EtcdClient {
    endpoints: Vec<Endpoint>,
    tls: Option<Arc<ClientConfig>>,
    /// Timeout of one endpoint's answer, dial included.
    timeout: Duration,
    /// The endpoint that answered last, modulo their number.
    current: AtomicUsize,
    idle: Mutex<Vec<MemberConnection>>,
}

impl EtcdClient {
    /// Makes a client of one etcd's members, which are all `http` or all `https`. It calls none
    /// of them yet. `https` needs `tls`. The caller's leases last for `lease_ttl`: a call waits
    /// for a quarter of it.
    pub fn new(
        endpoints: Vec<Endpoint>,
        tls: Option<Arc<ClientConfig>>,
        lease_ttl: Duration,
    ) -> Self {
        Self {
            endpoints,
            tls,
            // A member of etcd that hangs must not cost the lease.
            timeout: (lease_ttl / 4).clamp(MIN_TIMEOUT, MAX_TIMEOUT),
            current: AtomicUsize::new(0),
            idle: Mutex::default(),
        }
    }

    /// Reads all keys that begin with `prefix`, from the leader of etcd.
    pub async fn read(&self, prefix: &str) -> Result<Snapshot, Error> {
        let answer: RangeResponse = self.call("/v3/kv/range", range(prefix).into()).await?;
        let entries = answer.kvs.into_iter();
        Ok(Snapshot {
            revision: answer.header.revision.0,
            entries: entries.filter_map(|kv| kv.into_entry()).collect(),
        })
    }

    /// Reads one key, from the leader of etcd.
    pub async fn read_key(&self, key: &str) -> Result<Option<KeyEntry>, Error> {
        let request = json!({ "key": BASE64.encode(key.as_bytes()) });
        let answer: RangeResponse = self.call("/v3/kv/range", request).await?;
        let mut entries = answer.kvs.into_iter().filter_map(KeyValue::into_entry);
        Ok(entries.next())
    }

    /// The fingerprint of all keys that begin with `prefix`, from the leader of etcd, and the
    /// revision of etcd.
    pub async fn fingerprint(&self, prefix: &str) -> Result<(Fingerprint, u64), Error> {
        let request = last_changed(prefix).into();
        let answer: RangeResponse = self.call("/v3/kv/range", request).await?;
        let fingerprint = Fingerprint {
            keys: answer.count.0,
            last_change: answer.kvs.first().map_or(0, |kv| kv.mod_revision.0),
        };
        Ok((fingerprint, answer.header.revision.0))
    }

    /// The database of a member of etcd.
    pub async fn database(&self) -> Result<Database, Error> {
        let answer: StatusResponse = self.call("/v3/maintenance/status", json!({})).await?;
        Ok(answer.into_database())
    }

    /// Whether etcd still has the contents of a revision that was, and has not compacted them.
    pub async fn keeps(&self, revision: u64) -> Result<bool, Error> {
        let request = json!({ "key": BASE64.encode(b"/"), "revision": revision.to_string() });
        let answer: Result<RangeResponse, Error> = self.call("/v3/kv/range", request).await;
        match answer {
            Ok(_) => Ok(true),
            Err(Error::Refused { message, .. }) if message.contains("compacted") => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes all `changes` in one transaction if all `conditions` hold, and returns whether they
    /// do. A call that fails may have been carried out. A call that was repeated may find that its
    /// own change breaks the conditions.
    pub async fn change(
        &self,
        conditions: &[Condition],
        changes: &[Change],
    ) -> Result<bool, Error> {
        if changes.len() > MAX_CHANGES {
            let what = format!("more than {MAX_CHANGES} changes at once");
            return Err(Error::Malformed(what));
        }
        let conditions: Vec<Value> = conditions.iter().map(Condition::to_json).collect();
        let changes: Vec<Value> = changes.iter().map(Change::to_json).collect();
        let request = json!({ "compare": conditions, "success": changes });
        let answer: TxnResponse = self.call("/v3/kv/txn", request).await?;
        Ok(answer.succeeded)
    }

    /// Obtains a lease. Returns the time that it lasts without [`Self::keep_alive`]: at least
    /// `ttl`, rounded up to whole seconds.
    pub async fn grant(&self, ttl: Duration) -> Result<(LeaseId, Duration), Error> {
        let request = json!({ "TTL": ttl.as_secs().to_string() });
        let answer: LeaseResponse = self.call("/v3/lease/grant", request).await?;
        let granted = Duration::from_secs(answer.ttl.0);
        if granted.is_zero() {
            return Err(Error::malformed("a lease of 0 s"));
        }
        Ok((LeaseId(answer.id.0), granted))
    }

    /// Renews a lease, from the moment when etcd gets the call. Returns the time that it lasts,
    /// or `None` if it has ended.
    pub async fn keep_alive(&self, lease: LeaseId) -> Result<Option<Duration>, Error> {
        let request = json!({ "ID": lease.0.to_string() });
        let line: StreamLine<LeaseResponse> = self.call("/v3/lease/keepalive", request).await?;
        let answer = line.into_result()?;
        let left = Duration::from_secs(answer.ttl.0);
        Ok(Some(left).filter(|left| !left.is_zero()))
    }

    /// Ends a lease, and deletes all keys that are bound to it. etcd refuses that for a lease that
    /// has ended.
    pub async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        let request = json!({ "ID": lease.0.to_string() });
        let done: Result<Value, Error> = self.call("/v3/lease/revoke", request).await;
        done.map(drop)
    }

    /// Watches the keys that begin with `prefix`, from `revision` on. It asks only the endpoint
    /// that answered last, so read first.
    pub async fn watch(&self, prefix: &str, revision: u64) -> Result<Watch, Error> {
        let endpoint = self.endpoint(self.current.load(Ordering::Relaxed))?;
        let opened = tokio::time::timeout(self.timeout, async {
            let connection = MemberConnection::open(endpoint, self.tls.as_ref()).await;
            let connection = connection.map_err(|e| Error::unreachable(endpoint, e))?;
            Watch::begin(connection, prefix, revision).await
        });
        let late = |_| Err(Error::unreachable(endpoint, io::ErrorKind::TimedOut.into()));
        opened.await.unwrap_or_else(late)
    }

    /// Asks the endpoint that answered last, then each of the others.
    async fn call<A: DeserializeOwned>(&self, path: &str, request: Value) -> Result<A, Error> {
        let body = request.to_string();
        let first = self.current.load(Ordering::Relaxed);
        let mut failure = Error::malformed("no endpoint is configured");
        for turn in 0..self.endpoints.len() {
            let at = first.wrapping_add(turn);
            let endpoint = self.endpoint(at)?;
            match self.call_at(endpoint, path, &body).await {
                Err(error) if error.is_members_own() => {
                    self.idle.lock().retain(|idle| idle.endpoint() != endpoint);
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

    async fn call_at(&self, endpoint: &Endpoint, path: &str, body: &str) -> Result<Vec<u8>, Error> {
        let exchange = tokio::time::timeout(self.timeout, self.exchange(endpoint, path, body));
        let answered = exchange.await.map_err(io::Error::from).flatten();
        match answered.map_err(|error| Error::unreachable(endpoint, error))? {
            (200, text) => Ok(text),
            (status, text) => Err(Error::refused(status, &text)),
        }
    }

    /// One exchange. It uses a new connection if the idle one has been closed.
    async fn exchange(
        &self,
        endpoint: &Endpoint,
        path: &str,
        body: &str,
    ) -> io::Result<(u16, Vec<u8>)> {
        let idle = {
            let mut idle = self.idle.lock();
            let found = idle.iter().position(|idle| idle.endpoint() == endpoint);
            found.map(|found| idle.swap_remove(found))
        };
        if let Some(connection) = idle
            && let Ok(answer) = self.exchange_on(connection, path, body).await
        {
            return Ok(answer);
        }
        let connection = MemberConnection::open(endpoint, self.tls.as_ref()).await?;
        self.exchange_on(connection, path, body).await
    }

    async fn exchange_on(
        &self,
        mut connection: MemberConnection,
        path: &str,
        body: &str,
    ) -> io::Result<(u16, Vec<u8>)> {
        let head = connection.ask(path, body).await?;
        let (text, reusable) = connection.read_all(&head, MAX_ANSWER_BYTES).await?;
        let mut idle = self.idle.lock();
        if reusable && idle.len() < MAX_IDLE {
            idle.push(connection);
        }
        Ok((head.status(), text))
    }

    fn endpoint(&self, at: usize) -> Result<&Endpoint, Error> {
        let endpoint = self.endpoints.get(at % self.endpoints.len().max(1));
        endpoint.ok_or_else(|| Error::malformed("no endpoint is configured"))
    }
}
