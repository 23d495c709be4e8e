//! The faults of a peer after the handshake, and the alert for each.

use rustls::AlertDescription;

/// A record that ends the session. The peer is at fault unless a variant says
/// otherwise. Send [`OpenError::alert`] with
/// [`seal_fatal_alert`](super::Session::seal_fatal_alert).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say all")]
pub enum OpenError {
    #[error("a record did not authenticate")]
    BadRecordMac,
    #[error("a record is too long")]
    RecordOverflow,
    #[error("a record is of another version")]
    WrongVersion,
    #[error("a record of type {0} has no place here")]
    UnexpectedRecord(u8),
    #[error("a handshake message of type {0} has no place here")]
    UnexpectedHandshake(u8),
    /// A record has no content; in TLS 1.3 not even a type.
    #[error("a record has no content")]
    NoContent,
    #[error("a KeyUpdate is not alone and whole in its record")]
    MalformedKeyUpdate,
    #[error("a KeyUpdate has an illegal value")]
    IllegalKeyUpdate,
    #[error("an alert is not alone and whole in its record")]
    MalformedAlert,
    #[error("renegotiation is refused")]
    Renegotiation,
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
