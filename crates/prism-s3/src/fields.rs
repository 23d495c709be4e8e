//! Fields of requests as text and numbers.

use data_encoding::HEXLOWER;
use prism_http::Headers;

use crate::{Code, S3Error};

/// The header that declares the hash of the body.
pub(crate) const CONTENT_SHA256: &str = "x-amz-content-sha256";
/// SHA-256 of no bytes.
pub(crate) const EMPTY_SHA256: &str =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// The value, as text, of a header that may be present once.
pub(crate) fn single<'a>(headers: &'a Headers, name: &str) -> Result<Option<&'a str>, S3Error> {
    let mut values = headers.get_all(name);
    let first = values.next();
    let second = values.next();
    let invalid =
        |what: &str| Code::InvalidRequest.with_message(format!("The header {name} {what}."));
    if second.is_some() {
        return Err(invalid("is present more than once"));
    }
    first
        .map(|v| std::str::from_utf8(v).map_err(|_| invalid("is not UTF-8")))
        .transpose()
}

/// Whether a text consists of digits, without a sign.
pub(crate) fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// Reads 64 lower-case hex digits.
pub(crate) fn parse_hex(hex: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    // Text of another length would not fit the array.
    if HEXLOWER.decode_len(hex.len()) != Ok(bytes.len()) {
        return None;
    }
    HEXLOWER.decode_mut(hex.as_bytes(), &mut bytes).ok()?;
    Some(bytes)
}
