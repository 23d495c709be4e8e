//! From rows to figures: the rows of each panel, and their places in it.

use crate::rows::{Case, Row};
use crate::stats::{ascending, median};
use crate::summary::{SYSTEM, Table};

use super::chart::{Axes, Panel, Point, Series, number};
use super::human;
use super::sections::View;

/// Systems whose colour is the same in all figures, by number of the colour.
const COLOURED: [&str; 4] = ["prism", "nginx", "haproxy", "direct"];

/// Panels of one kind, beside each other, with the same axes.
pub(super) struct Figure {
    pub(super) title: &'static str,
    pub(super) is_bars: bool,
    pub(super) panels: Vec<Panel>,
    pub(super) axes: Option<Axes>,
    /// Cases with a single point, which is no line.
    pub(super) points: Option<Table>,
}

/// The rows of one case, but for `x` and `series` of the view.
struct Group<'r> {
    case: Case,
    rows: Vec<&'r Row>,
}

/// The figure of `view`: a panel for each case. `None` if no row has its value.
pub(super) fn figure(view: &View, rows: &[Row]) -> Option<Figure> {
    let shown: Vec<&Row> = rows.iter().filter(|row| is_shown(view, row)).collect();
    let mut groups: Vec<Group<'_>> = Vec::new();
    for row in &shown {
        let case = row.turn.case.clone().without(view.x).without(view.series);
        match groups.iter_mut().find(|group| group.case == case) {
            Some(group) => group.rows.push(row),
            None => groups.push(Group {
                case,
                rows: vec![row],
            }),
        }
    }
    // The order of files is not always that of schemes.
    groups.sort_by_key(|group| group.case.text("scheme"));
    groups.sort_by_key(|group| group.case.text("link_bit_s").is_empty());
    let all_series = in_order(shown.iter().map(|row| side(row, view.series)));
    let is_line = |group: &&Group<'_>| view.is_bars || steps(view, &group.rows).len() > 1;
    let (drawn, single): (Vec<_>, Vec<_>) = groups.iter().partition(is_line);
    let drawn_varying = varying(drawn.iter().copied());
    let names = || drawn_varying.iter().map(String::as_str);
    let steps = steps(view, drawn.iter().flat_map(|group| &group.rows));
    let panels = drawn.iter().map(|group| {
        let mut panel = Panel {
            title: human::title(&group.case, names()),
            series: all_series_of(view, &group.rows, &steps, &all_series),
        };
        panel.series.extend(papers_points(view, &steps));
        panel
    });
    let panels: Vec<Panel> = panels.collect();
    let labels = steps.iter().map(|step| human::tick(view.x, step));
    let mut axes = Axes::new(labels.collect(), &panels, view.is_log);
    if let Some(axes) = &mut axes {
        view.x_label.clone_into(&mut axes.x_label);
        view.y_label.clone_into(&mut axes.y_label);
    }
    let points = points(view, &single, &all_series, &varying(&groups));
    let has_any = !panels.is_empty() || points.is_some();
    has_any.then_some(Figure {
        title: view.title,
        is_bars: view.is_bars,
        panels,
        axes,
        points,
    })
}

fn is_shown(view: &View, row: &Row) -> bool {
    let has = |name: &str| name == SYSTEM || !row.turn.case.text(name).is_empty();
    has(view.x) && has(view.series) && row.value(view.value).is_finite()
}

/// Names of the case that are not the same in all groups.
fn varying<'g, 'r: 'g>(groups: impl IntoIterator<Item = &'g Group<'r>>) -> Vec<String> {
    let groups: Vec<_> = groups.into_iter().collect();
    let mut names: Vec<String> = Vec::new();
    for name in groups.iter().flat_map(|group| group.case.names()) {
        let mut texts = groups.iter().map(|group| group.case.text(name));
        let first = texts.next();
        if texts.any(|text| Some(text) != first) && !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names
}

/// The lines of a panel, each with the colour that it has in all panels.
fn all_series_of(view: &View, rows: &[&Row], steps: &[String], all: &[String]) -> Vec<Series> {
    let series = all.iter().enumerate().map(|(n, name)| {
        let its = rows.iter().filter(|row| side(row, view.series) == *name);
        let its: Vec<&&Row> = its.collect();
        let points = steps.iter().enumerate().filter_map(|(step, text)| {
            let rows = its.iter().filter(|row| side(row, view.x) == *text);
            point(step, rows.map(|row| row.value(view.value) / view.unit))
        });
        Series {
            name: human::series(view.series, name),
            colour: match view.series {
                SYSTEM => colour(all, name),
                _ => n,
            },
            points: points.collect(),
        }
    });
    series.filter(|series| !series.points.is_empty()).collect()
}

