//! The load: a thread for each connection, which writes one object after the other.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::bed::{Bed, System, spent};
use crate::client::{self, Trust};
use crate::http;
use crate::objects::Object;
use crate::plan::TurnRequest;
use crate::rows::Values;
use crate::stats::{ascending, named, rank};

/// Time until all connections are busy and their sockets full. The sockets are as full at the
/// end, so the bytes written in between are the bytes sent.
const RAMP: Duration = Duration::from_millis(500);
/// Time between two looks for failed connections.
const LOOK: Duration = Duration::from_millis(50);
/// Bytes written at a time.
const PIECE: usize = 64 << 10;

/// The writers of one turn.
struct Puts<'p> {
    trust: Option<&'p Trust>,
    /// Address, head and object of each request.
    requests: Vec<(SocketAddr, Vec<u8>, Object<'p>)>,
    /// Bytes of bodies so far, over all connections.
    sent: AtomicU64,
    stop: AtomicBool,
}

/// An answer: its time, and the time since its request began.
struct Done {
    at: Instant,
    took: Duration,
}

/// The time that counts, and the bytes and CPU time in it.
struct SentBytes {
    from: Instant,
    until: Instant,
    sent: u64,
    cpu: [Duration; 3],
}

/// Writes for the seconds of a turn, after a moment that does not count.
pub(super) fn run(turn: &TurnRequest<'_, ()>) -> Result<Values> {
    let TurnRequest {
        bed,
        system,
        objects,
        connections,
        seconds,
        ..
    } = *turn;
    let requests = objects.all().map(|object| {
        let address = bed.address(system, object.backend)?;
        let target = object.target();
        let head = bed.signed(address, "PUT", &target, object.body)?;
        Ok((address, head, object))
    });
    let puts = Puts {
        trust: bed.trust(),
        requests: requests.collect::<Result<_>>()?,
        sent: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    };
    let backends = objects.keys.len();
    let (measured, done) = bed.clients(system)?.run(|| {
        std::thread::scope(|scope| {
            let workers = (0..connections).map(|n| {
                // Direct, a connection is to one backend.
                let only = (system == System::Direct).then_some(n % backends);
                let puts = &puts;
                scope.spawn(move || puts.work(n, only))
            });
            let workers: Vec<_> = workers.collect();
            let has_failed = || workers.iter().any(|worker| worker.is_finished());
            let measured = puts.watch(bed, system, seconds, &has_failed);
            puts.stop.store(true, Ordering::Relaxed);
            let mut done = Vec::new();
            for worker in workers {
                done.extend(
                    worker
                        .join()
                        .map_err(|_| anyhow!("a connection panicked"))??,
                );
            }
            Ok::<_, anyhow::Error>((measured?, done))
        })
    })??;
    Ok(measured.values(&done, objects.bytes))
}

impl Puts<'_> {
    /// Waits for the ramp and the turn. Gives the bytes and CPU time of the turn.
    fn watch(
        &self,
        bed: &Bed<'_>,
        system: System,
        seconds: u64,
        has_failed: &dyn Fn() -> bool,
    ) -> Result<SentBytes> {
        let pass = |time: Duration| {
            let end = Instant::now() + time;
            while Instant::now() < end && !has_failed() {
                std::thread::sleep(LOOK.min(end.saturating_duration_since(Instant::now())));
            }
        };
        pass(RAMP);
        let before = bed.cpu(system)?;
        let from = Instant::now();
        let sent_before = self.sent.load(Ordering::Relaxed);
        pass(Duration::from_secs(seconds));
        let until = Instant::now();
        let sent = self.sent.load(Ordering::Relaxed) - sent_before;
        let cpu = spent(before, bed.cpu(system)?);
        Ok(SentBytes {
            from,
            until,
            sent,
            cpu,
        })
    }

    /// Writes random objects over one connection, of one backend or of all.
    fn work(&self, number: usize, only: Option<usize>) -> Result<Vec<Done>> {
        let its = self.requests.iter();
        let its = its.filter(|request| only.is_none_or(|only| request.2.backend == only));
        let its: Vec<_> = its.collect();
        let (address, ..) = its.first().context("nothing to write")?;
        let mut stream = client::connect_to_started(*address, self.trust)?;
        let mut random = fastrand::Rng::with_seed(number as u64);
        let mut done = Vec::new();
        while let Some((_, head, object)) = random.choice(its.iter().copied()) {
            let began = Instant::now();
            stream.write_all(head)?;
            for piece in object.body.chunks(PIECE) {
                if self.stop.load(Ordering::Relaxed) {
                    return Ok(done);
                }
                stream.write_all(piece)?;
                self.sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
            }
            http::answer(&mut *stream).with_context(|| format!("PUT of {}", object.key))?;
            let at = Instant::now();
            done.push(Done {
                at,
                took: at.saturating_duration_since(began),
            });
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(done)
    }
}

impl SentBytes {
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52 bytes")]
    fn values(&self, done: &[Done], bytes: u64) -> Values {
        let counting = done
            .iter()
            .filter(|done| (self.from..self.until).contains(&done.at));
        let took_us = ascending(counting.map(|done| done.took.as_secs_f64() * 1e6));
        let seconds = (self.until - self.from).as_secs_f64();
        // Unfinished objects count in part.
        let written = self.sent as f64 / bytes as f64;
        let [frontend, backends, client] = self.cpu.map(|cpu| cpu.as_secs_f64());
        named([
            ("requests", took_us.len() as f64),
            ("sent_bytes", self.sent as f64),
            ("seconds", seconds),
            ("mb_s", self.sent as f64 / seconds / 1e6),
            ("requests_s", written / seconds),
            ("p50_us", rank(&took_us, 50)),
            ("p90_us", rank(&took_us, 90)),
            ("p99_us", rank(&took_us, 99)),
            ("frontend_cpu_s", frontend),
            ("backends_cpu_s", backends),
            ("client_cpu_s", client),
            ("cpu_us", (frontend + backends) * 1e6 / written),
        ])
    }
}
