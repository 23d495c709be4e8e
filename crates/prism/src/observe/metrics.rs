//! Metrics in the text format of OpenMetrics, which Prometheus reads.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use prism_handoff::observe::Figure;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::Page;

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
pub(crate) struct Metric {
    /// Its name without `prism_` and `_total`.
    pub(crate) name: Cow<'static, str>,
    pub(crate) help: Cow<'static, str>,
    pub(crate) labels: Vec<(&'static str, String)>,
    pub(crate) value: Value,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Counter(u64),
    Gauge(f64),
    /// Sum and number of all values, and the number of values by the bound of their bucket.
    Histogram {
        sum: f64,
        count: u64,
        buckets: Vec<(f64, u64)>,
    },
}

impl Metric {
    pub(crate) fn new(
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

    pub(crate) fn with(mut self, label: &'static str, value: impl Into<String>) -> Self {
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
            value: match figure.is_gauge {
                true => Value::Gauge(figure.value as f64),
                false => Value::Counter(figure.value),
            },
        }
    }
}

/// The build of this program.
pub(crate) fn build_info(role: &'static str) -> Metric {
    Metric::new(
        "build_info",
        "The version of the program; always 1.",
        Value::Gauge(1.0),
    )
    .with("version", env!("PRISM_VERSION"))
    .with("role", role)
}

/// The page of these metrics.
pub(crate) fn render(metrics: Vec<Metric>) -> Page {
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
                match metric.labels.is_empty() {
                    true => encode(&metric.value, &mut family)?,
                    false => encode(&metric.value, &mut family.encode_family(&metric.labels)?)?,
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
