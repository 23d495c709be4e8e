//! The errors of handshakes.

use rustls::AlertDescription;

use crate::capture::CaptureError;

/// A handshake failed. The error never holds a secret.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AcceptError {
    /// the client broke the protocol
    #[error("the client broke the protocol: {0}")]
    Protocol(rustls::Error),
    /// client and server have nothing in common
    #[error("client and server have nothing in common: {0}")]
    Incompatible(rustls::Error),
    /// the client ended the handshake with an alert, as it does when it does
    /// not trust the certificate
    #[error("the client refused the handshake: {0:?}")]
    Refused(AlertDescription),
    /// the client closed the session before it was established
    #[error("the client closed during the handshake")]
    Closed,
    /// a record header that no record has
    #[error("the client sent no TLS record")]
    BadRecord,
    /// more input than any handshake has
    #[error(
        "the client sent more than {} bytes of handshake",
        super::MAX_HANDSHAKE_BYTES
    )]
    TooLong,
    /// the handshake failed on this side
    #[error("the handshake failed here: {0}")]
    Local(rustls::Error),
    /// rustls ended the handshake without the secrets of the session
    #[error("the handshake left no usable secrets")]
    NoSecrets,
}

impl AcceptError {
    /// The alert to send if rustls sent none. It is in the clear, so it may be sent before the
    /// first answer only.
    pub(super) fn plain_alert(&self) -> &'static [u8] {
        match self {
            // decode_error (50) and internal_error (80).
            Self::Protocol(_) | Self::BadRecord | Self::TooLong => &[21, 3, 3, 0, 2, 2, 50],
            Self::Local(_) | Self::NoSecrets => &[21, 3, 3, 0, 2, 2, 80],
            Self::Incompatible(_) | Self::Refused(_) | Self::Closed => &[],
        }
    }
}

impl From<rustls::Error> for AcceptError {
    fn from(error: rustls::Error) -> Self {
        use rustls::Error;
        match error {
            Error::AlertReceived(alert) => Self::Refused(alert),
            Error::PeerIncompatible(_) | Error::NoApplicationProtocol => Self::Incompatible(error),
            Error::InappropriateMessage { .. }
            | Error::InappropriateHandshakeMessage { .. }
            | Error::InvalidMessage(_)
            | Error::DecryptError
            | Error::PeerMisbehaved(_)
            | Error::PeerSentOversizedRecord => Self::Protocol(error),
            _ => Self::Local(error),
        }
    }
}

impl From<CaptureError> for AcceptError {
    fn from(error: CaptureError) -> Self {
        match error {
            CaptureError::Extraction(error) => Self::Local(error),
            CaptureError::NoSecrets => Self::NoSecrets,
        }
    }
}
