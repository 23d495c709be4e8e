//! `prism-lab bench tls`: how fast one core seals and opens records, beside
//! `openssl speed` in the same run, and what it costs to move a session.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Result, ensure};
use prism_tls::{
    DirectionKeys, Event, MAX_PLAINTEXT_BYTES, SavedSession, Secret, Session, SessionKeys, Suite,
    Version,
};
use serde::Serialize;

use crate::openssl;

/// Records sealed or opened for one reading.
const BULK_RECORDS: usize = 64;
/// Readings in a round; the median counts.
const READINGS: usize = 40;
/// Sessions moved for the figures of a move.
const MOVES: usize = 20_000;

/// Measure TLS records and the moving of sessions.
///
/// Ours and `openssl speed` take turns, so that both meet the same machine: the
/// ratio of each pair counts, not the single figures.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Turns of ours and of OpenSSL's, one second each.
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
    export: Quantiles,
    rebuild: Quantiles,
}

#[derive(Debug, Serialize)]
struct Quantiles {
    p50: f64,
    p99: f64,
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
            let mut row = Row {
                version: version_name,
                suite: name,
                seal: Vec::new(),
                open: Vec::new(),
                openssl: Vec::new(),
                export: Quantiles { p50: 0.0, p99: 0.0 },
                rebuild: Quantiles { p50: 0.0, p99: 0.0 },
            };
            for _ in 0..args.rounds {
                let (seal, open) = bulk(version, suite)?;
                row.seal.push(seal);
                row.open.push(open);
                row.openssl
                    .push(openssl::bytes_per_s(openssl_name, 1)? / 1e9);
            }
            (row.export, row.rebuild) = moves(version, suite)?;
            rows.push(row);
        }
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        print_table(&rows);
    }
    Ok(())
}

fn print_table(rows: &[Row]) {
    let kernel = crate::switch::kernel_release();
    println!("Linux {kernel}, one core, records of 16 KiB sealed in place\n");
    println!("                          GB/s, median       of openssl, median      µs, p50 (p99)");
    println!(
        "                          seal  open openssl   seal         open      export       rebuild"
    );
    for row in rows {
        let name = format!("TLS {} {}", row.version, row.suite);
        let ratio = |ours: &[f64]| {
            let mut pairs: Vec<f64> = ours.iter().zip(&row.openssl).map(|(a, b)| a / b).collect();
            pairs.sort_by(f64::total_cmp);
            let (least, most) = (pairs.first(), pairs.last());
            let spread = (least.copied().unwrap_or(0.0), most.copied().unwrap_or(0.0));
            format!("{:.2} ({:.2}-{:.2})", middle(&pairs), spread.0, spread.1)
        };
        let moved = |q: &Quantiles| format!("{:.2} ({:.2})", q.p50, q.p99);
        println!(
            "{name:<24} {:>5.2} {:>5.2} {:>7.2}   {} {}   {:<12} {}",
            median(&row.seal),
            median(&row.open),
            median(&row.openssl),
            ratio(&row.seal),
            ratio(&row.open),
            moved(&row.export),
            moved(&row.rebuild),
        );
    }
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
    Ok((median(&sealed), median(&opened)))
}

/// Moves one session from itself to itself.
fn moves(version: Version, suite: Suite) -> Result<(Quantiles, Quantiles)> {
    let mut session = session(version, suite, 1, 2)?;
    let (mut exports, mut rebuilds) = (Vec::new(), Vec::new());
    let us = |start: Instant| start.elapsed().as_nanos() as f64 / 1e3;
    for _ in 0..MOVES {
        let start = Instant::now();
        let bytes = black_box(session.save()?.encode());
        exports.push(us(start));
        let start = Instant::now();
        session = black_box(Session::restore(SavedSession::decode(&bytes)?)?);
        rebuilds.push(us(start));
    }
    Ok((quantiles(exports), quantiles(rebuilds)))
}

fn quantiles(mut values: Vec<f64>) -> Quantiles {
    values.sort_by(f64::total_cmp);
    let at = |percent: usize| {
        let rank = (values.len() * percent).div_ceil(100).saturating_sub(1);
        values.get(rank).copied().unwrap_or(0.0)
    };
    Quantiles {
        p50: at(50),
        p99: at(99),
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    middle(&sorted)
}

fn middle(sorted: &[f64]) -> f64 {
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}
