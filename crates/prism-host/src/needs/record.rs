//! The record of what `prism setup` has changed on this host, so that it can undo just that.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::change::HostChange;
use super::files::{self, Root, read_bounded};

const FILE: &str = "/etc/prism/setup.json";
const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AppliedChanges {
    version: u32,
    /// The node that this host is, or `switch`.
    pub(super) host: String,
    /// In the order in which they were made.
    pub(super) done: Vec<Done>,
}

/// A change that was made.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Done {
    pub(super) change: HostChange,
    pub(super) undo: Undo,
}

/// The way back.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Undo {
    /// It was in effect before.
    Nothing,
    /// It is taken away.
    Remove,
    /// The file is removed, and with it this directory if it has nothing else.
    RemoveWith(PathBuf),
    /// These kernel parameters get these values, in this order.
    Restore(Vec<(String, String)>),
}

impl AppliedChanges {
    pub(super) fn new(host: &str) -> Self {
        Self {
            version: VERSION,
            host: host.to_owned(),
            done: Vec::new(),
        }
    }

    pub(super) fn load(root: &Root) -> Result<Option<Self>> {
        let Some(text) = read_bounded(&path(root))? else {
            return Ok(None);
        };
        let fix = "undo its changes by hand and remove it, or put back the version of Prism that \
                   wrote it";
        let record: Self = serde_json::from_str(&text)
            .with_context(|| format!("cannot understand {FILE}; {fix}"))?;
        if record.version != VERSION {
            bail!(
                "{FILE} has version {}, not {VERSION}; {fix}",
                record.version
            );
        }
        Ok(Some(record))
    }

    pub(super) fn save(&self, root: &Root) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        files::write_whole(&path(root), &(text + "\n"))
    }

    pub(super) fn remove(root: &Root) -> Result<()> {
        files::remove(&path(root), None)
    }

    /// The change of the same thing as `change`.
    pub(super) fn find(&mut self, change: &HostChange) -> Option<&mut Done> {
        let mut done = self.done.iter_mut();
        done.find(|done| done.change.is_about_that_of(change))
    }
}

fn path(root: &Root) -> PathBuf {
    root.path(Path::new(FILE))
}
