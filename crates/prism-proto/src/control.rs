//! The control protocol between hosts and the switch: one fixed layout of 120 bytes
//! (docs/protocol.md, section 1). The C side is `bpf/wire.h`; the build of `prism-switch` fails if
//! the two disagree.
//!
//! Not here: when a command is sent (`steering`), and what it does to the flow table
//! (`bpf/command.h`, and `tools/reference` for tests).

mod codec;
mod pass;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use siphasher::sip::SipHasher24;
use zeroize::ZeroizeOnDrop;

use crate::wire::{DecodeError, ip_bytes};

pub use pass::{Pass, Passage};

/// Size of every control datagram, in either direction.
pub const MESSAGE_BYTES: usize = 120;
/// First four bytes of every control datagram: "PRSM".
pub const MAGIC: u32 = 0x5052_534d;
/// Version of the layout.
pub const VERSION: u8 = 2;
/// `kind` of a request.
pub const KIND_REQUEST: u8 = 1;
/// `kind` of an answer.
pub const KIND_ANSWER: u8 = 2;
/// The largest difference of a request's `time_ns` from the switch's clock.
pub const FRESHNESS_NS: u64 = 2_000_000_000;
/// The furthest that an epoch may be ahead of the switch's clock. A connection's first epoch is the
/// sender's estimate of that clock, which is no further off in a fresh request.
pub const MAX_EPOCH_AHEAD_NS: u64 = FRESHNESS_NS;
/// The furthest that a command may go beyond the flow's own epoch if that is ahead of the clock, so
/// that such a flow can be released. At 1 µs for a command no sender outruns the clock.
pub const MAX_EPOCH_STEP: u64 = 1_000;
/// The longest time from a connection's first epoch to the last datagram of its first command: a
/// block and its undoing, with room to spare.
pub const FIRST_COMMAND_NS: u64 = 1_000_000_000;
/// The lifetime of a tombstone. When the switch deletes one, its epoch becomes the least that any
/// unknown flow takes. By then, the newest epoch of a tombstone has to be older than the first
/// epoch of any living connection.
pub const TOMBSTONE_NS: u64 = MAX_EPOCH_AHEAD_NS + FRESHNESS_NS + FIRST_COMMAND_NS;

/// Byte offsets of the fields from `kind` to the MAC, for the compile-time check against C.
pub const OFFSETS: [usize; 16] = [
    5, 6, 7, 8, 12, 16, 24, 32, 40, 56, 72, 88, 104, 106, 108, 110,
];
/// Byte offset of the term's 3 bytes.
pub const TERM_AT: usize = 13;
/// Bytes before the MAC, which it covers.
pub const SIGNED_BYTES: usize = 112;

/// The secret that a host shares with the switch.
#[derive(Clone, PartialEq, Eq, ZeroizeOnDrop)]
pub struct ControlKey([u8; 16]);

impl ControlKey {
    /// Wraps the 16 bytes of a SipHash key.
    pub fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The key's bytes, for the switch's map of senders.
    pub fn expose_secret(&self) -> &[u8; 16] {
        &self.0
    }

    fn mac(&self, bytes: &[u8]) -> [u8; 8] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(bytes);
        hasher.finish().to_be_bytes()
    }
}

impl fmt::Debug for ControlKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ControlKey(..)")
    }
}

/// A set of operation bits.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Ops(pub u8);

impl Ops {
    /// No operation: a query.
    pub const QUERY: Self = Self(0);
    /// Drop the flow's packets.
    pub const BLOCK: Self = Self(1);
    /// The flow belongs to the given owner.
    pub const OWN: Self = Self(2);
    /// Let the flow's packets pass.
    pub const UNBLOCK: Self = Self(4);
    /// Forget the flow.
    pub const RELEASE: Self = Self(8);
    /// The command states what its sender owns, and asks for no decision ([`crate::term`]).
    pub const ANNOUNCE: Self = Self(16);
    /// With `OWN`: the address of the owner's socket gives way to a [`Pass`]. Only the bytes of a
    /// message have it.
    pub const PASS: Self = Self(32);

    /// Both sets together.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Without the bits of `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// All bits of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl fmt::Debug for Ops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (1, "block"),
            (2, "own"),
            (4, "unblock"),
            (8, "release"),
            (16, "announce"),
            (32, "pass"),
        ];
        let set = names.iter().filter(|(bit, _)| self.0 & bit != 0);
        let set: Vec<&str> = set.map(|(_, name)| *name).collect();
        write!(f, "Ops({}: {})", self.0, set.join(" "))
    }
}

/// A flow as the client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowKey {
    /// The client's address and port.
    pub client: SocketAddr,
    /// The service's address and port.
    pub vip: SocketAddr,
}

