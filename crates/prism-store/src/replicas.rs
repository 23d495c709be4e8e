//! The way to the other replicas: the user of a store tells which there are, and reaches them.

use std::{fs::File, sync::mpsc::Receiver};

use prism_cluster::replica::Stamp;
use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    scope::{Prepare, Scope},
};

/// The bytes of a change, at its primary.
#[derive(Debug)]
pub enum Bytes {
    /// No bytes.
    None,
    /// These bytes.
    Inline(Vec<u8>),
    /// All bytes of this file, which is read by offset.
    File(File),
}

/// The outcome of changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    /// The changed scopes.
    pub scopes: Vec<Scope>,
    /// The stamp of the changes.
    pub stamp: Stamp,
    /// Whether they were committed.
    pub committed: bool,
    /// The epoch of the sender.
    pub epoch: u64,
}

/// The other replicas. No function blocks.
pub trait Replicas: Send + Sync {
    /// The present epoch. Answers to later calls may be of a later epoch.
    fn epoch(&self) -> u64;

    /// The other replicas of a key that this node may change now.
    ///
    /// # Errors
    /// [`Error::NotPrimary`], [`Error::TooFewCopies`].
    fn others(&self, bucket: &str, key: &str) -> Result<Vec<String>, Error>;

    /// Asks all of `others` to prepare changes. The one answer comes in bounded time: when all
    /// have prepared them, or one refused.
    fn prepare(
        &self,
        others: &[String],
        prepare: Prepare,
        bytes: Bytes,
    ) -> Receiver<Result<(), Error>>;

    /// Tells all of `others` the outcome. The message may be lost: then they ask.
    fn decided(&self, others: Vec<String>, decided: Decided);
}
