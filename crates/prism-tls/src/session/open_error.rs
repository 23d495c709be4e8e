//! The faults of a peer after the handshake, and the alert for each.

use rustls::AlertDescription;

/// A record that ends the session. The peer is at fault unless a variant says
/// otherwise. Send [`OpenError::alert`] with
/// [`seal_fatal_alert`](super::Session::seal_fatal_alert).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The record is forged, damaged, or under another key.
    #[error("a record did not authenticate")]
    BadRecordMac,
    /// The record is longer than the protocol allows.
    #[error("a record is too long")]
    RecordOverflow,
    /// The record is of another version than the session.
    #[error("a record is of another version")]
    WrongVersion,
    /// A content type that has no place after the handshake.
    #[error("a record of type {0} has no place here")]
    UnexpectedRecord(u8),
    /// A handshake message that has no place after the handshake.
    #[error("a handshake message of type {0} has no place here")]
    UnexpectedHandshake(u8),
    /// A record has no content; in TLS 1.3 not even a type.
    #[error("a record has no content")]
    NoContent,
    /// A KeyUpdate that is cut, or not alone in its record.
    #[error("a KeyUpdate is not alone and whole in its record")]
    MalformedKeyUpdate,
    /// A KeyUpdate whose field is neither 0 nor 1.
    #[error("a KeyUpdate has an illegal value")]
    IllegalKeyUpdate,
    /// An alert that is not alone in its record.
    #[error("an alert is not alone and whole in its record")]
    MalformedAlert,
    /// TLS 1.2: the peer wants to renegotiate.
    #[error("renegotiation is refused")]
    Renegotiation,
    /// Too many records in a row have no data.
    #[error("too many records without data")]
    TooManyBarrenRecords,
    /// The peer has sent more KeyUpdates than a session can need.
    #[error("too many KeyUpdates")]
    TooManyKeyUpdates,
    /// This side: the sequence number is at its end, or the library refused a key.
    #[error("the read key cannot go on")]
    Exhausted,
    /// Caller: the session has failed before.
    #[error("the session has failed before")]
    Failed,
}

impl OpenError {
    /// The alert that tells the peer.
    #[must_use]
    pub fn alert(self) -> AlertDescription {
        match self {
            Self::BadRecordMac => AlertDescription::BadRecordMac,
            Self::RecordOverflow => AlertDescription::RecordOverflow,
            Self::WrongVersion => AlertDescription::ProtocolVersion,
            Self::UnexpectedRecord(_)
            | Self::UnexpectedHandshake(_)
            | Self::NoContent
            | Self::TooManyBarrenRecords
            | Self::TooManyKeyUpdates => AlertDescription::UnexpectedMessage,
            Self::MalformedKeyUpdate | Self::MalformedAlert => AlertDescription::DecodeError,
            Self::IllegalKeyUpdate => AlertDescription::IllegalParameter,
            Self::Renegotiation => AlertDescription::NoRenegotiation,
            Self::Exhausted | Self::Failed => AlertDescription::InternalError,
        }
    }
}
