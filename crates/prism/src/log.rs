//! Structured logs on standard error.

use anyhow::Context;
use prism_config::{Log, LogFormat};
use tracing_subscriber::EnvFilter;

/// Sets the process's log up.
pub(crate) fn init(log: &Log) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&log.level).with_context(|| {
        format!(
            "log.level {:?}: give error, warn, info, debug, trace or module=level",
            log.level
        )
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match log.format {
        LogFormat::Json => builder.json().init(),
        LogFormat::Text => builder.with_ansi(false).init(),
    }
    Ok(())
}
