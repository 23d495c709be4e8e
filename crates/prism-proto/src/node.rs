//! Messages between nodes (docs/protocol.md, section 2): frames on a mutually authenticated TLS
//! connection, which carry whole connections.
//!
//! Not here: the TLS connection (`prism-handoff`), and the order of a hand-off ([`crate::export`],
//! [`crate::import`]).

use std::fmt;
use std::net::IpAddr;

use zeroize::Zeroizing;

use crate::control::Pass;
use crate::facts::ClientFacts;
use crate::tcp_state::{MAX_QUEUE_BYTES, TcpState};
use crate::wire::{DecodeError, Put, Reader, ip_bytes};

/// ALPN of connections that carry hand-offs.
pub const ALPN_HAND_OFF: &[u8] = b"prism-handoff/5";
/// The same with the former context of a request.
pub const ALPN_FORMER_CONTEXT: &[u8] = b"prism-handoff/4";
/// The same without passes, as the release before this one speaks it.
const ALPN_WITHOUT_PASSES: &[u8] = b"prism-handoff/3";
/// ALPN of connections that carry relayed requests.
pub const ALPN_RELAY: &[u8] = b"prism-relay/2";
/// The same with the former preamble.
const ALPN_FORMER_PREAMBLE: &[u8] = b"prism-relay/1";
/// The versions of the protocol of hand-offs that this code speaks, the highest first. Two nodes
/// use the highest common one. A release speaks those of the release before it too.
pub const HAND_OFF_VERSIONS: &[&[u8]] = &[ALPN_HAND_OFF, ALPN_FORMER_CONTEXT, ALPN_WITHOUT_PASSES];
/// The same for relayed requests.
pub const RELAY_VERSIONS: &[&[u8]] = &[ALPN_RELAY, ALPN_FORMER_PREAMBLE];
/// Bytes of the length that precedes each frame.
pub const FRAME_PREFIX_BYTES: usize = 4;
/// First four bytes of a connection's state: "PHST".
pub const STATE_MAGIC: u32 = 0x5048_5354;
/// Version of the connection's state.
pub const STATE_VERSION: u8 = 3;
/// Version of the state of a connection whose client a proxy has named.
pub const PROXIED_STATE_VERSION: u8 = 4;
/// The names that two nodes compare before they freeze a connection fix the layouts behind them. A
/// change of a layout needs a new name.
const _: () = {
    let hand_off = ALPN_HAND_OFF;
    let relay = ALPN_RELAY;
    assert!(matches!(hand_off, b"prism-handoff/5"));
    assert!(STATE_VERSION == 3 && PROXIED_STATE_VERSION == 4);
    assert!(matches!(relay, b"prism-relay/2") && crate::relay::VERSION == 5);
    assert!(crate::facts::VERSION == 4);
};
/// The largest number of moves between two answers to the client. A request needs one, or two if
/// nodes return connections. A change of the cluster's view and a leaving node add one each. The
/// limit is twice that; beyond it the nodes disagree who is to answer.
pub const MAX_MOVES: u8 = 8;
/// The largest number of bytes that the source has read and not consumed: a whole request head, and
/// one read of 256 KiB behind it.
pub const MAX_INPUT_BYTES: usize = 512 << 10;
/// The largest number of bytes of the application's context.
pub const MAX_CONTEXT_BYTES: usize = 4 << 10;
/// The largest number of bytes of a TLS session's state.
pub const MAX_SESSION_BYTES: usize = 512;
/// The largest number of bytes of one frame. It is the sum of the limits of a hand-off's parts:
/// three queues, output, input, sealed input, context, session, and the fixed fields.
pub const MAX_FRAME_BYTES: usize =
    4 * MAX_QUEUE_BYTES + 2 * MAX_INPUT_BYTES + MAX_CONTEXT_BYTES + MAX_SESSION_BYTES + (4 << 10);

