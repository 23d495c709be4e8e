//! Structured logs on standard error.

use anyhow::Context;
use prism_config::{Log, LogFormat};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

pub(crate) fn init(log: &Log) -> anyhow::Result<()> {
    let levels: Targets = log.level.parse().with_context(|| {
        format!(
            "log.level {:?} is not a level; use error, warn, info, debug, trace, off or module=level",
            log.level
        )
    })?;
    let layer = fmt::layer().with_writer(std::io::stderr);
    let layer = match log.format {
        LogFormat::Json => layer.json().boxed(),
        LogFormat::Text => layer.with_ansi(false).boxed(),
    };
    tracing_subscriber::registry()
        .with(layer.with_filter(levels))
        .init();
    Ok(())
}
