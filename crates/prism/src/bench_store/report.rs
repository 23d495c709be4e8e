//! Ratios of neighbours, and how they are told.

use anyhow::Result;
use serde_json::json;

use super::{Args, Row};

const OURS: &str = "prism";

/// Of one case and one other system: its CPU time for a request over ours.
struct Ratios {
    case: String,
    system: &'static str,
    /// Ascending, one for each round.
    values: Vec<f64>,
}

impl Ratios {
    fn median(&self) -> f64 {
        self.values
            .get(self.values.len() / 2)
            .copied()
            .unwrap_or(f64::NAN)
    }

    fn least(&self) -> f64 {
        self.values.first().copied().unwrap_or(f64::NAN)
    }

    fn greatest(&self) -> f64 {
        self.values.last().copied().unwrap_or(f64::NAN)
    }
}

/// Prints a table.
pub(super) fn print(rows: &[Row]) {
    println!("CPU time of the server for one request, in µs: median of the rounds");
    println!(
        "{:<20} {:<10} {:>9} {:>12}",
        "case", "system", "µs", "requests/s"
    );
    for (case, system) in pairs(rows) {
        let of = |value: fn(&Row) -> f64| {
            let found = rows
                .iter()
                .filter(|row| row.case == case && row.system == system);
            median(found.map(value).collect())
        };
        let us = of(|row| row.cpu_us);
        #[allow(clippy::cast_precision_loss, reason = "far below 2^52 requests")]
        let rate = of(|row| row.requests as f64 / row.seconds);
        println!("{case:<20} {system:<10} {us:>9.1} {rate:>12.0}");
    }
    println!("\nTheir CPU time over Prism's, of neighbours in a round: median (least to greatest)");
    for ratio in ratios(rows) {
        println!(
            "{:<20} {:<10} {:>6.2} ({:.2} to {:.2})",
            ratio.case,
            ratio.system,
            ratio.median(),
            ratio.least(),
            ratio.greatest()
        );
    }
}

/// The same with every round and the conditions.
pub(super) fn json(args: &Args, rows: &[Row]) -> Result<String> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let ratios: Vec<_> = ratios(rows)
        .iter()
        .map(|r| {
            json!({
                "case": r.case, "system": r.system, "median": r.median(),
                "least": r.least(), "greatest": r.greatest(),
            })
        })
        .collect();
    let command: Vec<String> = std::env::args().collect();
    let conditions = json!({
        "command": command.join(" "),
        "version": env!("CARGO_PKG_VERSION"),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "date": prism_s3::time::http_date(time::OffsetDateTime::now_utc()),
        "seconds": args.seconds, "rounds": args.rounds, "connections": args.connections,
    });
    Ok(serde_json::to_string_pretty(&json!({
        "conditions": conditions, "cpu_ratios_to_prism": ratios, "rows": rows,
    }))?)
}

/// Cases and systems in their order.
fn pairs(rows: &[Row]) -> Vec<(String, &'static str)> {
    let mut pairs = Vec::new();
    for row in rows {
        let pair = (row.case.clone(), row.system);
        if !pairs.contains(&pair) {
            pairs.push(pair);
        }
    }
    pairs
}

fn ratios(rows: &[Row]) -> Vec<Ratios> {
    let others = pairs(rows)
        .into_iter()
        .filter(|(_, system)| *system != OURS);
    let of = |case: &str, system: &str, round: usize| {
        let found = rows
            .iter()
            .find(|row| row.case == case && row.system == system && row.round == round);
        found.map(|row| row.cpu_us)
    };
    others
        .map(|(case, system)| {
            let rounds = rows
                .iter()
                .filter(|row| row.case == case && row.system == system);
            let pairs = rounds.filter_map(|row| Some(row.cpu_us / of(&case, OURS, row.round)?));
            let mut values: Vec<f64> = pairs.collect();
            values.sort_by(f64::total_cmp);
            Ratios {
                case,
                system,
                values,
            }
        })
        .collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing)]
    use super::*;

    #[test]
    fn a_ratio_is_that_of_neighbours_and_the_median_counts() {
        let row = |round, system, cpu_us| Row {
            case: "GET".to_owned(),
            round,
            system,
            requests: 1,
            seconds: 1.0,
            cpu_s: 1.0,
            client_cpu_s: 1.0,
            cpu_us,
        };
        let mut rows = Vec::new();
        for (round, (ours, theirs)) in [(1.0, 3.0), (2.0, 8.0), (1.0, 20.0)]
            .into_iter()
            .enumerate()
        {
            rows.push(row(round, OURS, ours));
            rows.push(row(round, "other", theirs));
        }
        let ratios = ratios(&rows);
        assert_eq!(ratios.len(), 1);
        assert_eq!(ratios[0].values, [3.0, 4.0, 20.0]);
        assert!((ratios[0].median() - 4.0).abs() < 1e-9);
    }
}
