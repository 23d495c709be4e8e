//! Medians and ratios of turns, as tables or as JSON with every row and the conditions.

use anyhow::Result;
use serde_json::{Value, json};

use super::rows::{Case, Row};
use super::stats::{ascending, median};

/// The name of the system, where a name of the case is expected.
pub(crate) const SYSTEM: &str = "system";

/// The columns and comparisons of a result.
pub(crate) struct Summary {
    /// The command.
    pub(crate) result: &'static str,
    /// The title of the first table.
    pub(crate) title: &'static str,
    pub(crate) columns: &'static [Column],
    pub(crate) comparisons: &'static [Comparison],
}

/// A value in a table.
pub(crate) struct Column {
    pub(crate) heading: &'static str,
    /// Its name in a row.
    pub(crate) value: &'static str,
    /// Its divisor.
    pub(crate) unit: f64,
    pub(crate) digits: usize,
}

/// A column that divides by `unit`.
pub(crate) const fn column(
    heading: &'static str,
    value: &'static str,
    unit: f64,
    digits: usize,
) -> Column {
    Column {
        heading,
        value,
        unit,
        digits,
    }
}

/// A table of rows' medians or ratios.
struct TextTable {
    title: String,
    /// Headings first.
    cells: Vec<Vec<String>>,
    /// The number of columns with words, from the left.
    words: usize,
}

/// A comparison of turns of one round that differ in one name only.
pub(crate) struct Comparison {
    pub(crate) title: &'static str,
    /// The name that they differ in: [`SYSTEM`], or a name of the case.
    pub(crate) dimension: &'static str,
    /// The value of that name that all others are compared with.
    pub(crate) base: &'static str,
    pub(crate) over: Over,
    /// Headings and names of the compared values. The first is shown with its least and
    /// greatest ratio.
    pub(crate) values: &'static [(&'static str, &'static str)],
}

/// The direction of a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    /// The base by each other.
    Others,
    /// Each other by the base.
    Base,
}

/// The ratios of one side of a comparison.
struct Ratios<'r> {
    /// A row of that side.
    of: &'r Row,
    /// For each of the comparison's values: the ratios of all rounds, ascending.
    each: Vec<Vec<f64>>,
}

impl Summary {
    /// Prints the summary of `rows`.
    ///
    /// # Errors
    /// When JSON cannot be written.
    pub(crate) fn tell(&self, rows: &[Row], as_json: bool) -> Result<()> {
        let text = if as_json {
            self.json(rows)?
        } else {
            self.text(rows)
        };
        println!("{text}");
        Ok(())
    }

    fn text(&self, rows: &[Row]) -> String {
        let tables = self.tables(rows).into_iter();
        let tables = tables.map(|table| format!("{}\n{}", table.title, layout(&table)));
        tables.collect::<Vec<_>>().join("\n")
    }

    /// The medians of `rows`, then each comparison that has ratios.
    fn tables(&self, rows: &[Row]) -> Vec<TextTable> {
        let varying = varying(rows);
        let fixed = rows.first().map(|row| {
            let case = row.turn.case.clone();
            varying.iter().fold(case, |case, name| case.without(name))
        });
        let columns = self.columns.iter();
        let columns = columns.filter(|column| rows.iter().any(|row| row.has(column.value)));
        let columns: Vec<&Column> = columns.collect();
        let headings = varying.iter().copied().chain([SYSTEM]);
        let headings = headings.chain(columns.iter().map(|column| column.heading));
        let mut cells = vec![headings.map(str::to_owned).collect::<Vec<_>>()];
        for first in sides(rows) {
            let its = rows.iter().filter(|row| is_like(row, first));
            let its: Vec<&Row> = its.collect();
            let values = columns.iter().map(|column| {
                let values = its.iter().map(|row| row.value(column.value));
                cell(median(&ascending(values)) / column.unit, column.digits)
            });
            cells.push(labels(first, &varying).chain(values).collect());
        }
        let fixed = fixed.unwrap_or_default().to_string();
        let colon = if fixed.is_empty() { "" } else { ": " };
        let medians = TextTable {
            title: format!("{}{colon}{fixed}", self.title),
            cells,
            words: varying.len() + 1,
        };
        let comparisons = self.comparisons.iter();
        let comparisons = comparisons.filter_map(|comparison| comparison.table(rows, &varying));
        std::iter::once(medians).chain(comparisons).collect()
    }

