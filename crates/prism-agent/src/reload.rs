//! The agent reads the configuration file again on SIGHUP. Its loop gives the switch new nodes.

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use prism_config::{ConfigFile, ConfigReader, Effect, Running, Services};
use prism_process::notify::Notifier;
use tokio::signal::unix::Signal;

use crate::shared::Shared;

/// The configuration's file, and who is told of reloads.
pub(crate) struct Reload {
    pub(crate) file: PathBuf,
    pub(crate) notifier: Notifier,
}

impl Reload {
    /// Reads the file again on each SIGHUP. Never returns.
    pub(crate) async fn follow(&self, hang_up: &mut Signal, shared: &Shared) {
        while hang_up.recv().await.is_some() {
            self.notifier.reloading();
            let read = ConfigFile::load(&self.file);
            if let Err(error) = read.and_then(|new| take_over(&shared.running, &new)) {
                let file = self.file.display();
                let fault = error.in_one_line();
                tracing::warn!(%file, fault, "a fault of the configuration; the old one stays");
            }
            shared.pauses.pause.store(true, Ordering::Relaxed);
            self.notifier.ready();
        }
        std::future::pending().await
    }
}

/// Changes the fields that apply at run time, and logs all changes.
fn take_over(
    running: &Running<Services>,
    new: &ConfigFile,
) -> Result<(), prism_config::ConfigError> {
    let present = running.now();
    let changes = present.changes_to(new);
    let effects = |effect| {
        let all = changes.iter();
        all.filter(move |change| change.effect_at(ConfigReader::Switch) == effect)
    };
    let now: Vec<_> = effects(Effect::Reload).cloned().collect();
    let next = present.with_changes(&now, new)?;
    if let Err(error) = prism_process::log::set_level(&next.log.level) {
        tracing::warn!(
            error = format!("{error:#}"),
            "cannot change the level of the log"
        );
    }
    for change in &now {
        tracing::info!(%change, "the configuration has changed");
    }
    for change in effects(Effect::Restart) {
        tracing::warn!(%change, "a change of the configuration needs a restart");
    }
    running.replace(next);
    Ok(())
}
