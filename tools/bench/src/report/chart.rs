//! One panel as an `svg` element, which takes its colours from the style of the page.
//!
//! Steps of the x axis have the same distance, whatever is between them: sizes and numbers
//! of flows grow by factors, and popularity is a word. A point is a median. The thin line
//! through it goes from the least to the greatest of all rounds. Lines and bars carry their
//! names, so no panel needs a legend.

use std::fmt::Write as _;

use super::page::escape;

/// Size of a panel, in units of its view box.
const WIDTH: f64 = 340.0;
const HEIGHT: f64 = 200.0;
/// Room above the plot for the name of the y axis, and below it for the x axis.
const TOP: f64 = 22.0;
const BOTTOM: f64 = 36.0;
/// Width of a character of the labels, a little more than the mean of sans-serif fonts.
const CHARACTER: f64 = 6.7;
/// The same of bold labels, over that.
const BOLD: f64 = 1.12;
/// Least distance of two labels, one below the other.
const LABEL_STEP: f64 = 12.5;
/// Thickness of a bar, and the room between two groups.
const BAR: f64 = 13.0;
const GROUP_GAP: f64 = 8.0;
/// Room right of the longest bar for its value.
const VALUE_ROOM: f64 = 46.0;
/// Most colours of the style.
const COLOURS: usize = 7;

/// The lines or bars of one panel.
#[derive(Debug, Clone, Default)]
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) series: Vec<Series>,
}

/// A line of a panel, or its bars of one colour.
#[derive(Debug, Clone, Default)]
pub(super) struct Series {
    pub(super) name: String,
    /// The number of its colour, the same in all panels.
    pub(super) colour: usize,
    pub(super) points: Vec<Point>,
}

/// The values at one step of the x axis.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    pub(super) step: usize,
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) greatest: f64,
}

/// The axes that all panels of a figure share.
#[derive(Debug, Clone)]
pub(super) struct Axes {
    pub(super) steps: Vec<String>,
    pub(super) x_label: String,
    pub(super) y_label: String,
    pub(super) is_log: bool,
    from: f64,
    to: f64,
}

impl Axes {
    /// Axes for all points of `panels`; `None` if there is no point.
    pub(super) fn new(steps: Vec<String>, panels: &[Panel], is_log: bool) -> Option<Self> {
        let points = panels.iter().flat_map(|panel| &panel.series);
        let points = points.flat_map(|series| &series.points);
        let values = points.flat_map(|point| [point.least, point.median, point.greatest]);
        let values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        let most = values.iter().copied().reduce(f64::max)?;
        let least = values.iter().copied().reduce(f64::min)?;
        let is_log = is_log && least > 0.0;
        let (from, to) = match is_log {
            true => (least.log10() - 0.05, most.log10() + 0.05),
            false => (0.0, most.max(f64::MIN_POSITIVE) * 1.05),
        };
        let (x_label, y_label) = (String::new(), String::new());
        Some(Self {
            steps,
            x_label,
            y_label,
            is_log,
            from,
            to,
        })
    }

    /// The place of a value, from 0 at the beginning of the axis to 1 at its end.
    fn share(&self, value: f64) -> f64 {
        let at = if self.is_log { value.log10() } else { value };
        (at - self.from) / (self.to - self.from)
    }

    /// Values with a line across the plot: round ones, three to seven of them.
    fn ticks(&self) -> Vec<f64> {
        if !self.is_log {
            let rough = (self.to - self.from) / 4.0;
            let power = 10f64.powf(rough.log10().floor());
            let factors = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power);
            let step = factors.into_iter().find(|step| *step >= rough);
            let step = step.unwrap_or(rough);
            let ticks = (0..).map(|n| f64::from(n) * step);
            return ticks.take_while(|tick| *tick <= self.to).collect();
        }
        #[allow(clippy::cast_possible_truncation, reason = "exponents of f64")]
        let decades = self.from.floor() as i32..=self.to.ceil() as i32;
        let factors: &[f64] = match self.to - self.from {
            0.0..1.5 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let all = decades.flat_map(|decade| factors.iter().map(move |f| f * 10f64.powi(decade)));
        let is_shown = |tick: &f64| (self.from..=self.to).contains(&tick.log10());
        all.filter(is_shown).collect()
    }
}

