//! The first figures of the page: eight of our ratios beside those of the papers.
//!
//! Ours come from rows, by the median over the rounds. The papers' come from their text.

use crate::rows::Row;
use crate::stats::{ascending, median};
use crate::summary::{Comparison, Over};
use crate::sweep::PRISM_OVER_OTHERS;

use super::chart::number;
use super::human;
use super::input::Input;

/// One card of the page.
pub(super) struct Headline {
    pub(super) title: &'static str,
    /// The result whose rows are read.
    result: &'static str,
    measure: Measure,
    /// Names of the case that a row has to have, with their values; "*" stands for any.
    set: &'static [(&'static str, &'static str)],
    /// Names of the case that the best row is told with.
    told: &'static [&'static str],
    unit: Unit,
    /// The paper's value in the same unit.
    pub(super) paper: Option<f64>,
    /// The paper's own words, and their place.
    pub(super) paper_text: &'static str,
}

/// A value that is computed from rows.
enum Measure {
    /// The greatest or the least median ratio of this value.
    Ratio {
        comparison: Comparison,
        value: &'static str,
        system: &'static str,
        best: Best,
    },
    /// The median of this value.
    Median(&'static str),
}

#[derive(Clone, Copy)]
enum Best {
    Greatest,
    Least,
}

/// How a value is written.
#[derive(Clone, Copy)]
enum Unit {
    /// 3.7×
    Times,
    /// 3.7×, from the inverse of a ratio.
    TimesLess,
    /// 74 % less, from a ratio of 0.26.
    PercentLess,
    /// 232 µs
    Us,
}

/// A headline with our value.
pub(super) struct Measured {
    /// In the headline's unit.
    pub(super) value: f64,
    /// The case that has it.
    pub(super) case: String,
}

impl Unit {
    fn of_ratio(self, ratio: f64) -> f64 {
        match self {
            Self::Times | Self::Us => ratio,
            Self::TimesLess => 1.0 / ratio,
            Self::PercentLess => (1.0 - ratio) * 100.0,
        }
    }
}

impl Headline {
    /// A value in the headline's unit, as in *74 %*.
    pub(super) fn text(&self, value: f64) -> String {
        match self.unit {
            Unit::Times | Unit::TimesLess => format!("{value:.1}×"),
            Unit::PercentLess => format!("{value:.0} %"),
            Unit::Us => format!("{} µs", number(value.round())),
        }
    }

    /// Our value; `None` if its rows are missing.
    pub(super) fn measured(&self, input: &Input) -> Option<Measured> {
        let rows = input.of(self.result);
        match &self.measure {
            Measure::Median(name) => {
                let its = rows.iter().filter(|row| self.has(row));
                let values = ascending(its.map(|row| row.value(name)));
                let value = median(&values);
                let case = format!("median of {} runs", values.len());
                value.is_finite().then_some(Measured { value, case })
            }
            Measure::Ratio {
                comparison,
                value,
                system,
                best,
            } => {
                let place = comparison
                    .values
                    .iter()
                    .position(|(_, name)| name == value)?;
                let ratios = comparison.medians(&rows).into_iter();
                let ratios = ratios.filter(|(row, _)| row.turn.system == *system && self.has(row));
                let ratios = ratios.filter_map(|(row, each)| Some((row, *each.get(place)?)));
                let ratios = ratios.filter(|(_, ratio)| ratio.is_finite());
                let by_ratio = |a: &(&Row, f64), b: &(&Row, f64)| a.1.total_cmp(&b.1);
                let (row, ratio) = match best {
                    Best::Greatest => ratios.max_by(by_ratio),
                    Best::Least => ratios.min_by(by_ratio),
                }?;
                Some(Measured {
                    value: self.unit.of_ratio(ratio),
                    case: human::title(&row.turn.case, self.told.iter().copied()),
                })
            }
        }
    }

