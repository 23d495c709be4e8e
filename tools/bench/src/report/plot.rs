//! Plots, as SVG to be put into a page.
//!
//! Numbers on the x axis are steps, one beside the other, whatever is between them: sizes and
//! flows grow by factors, and distributions are words. A point is a median; its line up and
//! down ends at the least and the greatest of all rounds.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

const SIZE: (u32, u32) = (680, 340);
const MARGIN: u32 = 10;
const X_LABELS: u32 = 40;
const Y_LABELS: u32 = 72;
const FONT: &str = "sans-serif";
const DOT: i32 = 2;
const FONT_SIZE: u32 = 13;
/// Of labels below the axis, all of which are to be shown.
const MOST_STEPS: usize = 40;
/// Room above the greatest value.
const HEADROOM: f64 = 1.12;
/// Colours that most eyes tell apart (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(86, 86, 86),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// One plot.
#[derive(Debug, Clone, Default)]
pub(super) struct Plot {
    pub(super) x_label: String,
    pub(super) y_label: String,
    /// Below the axis, from left to right.
    pub(super) steps: Vec<String>,
    pub(super) series: Vec<Series>,
    pub(super) is_log: bool,
    /// Bars instead of lines.
    pub(super) is_bars: bool,
}

/// A line of it, or the bars of one colour.
#[derive(Debug, Clone, Default)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) points: Vec<Point>,
}

/// What came out at one step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    pub(super) step: usize,
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) greatest: f64,
}

/// Where values stand on the y axis.
struct Scale {
    from: f64,
    to: f64,
    is_log: bool,
}

impl Scale {
    /// One that has all points; `None` where there are none.
    fn of(plot: &Plot) -> Option<Self> {
        let points = plot.series.iter().flat_map(|series| &series.points);
        let values = points.flat_map(|point| [point.least, point.median, point.greatest]);
        let values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        let most = values.iter().copied().reduce(f64::max)?;
        let is_log = plot.is_log && values.iter().all(|value| *value > 0.0);
        let (from, to) = match is_log {
            true => {
                let least = values.iter().copied().reduce(f64::min)?;
                (least.log10() - 0.1, most.log10() + 0.2)
            }
            false => (0.0, most.max(f64::MIN_POSITIVE) * HEADROOM),
        };
        Some(Self { from, to, is_log })
    }

    fn at(&self, value: f64) -> f64 {
        match self.is_log {
            true => value.log10(),
            false => value,
        }
    }

    fn label(&self, at: f64) -> String {
        number(match self.is_log {
            true => 10f64.powf(at),
            false => at,
        })
    }
}

impl Plot {
    /// The text of an `svg` element.
    ///
    /// # Errors
    /// Where there is nothing to be seen, or too much.
    pub(super) fn svg(&self) -> Result<String> {
        let scale = Scale::of(self).ok_or_else(|| anyhow!("a plot without points"))?;
        if self.steps.len() > MOST_STEPS {
            return Err(anyhow!("more than {MOST_STEPS} steps"));
        }
        let mut svg = String::new();
        self.draw(&mut svg, &scale).map_err(|e| anyhow!("{e}"))?;
        Ok(svg)
    }