const TYPE_HAND_OFF: u8 = 1;
const TYPE_ACCEPTED: u8 = 2;
const TYPE_REFUSED: u8 = 3;
const TYPE_UNKNOWN: u8 = 4;
const TYPE_ASK: u8 = 5;
const TYPE_LEAVING: u8 = 6;
const TYPE_HEARD: u8 = 7;
const TYPE_HAND_OFF_WITH_PASS: u8 = 8;
const TYPE_REFUSED_WITH_PASS: u8 = 9;

/// A live connection on its way to another node.
#[derive(Clone, PartialEq, Eq)]
pub struct HandOff {
    /// Chosen by the source; the verdict repeats it.
    pub id: u64,
    /// Epoch at which the target is to own the flow.
    pub epoch: u64,
    /// The number of moves since the client last got an answer, this one included.
    pub moves: u8,
    /// Name of the frontend that accepted the connection.
    pub origin: String,
    /// Bytes for the target's application.
    pub context: Vec<u8>,
    /// Bytes that the source read and did not consume, as plaintext of a TLS session. They precede
    /// `tcp.received`.
    pub input: Vec<u8>,
    /// Bytes that the source's application wrote and the kernel never took; of a TLS session,
    /// records. They follow `tcp.unsent`.
    pub output: Vec<u8>,
    /// The TLS session, if there is one.
    pub tls: Option<TlsState>,
    /// The TCP connection.
    pub tcp: TcpState,
    /// The client, as the proxy has named it that is the other side of `tcp`. Only nodes that speak
    /// [`ALPN_HAND_OFF`] read it.
    pub proxied: Option<ClientFacts>,
    /// The target needs it to take the flow, if the switch asks for it.
    pub permit: Option<Permit>,
}

/// The source's word that the target may take the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    /// For the target's `OWN`.
    pub pass: Pass,
    /// The source's address. A target that refuses sends a pass for it.
    pub source: IpAddr,
}

/// A TLS session that moves with its connection. Opaque here, and wiped when
/// dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsState {
    /// The session's state with its secrets (docs/protocol.md, section 2.5).
    pub session: Zeroizing<Vec<u8>>,
    /// Records that the source read and did not open, the last one perhaps in part. They follow
    /// `input` and precede `tcp.received`.
    pub sealed: Vec<u8>,
}

/// The reason of a refusal. The numbers are the codes on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The target cannot decode the message.
    Malformed = 1,
    /// The target has as many connections as it may have.
    Busy = 2,
    /// The target's kernel did not build the socket.
    RestoreFailed = 3,
    /// The switch says that the flow belongs to another.
    Stale = 4,
    /// The switch refused the target's command, or did not answer.
    SwitchFailed = 5,
    /// The target does not take this connection: it has another role, or is stopping.
    Unwilling = 6,
}

impl Refusal {
    const ALL: [Self; 6] = [
        Self::Malformed,
        Self::Busy,
        Self::RestoreFailed,
        Self::Stale,
        Self::SwitchFailed,
        Self::Unwilling,
    ];
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A connection for the receiver.
    HandOff(Box<HandOff>),
    /// The sender owns the flow, and its socket is live.
    Accepted {
        /// The `id` of the hand-off.
        id: u64,
        /// The target's processor time, in nanoseconds; 0 if it was not measured.
        spent_ns: u32,
    },
    /// The sender has passed the hand-off on, or was asked, and does not know the outcome. The
    /// switch knows it.
    Unknown {
        /// The `id` of the hand-off.
        id: u64,
    },
    /// The sender has not taken the connection and never will.
    Refused {
        /// The `id` of the hand-off.
        id: u64,
        /// The reason.
        reason: Refusal,
        /// The switch may have the flow as the sender's; the source may take it back.
        pass: Option<Pass>,
    },
    /// A question of a source whose verdict has not come: has the receiver given the connection up?
    Ask {
        /// The `id` of the hand-off.
        id: u64,
    },
    /// The sender is about to stop. It takes no connection, and others should be asked first. This
    /// holds until the channel ends.
    Leaving {
        /// Chosen by the sender; the answer repeats it.
        id: u64,
    },
    /// The answer to `Leaving`: the sender has no request on a used relay stream to the receiver.
    Heard {
        /// The `id` of the `Leaving` frame that is acknowledged.
        id: u64,
    },
}

