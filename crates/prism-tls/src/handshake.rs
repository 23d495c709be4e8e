//! The handshake of one connection, at either end. rustls does it, and nothing else.
//!
//! rustls gets one record at a time, so it never sees application data or a record behind the
//! handshake. At the end its secrets become [`SessionKeys`], and rustls is gone.
//!
//! Not here: sockets and timeouts.

mod error;

use rustls::{CommonState, Connection};

use crate::capture::Capture;
use crate::keys::SessionKeys;
use crate::session::HEADER_BYTES;

pub use error::HandshakeError;

/// Longest fragment of any record (RFC 5246, 6.2.3): 2^14 + 2,048.
const MAX_FRAGMENT_BYTES: usize = (1 << 14) + 2_048;
/// Content types change_cipher_spec, alert, handshake and application_data.
const CONTENT_TYPES: std::ops::RangeInclusive<u8> = 20..=23;
/// The type of a client's first record.
const HANDSHAKE: u8 = 22;

/// A handshake under way.
#[derive(Debug)]
pub struct Handshake {
    connection: Connection,
    capture: Capture,
    /// Bytes that rustls has not got: less than one record, until the handshake is over.
    pending: Vec<u8>,
    /// Bytes of all records that rustls got.
    taken_bytes: usize,
    max_bytes: usize,
    /// Whether bytes were sent; then an alert may have to be sealed.
    answered: bool,
}

impl Handshake {
    /// The handshake of a new `connection`, whose configuration has the key log of `capture`. The
    /// peer may send at most `max_bytes` before the end, headers included.
    #[must_use]
    pub fn new(connection: Connection, capture: Capture, max_bytes: usize) -> Self {
        Self {
            connection,
            capture,
            pending: Vec::new(),
            taken_bytes: 0,
            max_bytes,
            answered: false,
        }
    }

    /// Takes bytes of the peer, which may be cut anywhere, and appends to `output` the bytes to
    /// send. Returns whether the handshake is over. The input is copied, so the caller must limit
    /// how many bytes it reads at once. A client's first call has no input.
    ///
    /// # Errors
    /// [`HandshakeError`]. There will be no session, and `output` ends in an alert if the peer is
    /// to get one.
    pub fn receive(&mut self, input: &[u8], output: &mut Vec<u8>) -> Result<bool, HandshakeError> {
        self.pending.extend_from_slice(input);
        if self.first_byte().is_some_and(|first| first != HANDSHAKE) {
            return Err(HandshakeError::NotTls);
        }
        let advanced = self.advance(output);
        if let Err(error) = &advanced
            && !self.answered
        {
            output.extend_from_slice(error.plain_alert());
        }
        advanced
    }

    /// Whether the client may have sent an HTTP request in the clear: every method begins with a
    /// capital letter, and no TLS record does.
    #[must_use]
    pub fn is_http(&self) -> bool {
        (self.first_byte()).is_some_and(|first| first.is_ascii_uppercase())
    }

    /// The result of the negotiation so far.
    #[must_use]
    pub fn state(&self) -> &CommonState {
        &self.connection
    }

    /// The keys of the session, and the records that the peer sent behind the handshake, still
    /// sealed. The last one may be incomplete. The sequence numbers count the tickets that were
    /// sent.
    ///
    /// # Errors
    /// If the handshake is not over, or left no usable secrets.
    pub fn finish(self) -> Result<(SessionKeys, Vec<u8>), HandshakeError> {
        Ok((self.capture.session_keys(self.connection)?, self.pending))
    }

    /// A client's first byte, until its first record is here.
    fn first_byte(&self) -> Option<u8> {
        let is_first = self.taken_bytes == 0 && matches!(self.connection, Connection::Server(_));
        self.pending.first().copied().filter(|_| is_first)
    }

    /// Feeds rustls whole records until it needs more or has finished. Returns whether it has
    /// finished.
    fn advance(&mut self, output: &mut Vec<u8>) -> Result<bool, HandshakeError> {
        self.send(output)?;
        let pending = std::mem::take(&mut self.pending);
        let mut rest = pending.as_slice();
        while self.connection.is_handshaking() {
            let record = match first_record(rest) {
                Ok(Some(record)) => record,
                // A peer that begins a record past the limit is refused before its end.
                Ok(None) => {
                    self.check_limit(rest.len())?;
                    break;
                }
                Err(header) => {
                    // rustls knows the alert, and whether to seal it.
                    self.feed(header, output)?;
                    return Err(HandshakeError::BadRecord);
                }
            };
            self.check_limit(record.len())?;
            self.taken_bytes += record.len();
            self.feed(record, output)?;
            rest = rest.get(record.len()..).unwrap_or_default();
        }
        self.pending = rest.to_vec();
        Ok(!self.connection.is_handshaking())
    }

    fn check_limit(&self, more_bytes: usize) -> Result<(), HandshakeError> {
        if self.taken_bytes + more_bytes > self.max_bytes {
            return Err(HandshakeError::TooLong(self.max_bytes));
        }
        Ok(())
    }

    /// Gives rustls one record, and collects its answer, alerts included.
    fn feed(&mut self, record: &[u8], output: &mut Vec<u8>) -> Result<(), HandshakeError> {
        let fed = self.read(record);
        self.send(output)?;
        fed
    }

    fn read(&mut self, mut record: &[u8]) -> Result<(), HandshakeError> {
        while !record.is_empty() {
            // rustls takes a long record in pieces, and nothing after a close_notify.
            match self.connection.read_tls(&mut record) {
                Ok(0) => return Err(HandshakeError::Closed),
                Ok(_) => {}
                Err(_) => return Err(HandshakeError::TooLong(self.max_bytes)),
            }
            if self.connection.process_new_packets()?.peer_has_closed() {
                return Err(HandshakeError::Closed);
            }
        }
        Ok(())
    }

    fn send(&mut self, output: &mut Vec<u8>) -> Result<(), HandshakeError> {
        while self.connection.wants_write() {
            // Writing to a vector does not fail; an error is one of rustls.
            if self.connection.write_tls(output).is_err() {
                return Err(HandshakeError::NoSecrets);
            }
            self.answered = true;
        }
        Ok(())
    }
}

/// The first record of `bytes`, header included; `None` if less of it is here. The error is a
/// header that no record has.
fn first_record(bytes: &[u8]) -> Result<Option<&[u8]>, &[u8]> {
    let Some((header, _)) = bytes.split_at_checked(HEADER_BYTES) else {
        return Ok(None);
    };
    let &[kind, major, _, high, low] = header else {
        return Err(header);
    };
    let fragment_bytes = usize::from(u16::from_be_bytes([high, low]));
    if !CONTENT_TYPES.contains(&kind) || major != 3 || fragment_bytes > MAX_FRAGMENT_BYTES {
        return Err(header);
    }
    Ok(bytes.get(..HEADER_BYTES + fragment_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_ends_where_its_header_says() {
        let record = [22, 3, 1, 0, 2, 1, 2, 99];
        assert_eq!(first_record(&record), Ok(record.get(..7)));
        for short in 0..7 {
            let cut = record.get(..short).unwrap_or_default();
            assert_eq!(first_record(cut), Ok(None));
        }
    }

    #[test]
    fn a_header_that_no_record_has_is_broken_at_once() {
        for header in [[19, 3, 3, 0, 1], [22, 2, 0, 0, 1], [22, 3, 3, 0x48, 1]] {
            assert_eq!(first_record(&header), Err(&header[..]));
        }
        assert_eq!(first_record(&[22, 3, 3, 0x48, 0]), Ok(None));
    }
}