    #[allow(clippy::cast_precision_loss, reason = "few steps")]
    fn draw(&self, svg: &mut String, scale: &Scale) -> Result<(), Box<dyn std::error::Error>> {
        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let steps = self.steps.len() as f64;
        let mut chart = ChartBuilder::on(&root)
            .margin(MARGIN)
            .x_label_area_size(X_LABELS)
            .y_label_area_size(Y_LABELS)
            .build_cartesian_2d(-0.5..steps - 0.5, scale.from..scale.to)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(self.steps.len() * 2 + 1)
            .x_label_formatter(&|at| self.step_label(*at))
            .y_label_formatter(&|at| scale.label(*at))
            .x_desc(self.x_label.as_str())
            .y_desc(self.y_label.as_str())
            .label_style((FONT, FONT_SIZE))
            .axis_desc_style((FONT, FONT_SIZE))
            .draw()?;
        for (n, (series, colour)) in self.series.iter().zip(COLOURS.iter().cycle()).enumerate() {
            let colour = *colour;
            let x = |point: &Point| point.step as f64 + self.offset(n);
            let spreads = series.points.iter().map(|point| {
                let ends = [point.least, point.greatest];
                let ends = ends.map(|end| (x(point), scale.at(end)));
                PathElement::new(ends.to_vec(), colour.stroke_width(1))
            });
            let line = (!self.is_bars).then(|| {
                let points = series.points.iter();
                let points = points.map(|point| (x(point), scale.at(point.median)));
                PathElement::new(points.collect::<Vec<_>>(), colour.stroke_width(2))
            });
            // Of one step there is no line.
            let dots = series.points.iter().filter(|_| !self.is_bars).map(|point| {
                let place = (x(point), scale.at(point.median));
                Circle::new(place, DOT, colour.filled())
            });
            let bars = series.points.iter().filter(|_| self.is_bars).map(|point| {
                let half = self.bar_width() * 0.45;
                let top = scale.at(point.median);
                let corners = [(x(point) - half, scale.from), (x(point) + half, top)];
                Rectangle::new(corners, colour.mix(0.7).filled())
            });
            chart.draw_series(bars)?;
            chart
                .draw_series(line)?
                .label(series.name.as_str())
                .legend(move |(x, y)| {
                    Rectangle::new([(x, y - 4), (x + 12, y + 4)], colour.filled())
                });
            chart.draw_series(dots)?;
            chart.draw_series(spreads)?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(RGBColor(200, 200, 200))
            .label_font((FONT, FONT_SIZE))
            .draw()?;
        root.present()?;
        Ok(())
    }

    #[allow(clippy::cast_precision_loss, reason = "few series")]
    fn bar_width(&self) -> f64 {
        0.8 / self.series.len().max(1) as f64
    }

    /// Where the bars of the `n`th series stand beside their step.
    #[allow(clippy::cast_precision_loss, reason = "few series")]
    fn offset(&self, n: usize) -> f64 {
        match self.is_bars {
            true => (n as f64 + 0.5) * self.bar_width() - 0.4,
            false => 0.0,
        }
    }

    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a whole number from 0 on, as was looked at"
    )]
    fn step_label(&self, at: f64) -> String {
        let is_step = at >= 0.0 && (at - at.round()).abs() < 1e-6;
        let step = is_step.then(|| self.steps.get(at.round() as usize));
        step.flatten().cloned().unwrap_or_default()
    }
}

/// A number as a reader wants it: three digits, or groups of them.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if !value.is_finite() => "-".to_owned(),
        0.0 => "0".to_owned(),
        _ if size >= 999.5 => grouped(value),
        _ if size >= 99.5 => format!("{value:.0}"),
        _ if size >= 9.95 => format!("{value:.1}"),
        _ if size >= 0.0995 => format!("{value:.2}"),
        _ => format!("{value:.2e}"),
    }
}

fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 {
        format!("-{text}")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn plot(is_bars: bool, is_log: bool) -> Plot {
        let point = |step, median| Point {
            step,
            median,
            least: median / 2.0,
            greatest: median * 2.0,
        };
        Plot {
            x_label: "bytes".into(),
            y_label: "<b>MB/s</b>".into(),
            steps: vec!["64".into(), "4K".into()],
            series: vec![Series {
                name: "a & b".into(),
                points: vec![point(0, 1.0), point(1, 1000.0)],
            }],
            is_log,
            is_bars,
        }
    }

    #[test]
    fn a_plot_shows_its_steps_and_names_and_escapes_them() {
        for (is_bars, is_log) in [(false, false), (true, false), (false, true)] {
            let svg = plot(is_bars, is_log).svg().unwrap();
            assert!(svg.starts_with("<svg"), "{svg}");
            for text in ["4K", "bytes", "a &amp; b", "&lt;b&gt;MB/s"] {
                assert!(svg.contains(text), "{text} in {svg}");
            }
            assert!(!svg.contains("<b>"));
        }
    }

    #[test]
    fn a_single_step_is_seen() {
        let mut single = plot(false, false);
        single.steps.truncate(1);
        for series in &mut single.series {
            series.points.truncate(1);
        }
        assert!(single.svg().unwrap().contains("<circle"));
    }

    #[test]
    fn nothing_is_no_plot() {
        assert!(Plot::default().svg().is_err());
    }

    #[test]
    fn numbers_have_three_digits_or_groups() {
        let told = [0.0, 0.012_34, 1.234, 12.34, 123.4, 1_234.5, 1_234_567.0].map(number);
        assert_eq!(
            told,
            ["0", "1.23e-2", "1.23", "12.3", "123", "1,234", "1,234,567"]
        );
        assert_eq!(number(f64::NAN), "-");
    }
}