/// Lines over the steps of the x axis.
pub(super) fn lines(panel: &Panel, axes: &Axes) -> String {
    let ticks: Vec<(f64, String)> = axes.ticks().into_iter().map(|t| (t, number(t))).collect();
    let left = text_width(ticks.iter().map(|(_, label)| label.as_str())) + 10.0;
    let names = panel.series.iter().map(|series| series.name.as_str());
    let right = WIDTH - text_width(names) * BOLD - 8.0;
    let bottom = HEIGHT - BOTTOM;
    let y = |value: f64| bottom - axes.share(value) * (bottom - TOP);
    let each = (right - left) / count(axes.steps.len().max(1));
    let x = |step: usize| left + (count(step) + 0.5) * each;
    let mut svg = open(panel, HEIGHT);
    text(&mut svg, "n", 0.0, 10.0, &axes.y_label);
    for (tick, label) in &ticks {
        let at = y(*tick);
        let _ = write!(
            svg,
            "<path class=\"g\" d=\"M{left:.1} {at:.1}H{right:.1}\"/>"
        );
        text(&mut svg, "t e", left - 5.0, at + 4.0, label);
    }
    let widest = text_width(axes.steps.iter().map(String::as_str)) + 6.0;
    let shown = (1..).find(|n| count(*n) * each >= widest).unwrap_or(1);
    for (n, label) in axes.steps.iter().enumerate().step_by(shown) {
        text(&mut svg, "t m", x(n), bottom + 14.0, label);
    }
    let middle = f64::midpoint(left, right);
    text(&mut svg, "n m", middle, HEIGHT - 6.0, &axes.x_label);
    for series in &panel.series {
        let class = colour(series.colour);
        let mut line = String::new();
        for (n, point) in series.points.iter().enumerate() {
            let letter = if n == 0 { 'M' } else { 'L' };
            let (x, y, low, high) = (
                x(point.step),
                y(point.median),
                y(point.least),
                y(point.greatest),
            );
            let _ = write!(line, "{letter}{x:.1} {y:.1}");
            let _ = write!(
                svg,
                "<path class=\"r {class}\" d=\"M{x:.1} {low:.1}V{high:.1}\"/>\
                 <circle class=\"d {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.4\"/>"
            );
        }
        let _ = write!(svg, "<path class=\"l {class}\" d=\"{line}\"/>");
    }
    let ends = panel.series.iter().filter_map(|series| {
        let last = series.points.last()?;
        Some((series, x(last.step), y(last.median)))
    });
    let ends: Vec<_> = ends.collect();
    let places = apart(ends.iter().map(|(.., y)| *y).collect(), TOP, bottom);
    for ((series, x, y), place) in ends.iter().zip(places) {
        let class = colour(series.colour);
        let from = x + 4.0;
        let _ = write!(
            svg,
            "<path class=\"c {class}\" d=\"M{from:.1} {y:.1}L{:.1} {place:.1}\"/>",
            right + 3.0
        );
        let label = format!("b {class}");
        text(&mut svg, &label, right + 6.0, place + 4.0, &series.name);
    }
    svg.push_str("</svg>");
    svg
}

/// A group of horizontal bars for each step, or of dots if the axis is logarithmic.
pub(super) fn bars(panel: &Panel, axes: &Axes) -> String {
    let names = axes.steps.iter().map(String::as_str);
    let left = text_width(names) + 8.0;
    let has_names = panel.series.len() > 1;
    let longest = text_width(panel.series.iter().map(|series| series.name.as_str()));
    let room = VALUE_ROOM + if has_names { longest } else { 0.0 };
    let wide = (WIDTH - left - room).max(40.0);
    let points = |step: usize| {
        let point = move |series: &&Series| series.points.iter().any(|point| point.step == step);
        panel.series.iter().filter(point)
    };
    let groups = axes.steps.iter().enumerate();
    let groups: Vec<_> = groups
        .filter(|(step, _)| points(*step).count() > 0)
        .collect();
    let heights = groups.iter();
    let heights = heights.map(|(step, _)| count(points(*step).count()) * BAR + GROUP_GAP);
    let mut svg = open(panel, TOP + heights.sum::<f64>());
    text(&mut svg, "n", 0.0, 10.0, &axes.y_label);
    let mut top = TOP;
    for (step, label) in groups {
        let middle = top + count(points(step).count()) * BAR / 2.0;
        text(&mut svg, "t e", left - 6.0, middle + 4.0, label);
        for series in points(step) {
            let medians = series.points.iter().filter(|point| point.step == step);
            for median in medians.map(|point| point.median) {
                let end = axes.share(median).max(0.0) * wide;
                let name = if has_names { series.name.as_str() } else { "" };
                let value = format!("{} {name}", number(median));
                bar(&mut svg, series.colour, [left, top, end], axes.is_log);
                let class = format!("v {}", colour(series.colour));
                let y = top + BAR / 2.0 + 3.8;
                text(&mut svg, &class, left + end + 6.0, y, value.trim_end());
            }
            top += BAR;
        }
        top += GROUP_GAP;
    }
    svg.push_str("</svg>");
    svg
}