/// The colour of a system: its own, or one that has no owner.
fn colour(all: &[String], name: &str) -> usize {
    let known = |name: &str| COLOURED.iter().position(|known| *known == name);
    let mut others = all.iter().filter(|name| known(name).is_none());
    let place = others.position(|other| other == name).unwrap_or(0);
    known(name).unwrap_or(COLOURED.len() + place)
}

/// The values of a paper, as one more line.
fn papers_points(view: &View, steps: &[String]) -> Option<Series> {
    let (name, values) = view.paper?;
    let points = values.iter().filter_map(|(step, value)| {
        let n = steps.iter().position(|known| known == step)?;
        point(n, std::iter::once(*value))
    });
    Some(Series {
        name: name.to_owned(),
        colour: 3,
        points: points.collect(),
    })
}

/// A table of the groups that have one step only: a row each, a column for each series.
fn points(
    view: &View,
    groups: &[&Group<'_>],
    series: &[String],
    varying: &[String],
) -> Option<Table> {
    if groups.is_empty() {
        return None;
    }
    let names = series.iter().map(|name| human::series(view.series, name));
    let head = ["Single points", view.x_label].map(str::to_owned);
    let mut cells = vec![head.into_iter().chain(names).collect()];
    for group in groups {
        let step = group.rows.first().map(|row| side(row, view.x));
        let step = human::value(view.x, &step.unwrap_or_default());
        let title = human::title(&group.case, varying.iter().map(String::as_str));
        let label = match title.is_empty() {
            true => step,
            false => format!("{step}: {title}"),
        };
        let values = series.iter().map(|name| {
            let rows = group.rows.iter();
            let its = rows.filter(|row| side(row, view.series) == *name);
            number(median(&ascending(
                its.map(|row| row.value(view.value) / view.unit),
            )))
        });
        let labels = [format!("{}, {}", view.title, view.y_label), label];
        cells.push(labels.into_iter().chain(values).collect());
    }
    Some(Table {
        title: String::new(),
        cells,
        words: 2,
    })
}

fn side(row: &Row, name: &str) -> String {
    match name {
        SYSTEM => row.turn.system.clone(),
        name => row.turn.case.text(name),
    }
}

fn point(step: usize, values: impl Iterator<Item = f64>) -> Option<Point> {
    let values = ascending(values);
    Some(Point {
        step,
        median: median(&values),
        least: *values.first()?,
        greatest: *values.last()?,
    })
}

fn steps<'r>(view: &View, rows: impl IntoIterator<Item = &'r &'r Row>) -> Vec<String> {
    in_order(rows.into_iter().map(|row| side(row, view.x)))
}

/// Each text once. Numbers ascend. A word stands after the word that came before it.
fn in_order(all: impl Iterator<Item = String>) -> Vec<String> {
    let mut each: Vec<String> = Vec::new();
    let mut next = 0;
    for text in all {
        match each.iter().position(|known| *known == text) {
            Some(known) => next = known + 1,
            None => {
                each.insert(next, text);
                next += 1;
            }
        }
    }
    let numbers = each.iter().map(|text| text.parse::<f64>());
    if numbers.clone().all(|number| number.is_ok()) {
        let value = |text: &String| text.parse::<f64>().unwrap_or(f64::NAN);
        each.sort_by(|a, b| value(a).total_cmp(&value(b)));
    }
    each
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::float_cmp)]
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
    fn a_panel_is_a_case_a_line_is_a_system_and_a_point_is_a_median() {
        let mut rows = Vec::new();
        for bytes in [4096, 64] {
            for (round, mb_s) in [3.0, 1.0, 2.0].into_iter().enumerate() {
                rows.push(row(bytes, "http", "prism", round, mb_s));
                rows.push(row(bytes, "http", "nginx", round, 1.0));
            }
        }
        rows.push(row(1024, "https", "prism", 0, 9.0));
        let throughput = &SECTIONS[0].views[0];
        let figure = figure(throughput, &rows).unwrap();
        assert_eq!(figure.panels.len(), 1);
        assert!(figure.panels[0].title.is_empty());
        assert_eq!(figure.axes.unwrap().steps, ["64", "4K"]);
        let series = &figure.panels[0].series;
        assert_eq!(series[0].name, "Prism");
        let point = series[0].points[1];
        let values = [point.least, point.median, point.greatest];
        assert_eq!((point.step, values), (1, [1.0, 2.0, 3.0]));
        // A single point is no line.
        let points = figure.points.unwrap().cells;
        assert_eq!(points[1], ["Throughput, MB/s", "1 KiB: HTTPS", "9", "-"]);
        let latency = &SECTIONS[0].views[1];
        assert!(super::figure(latency, &rows).is_none());
    }

    #[test]
    fn words_stay_in_the_order_of_the_longest_run() {
        let order = in_order(["a", "c", "a", "b", "c"].into_iter().map(str::to_owned));
        assert_eq!(order, ["a", "b", "c"]);
    }
}
