//! Planned writes that become visible together. `lsm` makes them durable.

use fjall::{Keyspace, OwnedWriteBatch, UserKey, UserValue};

/// Writes in order. An operation that fails takes its own back with [`Batch::truncate`].
#[derive(Default)]
pub(crate) struct Batch {
    writes: Vec<Write>,
}

struct Write {
    tree: Keyspace,
    key: UserKey,
    /// None removes the key.
    value: Option<UserValue>,
}

impl Batch {
    pub(crate) fn insert(
        &mut self,
        tree: &Keyspace,
        key: impl Into<UserKey>,
        value: impl Into<UserValue>,
    ) {
        self.push(tree, key.into(), Some(value.into()));
    }

    pub(crate) fn remove(&mut self, tree: &Keyspace, key: impl Into<UserKey>) {
        self.push(tree, key.into(), None);
    }

    fn push(&mut self, tree: &Keyspace, key: UserKey, value: Option<UserValue>) {
        let tree = tree.clone();
        self.writes.push(Write { tree, key, value });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.writes.len()
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.writes.truncate(len);
    }

    /// The keys that change in the tree of this name.
    pub(crate) fn keys_of(&self, tree: &str) -> Vec<UserKey> {
        let writes = self.writes.iter();
        let of_tree = writes.filter(|write| &**write.tree.name() == tree);
        of_tree.map(|write| write.key.clone()).collect()
    }

    pub(crate) fn move_into(self, batch: &mut OwnedWriteBatch) {
        for Write { tree, key, value } in self.writes {
            match value {
                Some(value) => batch.insert(&tree, key, value),
                None => batch.remove(&tree, key),
            }
        }
    }
}
