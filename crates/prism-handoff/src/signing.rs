//! The key of a node for its commands, which may change while it runs.

use std::fmt;

use prism_proto::control::{ControlKey, Pass, Passage};
use tokio::sync::watch;

/// The key that signs a node's commands and its request for a lease.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningKey {
    /// Its number in messages.
    pub key_id: u32,
    /// The key.
    pub key: ControlKey,
    /// Only this node and the switch have it. Then the switch asks for passes.
    pub is_own: bool,
}

impl SigningKey {
    /// The word of this node that another one may take a flow. `None` if all nodes share the key.
    pub(crate) fn pass(&self, to: &Passage) -> Option<Pass> {
        self.is_own.then(|| Pass::new(&self.key, to))
    }

    /// This node's word that a pass which it has got is for another node.
    pub(crate) fn onward(&self, pass: Pass, to: &Passage) -> Option<Pass> {
        let own = Some(self).filter(|key| key.is_own)?;
        pass.onward(own.key_id, &own.key, to)
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey")
            .field("key_id", &self.key_id)
            .field("is_own", &self.is_own)
            .finish_non_exhaustive()
    }
}

/// Waits for another key. Never returns once no other one can come.
pub(crate) async fn changed(keys: &mut watch::Receiver<SigningKey>) {
    if keys.changed().await.is_err() {
        std::future::pending().await
    }
}
