//! The cluster's state as a node's store saves it, to restore the state that etcd has lost.

use anyhow::Context;
use prism_cluster::{State, Testimony};
use prism_store::Store;

/// The store's testimony about the cluster. Blocks on disk.
///
/// # Errors
/// The saved state cannot be read, or a later release has written it.
pub fn read(store: &Store) -> anyhow::Result<Testimony> {
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
