//! Checks of what rules and upstreams say of requests: conditions, and header fields.

use prism_rules::{Conditions, HostPattern, MAX_PATTERN_BYTES, PathPattern, PatternError};

use crate::problem::Problems;

/// Most header fields that a request or an answer gets.
const MAX_FIELDS: usize = 16;

/// Checks the conditions of a rule or an upstream.
pub(crate) fn check_conditions(
    conditions: &Conditions<'_>,
    field: &dyn Fn(&str) -> String,
    found: &mut Problems,
) {
    for host in conditions.hosts {
        let fix = "write it as in \"www.example.com\" or \"*.example.com\", without a port, or \
                   as in \"~^www[0-9]+\\\\.example\\\\.com$\"";
        let fault = HostPattern::parse(host).err();
        check_pattern(host, fault, &field("hosts"), fix, found);
    }
    for path in conditions.paths {
        let fix = "write it as requests have it, as in \"/api/\", \"=/login\" or \
                   \"~^/v[0-9]+/\"";
        let fault = PathPattern::parse(path).err();
        check_pattern(path, fault, &field("paths"), fix, found);
    }
    for method in conditions.methods {
        let is_method = is_short(method) && method.bytes().all(|b| b.is_ascii_uppercase());
        let fault = format!("{method:?} is not a method");
        let fix = "write it as in \"GET\"";
        found.check(is_method, &field("methods"), fault, fix);
    }
    for header in conditions.headers {
        let (name, _) = header.split_once(':').unwrap_or((header, ""));
        let is_header = is_short(header) && is_field_name(name);
        let fault = format!("{header:?} is not a header field");
        let fix = "write it as in \"X-Beta\" or \"X-Beta: yes\"";
        found.check(is_header, &field("headers"), fault, fix);
    }
}

fn check_pattern(
    text: &str,
    fault: Option<PatternError>,
    field: &str,
    fix: &str,
    found: &mut Problems,
) {
    if let Some(fault) = fault {
        found.check(false, field, format!("{text:?} {fault}"), fix);
    }
}

/// Checks header fields that requests or answers get.
pub(crate) fn check_headers(headers: &[String], field: &str, found: &mut Problems) {
    let most = format!("has more than {MAX_FIELDS} header fields");
    found.check(headers.len() <= MAX_FIELDS, field, most, "remove some");
    for header in headers {
        let parts = header.split_once(':');
        let is_field = parts.is_some_and(|(name, value)| {
            is_field_name(name) && is_value(value) && !value.trim().is_empty()
        });
        let fault = format!("{header:?} is not a header field with a value");
        let fix = "write it as in \"X-Env: prod\"";
        found.check(is_field, field, fault, fix);
        let is_own = parts.is_some_and(|(name, _)| is_own(name));
        let fault = format!("{header:?} is a field that only Prism and the client set");
        found.check(!is_own, field, fault, "remove it");
    }
}

/// Whether a field belongs to a connection or a body, or says who the client is.
pub(crate) fn is_own(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let own = [
        "connection",
        "content-length",
        "date",
        "expect",
        "host",
        "keep-alive",
        "prism-answer",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-forwarded-for",
    ];
    own.contains(&name.as_str())
}

/// Whether a text is neither empty nor too long.
pub(crate) fn is_short(text: &str) -> bool {
    (1..=MAX_PATTERN_BYTES).contains(&text.len())
}

pub(crate) fn is_field_name(name: &str) -> bool {
    let is_part = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    (1..=MAX_PATTERN_BYTES).contains(&name.len()) && name.bytes().all(is_part)
}

pub(crate) fn is_value(value: &str) -> bool {
    let is_part = |b: u8| b.is_ascii_graphic() || b == b' ';
    value.len() <= MAX_PATTERN_BYTES && value.bytes().all(is_part)
}

/// Whether a byte may stand in a request target.
pub(crate) fn is_plain(byte: u8) -> bool {
    byte.is_ascii_graphic() && byte != b'#'
}