    fn json(&self, rows: &[Row]) -> Result<String> {
        let comparisons = self.comparisons.iter().flat_map(|comparison| {
            let ratios = comparison.ratios(rows);
            ratios.into_iter().map(|ratios| comparison.json(&ratios))
        });
        Ok(serde_json::to_string_pretty(&json!({
            "result": self.result,
            "conditions": conditions(),
            "comparisons": comparisons.collect::<Vec<_>>(),
            "rows": rows,
        }))?)
    }
}

/// Command, version, machine and date of a measurement.
fn conditions() -> Value {
    let command: Vec<String> = std::env::args().collect();
    json!({
        "command": command.join(" "),
        "version": env!("CARGO_PKG_VERSION"),
        "kernel": kernel_release(),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "date": prism_s3::time::http_date(time::OffsetDateTime::now_utc()),
    })
}

fn kernel_release() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    release.map_or_else(|_| "unknown".into(), |text| text.trim().into())
}

impl Comparison {
    /// The value of `row` in the comparison's dimension.
    fn side(&self, row: &Row) -> String {
        match self.dimension {
            SYSTEM => row.turn.system.clone(),
            name => row.turn.case.text(name),
        }
    }

    /// The rest of its case, and its system unless that is the dimension.
    fn rest(&self, row: &Row) -> (Case, String) {
        let case = row.turn.case.clone();
        match self.dimension {
            SYSTEM => (case, String::new()),
            name => (case.without(name), row.turn.system.clone()),
        }
    }

    fn ratios<'r>(&self, rows: &'r [Row]) -> Vec<Ratios<'r>> {
        let bases: Vec<&Row> = rows
            .iter()
            .filter(|row| self.side(row) == self.base)
            .collect();
        let base_of = |row: &Row| {
            let of_round = bases
                .iter()
                .filter(|base| base.turn.round == row.turn.round);
            let mut like = of_round.filter(|base| self.rest(base) == self.rest(row));
            like.next().copied()
        };
        let others = sides(rows)
            .into_iter()
            .filter(|row| self.side(row) != self.base && base_of(row).is_some());
        others
            .map(|of| {
                let its = rows.iter().filter(|row| is_like(row, of));
                let pairs: Vec<_> = its.filter_map(|row| Some((row, base_of(row)?))).collect();
                let each = self.values.iter().map(|(_, name)| {
                    ascending(pairs.iter().map(|(row, base)| match self.over {
                        Over::Others => base.value(name) / row.value(name),
                        Over::Base => row.value(name) / base.value(name),
                    }))
                });
                let each = each.collect();
                Ratios { of, each }
            })
            .collect()
    }

    /// `None` if there is no ratio.
    fn table(&self, rows: &[Row], varying: &[&str]) -> Option<TextTable> {
        let ratios = self.ratios(rows);
        if ratios.is_empty() {
            return None;
        }
        let headings = self.values.iter().map(|(heading, _)| *heading);
        let headings = varying.iter().copied().chain([SYSTEM]).chain(headings);
        let mut cells = vec![headings.map(str::to_owned).collect::<Vec<_>>()];
        for Ratios { of, each } in ratios {
            let values = each.iter().enumerate().map(|(n, each)| {
                let spread = [each.first(), each.last()];
                match (n, spread) {
                    (0, [Some(least), Some(greatest)]) => {
                        format!("{:.2} ({least:.2} to {greatest:.2})", median(each))
                    }
                    _ => cell(median(each), 2),
                }
            });
            cells.push(labels(of, varying).chain(values).collect());
        }
        let title = self.title;
        Some(TextTable {
            title: format!("{title}, of turns of one round: median (least to greatest)"),
            cells,
            words: varying.len() + 1,
        })
    }

    fn json(&self, ratios: &Ratios<'_>) -> Value {
        let values = self.values.iter().zip(&ratios.each);
        let values = values.map(|((_, name), each)| {
            let told = json!({
                "median": median(each), "least": each.first(), "greatest": each.last(), "each": each,
            });
            ((*name).to_owned(), told)
        });
        json!({
            "title": self.title,
            "dimension": self.dimension,
            "base": self.base,
            "other": self.side(ratios.of),
            "is_base_over_other": self.over == Over::Others,
            "case": ratios.of.turn.case,
            "system": ratios.of.turn.system,
            "ratios": values.collect::<serde_json::Map<_, _>>(),
        })
    }
}

