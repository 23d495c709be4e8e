//! `prism-lab bench tls`: the speed of one core at sealing and opening records, beside
//! `openssl speed` in the same run, and the time to move a session.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Result, ensure};
use prism_tls::{
    DirectionKeys, Event, MAX_PLAINTEXT_BYTES, Secret, Session, SessionKeys, Suite, Version,
};
use serde::Serialize;

use crate::openssl;
use crate::stats::{Stats, ascending, median};
use crate::summary::{Comparison, Summary, column};
use crate::sweep::PRISM_OVER_OTHERS;

/// Records sealed or opened for one reading.
const BULK_RECORDS: usize = 64;
/// Readings of a round, whose median counts.
const READINGS: usize = 40;
/// Moves of a session.
const MOVES: usize = 20_000;

pub(crate) const SUMMARY: Summary = Summary {
    result: "tls",
    title: "One core, records of 16 KiB; moving a session",
    columns: &[
        column("seal GB/s", "seal_gb_s", 1.0, 2),
        column("open GB/s", "open_gb_s", 1.0, 2),
        column("export µs", "export_us", 1.0, 2),
        column("p99", "export_p99_us", 1.0, 2),
        column("rebuild µs", "rebuild_us", 1.0, 2),
        column("p99", "rebuild_p99_us", 1.0, 2),
    ],
    comparisons: &[Comparison {
        values: &[("seal", "seal_gb_s"), ("open", "open_gb_s")],
        ..PRISM_OVER_OTHERS
    }],
};

/// Measure TLS records and the moving of sessions.
///
/// Prism and `openssl speed` alternate on the same machine. The ratio of each pair counts, not
/// the single figures.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Rounds, in which OpenSSL has one second.
    #[arg(long, default_value_t = 5, value_name = "N")]
    rounds: usize,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// One version and suite.
#[derive(Debug, Serialize)]
struct Row {
    version: &'static str,
    suite: &'static str,
    /// GB/s of one core, each round.
    seal: Vec<f64>,
    open: Vec<f64>,
    openssl: Vec<f64>,
    /// µs: saving and encoding, decoding and restoring.
    export: Stats,
    rebuild: Stats,
}

/// Runs the benchmark.
pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(
        (1..=100).contains(&args.rounds),
        "--rounds must be 1 to 100"
    );
    let suites = [
        (Suite::Aes128Gcm, "AES-128-GCM", "aes-128-gcm"),
        (Suite::Aes256Gcm, "AES-256-GCM", "aes-256-gcm"),
        (
            Suite::ChaCha20Poly1305,
            "ChaCha20-Poly1305",
            "chacha20-poly1305",
        ),
    ];
    let mut rows = Vec::new();
    for (version, version_name) in [(Version::Tls13, "1.3"), (Version::Tls12, "1.2")] {
        for (suite, name, openssl_name) in suites {
            let (export, rebuild) = moves(version, suite)?;
            let mut row = Row {
                version: version_name,
                suite: name,
                seal: Vec::new(),
                open: Vec::new(),
                openssl: Vec::new(),
                export,
                rebuild,
            };
            for _ in 0..args.rounds {
                let (seal, open) = bulk(version, suite)?;
                row.seal.push(seal);
                row.open.push(open);
                row.openssl
                    .push(openssl::bytes_per_s(openssl_name, 1)? / 1e9);
            }
            rows.push(row);
        }
    }
    crate::report::tell(&SUMMARY, &rows, args.json)
}

fn session(version: Version, suite: Suite, read: u8, write: u8) -> Result<Session> {
    let direction = |seed: u8| -> Result<DirectionKeys> {
        let sequence = 0;
        Ok(match version {
            Version::Tls13 => DirectionKeys::Tls13 {
                secret: Secret::new(&vec![seed; suite.traffic_secret_bytes()])?,
                sequence,
            },
            Version::Tls12 => DirectionKeys::Tls12 {
                key: Secret::new(&vec![seed; suite.key_bytes()])?,
                iv: [seed; 12],
                sequence,
            },
        })
    };
    let (read, write) = (direction(read)?, direction(write)?);
    Ok(Session::new(SessionKeys { suite, read, write })?)
}

/// GB/s of sealing and of opening, each the median of some readings.
fn bulk(version: Version, suite: Suite) -> Result<(f64, f64)> {
    let mut server = session(version, suite, 1, 2)?;
    let mut client = session(version, suite, 2, 1)?;
    let record_bytes = MAX_PLAINTEXT_BYTES + server.surroundings().total();
    let mut records = vec![7; BULK_RECORDS * record_bytes];
    let (mut sealed, mut opened) = (Vec::new(), Vec::new());
    let rate = |start: Instant| {
        (BULK_RECORDS * MAX_PLAINTEXT_BYTES) as f64 / start.elapsed().as_nanos() as f64
    };
    for _ in 0..READINGS {
        let start = Instant::now();
        for record in records.chunks_mut(record_bytes) {
            server.seal_in_place(record, MAX_PLAINTEXT_BYTES)?;
        }
        sealed.push(rate(start));
        let start = Instant::now();
        for record in records.chunks_mut(record_bytes) {
            let event = client.open(record)?.event;
            ensure!(matches!(event, Event::Data(_)), "a record was not opened");
        }
        opened.push(rate(start));
    }
    let median = |rates: Vec<f64>| median(&ascending(rates.into_iter()));
    Ok((median(sealed), median(opened)))
}

/// Moves one session from itself to itself.
fn moves(version: Version, suite: Suite) -> Result<(Stats, Stats)> {
    let mut session = session(version, suite, 1, 2)?;
    let (mut exports, mut rebuilds) = (Vec::new(), Vec::new());
    let us = |start: Instant| start.elapsed().as_nanos() as f64 / 1e3;
    for _ in 0..MOVES {
        let start = Instant::now();
        let bytes = black_box(session.save()?);
        exports.push(us(start));
        let start = Instant::now();
        session = black_box(Session::restore(&bytes)?);
        rebuilds.push(us(start));
    }
    Ok((Stats::of(exports), Stats::of(rebuilds)))
}