/// Hashes in one piece. A hand-off looks up half a dozen tables, and each piece takes a call of the
/// hasher.
impl Hash for FlowKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut bytes = [0; 36];
        let (ips, ports) = bytes.split_at_mut(32);
        let (client, vip) = ips.split_at_mut(16);
        client.copy_from_slice(&ip_bytes(self.client.ip()));
        vip.copy_from_slice(&ip_bytes(self.vip.ip()));
        let both = u32::from(self.client.port()) << 16 | u32::from(self.vip.port());
        ports.copy_from_slice(&both.to_be_bytes());
        state.write(&bytes);
    }
}

/// The destination of a flow's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The address that the owner's socket is bound to: at a frontend, the VIP.
    pub addr: SocketAddr,
    /// The node to send the packets to.
    pub via: IpAddr,
}

impl Owner {
    /// No owner: the fields of a request without `OWN`.
    pub const NONE: Self = Self {
        addr: SocketAddr::new(UNSPECIFIED, 0),
        via: UNSPECIFIED,
    };
}

/// All zeros on the wire.
const UNSPECIFIED: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// One run of a sender of commands: a random number for each control socket of a process. A flow's
/// owner names its run, so that the flows of a dead run can be told from those of the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(pub u16);

impl RunId {
    /// No run: the flow is not tied to a lease.
    pub const NONE: Self = Self(0);
}

/// A term of a switch: a time for which one flow table decides. The number grows with each new
/// table, and whenever another switch takes over. On the wire it has 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Term(pub u32);

impl Term {
    /// No term: of a switch or a node that has none, or of a node that has not heard of one.
    pub const NONE: Self = Self(0);
    /// The last term. At one a minute it comes after 31 years.
    pub const MAX: Self = Self(0xff_ffff);

    /// The term after this one; `None`: all terms are used up.
    #[must_use]
    pub const fn next(self) -> Option<Self> {
        if self.0 < Self::MAX.0 {
            Some(Self(self.0 + 1))
        } else {
            None
        }
    }
}

/// A message with the term that it belongs to. In a request, this is the last term in which the
/// switch confirmed the flow to its sender, or the sender's present one. Plain messages have
/// [`Term::NONE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamped<M> {
    /// The term.
    pub term: Term,
    /// The message.
    pub message: M,
}

/// Asks the switch about a flow, or tells it what the flow is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The identifier of the key that makes the MAC.
    pub key_id: u32,
    /// Chosen by the sender; the answer repeats it.
    pub request_id: u64,
    /// The sender's estimate of the switch's clock.
    pub time_ns: u64,
    /// The operations.
    pub ops: Ops,
    /// The order of this command among those of the flow.
    pub epoch: u64,
    /// The flow.
    pub flow: FlowKey,
    /// The owner, with `OWN`; otherwise [`Owner::NONE`].
    pub owner: Owner,
    /// The owner's run, if the flow is to be tied to its lease.
    pub run: RunId,
}

/// The state of a flow at the switch. The numbers are the codes on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowState {
    /// No entry: its packets go to a frontend.
    Absent = 0,
    /// Packets pass.
    Forward = 1,
    /// Packets are dropped.
    Blocked = 2,
}

/// Outcome of a command (docs/protocol.md, section 1.4). The numbers are the codes on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Done, or already so.
    Ok = 1,
    /// A newer or different command won.
    Stale = 2,
    /// The flow table has no room.
    Full = 3,
    /// VIP or owner are not of this key's tenant.
    Denied = 4,
    /// No such service.
    NoService = 5,
    /// `time_ns` is too far off.
    Late = 6,
    /// The request has no meaning.
    BadRequest = 7,
    /// The epoch is further ahead of the switch's clock than a sender's can be.
    Ahead = 8,
    /// The switch does not know all flows yet, and decides nothing ([`crate::term`]).
    Young = 9,
    /// The command is from before the switch's present term.
    OldTerm = 10,
}

/// The switch's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Outcome.
    pub status: Status,
    /// The flow's state now.
    pub state: FlowState,
    /// The switch's clock.
    pub time_ns: u64,
    /// The flow's epoch now.
    pub epoch: u64,
    /// The flow's owner now; [`Owner::NONE`] when absent.
    pub owner: Owner,
    /// Copied from the request.
    pub key_id: u32,
    /// Copied from the request.
    pub request_id: u64,
    /// Copied from the request.
    pub ops: Ops,
    /// Copied from the request.
    pub flow: FlowKey,
}

/// The reason why a datagram is no authentic control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// It is no control message of this version and kind.
    #[error("malformed control message: {0}")]
    Malformed(#[from] DecodeError),
    /// It carries another key's identifier.
    #[error("control message under unknown key {0}")]
    UnknownKey(u32),
    /// Its MAC is wrong.
    #[error("control message with a wrong MAC")]
    Forged,
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