impl fmt::Debug for HandOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandOff")
            .field("id", &self.id)
            .field("epoch", &self.epoch)
            .field("origin", &self.origin)
            .field("client", &self.tcp.remote)
            .field("input_bytes", &self.input.len())
            .field("output_bytes", &self.output.len())
            .field("is_tls", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}

impl Frame {
    /// The frame with its length before it.
    pub fn encode(&self) -> Vec<u8> {
        if let Self::HandOff(hand_off) = self {
            return hand_off.frame();
        }
        let (frame_type, id) = self.head();
        let mut out = vec![0; FRAME_PREFIX_BYTES];
        out.put(&[frame_type]);
        out.put(&id.to_be_bytes());
        match self {
            Self::Accepted { spent_ns, .. } => out.put(&spent_ns.to_be_bytes()),
            Self::Refused { reason, pass, .. } => {
                out.put(&[*reason as u8]);
                if let Some(pass) = pass {
                    out.put(&pass.encode());
                }
            }
            _ => {}
        }
        with_length(out)
    }

    /// The type on the wire, and the identifier.
    fn head(&self) -> (u8, u64) {
        match self {
            Self::HandOff(hand_off) => (hand_off.frame_type(), hand_off.id),
            Self::Accepted { id, .. } => (TYPE_ACCEPTED, *id),
            Self::Refused { id, pass: None, .. } => (TYPE_REFUSED, *id),
            Self::Refused { id, .. } => (TYPE_REFUSED_WITH_PASS, *id),
            Self::Unknown { id } => (TYPE_UNKNOWN, *id),
            Self::Ask { id } => (TYPE_ASK, *id),
            Self::Leaving { id } => (TYPE_LEAVING, *id),
            Self::Heard { id } => (TYPE_HEARD, *id),
        }
    }

    /// The length of the first frame in `buffer` without its prefix; `None` while the prefix is
    /// incomplete.
    pub fn announced_len(buffer: &[u8]) -> Result<Option<usize>, DecodeError> {
        let Some(prefix) = buffer.first_chunk::<FRAME_PREFIX_BYTES>() else {
            return Ok(None);
        };
        let len = u32::from_be_bytes(*prefix) as usize;
        if len > MAX_FRAME_BYTES {
            return Err(DecodeError::TooLong("frame"));
        }
        Ok(Some(len))
    }

    /// Reads one frame, without its prefix.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes);
        let frame_type = r.u8("frame type")?;
        let id = r.u64("id")?;
        let frame = match frame_type {
            TYPE_HAND_OFF | TYPE_HAND_OFF_WITH_PASS => {
                let permit = match frame_type {
                    TYPE_HAND_OFF => None,
                    _ => Some(Permit {
                        pass: Pass::restore(&mut r)?,
                        source: r.ip("source")?,
                    }),
                };
                Self::HandOff(Box::new(HandOff::restore(id, permit, &mut r)?))
            }
            TYPE_ACCEPTED => {
                let spent_ns = r.u32("time spent")?;
                Self::Accepted { id, spent_ns }
            }
            TYPE_REFUSED | TYPE_REFUSED_WITH_PASS => {
                let reason = r.one_of(Refusal::ALL, |reason| reason as u8, "reason")?;
                let pass = match frame_type {
                    TYPE_REFUSED => None,
                    _ => Some(Pass::restore(&mut r)?),
                };
                Self::Refused { id, reason, pass }
            }
            TYPE_UNKNOWN => Self::Unknown { id },
            TYPE_ASK => Self::Ask { id },
            TYPE_LEAVING => Self::Leaving { id },
            TYPE_HEARD => Self::Heard { id },
            _ => return Err(DecodeError::Invalid("frame type")),
        };
        r.finish()?;
        Ok(frame)
    }

    /// The identifier of a hand-off frame whose body cannot be decoded, for the refusal.
    pub fn peek_hand_off_id(bytes: &[u8]) -> Option<u64> {
        let mut r = Reader::new(bytes);
        let frame_type = r.u8("frame type").ok()?;
        matches!(frame_type, TYPE_HAND_OFF | TYPE_HAND_OFF_WITH_PASS).then_some(())?;
        r.u64("id").ok()
    }
}

