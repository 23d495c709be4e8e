//! Messages between a node's process and its successor on the same host (docs/protocol.md, section
//! 4). Each is one packet of a Unix socket, and a socket that passes over travels with its packet.
//!
//! Not here: the order of a take-over ([`Predecessor`]), and the socket (`prism`).

mod predecessor;

use std::fmt;
use std::net::SocketAddr;

use zeroize::Zeroizing;

use crate::control::FlowKey;
use crate::facts::ClientFacts;
use crate::node::{MAX_SESSION_BYTES, TlsState};
use crate::wire::{DecodeError, Put, Reader};

pub use predecessor::{Action, Event, Predecessor};

/// The versions of the messages that this code speaks, the highest first.
pub const VERSIONS: &[u8] = &[2, 1];
/// The last version in which a connection has no [`ConnectionState::proxied`].
const WITHOUT_PROXIED: u8 = 1;
/// First four bytes of each message: "PTKO".
pub const MAGIC: u32 = 0x5054_4b4f;
/// The largest number of bytes of one message. It is well below the least buffer of a Unix socket
/// (`net.core.wmem_default`, 208 KiB), which has to take a whole packet.
pub const MAX_MESSAGE_BYTES: usize = 128 << 10;
/// The largest number of bytes of one buffer of a connection: three of them, and the fixed fields,
/// fit into a message. A waiting connection has at most a part of a TLS record, 17 KiB.
const MAX_BUFFER_BYTES: usize = 40 << 10;

const TYPE_LISTENER: u8 = 1;
const TYPE_PREPARE: u8 = 2;
const TYPE_PREPARED: u8 = 3;
const TYPE_GO: u8 = 4;
const TYPE_READY: u8 = 5;
const TYPE_CONNECTION: u8 = 6;
const TYPE_TAKEN: u8 = 7;
const TYPE_REFUSED: u8 = 8;
const TYPE_END: u8 = 9;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A listener, with its socket. The address is `None` for the admin socket.
    Listener(Option<SocketAddr>),
    /// All listeners have been sent; the successor is to load its configuration.
    Prepare,
    /// The successor could load its configuration.
    Prepared,
    /// The successor is to start, and may open the store.
    Go,
    /// The successor accepts connections.
    Ready,
    /// A client's connection, with its socket.
    Connection {
        /// Chosen by the sender; the answer repeats it.
        id: u64,
        /// Its state.
        state: Box<ConnectionState>,
    },
    /// The successor takes the connection, and has not touched its socket yet.
    Taken {
        /// The `id` of the connection.
        id: u64,
    },
    /// The successor does not take the connection, and has not touched its socket.
    Refused {
        /// The `id` of the connection.
        id: u64,
    },
    /// The predecessor has passed everything.
    End,
}

/// All of a client's connection but its socket, between two requests.
#[derive(Clone, PartialEq, Eq)]
pub struct ConnectionState {
    /// The client and the service.
    pub flow: FlowKey,
    /// The address that the socket is bound to.
    pub local: SocketAddr,
    /// The greatest epoch that was sent to the switch for the flow.
    pub epoch: Option<u64>,
    /// Whether the switch has confirmed a command for this connection.
    pub confirmed: bool,
    /// When the connection was accepted, by this host's `CLOCK_MONOTONIC`; 0 if it came otherwise.
    pub since_ns: u64,
    /// The number of moves since the client last got an answer.
    pub moves: u8,
    /// Name of the node that accepted the connection.
    pub origin: String,
    /// Whether no request on it was admitted yet.
    pub is_newcomer: bool,
    /// Bytes that were read and not consumed.
    pub input: Vec<u8>,
    /// Bytes that were written and the kernel never took.
    pub output: Vec<u8>,
    /// The TLS session, if there is one.
    pub tls: Option<TlsState>,
    /// The kernel's part of the session's output, if the kernel seals it.
    pub kernel: Option<KernelState>,
    /// The client, as a proxy has named it that is the other side of the connection; `None` also
    /// if one of the processes speaks version 1.
    pub proxied: Option<ClientFacts>,
}

/// The numbers by which a process follows the records that the kernel makes in a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelState {
    /// The bytes of a record beyond its plaintext.
    pub overhead_bytes: u64,
    /// The number of the kernel's first record.
    pub first_sequence: u64,
    /// The bytes that TCP had before that record.
    pub first_queued: u64,
    /// Plaintext that the kernel took.
    pub written: u64,
    /// The number of records that the key was good for at first.
    pub all_records: u64,
    /// A lower bound of the number that it is good for now.
    pub records_left: u64,
}

/// The highest version that is in both lists.
pub fn common_version(own: &[u8], theirs: &[u8]) -> Option<u8> {
    own.iter().copied().filter(|v| theirs.contains(v)).max()
}

impl fmt::Debug for ConnectionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionState")
            .field("client", &self.flow.client)
            .field("epoch", &self.epoch)
            .field("origin", &self.origin)
            .field("is_tls", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}

impl Message {
    /// The message in `version`, which is one of [`VERSIONS`].
    pub fn encode(&self, version: u8) -> Vec<u8> {
        // With its final capacity, because a buffer that grows leaves a copy of the secrets behind.
        let room = match self {
            Self::Connection { state, .. } => 512 + state.buffered_bytes(),
            _ => 64,
        };
        let mut out = Vec::with_capacity(room);
        out.put(&MAGIC.to_be_bytes());
        out.put(&[version, self.code()]);
        match self {
            Self::Listener(address) => {
                out.put(&[u8::from(address.is_some())]);
                if let Some(address) = address {
                    out.put_socket_addr(*address);
                }
            }
            Self::Connection { id, state } => {
                out.put(&id.to_be_bytes());
                state.save(version, &mut out);
            }
            Self::Taken { id } | Self::Refused { id } => out.put(&id.to_be_bytes()),
            Self::Prepare | Self::Prepared | Self::Go | Self::Ready | Self::End => {}
        }
        out
    }

