//! Fields of requests as text and numbers.

use data_encoding::HEXLOWER;
use prism_http::Headers;

use crate::{Code, S3Error};

/// The header that declares the hash of the body.
pub(crate) const CONTENT_SHA256: &str = "x-amz-content-sha256";
/// SHA-256 of no bytes.
pub(crate) const EMPTY_SHA256: &str =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// The bytes of [`EMPTY_SHA256`].
const EMPTY_HASH: [u8; 32] = [
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24,
    0x27, 0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
];

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

/// The text before and behind the first `byte`. For texts as long as a signature it takes fewer
/// instructions than [`str::split_once`].
pub(crate) fn split_at_first(text: &str, byte: u8) -> Option<(&str, &str)> {
    around(text, memchr::memchr(byte, text.as_bytes())?)
}

/// The same with the last `byte`.
pub(crate) fn split_at_last(text: &str, byte: u8) -> Option<(&str, &str)> {
    around(text, memchr::memrchr(byte, text.as_bytes())?)
}

fn around(text: &str, at: usize) -> Option<(&str, &str)> {
    Some((text.get(..at)?, text.get(at + 1..)?))
}

/// The pieces of a text between all `byte`s; one more than there are of them.
pub(crate) fn pieces(text: &str, byte: u8) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let (piece, behind) = match split_at_first(rest?, byte) {
            Some((piece, behind)) => (piece, Some(behind)),
            None => (rest?, None),
        };
        rest = behind;
        Some(piece)
    })
}

/// Whether a text consists of digits, without a sign.
pub(crate) fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// Reads 64 lower-case hex digits.
pub(crate) fn parse_hex(hex: &str) -> Option<[u8; 32]> {
    // Most requests have no body, and say so.
    if hex == EMPTY_SHA256 {
        return Some(EMPTY_HASH);
    }
    let mut bytes = [0; 32];
    // Text of another length would not fit the array.
    if HEXLOWER.decode_len(hex.len()) != Ok(bytes.len()) {
        return None;
    }
    HEXLOWER.decode_mut(hex.as_bytes(), &mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::digest;

    use super::*;

    #[test]
    fn the_hash_of_no_bytes_is_read_as_every_other_one() {
        let hash = digest::digest(&digest::SHA256, b"");
        assert_eq!(hash.as_ref(), EMPTY_HASH);
        assert_eq!(HEXLOWER.encode(&EMPTY_HASH), EMPTY_SHA256);
        assert_eq!(parse_hex(EMPTY_SHA256), Some(EMPTY_HASH));
        assert_eq!(parse_hex(&EMPTY_SHA256.to_uppercase()), None);
    }
}
