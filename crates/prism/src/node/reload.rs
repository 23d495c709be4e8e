//! A reload: a node reads its configuration file again, and acts by the fields that apply at run
//! time. All other fields keep their values until a restart.
//!
//! Not here: which fields these are (`prism-config`).

use std::path::Path;
use std::sync::atomic::Ordering;

use anyhow::Context;
use prism_config::{Change, Config, ConfigError, ConfigFile, ConfigReader, Effect};
use prism_service::{Action, Actor};
use serde_json::{Value, json};

use super::server::{Server, access_log_form, access_log_to, client_bounds};

/// The outcome of a reload.
#[derive(Debug, Default)]
pub(super) struct Reloaded {
    /// The changes that the node acts by.
    now: Vec<Change>,
    /// The changes that need a restart of this node.
    restart: Vec<Change>,
    /// The changes of fields that only other processes use.
    elsewhere: Vec<Change>,
    /// The reasons why changes were not made.
    faults: Vec<String>,
}

/// Reads the configuration file again, and opens the access log again. A file with faults changes
/// nothing.
pub(super) fn reload(server: &Server) -> Reloaded {
    // The followers of certificates, keys and users look again.
    server.reload_requests.send_replace(());
    let done = reload_config(server);
    done.log(server.file.as_deref());
    done
}

/// The same after a signal.
pub(super) fn reload_by_signal(server: &Server) {
    let done = reload(server);
    if !done.is_empty() {
        server.requests.audit.record(&Action {
            actor: Actor::Signal { signal: "SIGHUP" },
            at: &server.core.name,
            action: "reload",
            subject: None,
            outcome: &done.outcome(),
        });
    }
}

fn reload_config(server: &Server) -> Reloaded {
    match new_config(server).and_then(|new| Ok((sorted(server, &new)?, new))) {
        Ok((mut done, new)) => {
            done.apply(server, &new);
            done
        }
        Err(error) => {
            let fault = match error.downcast_ref::<ConfigError>() {
                Some(error) => error.in_one_line(),
                None => error.to_string(),
            };
            let mut faults = vec![fault];
            // Its file may have been renamed.
            faults.extend(server.requests.log.reopen().err().map(access_log_fault));
            Reloaded {
                faults,
                ..Reloaded::default()
            }
        }
    }
}

/// The part of the present file that is for the service of `server`.
fn new_config(server: &Server) -> anyhow::Result<Config> {
    let present = server.core.config.now();
    let Some(file) = &server.file else {
        return Ok((*present).clone());
    };
    let new = ConfigFile::load(file)?;
    let name = &present.service.name;
    new.part(name).with_context(|| {
        format!("the file has no service {name:?}; restart the frontends and the switch's agent")
    })
}

/// The changes to `new`, by their effect at this node. Fails if those that apply now do not fit
/// the fields that stay.
fn sorted(server: &Server, new: &Config) -> Result<Reloaded, ConfigError> {
    let present = server.core.config.now();
    let this = ConfigReader::Node(&server.core.name);
    let mut done = Reloaded::default();
    for change in present.changes_to(new) {
        let place = match change.effect_at(this) {
            Effect::Reload => &mut done.now,
            Effect::Restart => &mut done.restart,
            Effect::Never => &mut done.elsewhere,
        };
        place.push(change);
    }
    present.with_changes(&done.now, new)?;
    Ok(done)
}

impl Reloaded {
    /// Makes the changes that apply now. One that fails becomes a fault.
    fn apply(&mut self, server: &Server, new: &Config) {
        let reopened = self.now.iter().all(|change| change.field() != "log.access");
        let reopened = reopened.then(|| server.requests.log.reopen().err());
        self.faults.extend(reopened.flatten().map(access_log_fault));
        let faults = &mut self.faults;
        self.now.retain(|change| match act(server, new, change) {
            Ok(()) => true,
            Err(error) => {
                faults.push(format!("{}: {error:#}", change.field()));
                false
            }
        });
        match server.core.config.now().with_changes(&self.now, new) {
            Ok(config) => {
                server.core.config.replace(config);
                spread(server);
            }
            Err(error) => self.faults.push(error.in_one_line()),
        }
    }

    fn is_empty(&self) -> bool {
        self.now.is_empty() && self.restart.is_empty() && self.faults.is_empty()
    }

    fn outcome(&self) -> String {
        match self.faults.as_slice() {
            [] => "done".into(),
            faults => faults.join("; "),
        }
    }

    fn log(&self, file: Option<&Path>) {
        for change in &self.now {
            tracing::info!(%change, "the configuration has changed");
        }
        for change in &self.restart {
            tracing::warn!(%change, "a change of the configuration needs a restart");
        }
        let file = file.unwrap_or(Path::new("")).display();
        for fault in &self.faults {
            tracing::warn!(%file, fault, "a fault of the configuration; the old one stays");
        }
    }

    /// The outcome in JSON, for the node of this name.
    pub(super) fn document(&self, node: &str) -> Value {
        let shown = |changes: &[Change]| -> Vec<Value> {
            let all = changes.iter().map(|change| {
                json!({
                    "field": change.field(),
                    "old": change.old,
                    "new": change.new,
                    "change": change.to_string(),
                })
            });
            all.collect()
        };
        let mut document = json!({
            "node": node,
            "now": shown(&self.now),
            "restart": shown(&self.restart),
            "elsewhere": shown(&self.elsewhere),
            "faults": self.faults,
        });
        if let (false, Some(fields)) = (self.faults.is_empty(), document.as_object_mut()) {
            fields.insert("error".into(), self.outcome().into());
        }
        document
    }
}

fn access_log_fault(error: std::io::Error) -> String {
    format!("cannot open the access log again; lines go to the old file: {error}")
}

/// Acts by a change that may fail.
fn act(server: &Server, new: &Config, change: &Change) -> anyhow::Result<()> {
    match change.field().as_str() {
        "log.access" | "log.access_format" => {
            let log = &server.requests.log;
            Ok(log.turn_to(&access_log_to(new), access_log_form(new))?)
        }
        "log.audit" => Ok(server.requests.audit.turn_to(&new.log.audit)?),
        "log.level" => prism_process::log::set_level(&new.log.level),
        _ => Ok(()),
    }
}

/// Gives the parts of the node the present configuration. Other parts look at it themselves.
fn spread(server: &Server) {
    let config = server.core.config.now();
    if let Some(settings) = config.node(&server.core.name) {
        server.link.set_mbit_s(settings.link_mbit_s);
    }
    server.gateway.reconfigure();
    server.service.reconfigure(&config);
    server.clients.set(client_bounds(&config));
    if let Some(sampling) = &server.sampling {
        sampling.store(config.trace.sample_per_million, Ordering::Relaxed);
    }
}
