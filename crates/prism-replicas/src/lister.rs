//! The choice of the replica that lists a key.

use std::sync::Arc;

use prism_cluster::{NodeName, View};

/// The keys that a node lists: exactly one of the replicas of a key lists it.
pub(crate) struct Lister<'a> {
    view: Arc<View>,
    name: &'a str,
    bucket: &'a str,
    without: &'a [String],
}

impl<'a> Lister<'a> {
    pub(crate) fn new(
        view: Arc<View>,
        name: &'a str,
        bucket: &'a str,
        without: &'a [String],
    ) -> Self {
        Self {
            view,
            name,
            bucket,
            without,
        }
    }

    /// The epoch of the view. Another node may list other keys by another view.
    pub(crate) fn epoch(&self) -> u64 {
        self.view.epoch()
    }

    /// Whether this node lists a key of its store.
    pub(crate) fn lists(&self, key: &str) -> bool {
        // In the first epoch a store without replicas has only its own keys.
        if self.view.epoch() == 1 && !self.view.is_replicated() {
            return true;
        }
        let mut readers = self.view.readers(self.bucket, key);
        let in_reach = |name: &&NodeName| !self.without.iter().any(|gone| gone == name.as_str());
        let first = readers.find(in_reach);
        first.is_some_and(|name| name.as_str() == self.name)
    }
}
