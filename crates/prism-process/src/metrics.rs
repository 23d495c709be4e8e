//! Metrics in the text format of OpenMetrics, which Prometheus reads.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use prism_common::counter::Figure;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::pages::Page;

/// The type of the text format.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The prefix of every metric.
const PREFIX: &str = "prism";

/// Help texts of metrics of which several figures have a part.
const SHARED_HELP: [(&str, &str); 1] = [(
    "handoffs",
    "Hand-offs by this node's role in them, their outcome, and the reason.",
)];

/// One value of a metric.
#[derive(Clone, Debug)]
pub struct Metric {
    /// Its name without `prism_` and `_total`.
    pub name: Cow<'static, str>,
    /// One sentence, which is the same for all values of the metric.
    pub help: Cow<'static, str>,
    /// The labels that tell it from other values of the metric.
    pub labels: Vec<(&'static str, String)>,
    /// The value now.
    pub value: Value,
}

/// A value, and its type.
#[derive(Clone, Debug)]
pub enum Value {
    /// It only increases.
    Counter(u64),
    /// It may decrease.
    Gauge(f64),
    /// The distribution of many values.
    Histogram {
        /// The sum of all values.
        sum: f64,
        /// The number of all values.
        count: u64,
        /// The number of values by the bound of their bucket.
        buckets: Vec<(f64, u64)>,
    },
}

impl Metric {
    /// A value without labels.
    pub fn new(
        name: impl Into<Cow<'static, str>>,
        help: impl Into<Cow<'static, str>>,
        value: Value,
    ) -> Self {
        Self {
            name: name.into(),
            help: help.into(),
            labels: Vec::new(),
            value,
        }
    }

    /// Adds a label.
    pub fn with(mut self, label: &'static str, value: impl Into<String>) -> Self {
        self.labels.push((label, value.into()));
        self
    }
}

impl From<Figure> for Metric {
    fn from(figure: Figure) -> Self {
        let shared = SHARED_HELP.iter().find(|(name, _)| *name == figure.metric);
        let labels = figure.labels.iter();
        Self {
            name: figure.metric.into(),
            help: shared.map_or(figure.help, |(_, help)| help).into(),
            labels: labels
                .map(|(name, value)| (*name, (*value).to_owned()))
                .collect(),
            value: if figure.is_gauge {
                Value::Gauge(figure.value as f64)
            } else {
                Value::Counter(figure.value)
            },
        }
    }
}

/// The build of this program.
pub fn build_info(version: &'static str, role: &'static str) -> Metric {
    Metric::new(
        "build_info",
        "The version of the program; always 1.",
        Value::Gauge(1.0),
    )
    .with("version", version)
    .with("role", role)
}

/// The page of these metrics.
pub fn render(metrics: Vec<Metric>) -> Page {
    let mut families = BTreeMap::<_, Vec<Metric>>::new();
    for metric in metrics {
        families
            .entry(metric.name.clone())
            .or_default()
            .push(metric);
    }
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Families(families)));
    let mut body = String::new();
    match text::encode(&mut body, &registry) {
        Ok(()) => Page::new(CONTENT_TYPE, body),
        Err(error) => Page::text(500, format!("{error}\n")),
    }
}

#[derive(Debug)]
struct Families(BTreeMap<Cow<'static, str>, Vec<Metric>>);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, metrics) in &self.0 {
            let Some(first) = metrics.first() else {
                continue;
            };
            let kind = match first.value {
                Value::Counter(_) => MetricType::Counter,
                Value::Gauge(_) => MetricType::Gauge,
                Value::Histogram { .. } => MetricType::Histogram,
            };
            // The format ends each help text by itself.
            let help = first.help.trim_end_matches('.');
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for metric in metrics {
                if metric.labels.is_empty() {
                    encode(&metric.value, &mut family)?;
                } else {
                    encode(&metric.value, &mut family.encode_family(&metric.labels)?)?;
                }
            }
        }
        Ok(())
    }
}

fn encode(value: &Value, encoder: &mut MetricEncoder<'_>) -> Result<(), fmt::Error> {
    match value {
        Value::Counter(value) => encoder.encode_counter::<NoLabelSet, _, u64>(value, None),
        Value::Gauge(value) => encoder.encode_gauge(value),
        Value::Histogram {
            sum,
            count,
            buckets,
        } => encoder.encode_histogram::<NoLabelSet>(*sum, *count, buckets, None),
    }
}
