//! The end of a body, as the head alone determines it (RFC 9112 section 6.3).

use crate::headers::write_field;
use crate::{HeadError, Headers, Method, Version};

/// The way in which the body of a request is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyFraming {
    /// There is neither length nor coding, and so no body.
    None,
    /// Exactly this many bytes.
    Length(u64),
    /// Chunked transfer coding.
    Chunked,
}

/// The way in which the body of an answer is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseFraming {
    /// This answer never has a body.
    None,
    /// Exactly this many bytes.
    Length(u64),
    /// Chunked transfer coding.
    Chunked,
    /// The body ends with the connection.
    UntilClose,
}

impl From<BodyFraming> for ResponseFraming {
    fn from(framing: BodyFraming) -> Self {
        match framing {
            BodyFraming::None => Self::None,
            BodyFraming::Length(n) => Self::Length(n),
            BodyFraming::Chunked => Self::Chunked,
        }
    }
}

/// The framing that the headers declare, for requests and answers alike.
pub(crate) fn declared(headers: &Headers, version: Version) -> Result<BodyFraming, HeadError> {
    let length = content_length(headers)?;
    if headers.get("transfer-encoding").is_none() {
        return Ok(length.map_or(BodyFraming::None, BodyFraming::Length));
    }
    if length.is_some() {
        return Err(HeadError::AmbiguousLength);
    }
    if version == Version::Http10 {
        return Err(HeadError::TransferEncoding);
    }
    chunked_only(headers)?;
    Ok(BodyFraming::Chunked)
}

/// The framing of an answer to a request of this method.
pub(crate) fn of_response(
    headers: &Headers,
    version: Version,
    status: u16,
    request: &Method,
) -> Result<ResponseFraming, HeadError> {
    let declared = declared(headers, version)?;
    if *request == Method::HEAD || !status_allows_body(status) {
        return Ok(ResponseFraming::None);
    }
    Ok(match declared {
        BodyFraming::None => ResponseFraming::UntilClose,
        framing => framing.into(),
    })
}

/// Whether an answer of this status can have a body (RFC 9110 section 6.4.1).
pub(crate) const fn status_allows_body(status: u16) -> bool {
    !matches!(status, 100..=199 | 204 | 304)
}

fn content_length(headers: &Headers) -> Result<Option<u64>, HeadError> {
    let mut values = headers.get_all("content-length");
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(HeadError::ContentLengthRepeated);
    }
    decimal(value).map(Some).ok_or(HeadError::ContentLength)
}

/// Whether the sender of these headers allows the connection to stay open.
pub(crate) fn keep_alive(headers: &Headers, version: Version) -> bool {
    !headers.list_has("connection", "close")
        && (version == Version::Http11 || headers.list_has("connection", "keep-alive"))
}

/// Writes the field that declares a framing.
pub(crate) fn write_framing(framing: ResponseFraming, out: &mut Vec<u8>) {
    match framing {
        ResponseFraming::None | ResponseFraming::UntilClose => {}
        ResponseFraming::Length(n) => {
            write_field(
                out,
                "Content-Length",
                itoa::Buffer::new().format(n).as_bytes(),
            );
        }
        ResponseFraming::Chunked => write_field(out, "Transfer-Encoding", b"chunked"),
    }
}

/// Reads digits only; `u64::from_str` would accept a leading plus sign.
pub(crate) fn decimal(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0u64, |sum, &b| {
        let digit = char::from(b).to_digit(10)?;
        sum.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// Checks that there is one `chunked` and no other coding. A list whose only `chunked` is its
/// last member is well-formed, but not implemented (501). All others do not delimit the body
/// (400).
fn chunked_only(headers: &Headers) -> Result<(), HeadError> {
    let mut fields = headers.get_all("transfer-encoding");
    if let (Some(value), None) = (fields.next(), fields.next())
        && value.eq_ignore_ascii_case(b"chunked")
    {
        return Ok(());
    }
    let mut count = 0usize;
    let mut last = false;
    for coding in headers.list("transfer-encoding") {
        last = coding.eq_ignore_ascii_case(b"chunked");
        count += usize::from(last);
    }
    let others = headers.list("transfer-encoding").count() > count;
    Err(if last && count == 1 && others {
        HeadError::TransferCoding
    } else {
        HeadError::TransferEncoding
    })
}
