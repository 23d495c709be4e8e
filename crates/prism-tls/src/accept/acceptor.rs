//! The handshake of one connection: a state that each step consumes.

use std::fmt;

use rustls::{HandshakeKind, ServerConnection};

use super::config::ServerConfig;
use super::error::AcceptError;
use super::frame::{Frame, MAX_HANDSHAKE_BYTES, frame, opens_http, opens_tls};
use crate::capture::Capture;
use crate::keys::SessionKeys;
use crate::session::HEADER_BYTES;

/// A handshake that waits for the client.
#[must_use = "a handshake goes on only with the client's next bytes"]
pub struct Acceptor(Box<Handshake>);

/// The outcome of the client's bytes.
#[derive(Debug)]
#[must_use = "a step may carry bytes that must be sent"]
pub enum Step {
    /// The handshake goes on.
    Wait {
        /// The handshake, for the next bytes.
        acceptor: Acceptor,
        /// Bytes to send to the client first, which may be none.
        output: Vec<u8>,
    },
    /// The session is established, and rustls is gone.
    Established(Established),
    /// There will be no session.
    Failed(Failure),
    /// The client does not speak TLS.
    NotTls(NotTls),
}

/// An established session.
#[derive(Debug)]
pub struct Established {
    /// Bytes to send before any record under `keys`, which may be none.
    pub output: Vec<u8>,
    /// Secrets and sequence numbers. These count the tickets in `output`.
    pub keys: SessionKeys,
    /// Records that the client sent behind the handshake, still sealed. The last may be
    /// incomplete.
    pub unread: Vec<u8>,
    /// The host name that the client asked for, in lower case.
    pub server_name: Option<String>,
    /// The application protocol, or `None` if the client named none.
    pub alpn: Option<Vec<u8>>,
    /// IANA's name of the cipher suite, for logs and counters.
    pub cipher_suite: &'static str,
    /// Whether a ticket saved the full handshake.
    pub resumed: bool,
}

/// A handshake that failed.
#[derive(Debug)]
pub struct Failure {
    /// Bytes to send before closing: those that were due, and an alert. They are none if there
    /// is nothing to tell the client.
    pub output: Vec<u8>,
    /// The error, which names who is at fault.
    pub error: AcceptError,
}

/// A client that does not speak TLS.
#[derive(Debug, PartialEq, Eq)]
pub struct NotTls {
    /// Whether this may be an HTTP request in the clear, so that an answer in the clear helps.
    pub http: bool,
    /// All that the client sent.
    pub unread: Vec<u8>,
}

struct Handshake {
    connection: ServerConnection,
    capture: Capture,
    /// Less than one record, between two steps.
    pending: Vec<u8>,
    /// Bytes of all records that rustls got.
    taken_bytes: usize,
    /// Whether bytes were sent; then an alert may have to be sealed.
    answered: bool,
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acceptor")
            .field("pending_bytes", &self.0.pending.len())
            .field("taken_bytes", &self.0.taken_bytes)
            .finish_non_exhaustive()
    }
}

impl Acceptor {
    /// The handshake of a new connection, under the present certificates and settings.
    ///
    /// # Errors
    /// If rustls refuses its configuration, which [`ServerConfig`] rules out.
    pub fn new(config: &ServerConfig) -> Result<Self, AcceptError> {
        let capture = Capture::default();
        let connection =
            ServerConnection::new(config.with_capture(&capture)).map_err(AcceptError::Local)?;
        Ok(Self(Box::new(Handshake {
            connection,
            capture,
            pending: Vec::new(),
            taken_bytes: 0,
            answered: false,
        })))
    }

    /// Takes bytes of the client, which may be cut anywhere. They are copied, so the caller
    /// must limit how many it reads at once.
    pub fn receive(mut self, input: &[u8]) -> Step {
        self.0.pending.extend_from_slice(input);
        if let Some(not_tls) = self.0.not_tls() {
            return Step::NotTls(not_tls);
        }
        let mut output = Vec::new();
        match self.0.advance(&mut output) {
            Ok(false) => Step::Wait {
                acceptor: self,
                output,
            },
            Ok(true) => self.0.finish(output),
            Err(error) => {
                if !self.0.answered {
                    output.extend_from_slice(error.plain_alert());
                }
                Step::Failed(Failure { output, error })
            }
        }
    }
}

