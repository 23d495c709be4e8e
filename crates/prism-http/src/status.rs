//! Status codes and their reason phrases.

use http::StatusCode;

/// The status of an interim answer to a client that waits long: the request is still worked on (RFC
/// 2518, section 10.1).
pub const PROCESSING: u16 = 102;

/// The status that names the protocol which a server wants (RFC 9110, section 15.5.22).
pub const UPGRADE_REQUIRED: u16 = 426;

/// The registered reason phrase of a status code; empty if there is none.
pub fn reason(status: u16) -> &'static str {
    // RFC 9110, section 15.5.14 has another phrase than its predecessor and the crate.
    if status == 413 {
        return "Content Too Large";
    }
    let code = StatusCode::from_u16(status).ok();
    code.and_then(|code| code.canonical_reason())
        .unwrap_or_default()
}
