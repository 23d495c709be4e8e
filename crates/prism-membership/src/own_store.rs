//! The part of the cluster that a store has saved, by which an older copy of etcd or of the store
//! is noticed.

use std::sync::Arc;

use anyhow::Context;
use prism_cluster::{LineageMark, State, Testimony};
use prism_store::{Store, WeakStore};
use serde::de::DeserializeOwned;

use super::noted::{Noted, NotedUsers, StoreMarks};

/// The name of the note about the lineage of etcd.
const LINEAGE: &str = "lineage";
/// The name of the note about the users.
const USERS: &str = "users";
/// The name of the note about the marks of all stores.
const MARKS: &str = "marks";

/// A backend's store, as the cluster sees it. It does not keep the store open.
pub struct OwnStore {
    store: WeakStore,
    /// The state of the cluster by which the store had acted when it was opened.
    pub(crate) testimony: Testimony,
    /// The notes as of the store's opening.
    pub(crate) noted: Noted,
}

impl OwnStore {
    /// That of this store. Blocks on disk.
    ///
    /// # Errors
    /// The store cannot be read, or a later release has written it.
    pub fn of(store: &Store) -> anyhow::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            store: store.handle(),
            testimony: testimony(store)?,
            noted: Noted {
                mark: read(store, LINEAGE)?,
                users: read(store, USERS)?.unwrap_or_default(),
                marks: read(store, MARKS)?.unwrap_or_default(),
            },
        }))
    }

    /// The store itself.
    ///
    /// # Errors
    /// The store has been closed.
    pub(crate) fn open(&self) -> anyhow::Result<Store> {
        Ok(self.store.open()?)
    }

    /// Notes a change of the lineage and the marks of all stores, durably, and the users if they
    /// have changed. Blocks on disk.
    ///
    /// # Errors
    /// The store cannot be written, or has been closed.
    pub(crate) fn note(
        &self,
        mark: LineageMark,
        marks: &StoreMarks,
        users: Option<&NotedUsers>,
    ) -> anyhow::Result<()> {
        let mark = serde_json::to_vec(&mark)?;
        let marks = serde_json::to_vec(marks)?;
        let users = users.map(serde_json::to_vec).transpose()?;
        let users = users.as_ref().map(|users| (USERS, users.as_slice()));
        let others = [(LINEAGE, mark.as_slice()), (MARKS, marks.as_slice())];
        let notes: Vec<_> = users.into_iter().chain(others).collect();
        Ok(self.open()?.note(&notes)?)
    }
}

fn testimony(store: &Store) -> anyhow::Result<Testimony> {
    let saved = store.saved_state().context("reading the cluster's state")?;
    let state: Option<State> = saved
        .map(|saved| serde_json::from_slice(&saved))
        .transpose()
        .context("this release cannot read the cluster's state that the store has saved")?;
    let checked = state.as_ref().map_or(Ok(()), State::check);
    checked.context("the cluster's state that the store has saved")?;
    Ok(Testimony {
        store: store.identity(),
        epoch: store.epoch(),
        state,
    })
}

fn read<T: DeserializeOwned>(store: &Store, name: &str) -> anyhow::Result<Option<T>> {
    let text = store.noted(name)?;
    let read = text.map(|text| serde_json::from_slice(&text)).transpose();
    read.with_context(|| format!("this release cannot read the store's note {name:?}"))
}
