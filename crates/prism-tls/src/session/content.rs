//! The meaning of a record's content. After the handshake only data, alerts and, in TLS 1.3,
//! KeyUpdates may come. Nothing here has keys or state.

use prism_proto::tls::Version;
use rustls::AlertDescription;

use super::open_error::OpenError;
use super::pending::{UPDATE_NOT_REQUESTED, UPDATE_REQUESTED};
use super::record::{FATAL, Framing, WARNING, kind};

const KEY_UPDATE: u8 = 24;
const CLIENT_HELLO: u8 = 1;
const HELLO_REQUEST: u8 = 0;

/// A KeyUpdate message.
pub(super) const fn key_update(request_update: u8) -> [u8; 5] {
    [KEY_UPDATE, 0, 0, 1, request_update]
}

/// The meaning of a record's content.
pub(super) enum Content {
    Nothing,
    Data,
    KeyUpdate { answer: bool },
    Warning,
    CloseNotify,
    Fatal(AlertDescription),
}

pub(super) fn check_outer(framing: Framing, outer: u8) -> Result<(), OpenError> {
    let known = match framing {
        Framing::Tls13 => outer == kind::APPLICATION_DATA,
        Framing::Tls12Explicit | Framing::Tls12Implicit => {
            matches!(
                outer,
                kind::ALERT | kind::HANDSHAKE | kind::APPLICATION_DATA
            )
        }
    };
    known
        .then_some(())
        .ok_or(OpenError::UnexpectedRecord(outer))
}

/// Content type and length of an inner plaintext of TLS 1.3.
pub(super) fn strip_padding(inner: &[u8]) -> Result<(u8, usize), OpenError> {
    let last = inner.iter().rposition(|byte| *byte != 0);
    let typed = last.and_then(|at| Some((*inner.get(at)?, at)));
    typed.ok_or(OpenError::NoContent)
}

pub(super) fn understand(version: Version, kind: u8, content: &[u8]) -> Result<Content, OpenError> {
    match (kind, content) {
        (kind::APPLICATION_DATA, []) => Ok(Content::Nothing),
        (kind::APPLICATION_DATA, _) => Ok(Content::Data),
        (kind::ALERT | kind::HANDSHAKE, []) => Err(OpenError::NoContent),
        (kind::ALERT, _) => understand_alert(version, content),
        (kind::HANDSHAKE, [first, ..]) => understand_handshake(version, *first, content),
        (other, _) => Err(OpenError::UnexpectedRecord(other)),
    }
}

fn understand_alert(version: Version, content: &[u8]) -> Result<Content, OpenError> {
    let &[level, description] = content else {
        return Err(OpenError::MalformedAlert);
    };
    let description = AlertDescription::from(description);
    let warning = match version {
        Version::Tls13 => description == AlertDescription::UserCanceled,
        Version::Tls12 => level == WARNING,
    };
    match description {
        AlertDescription::CloseNotify => Ok(Content::CloseNotify),
        _ if warning => Ok(Content::Warning),
        _ if version == Version::Tls12 && level != FATAL => Err(OpenError::MalformedAlert),
        other => Ok(Content::Fatal(other)),
    }
}

fn understand_handshake(version: Version, first: u8, content: &[u8]) -> Result<Content, OpenError> {
    match (version, first) {
        (Version::Tls13, KEY_UPDATE) => {}
        (Version::Tls12, CLIENT_HELLO | HELLO_REQUEST) => return Err(OpenError::Renegotiation),
        (_, other) => return Err(OpenError::UnexpectedHandshake(other)),
    }
    match content {
        [_, 0, 0, 1, UPDATE_NOT_REQUESTED] => Ok(Content::KeyUpdate { answer: false }),
        [_, 0, 0, 1, UPDATE_REQUESTED] => Ok(Content::KeyUpdate { answer: true }),
        [_, 0, 0, 1, _] => Err(OpenError::IllegalKeyUpdate),
        _ => Err(OpenError::MalformedKeyUpdate),
    }
}