    fn has(&self, row: &Row) -> bool {
        self.set.iter().all(|(name, wanted)| {
            let text = row.turn.case.text(name);
            text == *wanted || (*wanted == "*" && !text.is_empty())
        })
    }
}

const fn over_nginx(value: &'static str, best: Best) -> Measure {
    Measure::Ratio {
        comparison: PRISM_OVER_OTHERS,
        value,
        system: "nginx",
        best,
    }
}

const fn of_prism(dimension: &'static str, base: &'static str, best: Best) -> Measure {
    Measure::Ratio {
        comparison: Comparison {
            dimension,
            base,
            over: Over::Base,
            ..PRISM_OVER_OTHERS
        },
        value: "mb_s",
        system: "prism",
        best,
    }
}

const SLOW_HTTP: &[(&str, &str)] = &[("link_bit_s", "*"), ("scheme", "http")];
const SLOW_HTTPS: &[(&str, &str)] = &[("link_bit_s", "*"), ("scheme", "https")];

pub(super) const HEADLINES: [Headline; 8] = [
    Headline {
        title: "Most throughput over nginx, HTTP",
        result: "sweep",
        measure: over_nginx("mb_s", Best::Greatest),
        set: SLOW_HTTP,
        told: &["bytes", "link_bit_s"],
        unit: Unit::Times,
        paper: Some(3.7),
        paper_text: "“up to 3.7”, NSDI'21, 5.2",
    },
    Headline {
        title: "Most throughput over nginx, HTTPS",
        result: "sweep",
        measure: over_nginx("mb_s", Best::Greatest),
        set: SLOW_HTTPS,
        told: &["bytes", "link_bit_s"],
        unit: Unit::Times,
        paper: Some(3.4),
        paper_text: "“up to 3.4”, NSDI'21, 5.2",
    },
    Headline {
        title: "Median latency below nginx's by",
        result: "sweep",
        measure: over_nginx("p50_us", Best::Least),
        set: &[("link_bit_s", "*")],
        told: &["bytes", "link_bit_s", "scheme"],
        unit: Unit::PercentLess,
        paper: Some(74.0),
        paper_text: "“up to 74 %”, NSDI'21, 5",
    },
    Headline {
        title: "90th percentile below nginx's by",
        result: "sweep",
        measure: over_nginx("p90_us", Best::Least),
        set: &[("link_bit_s", "*")],
        told: &["bytes", "link_bit_s", "scheme"],
        unit: Unit::PercentLess,
        paper: Some(96.0),
        paper_text: "“up to 96 %”, NSDI'21, 5",
    },
    Headline {
        title: "CPU for a request, nginx's over ours",
        result: "sweep",
        measure: over_nginx("cpu_us", Best::Least),
        set: SLOW_HTTP,
        told: &["bytes", "link_bit_s", "scheme"],
        unit: Unit::TimesLess,
        paper: Some(2.4),
        paper_text: "CPU utilization improves by 2.4 (HTTP), NSDI'21, 5.2",
    },
    Headline {
        title: "Five backends over one",
        result: "scale",
        measure: of_prism("asked_backends", "1", Best::Greatest),
        set: &[("asked_backends", "5")],
        told: &["bytes", "link_bit_s", "scheme"],
        unit: Unit::Times,
        paper: None,
        paper_text: "“almost proportionally”, NSDI'21, 5.2: a plot only",
    },
    Headline {
        title: "Throughput lost at Zipf 1.2",
        result: "partitioned",
        measure: of_prism("popularity", "uniform", Best::Least),
        set: &[("popularity", "zipf-1.2")],
        told: &["bytes", "writes_percent"],
        unit: Unit::PercentLess,
        paper: Some(17.0),
        paper_text: "“up to 17 %”, NSDI'21, 5.5.1; less is better",
    },
    Headline {
        title: "One hand-off by return, HTTPS",
        result: "handoff",
        measure: Measure::Median("p50_us"),
        set: &[("mode", "return"), ("scheme", "https"), ("step", "total")],
        told: &[],
        unit: Unit::Us,
        paper: Some(232.0),
        paper_text: "232 µs, NSDI'21, Table 1; less is better",
    },
];