/// Fills in the length in front of a frame.
fn with_length(mut frame: Vec<u8>) -> Vec<u8> {
    let len = u32::try_from(frame.len() - FRAME_PREFIX_BYTES).unwrap_or(u32::MAX);
    if let Some(prefix) = frame.first_chunk_mut::<FRAME_PREFIX_BYTES>() {
        *prefix = len.to_be_bytes();
    }
    frame
}

impl HandOff {
    /// The frame that carries this hand-off, with its length before it.
    pub fn frame(&self) -> Vec<u8> {
        let tls = self.tls.as_ref();
        // With its final capacity, because a buffer that grows leaves a copy of the secrets behind.
        let parts = [&self.context, &self.input, &self.output].map(Vec::len);
        let room = 512
            + self.origin.len()
            + parts.iter().sum::<usize>()
            + tls.map_or(0, |tls| tls.session.len() + tls.sealed.len())
            + self.tcp.queued_bytes();
        let mut out = Vec::with_capacity(room);
        out.put(&[0; FRAME_PREFIX_BYTES]);
        out.put(&[self.frame_type()]);
        self.save(&mut out);
        debug_assert!(out.len() <= room);
        with_length(out)
    }

    fn frame_type(&self) -> u8 {
        match self.permit {
            None => TYPE_HAND_OFF,
            Some(_) => TYPE_HAND_OFF_WITH_PASS,
        }
    }

    fn save(&self, out: &mut Vec<u8>) {
        out.put(&self.id.to_be_bytes());
        if let Some(permit) = &self.permit {
            out.put(&permit.pass.encode());
            out.put(&ip_bytes(permit.source));
        }
        out.put(&STATE_MAGIC.to_be_bytes());
        let version = match self.proxied {
            None => STATE_VERSION,
            Some(_) => PROXIED_STATE_VERSION,
        };
        out.put(&[version]);
        out.put(&self.epoch.to_be_bytes());
        out.put(&[self.moves]);
        out.put_short_str(&self.origin);
        out.put_sized(&self.context);
        out.put_sized(&self.input);
        out.put_sized(&self.output);
        match &self.tls {
            None => out.put(&[0]),
            Some(tls) => {
                out.put(&[1]);
                out.put_sized(&tls.session);
                out.put_sized(&tls.sealed);
            }
        }
        self.tcp.save(out);
        if let Some(proxied) = &self.proxied {
            proxied.put(out);
        }
    }

    fn restore(id: u64, permit: Option<Permit>, r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        r.magic(STATE_MAGIC, "state magic")?;
        let is_proxied = match r.u8("state version")? {
            STATE_VERSION => false,
            PROXIED_STATE_VERSION => true,
            found => {
                let expected = STATE_VERSION;
                return Err(DecodeError::Version { found, expected });
            }
        };
        Ok(Self {
            id,
            epoch: r.u64("epoch")?,
            moves: r.u8("moves")?,
            origin: r.short_str("origin")?.to_owned(),
            context: r.sized(MAX_CONTEXT_BYTES, "context")?.to_vec(),
            input: r.sized(MAX_INPUT_BYTES, "input")?.to_vec(),
            output: r.sized(MAX_QUEUE_BYTES, "output")?.to_vec(),
            tls: match r.u8("TLS")? {
                0 => None,
                1 => Some(TlsState {
                    session: Zeroizing::new(r.sized(MAX_SESSION_BYTES, "TLS session")?.to_vec()),
                    sealed: r.sized(MAX_INPUT_BYTES, "sealed input")?.to_vec(),
                }),
                _ => return Err(DecodeError::Invalid("TLS")),
            },
            tcp: TcpState::restore(r)?,
            proxied: is_proxied.then(|| ClientFacts::read(r)).transpose()?,
            permit,
        })
    }
}

#[cfg(test)]
#[path = "node/node_tests.rs"]
mod tests;
