//! The client: one request at a time, each over a new connection.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::client::{self, Trust};
use crate::http;
use crate::plan::Asked;

/// Most requests of a turn: a node records no more hand-offs.
const MOST: usize = 10_000;

/// The times of one request, in ns of the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fetch {
    /// The client's port, which identifies the connection.
    pub(super) port: u16,
    /// Before the TCP handshake.
    pub(super) began: u64,
    /// After the TCP handshake.
    pub(super) connected: u64,
    /// Before the request, after the TLS handshake if there is one.
    pub(super) asked: u64,
    pub(super) first_byte: u64,
    pub(super) last_byte: u64,
    /// The server has closed the connection.
    pub(super) closed: u64,
}

/// Converts instants to ns of the monotonic clock.
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

/// Fetches objects for the seconds of a turn, from one backend after the other.
pub(super) fn run(asked: &Asked<'_, ()>) -> Result<Vec<Fetch>> {
    let Asked {
        cluster,
        system,
        objects,
        seconds,
        ..
    } = *asked;
    let clock = Clock::now();
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut all: Vec<_> = objects.all().collect();
    // Neighbours are of different backends.
    all.sort_by_key(|object| object.offset / 64 % objects.keys.first().map_or(1, Vec::len).max(1));
    let requests = all.into_iter().map(|object| {
        let address = cluster.address(system, object.backend)?;
        let target = object.target();
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
            // Some servers send no close_notify.
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
