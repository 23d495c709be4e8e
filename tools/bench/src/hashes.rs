//! `prism-lab bench hashes`: the time of one core for the MD5 and the SHA-256 of bodies
//! that are hashed together, beside `openssl speed` in the same run.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use prism_s3::hashes::{Hashes, TOGETHER, update_together};

use crate::openssl;
use crate::rows::Case;
use crate::stats::named;
use crate::summary::{Comparison, Over, SYSTEM, Summary, column};
use crate::turns::{Job, Options, Turns};

/// Bytes of a body.
const BODY_BYTES: usize = 1 << 20;
/// Bodies of a turn: more than fit in a core's cache.
const BODIES: usize = 8 * TOGETHER;

pub(crate) const SUMMARY: Summary = Summary {
    result: "hashes",
    title: "Time of one core for the hashes of 1 MiB, medians of the rounds",
    columns: &[
        column("MD5, µs", "md5_us", 1.0, 0),
        column("and SHA-256, µs", "both_us", 1.0, 0),
    ],
    comparisons: &[Comparison {
        title: "OpenSSL, one body at a time, over Prism",
        dimension: SYSTEM,
        base: "prism",
        over: Over::Base,
        values: &[("MD5", "md5_us"), ("both", "both_us")],
    }],
};

/// Measure the hashes of bodies, alone and together.
///
/// Prism's hashes and `openssl speed` alternate on the same machine. The ratio of each pair
/// counts, not the single figures.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    options: Options,
}

/// The hasher of a turn.
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
            By::Prism(together) => Ok(named([
                (
                    "md5_us",
                    measured(&bodies, *together, false, args.options.seconds),
                ),
                (
                    "both_us",
                    measured(&bodies, *together, true, args.options.seconds),
                ),
            ])),
            By::Openssl => {
                let md5_us = openssl_us("md5", args.options.seconds)?;
                let sha256_us = openssl_us("sha256", args.options.seconds)?;
                Ok(named([("md5_us", md5_us), ("both_us", md5_us + sha256_us)]))
            }
        })?;
    }
    SUMMARY.tell(turns.rows(), args.options.json)
}

/// Microseconds for a body, if `together` bodies are hashed at a time for `seconds`.
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
