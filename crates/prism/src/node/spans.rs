//! The spans of a node go to a collector of OpenTelemetry, if the configuration names one.
//!
//! Only programs with the feature `otlp` can send them (`spans/otlp.rs`).

#[cfg(feature = "otlp")]
mod otlp;

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use prism_config::{Config, Node, Trace};
use prism_handoff::trace::Observer;
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

/// The fault of a configuration that wants spans to be sent by a program that cannot.
pub(crate) fn fault(trace: &Trace) -> Option<String> {
    fault_of(trace, cfg!(feature = "otlp"))
}

fn fault_of(trace: &Trace, can_send: bool) -> Option<String> {
    (trace.is_sent() && !can_send).then(|| {
        "trace.otlp: this program was built without OTLP; build it with `--features otlp`, or \
         remove the section [trace]"
            .into()
    })
}

/// The receivers, if the configuration names a collector.
pub(super) fn receivers(config: &Config, node: &Node) -> anyhow::Result<Option<Receivers>> {
    match (fault(&config.trace), config.trace.is_sent()) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_cannot_send_spans_says_how_to_get_one() {
        let mut trace = Trace::default();
        assert_eq!(fault_of(&trace, false), None);
        trace.otlp = "http://127.0.0.1:4318/v1/traces".into();
        assert_eq!(fault_of(&trace, true), None);
        let said = fault_of(&trace, false).unwrap_or_default();
        assert!(
            said.starts_with("trace.otlp: ") && said.contains("--features otlp"),
            "{said}"
        );
    }
}