impl Handshake {
    fn not_tls(&mut self) -> Option<NotTls> {
        let &first = self.pending.first()?;
        if self.taken_bytes > 0 || opens_tls(first) {
            return None;
        }
        Some(NotTls {
            http: opens_http(first),
            unread: std::mem::take(&mut self.pending),
        })
    }

    /// Feeds rustls whole records until it needs more or has finished. Returns whether it has
    /// finished.
    fn advance(&mut self, output: &mut Vec<u8>) -> Result<bool, AcceptError> {
        let pending = std::mem::take(&mut self.pending);
        let mut rest = pending.as_slice();
        let finished = loop {
            let (record, tail) = match frame(rest) {
                Frame::Record(bytes) => rest.split_at_checked(bytes).unwrap_or((rest, &[])),
                Frame::Broken => {
                    let header = rest.get(..HEADER_BYTES).unwrap_or(rest);
                    return Err(self.refuse(header, output));
                }
                Frame::Partial => break false,
            };
            self.count(record.len())?;
            self.feed(record, output)?;
            rest = tail;
            if !self.connection.is_handshaking() && !self.connection.wants_write() {
                break true;
            }
        };
        if !finished {
            // A client that begins a record past the limit is refused before its end.
            self.check_limit(rest.len())?;
        }
        self.pending = rest.to_vec();
        Ok(finished)
    }

    fn count(&mut self, record_bytes: usize) -> Result<(), AcceptError> {
        self.check_limit(record_bytes)?;
        self.taken_bytes += record_bytes;
        Ok(())
    }

    fn check_limit(&self, more_bytes: usize) -> Result<(), AcceptError> {
        if self.taken_bytes + more_bytes > MAX_HANDSHAKE_BYTES {
            return Err(AcceptError::TooLong);
        }
        Ok(())
    }

    /// Has rustls refuse a broken header: it knows the alert, and whether to seal it.
    fn refuse(&mut self, header: &[u8], output: &mut Vec<u8>) -> AcceptError {
        self.feed(header, output)
            .err()
            .unwrap_or(AcceptError::BadRecord)
    }

    /// Gives rustls one record, and collects its answer, alerts included.
    fn feed(&mut self, record: &[u8], output: &mut Vec<u8>) -> Result<(), AcceptError> {
        let fed = self.read(record);
        while self.connection.wants_write() {
            // Writing to a vector does not fail; an error is one of rustls.
            if self.connection.write_tls(output).is_err() {
                return Err(AcceptError::NoSecrets);
            }
            self.answered = true;
        }
        fed
    }

    fn read(&mut self, mut record: &[u8]) -> Result<(), AcceptError> {
        while !record.is_empty() {
            // rustls takes a long record in pieces, and nothing after a close_notify.
            match self.connection.read_tls(&mut record) {
                Ok(0) => return Err(AcceptError::Closed),
                Ok(_) => {}
                Err(_) => return Err(AcceptError::TooLong),
            }
            if self.connection.process_new_packets()?.peer_has_closed() {
                return Err(AcceptError::Closed);
            }
        }
        Ok(())
    }

    fn finish(self, output: Vec<u8>) -> Step {
        match self.established() {
            Ok(established) => Step::Established(Established {
                output,
                ..established
            }),
            Err(error) => Step::Failed(Failure { output, error }),
        }
    }

    fn established(self) -> Result<Established, AcceptError> {
        let connection = self.connection;
        let cipher_suite = connection
            .negotiated_cipher_suite()
            .and_then(|suite| suite.suite().as_str())
            .ok_or(AcceptError::NoSecrets)?;
        let server_name = connection.server_name().map(str::to_owned);
        let alpn = connection.alpn_protocol().map(<[u8]>::to_vec);
        let resumed = connection.handshake_kind() == Some(HandshakeKind::Resumed);
        let keys = self.capture.session_keys(connection.into())?;
        Ok(Established {
            output: Vec::new(),
            keys,
            unread: self.pending,
            server_name,
            alpn,
            cipher_suite,
            resumed,
        })
    }
}
