//! Structured logs on standard error.

use std::sync::OnceLock;

use anyhow::Context;
use prism_config::{Log, LogFormat};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

/// The levels of the log of this process.
static LEVELS: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// Begins the log. A process that serves several services names the thread of each line, because
/// threads have the names of their services.
pub fn init(log: &Log, names_threads: bool) -> anyhow::Result<()> {
    let (levels, handle) = reload::Layer::new(levels(&log.level)?);
    let layer = fmt::layer()
        .with_writer(std::io::stderr)
        .with_thread_names(names_threads);
    let layer = match log.format {
        LogFormat::Json => layer.json().boxed(),
        LogFormat::Text => layer.with_ansi(false).boxed(),
    };
    tracing_subscriber::registry()
        .with(layer.with_filter(levels))
        .init();
    // There is one log in a process.
    let _ = LEVELS.set(handle);
    Ok(())
}

/// Changes the levels of the log.
pub fn set_level(level: &str) -> anyhow::Result<()> {
    let levels = levels(level)?;
    match LEVELS.get() {
        Some(handle) => Ok(handle.reload(levels)?),
        None => Ok(()),
    }
}

fn levels(level: &str) -> anyhow::Result<Targets> {
    level.parse().with_context(|| {
        format!(
            "log.level {level:?} is not a level; use error, warn, info, debug, trace, off or module=level"
        )
    })
}
