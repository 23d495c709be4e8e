//! The spans of a node go to a collector of OpenTelemetry, if the configuration names one.
//!
//! Only programs with the feature `otlp` can send them (`spans/otlp.rs`).

#[cfg(feature = "otlp")]
mod otlp;

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use prism_config::{Config, Node};
use prism_handoff::trace::Observer;
use prism_host::trace_fault;
use prism_service::Spans;

/// Receivers of spans, which send them to the collector.
pub(super) struct Receivers {
    /// The receiver of requests.
    pub(super) requests: Arc<dyn Spans>,
    /// The receiver of hand-offs.
    pub(super) hand_offs: Arc<dyn Observer>,
    /// The number of requests of a million that begin a trace.
    pub(super) sampling: Arc<AtomicU32>,
}

/// The receivers, if the configuration names a collector.
pub(super) fn receivers(config: &Config, node: &Node) -> anyhow::Result<Option<Receivers>> {
    match (trace_fault(&config.trace), config.trace.is_sent()) {
        (Some(fault), _) => anyhow::bail!(fault),
        (None, true) => start(config, node).map(Some),
        (None, false) => Ok(None),
    }
}

#[cfg(feature = "otlp")]
fn start(config: &Config, node: &Node) -> anyhow::Result<Receivers> {
    let exporter = Arc::new(otlp::Exporter::start(config, node)?);
    Ok(Receivers {
        sampling: exporter.sampling(),
        requests: exporter.clone(),
        hand_offs: exporter,
    })
}

#[cfg(not(feature = "otlp"))]
fn start(_: &Config, _: &Node) -> anyhow::Result<Receivers> {
    anyhow::bail!("this program cannot send spans")
}
