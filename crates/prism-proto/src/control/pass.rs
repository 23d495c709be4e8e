//! Passes: a node's word to the switch that another node may take a flow from it.

use super::{ControlKey, FlowKey};
use crate::wire::{DecodeError, Put, Reader, ip_bytes};
use std::net::IpAddr;

/// The command that a pass is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// The flow.
    pub flow: FlowKey,
    /// The epoch of the command. Each epoch of a flow is used once, and so is the pass.
    pub epoch: u64,
    /// The address of the node that is to own the flow.
    pub via: IpAddr,
}

/// The word of the flow's present owner, made with its key. A node in between that passes a
/// hand-off on makes another one of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    mac: [u8; 8],
    /// The key of the node in between; 0 without one.
    through: u32,
}

impl Pass {
    /// Its length in messages.
    pub const BYTES: usize = 12;
    /// The word of nobody. With it a command takes no flow of another node, and makes none.
    pub const VOID: Self = Self {
        mac: [0; 8],
        through: 0,
    };

    /// The word of the node whose key this is.
    #[must_use]
    pub fn new(key: &ControlKey, to: &Passage) -> Self {
        let mac = signed(key, to, [0; 8]);
        Self { mac, through: 0 }
    }

    /// The word of the node with this key that the one it has got is for another node. `None` if
    /// that one has come through another node itself, or is void: the result would be the node's
    /// own word.
    #[must_use]
    pub fn onward(self, key_id: u32, key: &ControlKey, to: &Passage) -> Option<Self> {
        let mac = signed(key, to, self.mac);
        let through = key_id;
        (self.through == 0 && self.mac != Self::VOID.mac).then_some(Self { mac, through })
    }

    /// The bytes that messages carry.
    #[must_use]
    pub fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let (mac, through) = bytes.split_at_mut(self.mac.len());
        mac.copy_from_slice(&self.mac);
        through.copy_from_slice(&self.through.to_be_bytes());
        bytes
    }

    /// Reads [`Self::encode`].
    pub(crate) fn restore(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mac = r.array("pass")?;
        let through = r.u32("key of the pass")?;
        Ok(Self { mac, through })
    }
}

/// `before` is the pass that the signing node has got itself, if it has.
fn signed(key: &ControlKey, to: &Passage, before: [u8; 8]) -> [u8; 8] {
    let mut bytes = Vec::with_capacity(72);
    for ip in [to.flow.client.ip(), to.flow.vip.ip(), to.via] {
        bytes.put(&ip_bytes(ip));
    }
    bytes.put(&to.epoch.to_be_bytes());
    bytes.put(&to.flow.client.port().to_be_bytes());
    bytes.put(&to.flow.vip.port().to_be_bytes());
    bytes.put(&[0; 4]);
    bytes.put(&before);
    key.mac(&bytes)
}
