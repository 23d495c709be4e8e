//! Internal redirects: a server's answer names the resource that the client gets in its place.
//! `X-Accel-Redirect` is that of nginx. Pure.

use prism_config::Redirects;
use prism_http::{HeadError, Headers, Limits, Method, RequestHead, ResponseHead, Version};
use prism_proto::facts::MAX_FIELDS_BYTES;
use prism_rules::is_settled;

/// The field with a path of the service, or with the name of a part of it and a path there.
pub(crate) const ACCEL: &str = "X-Accel-Redirect";

/// The fields of a request that say who its client is, and which request of it this is.
const OF_CLIENT: [&str; 8] = [
    "forwarded",
    "traceparent",
    "tracestate",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-request-id",
];

/// The fields of a client's request that say how it wants the resource. All others concern the
/// server that has redirected it, above all the ones by which the client logs in there.
const KEPT: [&str; 12] = [
    "accept",
    "accept-encoding",
    "accept-language",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "origin",
    "range",
    "referer",
    "user-agent",
];

/// The fields that describe the text of an answer.
const OF_TEXT: [&str; 2] = ["content-language", "content-type"];

/// The reason why a redirect is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedirectFault {
    /// The configuration does not know it as one.
    #[error("the upstream's servers may not redirect so")]
    NotAllowed,
    /// The path may be read in two ways, or is none.
    #[error("the path of the resource is malformed, or can be read in two ways")]
    Path,
    /// No upstream has this name.
    #[error("no part of the service has the name in it")]
    Name,
    /// The fields for the client are too long.
    #[error("the header fields for the client are too long")]
    Fields,
}

/// The resource that a server's answer names.
#[derive(Debug, PartialEq, Eq)]
pub struct Destination {
    /// The part of the service that has it, by its name; `None` for the one that a client's request
    /// for it would go to.
    pub part: Option<String>,
    /// Whether the server has named the host too, as in a URL.
    pub has_host: bool,
    /// The head of the request for it.
    pub head: RequestHead,
    /// The same, as a client would have sent it.
    pub head_bytes: Vec<u8>,
    /// The header fields that the client gets in the place of the resource's own.
    pub fields: Headers,
}

/// Whether an answer is an internal redirect.
pub(crate) fn is_redirect(settings: &Redirects, answer: &ResponseHead) -> bool {
    let fields = answer.headers();
    settings.accel && fields.get(ACCEL).is_some() || by_location(settings, answer).is_some()
}

/// The part of the service, and the URL behind it, that an answer's `Location` names.
fn by_location<'s>(
    settings: &'s Redirects,
    answer: &'s ResponseHead,
) -> Option<(&'s str, &'s str)> {
    if !matches!(answer.status(), 302 | 303 | 307 | 308) || settings.locations.is_empty() {
        return None;
    }
    let location = answer.headers().get_str("location")?;
    let known = settings.locations.iter();
    let fits = known.filter(|(prefix, _)| location.starts_with(prefix.as_str()));
    let (_, part) = fits.max_by_key(|(prefix, _)| prefix.len())?;
    Some((part, location))
}

impl Destination {
    /// The resource that `answer` to `request` names.
    ///
    /// # Errors
    /// It is no redirect, or its path is malformed.
    pub(crate) fn of(
        settings: &Redirects,
        request: &RequestHead,
        answer: &ResponseHead,
        limits: &Limits,
    ) -> Result<Self, RedirectFault> {
        let accel = answer.headers().get(ACCEL).filter(|_| settings.accel);
        let (part, host, target) = match accel {
            Some(accel) => {
                let (part, target) = by_accel(accel, request)?;
                (part, None, target)
            }
            None => {
                let found = by_location(settings, answer).ok_or(RedirectFault::NotAllowed)?;
                let (host, target) = split_url(found.1).ok_or(RedirectFault::Path)?;
                (Some(found.0.to_owned()), Some(host), target)
            }
        };
        let path = target.split('?').next().unwrap_or_default();
        if !is_settled(path) {
            return Err(RedirectFault::Path);
        }
        let fields = passed_fields(settings, answer, host.is_some())?;
        let made = made_head(request, host.as_deref(), &target, limits);
        let (head, head_bytes) = made.map_err(|_| RedirectFault::Path)?;
        Ok(Self {
            part,
            has_host: host.is_some(),
            head,
            head_bytes,
            fields,
        })
    }
}