    fn code(&self) -> u8 {
        match self {
            Self::Listener(_) => TYPE_LISTENER,
            Self::Prepare => TYPE_PREPARE,
            Self::Prepared => TYPE_PREPARED,
            Self::Go => TYPE_GO,
            Self::Ready => TYPE_READY,
            Self::Connection { .. } => TYPE_CONNECTION,
            Self::Taken { .. } => TYPE_TAKEN,
            Self::Refused { .. } => TYPE_REFUSED,
            Self::End => TYPE_END,
        }
    }

    /// Reads a message of `version`.
    pub fn decode(bytes: &[u8], version: u8) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes);
        r.magic(MAGIC, "magic")?;
        r.version(version, "version")?;
        let message = match r.u8("type")? {
            TYPE_LISTENER => Self::Listener(if r.bool("address")? {
                Some(r.socket_addr("listener")?)
            } else {
                None
            }),
            TYPE_PREPARE => Self::Prepare,
            TYPE_PREPARED => Self::Prepared,
            TYPE_GO => Self::Go,
            TYPE_READY => Self::Ready,
            TYPE_CONNECTION => Self::Connection {
                id: r.u64("id")?,
                state: Box::new(ConnectionState::restore(version, &mut r)?),
            },
            TYPE_TAKEN => Self::Taken { id: r.u64("id")? },
            TYPE_REFUSED => Self::Refused { id: r.u64("id")? },
            TYPE_END => Self::End,
            _ => return Err(DecodeError::Invalid("type")),
        };
        r.finish()?;
        Ok(message)
    }
}

impl ConnectionState {
    /// Whether a message can carry it.
    pub fn fits(&self) -> bool {
        let sealed = self.tls.as_ref().map_or(0, |tls| tls.sealed.len());
        let buffers = [self.input.len(), self.output.len(), sealed];
        buffers.iter().all(|bytes| *bytes <= MAX_BUFFER_BYTES)
    }

    fn buffered_bytes(&self) -> usize {
        let tls = self.tls.as_ref();
        let tls = tls.map_or(0, |tls| tls.session.len() + tls.sealed.len());
        self.input.len() + self.output.len() + tls
    }

    fn save(&self, version: u8, out: &mut Vec<u8>) {
        out.put_socket_addr(self.flow.client);
        out.put_socket_addr(self.flow.vip);
        out.put_socket_addr(self.local);
        out.put(&[u8::from(self.epoch.is_some())]);
        out.put(&self.epoch.unwrap_or_default().to_be_bytes());
        out.put(&[u8::from(self.confirmed)]);
        out.put(&self.since_ns.to_be_bytes());
        out.put(&[self.moves]);
        out.put_short_str(&self.origin);
        out.put(&[u8::from(self.is_newcomer)]);
        out.put_sized(&self.input);
        out.put_sized(&self.output);
        out.put(&[u8::from(self.tls.is_some())]);
        if let Some(tls) = &self.tls {
            out.put_sized(&tls.session);
            out.put_sized(&tls.sealed);
        }
        out.put(&[u8::from(self.kernel.is_some())]);
        if let Some(kernel) = &self.kernel {
            kernel.save(out);
        }
        if version > WITHOUT_PROXIED {
            out.put(&[u8::from(self.proxied.is_some())]);
            if let Some(proxied) = &self.proxied {
                proxied.put(out);
            }
        }
    }

    fn restore(version: u8, r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let flow = FlowKey {
            client: r.socket_addr("client")?,
            vip: r.socket_addr("service")?,
        };
        Ok(Self {
            flow,
            local: r.socket_addr("local address")?,
            epoch: match (r.bool("epoch")?, r.u64("epoch")?) {
                (true, epoch) => Some(epoch),
                (false, 0) => None,
                (false, _) => return Err(DecodeError::Invalid("epoch")),
            },
            confirmed: r.bool("confirmed")?,
            since_ns: r.u64("time")?,
            moves: r.u8("moves")?,
            origin: r.short_str("origin")?.to_owned(),
            is_newcomer: r.bool("newcomer")?,
            input: r.sized(MAX_BUFFER_BYTES, "input")?.to_vec(),
            output: r.sized(MAX_BUFFER_BYTES, "output")?.to_vec(),
            tls: if r.bool("TLS")? {
                Some(TlsState {
                    session: Zeroizing::new(r.sized(MAX_SESSION_BYTES, "TLS session")?.to_vec()),
                    sealed: r.sized(MAX_BUFFER_BYTES, "sealed input")?.to_vec(),
                })
            } else {
                None
            },
            kernel: if r.bool("kernel TLS")? {
                Some(KernelState::restore(r)?)
            } else {
                None
            },
            proxied: if version > WITHOUT_PROXIED && r.bool("proxied")? {
                Some(ClientFacts::read(r)?)
            } else {
                None
            },
        })
    }
}

impl KernelState {
    fn save(&self, out: &mut Vec<u8>) {
        for number in [
            self.overhead_bytes,
            self.first_sequence,
            self.first_queued,
            self.written,
            self.all_records,
            self.records_left,
        ] {
            out.put(&number.to_be_bytes());
        }
    }

    fn restore(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            overhead_bytes: r.u64("overhead")?,
            first_sequence: r.u64("first record")?,
            first_queued: r.u64("queued bytes")?,
            written: r.u64("written bytes")?,
            all_records: r.u64("records of the key")?,
            records_left: r.u64("records left")?,
        })
    }
}

#[cfg(test)]
#[path = "succession/message_tests.rs"]
mod tests;