/// Whether both are of the same case and system.
fn is_like(row: &Row, other: &Row) -> bool {
    row.turn.case == other.turn.case && row.turn.system == other.turn.system
}

/// The first row of each case and system, in their order.
fn sides(rows: &[Row]) -> Vec<&Row> {
    let mut sides: Vec<&Row> = Vec::new();
    for row in rows {
        if !sides.iter().any(|side| is_like(side, row)) {
            sides.push(row);
        }
    }
    sides
}

/// Names of the case whose values differ among the rows.
fn varying(rows: &[Row]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        for name in row.turn.case.names() {
            let text = row.turn.case.text(name);
            let differs = rows.iter().any(|other| other.turn.case.text(name) != text);
            if differs && !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

fn labels<'r>(row: &'r Row, varying: &'r [&str]) -> impl Iterator<Item = String> + 'r {
    let case = varying.iter().map(|name| row.turn.case.text(name));
    case.chain([row.turn.system.clone()])
}

/// A number, or a dash if it is not finite.
fn cell(value: f64, digits: usize) -> String {
    if value.is_finite() {
        format!("{value:.digits$}")
    } else {
        "-".to_owned()
    }
}

/// A table as text.
fn layout(table: &TextTable) -> String {
    let cells = &table.cells;
    let columns = cells.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        let cells = cells.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in cells {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(n, (cell, &width))| {
            if n < table.words {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing)]
    use super::super::rows::{Turn, Values};
    use super::*;

    const SUMMARY: Summary = Summary {
        result: "test",
        title: "Medians",
        columns: &[Column {
            heading: "GB/s",
            value: "mb_s",
            unit: 1e3,
            digits: 3,
        }],
        comparisons: &[
            Comparison {
                title: "Prism's over theirs",
                dimension: SYSTEM,
                base: "prism",
                over: Over::Others,
                values: &[("throughput", "mb_s")],
            },
            Comparison {
                title: "Over that of 64 bytes",
                dimension: "bytes",
                base: "64",
                over: Over::Base,
                values: &[("throughput", "mb_s")],
            },
        ],
    };

    fn row(round: usize, bytes: u64, system: &str, mb_s: f64) -> Row {
        Row {
            turn: Turn {
                result: "test".into(),
                case: Case::default().with("bytes", bytes).with("scheme", "http"),
                round,
                system: system.into(),
            },
            values: Values::from([("mb_s".to_owned(), mb_s)]),
        }
    }

    fn rows() -> Vec<Row> {
        let mut rows = Vec::new();
        for (round, (ours, theirs)) in [(30.0, 10.0), (80.0, 10.0), (200.0, 10.0)]
            .into_iter()
            .enumerate()
        {
            rows.push(row(round, 64, "prism", ours));
            rows.push(row(round, 64, "nginx", theirs));
            rows.push(row(round, 4096, "prism", 7.0 * ours));
        }
        rows
    }

    #[test]
    fn a_ratio_is_that_of_one_round_and_one_case_and_the_median_counts() {
        let rows = rows();
        let ratios = SUMMARY.comparisons[0].ratios(&rows);
        assert_eq!(ratios.len(), 1);
        assert_eq!(ratios[0].each, [[3.0, 8.0, 20.0]]);
        let ratios = SUMMARY.comparisons[1].ratios(&rows);
        assert_eq!(ratios.len(), 1);
        assert_eq!(ratios[0].each, [[7.0, 7.0, 7.0]]);
    }

    #[test]
    fn tables_show_what_differs_and_say_what_does_not() {
        let text = SUMMARY.text(&rows());
        let words: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(words[0], ["Medians:", "scheme", "http"]);
        assert_eq!(words[1], ["bytes", "system", "GB/s"]);
        assert_eq!(words[2], ["64", "prism", "0.080"]);
        assert_eq!(words[4], ["4096", "prism", "0.560"]);
        assert_eq!(words[8], ["64", "nginx", "8.00", "(3.00", "to", "20.00)"]);
    }
}
