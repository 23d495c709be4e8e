//! The switch's address, and the key of a node for its commands, which may change while it runs.

use std::fmt;
use std::net::SocketAddr;

use prism_proto::control::{ControlKey, Pass, Passage};
use tokio::sync::watch;

/// The address of the switch, and the key for its commands.
#[derive(Clone, Debug)]
pub struct SwitchAddress {
    /// Its control address.
    pub control: SocketAddr,
    /// The key, which may change.
    pub key: watch::Receiver<SigningKey>,
    /// The addresses at which the hosts of a pair take copies of flows; none of a single switch.
    pub hosts: Vec<SocketAddr>,
}

impl SwitchAddress {
    /// A switch that answers at `control` under the key `key_id`, which all nodes share.
    pub fn new(control: SocketAddr, key_id: u32, key: [u8; 16]) -> Self {
        let key = SigningKey {
            key_id,
            key: ControlKey::new(key),
            is_own: false,
        };
        let key = watch::Sender::new(key).subscribe();
        Self {
            control,
            key,
            hosts: Vec::new(),
        }
    }

    pub(crate) fn signing_key(&self) -> SigningKey {
        self.key.borrow().clone()
    }
}

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
