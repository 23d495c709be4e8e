//! `prism-lab bench hashes`: what the MD5 and the SHA-256 of a body cost one core, where
//! several bodies are taken together, beside `openssl speed` in the same run.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use prism_s3::hashes::{Hashes, TOGETHER, update_together};

use crate::openssl;
use crate::rows::{Case, Values};
use crate::summary::{Column, Comparison, Over, SYSTEM, Summary};
use crate::turns::{Job, Options, Turns};

/// Bytes of a body.
const BODY_BYTES: usize = 1 << 20;
/// Bodies that are hashed in a turn: more than a core's cache holds.
const BODIES: usize = 8 * TOGETHER;

pub(crate) const SUMMARY: Summary = Summary {
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
    #[command(flatten)]
    options: Options,
}

/// Who hashes.
#[derive(Clone, Copy)]
enum By {
    /// So many bodies together.
    Prism(usize),
    Openssl,
}

/// Runs the benchmark.
pub(crate) fn run(mut args: Args) -> Result<()> {
    args.options.settle(2, 1)?;
    let numbers = [1, 2, 4, 8, TOGETHER];
    let mut turns = Turns::begin(&args.options, SUMMARY.result, 2 * numbers.len())?;
    let bodies: Vec<Vec<u8>> = (0..BODIES)
        .map(|n| vec![u8::try_from(n).unwrap_or_default(); BODY_BYTES])
        .collect();
    for together in numbers {
        let job = |system, what| Job {
            case: Case::default().with("together", together),
            system,
            what,
        };
        let jobs = [
            job("prism", By::Prism(together)),
            job("openssl", By::Openssl),
        ];
        turns.run_cold(&jobs, |by| match by {
            By::Prism(together) => Ok(values(
                measured(&bodies, *together, false, args.options.seconds),
                measured(&bodies, *together, true, args.options.seconds),
            )),
            By::Openssl => {
                let md5_us = openssl_us("md5", args.options.seconds)?;
                let sha256_us = openssl_us("sha256", args.options.seconds)?;
                Ok(values(md5_us, md5_us + sha256_us))
            }
        })?;
    }
    SUMMARY.tell(turns.rows(), args.options.json)
}

fn values(md5_us: f64, both_us: f64) -> Values {
    let values = [("md5_us", md5_us), ("both_us", both_us)];
    let values = values.map(|(name, value)| (name.to_owned(), value));
    values.into_iter().collect()
}

/// Microseconds for a body, where so many are taken together for so long.
fn measured(bodies: &[Vec<u8>], together: usize, with_sha256: bool, seconds: u64) -> f64 {
    let (start, mut count) = (Instant::now(), 0_u32);
    while start.elapsed().as_secs() < seconds {
        for group in bodies.chunks_exact(together) {
            let mut hashes: Vec<_> = group.iter().map(|_| Hashes::new(with_sha256)).collect();
            update_together(hashes.iter_mut().zip(group.iter().map(Vec::as_slice)));
            for hashes in hashes {
                black_box(hashes.finish());
                count += 1;
            }
        }
    }
    start.elapsed().as_secs_f64() * 1e6 / f64::from(count.max(1))
}

fn openssl_us(algorithm: &str, seconds: u64) -> Result<f64> {
    #[allow(clippy::cast_precision_loss, reason = "2^20")]
    let bytes = BODY_BYTES as f64;
    Ok(bytes * 1e6 / openssl::bytes_per_s(algorithm, seconds)?)
}