/// A bar from `left` at the height `top`, or a dot at its end.
fn bar(svg: &mut String, number: usize, [left, top, length]: [f64; 3], is_dot: bool) {
    let class = colour(number);
    let _ = match is_dot {
        true => {
            let (x, y) = (left + length, top + BAR / 2.0);
            write!(
                svg,
                "<path class=\"g\" d=\"M{left:.1} {y:.1}H{x:.1}\"/>\
                 <circle class=\"d {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"/>"
            )
        }
        false => write!(
            svg,
            "<rect class=\"d {class}\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>",
            top + 1.0,
            length.max(1.0),
            BAR - 2.0
        ),
    };
}

fn open(panel: &Panel, height: f64) -> String {
    let title = escape(&panel.title);
    format!("<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{title}\">")
}

fn text(svg: &mut String, class: &str, x: f64, y: f64, label: &str) {
    let label = escape(label);
    let _ = write!(
        svg,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{label}</text>"
    );
}

fn colour(number: usize) -> String {
    format!("k{}", number % COLOURS)
}

/// Width of the longest of `labels`.
fn text_width<'l>(labels: impl Iterator<Item = &'l str>) -> f64 {
    let characters = labels.map(|label| label.chars().count()).max();
    count(characters.unwrap_or(0)) * CHARACTER
}

#[allow(
    clippy::cast_precision_loss,
    reason = "few steps, series and characters"
)]
const fn count(number: usize) -> f64 {
    number as f64
}

/// Places near `wanted` that are at least [`LABEL_STEP`] apart, between `top` and `bottom`.
fn apart(wanted: Vec<f64>, top: f64, bottom: f64) -> Vec<f64> {
    let mut order: Vec<(usize, f64)> = wanted.into_iter().enumerate().collect();
    order.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut least = top;
    for (_, place) in &mut order {
        *place = place.max(least);
        least = *place + LABEL_STEP;
    }
    let mut most = bottom;
    for (_, place) in order.iter_mut().rev() {
        *place = place.min(most);
        most = *place - LABEL_STEP;
    }
    order.sort_by_key(|(n, _)| *n);
    order.into_iter().map(|(_, place)| place).collect()
}

/// A number with two or three digits, or with groups of three from 1,000 on.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    let text = match size {
        _ if !value.is_finite() => return "-".to_owned(),
        0.0 => return "0".to_owned(),
        _ if size >= 999.5 => return grouped(value),
        _ if size >= 99.5 => return format!("{value:.0}"),
        _ if size >= 9.95 => format!("{value:.1}"),
        _ if size >= 0.0995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = if value < 0.0 { "-" } else { "" }.to_owned();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn panel() -> Panel {
        let point = |step, median| Point {
            step,
            median,
            least: median / 2.0,
            greatest: median * 2.0,
        };
        Panel {
            title: "a \"title\"".into(),
            series: vec![Series {
                name: "a & b".into(),
                colour: 0,
                points: vec![point(0, 1.0), point(1, 1000.0)],
            }],
        }
    }

    #[test]
    fn a_panel_shows_its_steps_and_names_and_escapes_them() {
        let panels = [panel()];
        for is_log in [false, true] {
            let steps = vec!["64".to_owned(), "4K".to_owned()];
            let mut axes = Axes::new(steps, &panels, is_log).unwrap();
            axes.y_label = "<b>MB/s</b>".into();
            for svg in [lines(&panel(), &axes), bars(&panel(), &axes)] {
                for text in ["4K", "&lt;b&gt;MB/s", "a &quot;title&quot;"] {
                    assert!(svg.contains(text), "{text} in {svg}");
                }
                assert!(!svg.contains("<b>"));
            }
            assert!(lines(&panel(), &axes).contains("a &amp; b"));
        }
        assert!(Axes::new(Vec::new(), &[], false).is_none());
    }

    #[test]
    fn labels_keep_their_distance_and_stay_inside() {
        let places = apart(vec![10.0, 99.0, 98.0, 97.0], 0.0, 100.0);
        assert_eq!(places, [10.0, 100.0, 87.5, 75.0]);
    }

    #[test]
    fn ticks_are_round_numbers() {
        let panels = [panel()];
        let axes = Axes::new(Vec::new(), &panels, false).unwrap();
        assert_eq!(axes.ticks(), [0.0, 1000.0, 2000.0]);
        let axes = Axes::new(Vec::new(), &panels, true).unwrap();
        assert_eq!(axes.ticks(), [1.0, 10.0, 100.0, 1000.0]);
    }

    #[test]
    fn numbers_have_three_digits_or_groups() {
        let told = [0.0, 0.012_34, 1.234, 12.34, 123.4, 1_234.5, 1_234_567.0].map(number);
        let expected = ["0", "0.012", "1.23", "12.3", "123", "1,234", "1,234,567"];
        assert_eq!(told, expected);
        assert_eq!(number(f64::NAN), "-");
    }
}
