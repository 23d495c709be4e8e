//! From rows to plots: which rows go into one, and where.

use crate::rows::{Case, Row};
use crate::summary::SYSTEM;

use super::plot::{Plot, Point, Series, number};
use super::sections::View;

/// As many as stand below a plot, were all names as long as the longest.
const MOST_LABEL_CHARACTERS: usize = 80;

/// A plot, and what all its rows have in common that rows of others do not.
pub(super) struct Drawn {
    pub(super) title: String,
    pub(super) plot: Plot,
}

/// The plots of `view`: one for each case.
pub(super) fn plots(view: &View, rows: &[Row]) -> Vec<Drawn> {
    let shown = rows.iter().filter(|row| is_shown(view, row));
    let shown: Vec<&Row> = shown.collect();
    let mut panels: Vec<(Case, Vec<&Row>)> = Vec::new();
    for row in shown {
        let rest = row.turn.case.clone().without(view.x).without(view.series);
        match panels.iter_mut().find(|(case, _)| *case == rest) {
            Some((_, rows)) => rows.push(row),
            None => panels.push((rest, vec![row])),
        }
    }
    let common = common(panels.iter().map(|(case, _)| case));
    let drawn = panels.iter().map(|(case, rows)| {
        let own = common
            .iter()
            .fold(case.clone(), |case, name| case.without(name));
        let own = own.to_string();
        let colon = if own.is_empty() { "" } else { ": " };
        let mut plot = plot(view, rows);
        let legend = numbered(&mut plot.steps);
        Drawn {
            title: format!("{}{colon}{own}{legend}", view.title),
            plot,
        }
    });
    drawn.collect()
}

/// Where names of steps are too long to stand side by side, numbers take their place,
/// and what is given tells the names.
fn numbered(steps: &mut [String]) -> String {
    let longest = steps.iter().map(|step| step.chars().count()).max();
    if steps.len() * longest.unwrap_or(0) <= MOST_LABEL_CHARACTERS {
        return String::new();
    }
    let names = steps.iter_mut().zip(1..).map(|(step, n): (_, usize)| {
        let name = std::mem::replace(step, n.to_string());
        format!("{n} {name}")
    });
    format!(" ({})", names.collect::<Vec<_>>().join(", "))
}

fn is_shown(view: &View, row: &Row) -> bool {
    let has = |name: &str| name == SYSTEM || !row.turn.case.text(name).is_empty();
    has(view.x) && has(view.series) && row.value(view.value).is_finite()
}

/// Names of what is the same in all cases.
fn common<'c>(cases: impl Iterator<Item = &'c Case> + Clone) -> Vec<String> {
    let first = cases.clone().next();
    let names = first.into_iter().flat_map(|first| {
        let names = first.names();
        names.filter(|name| {
            cases
                .clone()
                .all(|case| case.text(name) == first.text(name))
        })
    });
    names.map(str::to_owned).collect()
}

fn plot(view: &View, rows: &[&Row]) -> Plot {
    let steps = in_order(rows.iter().map(|row| side(row, view.x)));
    let names = in_order(rows.iter().map(|row| side(row, view.series)));
    let mut series: Vec<Series> = names
        .iter()
        .map(|name| {
            let its = rows.iter().filter(|row| side(row, view.series) == *name);
            let its: Vec<&&Row> = its.collect();
            let points = steps.iter().enumerate().filter_map(|(n, step)| {
                let rows = its.iter().filter(|row| side(row, view.x) == *step);
                point(n, rows.map(|row| row.value(view.value) / view.unit))
            });
            Series {
                name: label(view.series, name),
                points: points.collect(),
            }
        })
        .collect();
    if let Some((name, values)) = view.paper {
        let points = values.iter().filter_map(|(step, value)| {
            let n = steps.iter().position(|known| known == step)?;
            point(n, std::iter::once(*value))
        });
        series.push(Series {
            name: name.to_owned(),
            points: points.collect(),
        });
    }
    Plot {
        x_label: view.x_label.to_owned(),
        y_label: view.y_label.to_owned(),
        steps: steps.iter().map(|step| label(view.x, step)).collect(),
        series,
        is_log: view.is_log,
        is_bars: view.is_bars,
    }
}

