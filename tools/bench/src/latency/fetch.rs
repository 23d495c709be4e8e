//! The client: one request after the other, each over a connection of its own.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::client::{self, Trust};
use crate::cluster::{Cluster, System};
use crate::http;
use crate::objects::{BUCKET, Objects};

/// Most requests of a turn: as many hand-offs as a node notes, and their answer fits.
const MOST: usize = 10_000;

/// When what happened to one request, in ns of the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fetch {
    /// The client's, to tell connections apart.
    pub(super) port: u16,
    /// The connection is asked for,
    pub(super) began: u64,
    /// and there.
    pub(super) connected: u64,
    /// The request is about to be sent, after the handshake of TLS if there is one.
    pub(super) asked: u64,
    pub(super) first_byte: u64,
    pub(super) last_byte: u64,
    /// The server has closed the connection.
    pub(super) closed: u64,
}

/// The monotonic clock in ns, at moments that were noted otherwise.
struct Clock {
    at: Instant,
    ns: u64,
}

impl Clock {
    fn now() -> Self {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let since_start = Duration::try_from(time).unwrap_or_default();
        Self {
            at: Instant::now(),
            ns: u64::try_from(since_start.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    fn ns(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.at).as_nanos();
        self.ns + u64::try_from(since).unwrap_or(u64::MAX)
    }
}

/// Fetches objects of `system` for `seconds`, from one backend after the other.
pub(super) fn run(
    cluster: &Cluster,
    system: System,
    objects: &Objects,
    seconds: u64,
) -> Result<Vec<Fetch>> {
    let clock = Clock::now();
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut all: Vec<_> = objects.all().collect();
    // Neighbours are of different backends.
    all.sort_by_key(|object| object.offset / 64 % objects.keys.first().map_or(1, Vec::len).max(1));
    let requests = all.into_iter().map(|object| {
        let address = cluster.address(system, object.backend)?;
        let target = format!("/{BUCKET}/{}", object.key);
        let get = format!("GET {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        Ok((address, get, object.body))
    });
    let requests = requests.collect::<Result<Vec<_>>>()?;
    cluster.clients(system)?.run(|| {
        let mut fetches = Vec::new();
        for (address, get, body) in requests.iter().cycle().take(MOST) {
            if Instant::now() >= end {
                break;
            }
            let fetch = fetch(&clock, *address, get, body, cluster.trust());
            fetches.push(fetch.with_context(|| format!("fetching from {address}"))?);
        }
        Ok(fetches)
    })?
}

fn fetch(
    clock: &Clock,
    address: SocketAddr,
    get: &str,
    body: &[u8],
    trust: Option<&Trust>,
) -> Result<Fetch> {
    let began = Instant::now();
    let mut connection = client::connect(address, trust)?;
    let stream = &mut *connection.stream;
    stream.write_all(get.as_bytes())?;
    let answer = http::answer(stream)?;
    ensure!(answer.body == body, "the answer has other bytes");
    loop {
        match stream.read(&mut [0; 64]) {
            Ok(0) => break,
            Ok(_) => anyhow::bail!("something follows the answer"),
            // Over TLS some do not say that they close.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => (),
            Err(error) => return Err(error).context("waiting for the end"),
        }
    }
    let closed = Instant::now();
    let moments = [
        began,
        connection.connected,
        connection.secured,
        answer.first_byte,
        answer.last_byte,
        closed,
    ];
    let [began, connected, asked, first_byte, last_byte, closed] =
        moments.map(|moment| clock.ns(moment));
    Ok(Fetch {
        port: connection.port,
        began,
        connected,
        asked,
        first_byte,
        last_byte,
        closed,
    })
}
