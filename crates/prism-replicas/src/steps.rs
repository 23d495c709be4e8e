//! This backend's part in a step of the cluster: it pauses writes, and adopts the new state.
//!
//! Not here: which step is safe (`prism_cluster::step`), and making it in etcd
//! (`prism-membership`).

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use prism_cluster::State;
use prism_membership::etcd::Pause;

use crate::Node;

/// Pause after a failure to adopt an epoch.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Time for the writes under way to end. Afterwards this node reports that they have ended.
const WRITES_TIMEOUT: Duration = Duration::from_millis(800);
/// Length of a pause without a step.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(3);

/// Adopts each new view of the cluster, and reports it. Never returns.
pub async fn follow_views(node: &Arc<Node>) {
    prism_core::follow_views(&node.core, async |state| adopt(node, state).await).await;
}

/// Has the store act by a state, before anything else does. From then on the store prepares and
/// commits no change of an earlier epoch. With etcd the store also saves the state.
async fn adopt(node: &Arc<Node>, state: &State) {
    let epoch = state.epoch;
    loop {
        let here = node.clone();
        let state = state.clone();
        let adopting = tokio::task::spawn_blocking(move || match &here.store {
            Some(store) => {
                // Names and numbers can be encoded. The epoch would count without the saved state.
                let saved = serde_json::to_vec(&state).ok();
                store.adopt(
                    state.epoch,
                    saved.filter(|_| here.core.cluster.is_in_etcd()),
                )
            }
            None => Ok(()),
        });
        let error = match adopting.await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => anyhow::Error::from(error),
            Err(error) => error.into(),
        };
        // The cluster waits until this node has adopted it or its lease has ended.
        tracing::error!(%error, epoch, "cannot adopt the epoch; trying again");
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Pauses writes whenever the cluster asks for it. Never returns.
pub async fn follow_pauses(node: &Arc<Node>) {
    let mut pause = Pause::default();
    loop {
        pause = node
            .core
            .cluster
            .wait_until(|known| known.pause != pause)
            .await
            .pause;
        if pause.number != 0 && pause.epoch == node.replication.view().epoch() {
            hold_writes(node, pause).await;
        }
    }
}

async fn hold_writes(node: &Node, pause: Pause) {
    let begun = tokio::time::Instant::now();
    let mut stopping = pin!(node.pauses.stop());
    let stopped = tokio::time::timeout(WRITES_TIMEOUT, &mut stopping).await;
    if stopped.is_err() {
        tracing::debug!("some writes take longer than the cluster's step waits for them");
    }
    node.core
        .cluster
        .report(|report| report.paused = pause.number);
    let left = PAUSE_TIMEOUT.saturating_sub(begun.elapsed());
    node.core.view.wait_beyond(pause.epoch, left).await;
}