fn side(row: &Row, name: &str) -> String {
    match name {
        SYSTEM => row.turn.system.clone(),
        name => row.turn.case.text(name),
    }
}

fn point(step: usize, values: impl Iterator<Item = f64>) -> Option<Point> {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    Some(Point {
        step,
        median: *values.get(values.len() / 2)?,
        least: *values.first()?,
        greatest: *values.last()?,
    })
}

/// Each once: numbers ascending, words as they come.
fn in_order(all: impl Iterator<Item = String>) -> Vec<String> {
    let mut each: Vec<String> = Vec::new();
    for text in all {
        if !each.contains(&text) {
            each.push(text);
        }
    }
    let numbers = each.iter().map(|text| text.parse::<f64>());
    if numbers.clone().all(|number| number.is_ok()) {
        let value = |text: &String| text.parse::<f64>().unwrap_or(f64::NAN);
        each.sort_by(|a, b| value(a).total_cmp(&value(b)));
    }
    each
}

/// What stands for `text`, which `name` was set to.
fn label(name: &str, text: &str) -> String {
    let words = match name {
        "writes_percent" => return format!("{text} % writes"),
        "bytes" | "frame_bytes" => text.parse::<u64>().ok().map(size),
        _ => text.parse::<f64>().ok().map(number),
    };
    words.unwrap_or_else(|| text.to_owned())
}

/// 4096 as 4K.
fn size(bytes: u64) -> String {
    let (kib, mib) = (1 << 10, 1 << 20);
    match bytes {
        _ if bytes >= mib && bytes.is_multiple_of(mib) => format!("{}M", bytes / mib),
        _ if bytes >= kib && bytes.is_multiple_of(kib) => format!("{}K", bytes / kib),
        _ => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing)]
    use super::super::sections::SECTIONS;
    use super::*;
    use crate::rows::{Turn, Values};

    fn row(bytes: u64, scheme: &str, system: &str, round: usize, mb_s: f64) -> Row {
        let case = Case::default()
            .with("bytes", bytes)
            .with("scheme", scheme)
            .with("backends", 5);
        Row {
            turn: Turn {
                result: "sweep".into(),
                case,
                system: system.into(),
                round,
            },
            values: Values::from([("mb_s".to_owned(), mb_s)]),
        }
    }

    #[test]
    fn there_is_a_plot_for_each_case_a_line_for_each_system_and_points_are_medians() {
        let mut rows = Vec::new();
        for bytes in [4096, 64] {
            for (round, mb_s) in [3.0, 1.0, 2.0].into_iter().enumerate() {
                rows.push(row(bytes, "http", "prism", round, mb_s));
                rows.push(row(bytes, "http", "nginx", round, 1.0));
                rows.push(row(bytes, "https", "prism", round, 9.0));
            }
        }
        let throughput = &SECTIONS[0].plots[0];
        let plots = plots(throughput, &rows);
        assert_eq!(plots.len(), 2);
        assert_eq!(plots[0].title, "Throughput: scheme http");
        let plot = &plots[0].plot;
        assert_eq!(plot.steps, ["64", "4K"]);
        assert_eq!(plot.series.len(), 2);
        assert_eq!(plot.series[0].name, "prism");
        let point = plot.series[0].points[1];
        assert_eq!(
            [point.step as f64, point.least, point.median, point.greatest],
            [1.0, 1.0, 2.0, 3.0]
        );
        let mut steps = ["a long name of a step", "another"].map(|name| name.repeat(2));
        assert!(numbered(&mut steps).starts_with(" (1 a long name"));
        assert_eq!(steps, ["1", "2"]);
        assert!(numbered(&mut steps).is_empty());
        let latency = &SECTIONS[0].plots[1];
        assert!(super::plots(latency, &rows).is_empty());
    }
}
