//! Messages on a lease's connection (docs/protocol.md, section 1.7).

use std::net::{IpAddr, SocketAddr};

use crate::control::{ControlKey, FlowKey, MESSAGE_BYTES, Ops, Owner, Request, RunId};

/// The length of the challenge, a random number that the agent sends first.
pub const CHALLENGE_BYTES: usize = 8;
/// The last byte of a run that ends in order.
pub const LEAVING: u8 = 1;
/// The announcement of a run that it takes no new clients. Its node gets none, unless another run
/// of it takes them.
pub const TAKES_NO_MORE: u8 = 2;

/// The agent's answer to [`TAKES_NO_MORE`]: one byte, sent once on each connection that
/// carried the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NewClients {
    /// The lists of frontends no longer send the node new clients.
    GoElsewhere = 3,
    /// No other frontend can take them, so the lists stay as they are.
    HaveNobodyElse = 4,
}

impl NewClients {
    /// The answer that `byte` stands for, if it is one.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        [Self::GoElsewhere, Self::HaveNobodyElse]
            .into_iter()
            .find(|answer| *answer as u8 == byte)
    }
}

/// The digest of a node whose placement is not compared.
pub const NO_DIGEST: u64 = 0;

/// The agent's verdict on a node's placement. Each lease's connection carries one byte, and
/// one more after each change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PlacementVerdict {
    /// Most nodes place objects differently, or no placement is that of most nodes.
    Differs = 5,
    /// Most nodes place objects as this one does.
    Agrees = 6,
}

impl PlacementVerdict {
    /// The verdict that `byte` stands for, if it is one.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        [Self::Differs, Self::Agrees]
            .into_iter()
            .find(|verdict| *verdict as u8 == byte)
    }
}

/// A request for a lease.
#[derive(Clone, Copy, Debug)]
pub struct LeaseRequest {
    /// The agent's challenge.
    pub challenge: [u8; CHALLENGE_BYTES],
    /// Address of the node.
    pub node: IpAddr,
    /// The run of the node that lives.
    pub run: RunId,
    /// Digest of the node's placement, or [`NO_DIGEST`].
    pub digest: u64,
}

impl LeaseRequest {
    /// The message, under `key`.
    #[must_use]
    pub fn encode(&self, key_id: u32, key: &ControlKey) -> [u8; MESSAGE_BYTES] {
        let request = Request {
            key_id,
            request_id: u64::from_be_bytes(self.challenge),
            time_ns: 0,
            ops: Ops::QUERY,
            epoch: self.digest,
            flow: FlowKey {
                client: Owner::NONE.addr,
                vip: Owner::NONE.addr,
            },
            owner: Owner {
                addr: SocketAddr::new(self.node, 0),
                via: self.node,
            },
            run: self.run,
        };
        request.encode(key)
    }
}
