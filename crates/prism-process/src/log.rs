//! Structured logs on standard error.

use std::sync::OnceLock;

use anyhow::Context;
use prism_config::{Log, LogFormat};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

/// The target of the audit log, whose lines no level leaves out.
const AUDIT: &str = "prism::audit";

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
    let levels: Targets = level.parse().with_context(|| {
        format!(
            "log.level {level:?} is not a level; use error, warn, info, debug, trace, off or module=level"
        )
    })?;
    Ok(levels.with_target(AUDIT, LevelFilter::INFO))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use tracing::Level;

    use super::*;

    #[test]
    fn no_level_leaves_out_the_audit_log() {
        for level in [
            "off",
            "error",
            "warn",
            "trace",
            "warn,prism=off",
            "prism::audit=off",
        ] {
            let levels = levels(level).unwrap();
            assert!(levels.would_enable(AUDIT, &Level::INFO), "{level}");
        }
        let levels = levels("warn").unwrap();
        assert!(!levels.would_enable("prism::node", &Level::INFO));
    }
}
