//! Percent-encoding and query strings. All text is decoded exactly once.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::{Code, S3Error};

/// The characters that SigV4 does not encode: letters, digits, and `-._~`.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');
/// The same and `/`, for paths.
const PATH: &AsciiSet = &UNRESERVED.remove(b'/');

/// The parameter with the signature of a presigned URL.
pub(crate) const SIGNATURE: &str = "X-Amz-Signature";

/// Encodes all but unreserved characters, in upper-case hex.
pub fn encode(text: &str) -> Cow<'_, str> {
    if text.bytes().all(is_unreserved) {
        Cow::Borrowed(text)
    } else {
        utf8_percent_encode(text, UNRESERVED).into()
    }
}

/// As [`encode`], but does not encode `/`.
pub fn encode_path(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|b| b == b'/' || is_unreserved(b)) {
        Cow::Borrowed(text)
    } else {
        utf8_percent_encode(text, PATH).into()
    }
}

/// A name in an answer, percent-encoded where the client asked for that.
pub(crate) fn name(text: &str, url_encoded: bool) -> Cow<'_, str> {
    if url_encoded {
        encode_path(text)
    } else {
        Cow::Borrowed(text)
    }
}

/// Whether a byte needs no encoding. Most names consist of such bytes only.
const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Decodes percent-encoding.
///
/// # Errors
/// `InvalidURI` if a `%` is not followed by two hex digits, or the result is
/// not UTF-8.
pub fn decode(text: &str) -> Result<Cow<'_, str>, S3Error> {
    if !text.contains('%') {
        return Ok(Cow::Borrowed(text));
    }
    let mut parts = text.split('%');
    parts.next();
    let sound = parts.all(|part| {
        part.as_bytes()
            .get(..2)
            .is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit))
    });
    if !sound {
        return Err(Code::InvalidURI.with_message("malformed percent-encoding"));
    }
    percent_decode_str(text)
        .decode_utf8()
        .map_err(|_| Code::InvalidURI.with_message("the URI is not UTF-8"))
}

/// The parameters of a query, decoded, in the order they came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    /// Most parameters, about ten times as many as any operation has. They are decoded and
    /// sorted before the caller is known.
    pub const MAX_PARAMETERS: usize = 128;

    /// Splits a raw query. A parameter without `=` has an empty value; `+` is a space, as in
    /// forms.
    ///
    /// # Errors
    /// As [`decode`], and `InvalidURI` for too many parameters.
    pub fn parse(raw: Option<&str>) -> Result<Self, S3Error> {
        let Some(raw) = raw.filter(|raw| !raw.is_empty()) else {
            return Ok(Self::default());
        };
        if raw.split('&').count() > Self::MAX_PARAMETERS {
            return Err(Code::InvalidURI.with_message("the query has too many parameters"));
        }
        let pairs = raw
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                Ok((form_decode(name)?, form_decode(value)?))
            })
            .collect::<Result<_, S3Error>>()?;
        Ok(Self { pairs })
    }

    /// The first value of this parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_str())
    }

    /// Whether the parameter is present, with or without a value.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// All parameters.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs.iter().map(|(n, v)| (n.as_str(), v.as_str()))
    }

    /// Whether the query holds a signature of version 4.
    pub(crate) fn is_presigned(&self) -> bool {
        self.has(SIGNATURE)
    }

    /// The canonical form of SigV4: all but the signature, encoded, and sorted by name and then
    /// value.
    pub fn canonical(&self) -> String {
        let pairs = self.iter().filter(|(name, _)| *name != SIGNATURE);
        let mut pairs: Vec<_> = pairs.map(|(n, v)| (encode(n), encode(v))).collect();
        pairs.sort_unstable();
        let bytes = pairs.iter().map(|(n, v)| n.len() + v.len() + 2);
        let mut joined = String::with_capacity(bytes.sum());
        for (n, (name, value)) in pairs.iter().enumerate() {
            if n > 0 {
                joined.push('&');
            }
            joined.push_str(name);
            joined.push('=');
            joined.push_str(value);
        }
        joined
    }
}

/// Whether a parameter has the prefix of Amazon's.
pub(crate) fn is_amz(name: &str) -> bool {
    let prefix = name.as_bytes().get(..6);
    prefix.is_some_and(|prefix| prefix.eq_ignore_ascii_case(b"x-amz-"))
}

fn form_decode(text: &str) -> Result<String, S3Error> {
    if text.contains('+') {
        decode(&text.replace('+', " ")).map(Cow::into_owned)
    } else {
        decode(text).map(Cow::into_owned)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn decoding_happens_once_and_is_strict() {
        assert_eq!(decode("a%2Fb%252F%C3%A9+").unwrap(), "a/b%2F\u{e9}+");
        for bad in ["%", "a%2", "%zz", "%%41", "%c3", "%4\u{e9}"] {
            assert_eq!(decode(bad).unwrap_err().code(), Code::InvalidURI, "{bad}");
        }
    }

    #[test]
    fn every_byte_that_is_reserved_is_encoded_and_no_other() {
        for byte in 0..128_u8 {
            let text = format!("a{}", char::from(byte));
            let all = utf8_percent_encode(&text, UNRESERVED).to_string();
            assert_eq!(encode(&text), all);
            let path = utf8_percent_encode(&text, PATH).to_string();
            assert_eq!(encode_path(&text), path);
            assert_eq!(decode(&all).unwrap(), text);
        }
        assert_eq!(encode_path("\u{e9}/"), "%C3%A9/");
    }

    #[test]
    fn queries_are_split_then_decoded() {
        let q = Query::parse(Some("b=2&&a=x%26y=z&acl&p=a+b%2B&a=")).unwrap();
        assert_eq!(q.get("a"), Some("x&y=z"));
        assert_eq!(q.get("p"), Some("a b+"));
        assert!(q.has("acl") && !q.has("c"));
        assert_eq!(q.canonical(), "a=&a=x%26y%3Dz&acl=&b=2&p=a%20b%2B");
        assert_eq!(Query::parse(None).unwrap().canonical(), "");
        assert!(Query::parse(Some(&"a&".repeat(Query::MAX_PARAMETERS - 1))).is_ok());
        assert!(Query::parse(Some(&"a&".repeat(Query::MAX_PARAMETERS))).is_err());
    }
}