/// The fields of an answer that the client gets. `is_location`: its own text is that of a redirect.
fn passed_fields(
    settings: &Redirects,
    answer: &ResponseHead,
    is_location: bool,
) -> Result<Headers, RedirectFault> {
    let is_of_text = |name: &str| OF_TEXT.iter().any(|one| name.eq_ignore_ascii_case(one));
    let names = settings.fields.iter();
    let mut fields = Headers::new();
    for name in names.filter(|name| !(is_location && is_of_text(name))) {
        for value in answer.headers().get_all(name) {
            let added = fields.append(name, value);
            added.map_err(|_| RedirectFault::Fields)?;
        }
    }
    let mut written = Vec::new();
    fields.write_to(&mut written);
    if written.len() > MAX_FIELDS_BYTES {
        return Err(RedirectFault::Fields);
    }
    Ok(fields)
}

/// The part of the service and the target in it that `X-Accel-Redirect` names. As with nginx, the
/// server need not escape the path.
fn by_accel(
    value: &[u8],
    request: &RequestHead,
) -> Result<(Option<String>, String), RedirectFault> {
    let (part, target) = match value.strip_prefix(b"@") {
        None => (None, value),
        Some(named) => {
            let end = named.iter().position(|byte| *byte == b'/');
            let (name, target) = match end {
                Some(end) => named.split_at_checked(end).unwrap_or_default(),
                None => (named, request.target().as_bytes()),
            };
            let name = std::str::from_utf8(name).map_err(|_| RedirectFault::Name)?;
            (Some(name.to_owned()), target)
        }
    };
    if !target.starts_with(b"/") {
        return Err(RedirectFault::Path);
    }
    Ok((part, escaped(target)))
}

/// A target with escapes in the place of bytes that cannot stand in one.
fn escaped(target: &[u8]) -> String {
    let mut text = String::with_capacity(target.len());
    for byte in target {
        match byte {
            b'"' | b'#' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' => {
                text.push_str(&format!("%{byte:02X}"));
            }
            byte if byte.is_ascii_graphic() => text.push(char::from(*byte)),
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// The host of a URL, and its target.
fn split_url(url: &str) -> Option<(String, String)> {
    let (_, rest) = url.split_once("://")?;
    let (host, _) = rest.split_once('/')?;
    let target = rest.get(host.len()..)?;
    let target = target.split('#').next().unwrap_or_default();
    Some((host.to_owned(), escaped(target.as_bytes())))
}

/// The head of a request for `target` of `host`, by default that of `request`. It is one for the
/// whole resource or its header fields, whatever the method of `request` was, as with nginx.
fn made_head(
    request: &RequestHead,
    host: Option<&str>,
    target: &str,
    limits: &Limits,
) -> Result<(RequestHead, Vec<u8>), HeadError> {
    let method = match *request.method() {
        Method::HEAD => "HEAD",
        _ => "GET",
    };
    let (version, kept_open) = match request.version() {
        Version::Http10 => ("1.0", "keep-alive"),
        Version::Http11 => ("1.1", ""),
    };
    let host = host.or(request.host()).unwrap_or_default();
    let mut text = format!("{method} {target} HTTP/{version}\r\nHost: {host}\r\n").into_bytes();
    let mut fields = Headers::new();
    let connection = if request.keep_alive() {
        kept_open
    } else {
        "close"
    };
    if !connection.is_empty() {
        let _ = fields.append("Connection", connection);
    }
    // The wishes of a change concern another resource.
    let wishes: &[&str] = if request.method().is_safe() {
        &KEPT
    } else {
        &[]
    };
    let is_kept = |name: &str| {
        let mut kept = OF_CLIENT.iter().chain(wishes);
        kept.any(|kept| name.eq_ignore_ascii_case(kept))
    };
    for (name, value) in request.headers().iter().filter(|(name, _)| is_kept(name)) {
        let added = fields.append(name, value);
        added.map_err(|_| HeadError::HeadTooLong)?;
    }
    fields.write_to(&mut text);
    text.extend_from_slice(b"\r\n");
    let parsed = RequestHead::parse(&text, limits)?;
    let (head, _) = parsed.ok_or(HeadError::HeadTooLong)?;
    Ok((head, text))
}

#[cfg(test)]
#[path = "redirect_tests.rs"]
mod tests;
