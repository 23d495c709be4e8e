//! The cluster's state as a node's store notes it: what is needed to make the state
//! anew where etcd has lost it.

use anyhow::Context;
use prism_cluster::{State, Testimony};
use prism_store::{Error, Store};

/// Has the store act by a state and note it. Blocks on disk.
pub fn write(store: &Store, state: &State) -> Result<(), Error> {
    match serde_json::to_vec(state) {
        Ok(note) => store.adopt_with_state(state.epoch, note),
        // Cannot be: names and numbers. Without the note the epoch still counts.
        Err(_) => store.adopt(state.epoch),
    }
}

/// What the store has noted.
///
/// # Errors
/// When it cannot be read, or was written by a later release.
pub fn read(store: &Store) -> anyhow::Result<Testimony> {
    let noted = store.saved_state().context("reading the cluster's state")?;
    let state = match noted {
        Some(noted) => {
            let state: State = serde_json::from_slice(&noted).context(
                "the store has noted a state of the cluster that this release cannot read",
            )?;
            state
                .check()
                .context("the state that the store has noted")?;
            Some(state)
        }
        None => None,
    };
    Ok(Testimony {
        store: store.identity(),
        epoch: store.epoch(),
        state,
    })
}
