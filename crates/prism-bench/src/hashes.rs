//! `prism bench hashes`: what the MD5 and the SHA-256 of a body cost one core, where
//! several bodies are taken together, beside `openssl speed` in the same run.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use prism_s3::hashes::{Hashes, TOGETHER, update_together};

use crate::openssl;
use crate::rows::{self, Row, Turn, Values};
use crate::summary::{Column, Comparison, Over, SYSTEM, Summary};
use crate::turns::within;

/// Bytes of a body.
const BODY_BYTES: usize = 1 << 20;
/// Bodies that are hashed in a turn: more than a core's cache holds.
const BODIES: usize = 8 * TOGETHER;

const SUMMARY: Summary = Summary {
    result: "hashes",
    title: "Time of one core for the hashes of 1 MiB, medians of the rounds",
    columns: &[
        Column {
            heading: "MD5, µs",
            value: "md5_us",
            unit: 1.0,
            digits: 0,
        },
        Column {
            heading: "and SHA-256, µs",
            value: "both_us",
            unit: 1.0,
            digits: 0,
        },
    ],
    comparisons: &[Comparison {
        title: "OpenSSL's time, of one body after the other, over Prism's",
        dimension: SYSTEM,
        base: "prism",
        over: Over::Base,
        values: &[("MD5", "md5_us"), ("both", "both_us")],
    }],
};

/// Measure the hashes of bodies, alone and together.
///
/// Ours and `openssl speed` take turns, so that both meet the same machine: the
/// ratio of each pair counts, not the single figures.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Turns of ours and of OpenSSL's, which has one second for each hash.
    #[arg(long, default_value_t = 3, value_name = "N")]
    rounds: usize,
    /// Print JSON with every round instead of a table.
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark.
pub(crate) fn run(args: &Args) -> Result<()> {
    within("--rounds", args.rounds, 100)?;
    let bodies: Vec<Vec<u8>> = (0..BODIES)
        .map(|n| vec![u8::try_from(n).unwrap_or_default(); BODY_BYTES])
        .collect();
    let mut rows = Vec::new();
    for together in [1, 2, 4, 8, TOGETHER] {
        let case = rows::Case::default().with("together", together);
        for round in 0..args.rounds {
            let md5 = measured(&bodies, together, false);
            let both = measured(&bodies, together, true);
            let other_md5 = openssl_us("md5")?;
            let other_both = other_md5 + openssl_us("sha256")?;
            for (system, md5_us, both_us) in
                [("prism", md5, both), ("openssl", other_md5, other_both)]
            {
                let turn = Turn {
                    result: SUMMARY.result.to_owned(),
                    case: case.clone(),
                    system: system.to_owned(),
                    round,
                };
                let values = [("md5_us", md5_us), ("both_us", both_us)];
                let values = values.map(|(name, value)| (name.to_owned(), value));
                let values: Values = values.into_iter().collect();
                rows.push(Row { turn, values });
            }
        }
    }
    SUMMARY.tell(&rows, args.json)
}

/// Microseconds for a body, where so many are taken together.
fn measured(bodies: &[Vec<u8>], together: usize, with_sha256: bool) -> f64 {
    let (start, mut count) = (Instant::now(), 0_u32);
    for group in bodies.chunks_exact(together) {
        let mut hashes: Vec<_> = group.iter().map(|_| Hashes::new(with_sha256)).collect();
        update_together(hashes.iter_mut().zip(group.iter().map(Vec::as_slice)));
        for hashes in hashes {
            black_box(hashes.finish());
            count += 1;
        }
    }
    start.elapsed().as_secs_f64() * 1e6 / f64::from(count.max(1))
}

fn openssl_us(algorithm: &str) -> Result<f64> {
    #[allow(clippy::cast_precision_loss, reason = "2^20")]
    let bytes = BODY_BYTES as f64;
    Ok(bytes * 1e6 / openssl::bytes_per_s(algorithm)?)
}
