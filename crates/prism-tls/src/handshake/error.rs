//! The errors of handshakes.

use rustls::AlertDescription;

/// A handshake failed. The error never holds a secret.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say all")]
pub enum HandshakeError {
    #[error("the client does not speak TLS")]
    NotTls,
    #[error("the peer broke the protocol: {0}")]
    Protocol(rustls::Error),
    #[error("the two ends have nothing in common: {0}")]
    Incompatible(rustls::Error),
    /// the peer ended the handshake with an alert, as it does when it does not trust the
    /// certificate
    #[error("the peer refused the handshake: {0:?}")]
    Refused(AlertDescription),
    #[error("the peer closed the connection within the handshake")]
    Closed,
    #[error("the peer sent no TLS record")]
    BadRecord,
    #[error("the peer sent more than {0} bytes of handshake")]
    TooLong(usize),
    #[error("the handshake failed here: {0}")]
    Local(rustls::Error),
    /// rustls ended the handshake without the secrets of the session, or with those of a suite
    /// that Prism does not know
    #[error("the handshake left no usable secrets")]
    NoSecrets,
}

impl HandshakeError {
    /// The alert to send if rustls sent none. It is in the clear, so it may be sent before the
    /// first answer only.
    pub(super) fn plain_alert(&self) -> &'static [u8] {
        match self {
            // decode_error (50) and internal_error (80).
            Self::Protocol(_) | Self::BadRecord | Self::TooLong(_) => &[21, 3, 3, 0, 2, 2, 50],
            Self::Local(_) | Self::NoSecrets => &[21, 3, 3, 0, 2, 2, 80],
            Self::NotTls | Self::Incompatible(_) | Self::Refused(_) | Self::Closed => &[],
        }
    }
}

impl From<rustls::Error> for HandshakeError {
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
