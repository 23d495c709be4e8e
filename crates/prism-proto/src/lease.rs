//! Messages on a lease's connection (docs/protocol.md, section 1.7).

use std::net::{IpAddr, SocketAddr};

use crate::control::{ControlKey, FlowKey, MESSAGE_BYTES, Ops, Owner, Request, RunId, Term};
use crate::wire::{DecodeError, Reader};

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
    /// Most nodes place objects differently.
    Differs = 5,
    /// Most nodes place objects as this one does, or no placement is that of most nodes.
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

/// The `owner_port` in a lease's request of a run that speaks of terms.
pub const SPEAKS_OF_TERMS: u16 = 1;

/// The agent's news of its term, on the connection of each run that speaks of terms: at the start,
/// and after each change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermNotice {
    /// The switch's term.
    pub term: Term,
    /// All flows of living nodes are known.
    pub is_settled: bool,
}

impl TermNotice {
    /// Its length on the wire, its first byte among them.
    pub const BYTES: usize = 4;
    /// First byte of the notice of a young term.
    pub const YOUNG: u8 = 7;
    /// First byte of the notice of a settled term.
    pub const SETTLED: u8 = 8;

    /// The message.
    #[must_use]
    pub fn encode(self) -> [u8; Self::BYTES] {
        let code = if self.is_settled {
            Self::SETTLED
        } else {
            Self::YOUNG
        };
        let [_, high, middle, low] = self.term.0.to_be_bytes();
        [code, high, middle, low]
    }

    /// Reads a notice.
    pub fn decode(bytes: [u8; Self::BYTES]) -> Result<Self, DecodeError> {
        let [code, high, middle, low] = bytes;
        let is_settled = match code {
            Self::YOUNG => false,
            Self::SETTLED => true,
            _ => return Err(DecodeError::Invalid("term notice")),
        };
        let term = Term(u32::from_be_bytes([0, high, middle, low]));
        Ok(Self { term, is_settled })
    }
}

/// A run's message that it has announced all its flows in a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The term.
    pub term: Term,
    /// The number of runs of its process. The agent waits for as many of the node.
    pub runs: u16,
}

impl Done {
    /// Its length on the wire, its first byte among them.
    pub const BYTES: usize = 6;
    /// Its first byte.
    pub const CODE: u8 = 3;

    /// The message.
    #[must_use]
    pub fn encode(self) -> [u8; Self::BYTES] {
        let [_, high, middle, low] = self.term.0.to_be_bytes();
        let [runs_high, runs_low] = self.runs.to_be_bytes();
        [Self::CODE, high, middle, low, runs_high, runs_low]
    }

    /// Reads the message.
    pub fn decode(bytes: [u8; Self::BYTES]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(&bytes);
        if r.u8("code")? != Self::CODE {
            return Err(DecodeError::Invalid("code of a done message"));
        }
        let [high, middle, low] = r.array::<3>("term")?;
        let runs = r.u16("runs")?;
        match runs {
            0 => Err(DecodeError::Invalid("runs")),
            _ => Ok(Self {
                term: Term(u32::from_be_bytes([0, high, middle, low])),
                runs,
            }),
        }
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
    /// The greatest term that the node knows; `None` of a run that does not speak of terms.
    pub term: Option<Term>,
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
                addr: SocketAddr::new(self.node, self.term.map_or(0, |_| SPEAKS_OF_TERMS)),
                via: self.node,
            },
            run: self.run,
        };
        request.in_term(self.term.unwrap_or_default()).encode(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_terms_round_trip_and_others_are_refused() {
        for term in [Term(1), Term(0x01_02_03), Term::MAX] {
            for is_settled in [false, true] {
                let notice = TermNotice { term, is_settled };
                assert_eq!(TermNotice::decode(notice.encode()), Ok(notice));
            }
            let done = Done { term, runs: 700 };
            assert_eq!(Done::decode(done.encode()), Ok(done));
        }
        assert!(TermNotice::decode([6, 0, 0, 1]).is_err());
        assert!(Done::decode([Done::CODE, 0, 0, 1, 0, 0]).is_err());
        assert!(Done::decode([TAKES_NO_MORE, 0, 0, 1, 0, 1]).is_err());
    }
}
