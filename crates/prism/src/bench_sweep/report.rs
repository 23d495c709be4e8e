//! Medians, ratios of turns of one round, and how they are told.

use anyhow::Result;
use serde_json::json;

use super::rows::{Row, Rows, Turn};

const OURS: &str = "prism";

/// Of one case and one other system.
struct Ratio<'r> {
    case: &'r Turn,
    system: &'r str,
    /// Prism's over the other's, ascending, one for each round.
    throughput: Vec<f64>,
    p50: Vec<f64>,
    p90: Vec<f64>,
    /// Of the servers' CPU time for a request.
    cpu: Vec<f64>,
}

/// Prints tables: what each did, and what Prism did over it.
pub(super) fn print(rows: &Rows) {
    let rows = rows.all();
    println!("Medians of the rounds; CPU time of the servers for one request");
    println!(
        "{:<6} {:>8} {:<8} {:>9} {:>10} {:>9} {:>9} {:>9} {:>9}",
        "", "bytes", "system", "MB/s", "requests/s", "p50 ms", "p90 ms", "p99 ms", "CPU µs"
    );
    for (case, system) in cases(rows) {
        let of = |value: fn(&Row) -> f64| {
            let rows = rows.iter();
            let its = rows.filter(|row| row.turn.is_like(case) && row.turn.system == system);
            median(&ascending(its.map(value)))
        };
        #[allow(clippy::cast_precision_loss, reason = "far below 2^52 requests")]
        let rate = of(|row| row.ran.requests as f64 / row.ran.seconds);
        println!(
            "{:<6} {:>8} {system:<8} {:>9.1} {rate:>10.0} {:>9.2} {:>9.2} {:>9.2} {:>9.1}",
            case.scheme,
            case.bytes,
            of(Row::mb_s),
            of(|row| row.ran.p50_us / 1e3),
            of(|row| row.ran.p90_us / 1e3),
            of(|row| row.ran.p99_us / 1e3),
            of(Row::cpu_us),
        );
    }
    println!("\nPrism's over theirs, of turns of one round: median (least to greatest)");
    println!(
        "{:<6} {:>8} {:<8} {:>21} {:>8} {:>8} {:>8}",
        "", "bytes", "system", "throughput", "p50", "p90", "CPU"
    );
    for ratio in ratios(rows) {
        let [least, greatest] = [ratio.throughput.first(), ratio.throughput.last()];
        println!(
            "{:<6} {:>8} {:<8} {:>7.2} ({:.2} to {:.2}) {:>8.2} {:>8.2} {:>8.2}",
            ratio.case.scheme,
            ratio.case.bytes,
            ratio.system,
            median(&ratio.throughput),
            least.copied().unwrap_or(f64::NAN),
            greatest.copied().unwrap_or(f64::NAN),
            median(&ratio.p50),
            median(&ratio.p90),
            median(&ratio.cpu),
        );
    }
}

/// The same with every turn and the conditions.
pub(super) fn json(rows: &Rows) -> Result<String> {
    let ratios = ratios(rows.all());
    let ratios = ratios.iter().map(|ratio| {
        json!({
            "case": ratio.case.scheme, "bytes": ratio.case.bytes, "system": ratio.system,
            "throughput": ratio.throughput, "throughput_median": median(&ratio.throughput),
            "p50_median": median(&ratio.p50), "p90_median": median(&ratio.p90),
            "cpu_median": median(&ratio.cpu),
        })
    });
    let command: Vec<String> = std::env::args().collect();
    let conditions = json!({
        "command": command.join(" "),
        "version": env!("CARGO_PKG_VERSION"),
        "kernel": crate::bench_switch::kernel_release(),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "date": prism_s3::time::http_date(time::OffsetDateTime::now_utc()),
    });
    Ok(serde_json::to_string_pretty(&json!({
        "conditions": conditions, "prism_over_others": ratios.collect::<Vec<_>>(),
        "rows": rows.all(),
    }))?)
}

/// Cases and systems in their order; of a case, the first turn.
fn cases(rows: &[Row]) -> Vec<(&Turn, &str)> {
    let mut cases: Vec<(&Turn, &str)> = Vec::new();
    for Row { turn, .. } in rows {
        let is_known =
            |(case, system): &(&Turn, &str)| turn.is_like(case) && turn.system == *system;
        if !cases.iter().any(is_known) {
            cases.push((turn, &turn.system));
        }
    }
    cases
}

fn ratios(rows: &[Row]) -> Vec<Ratio<'_>> {
    let others = cases(rows)
        .into_iter()
        .filter(|(_, system)| *system != OURS);
    others
        .map(|(case, system)| {
            let of = |value: fn(&Row) -> f64| {
                let theirs = rows.iter();
                let theirs =
                    theirs.filter(|row| row.turn.is_like(case) && row.turn.system == system);
                let pairs = theirs.filter_map(|row| {
                    let ours = rows.iter().find(|other| {
                        let turn = &other.turn;
                        turn.is_like(case) && turn.system == OURS && turn.round == row.turn.round
                    });
                    Some(value(ours?) / value(row))
                });
                ascending(pairs)
            };
            Ratio {
                case,
                system,
                throughput: of(Row::mb_s),
                p50: of(|row| row.ran.p50_us),
                p90: of(|row| row.ran.p90_us),
                cpu: of(Row::cpu_us),
            }
        })
        .collect()
}

fn ascending(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(ascending: &[f64]) -> f64 {
    let middle = ascending.get(ascending.len() / 2);
    middle.copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing)]
    use super::super::rows::Ran;
    use super::*;

    fn row(round: usize, bytes: u64, system: &str, requests: u64) -> Row {
        let turn = Turn {
            link_bit_s: None,
            scheme: "http".into(),
            backends: 5,
            connections: 100,
            bytes,
            round,
            system: system.into(),
        };
        let ran = Ran {
            requests,
            read_bytes: requests * bytes,
            seconds: 1.0,
            p50_us: 1e6,
            p90_us: 1e6,
            p99_us: 1e6,
            frontend_cpu_s: 1.0,
            backends_cpu_s: 1.0,
        };
        Row { turn, ran }
    }

    #[test]
    fn a_ratio_is_that_of_one_round_and_one_size_and_the_median_counts() {
        let mut rows = Vec::new();
        for (round, (ours, theirs)) in [(30, 10), (80, 10), (200, 10)].into_iter().enumerate() {
            rows.push(row(round, 64, OURS, ours));
            rows.push(row(round, 64, "nginx", theirs));
            rows.push(row(round, 4096, OURS, 7));
        }
        let ratios = ratios(&rows);
        assert_eq!(ratios.len(), 1);
        assert_eq!(ratios[0].throughput, [3.0, 8.0, 20.0]);
        assert!((median(&ratios[0].throughput) - 8.0).abs() < 1e-9);
        assert!((median(&ratios[0].cpu) - 1.0 / 8.0).abs() < 1e-9);
    }
}
