//! The `Range` header (RFC 9110 section 14). One range is served. A request for several gets the
//! whole object, as the RFC allows and as in S3.

use std::fmt;

use prism_http::Headers;

use crate::fields::is_digits;
use crate::{Code, S3Error};

/// The range of a request, before the object's size is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeSpec {
    /// From this offset, up to and including `last` if given.
    From {
        /// Offset of the first byte.
        first: u64,
        /// Offset of the last byte.
        last: Option<u64>,
    },
    /// This many bytes from the end.
    Suffix(u64),
}

/// A range of an existing object. It is not empty, and within the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    first: u64,
    last: u64,
    size: u64,
}

/// The range does not overlap an object of this size: answer with [`Unsatisfiable::error`] and
/// [`Unsatisfiable::content_range`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsatisfiable {
    /// The range that the client asks for.
    pub requested: RangeSpec,
    /// Size of the object in bytes.
    pub size: u64,
}

impl RangeSpec {
    /// The range of a request. `None` if there is none, or one that must be ignored.
    pub fn from_headers(headers: &Headers) -> Option<Self> {
        let mut values = headers.get_all("range");
        match (values.next(), values.next()) {
            (Some(value), None) => Self::parse(std::str::from_utf8(value).ok()?),
            _ => None,
        }
    }

    /// Parses `bytes=a-b`, `bytes=a-` or `bytes=-n`.
    pub fn parse(value: &str) -> Option<Self> {
        let (unit, range) = value.split_once('=')?;
        if !unit.trim().eq_ignore_ascii_case("bytes") {
            return None;
        }
        let (first, last) = range.trim().split_once('-')?;
        match (offset(first), offset(last)) {
            (Some(first), Some(last)) if first <= last => Some(Self::From {
                first,
                last: Some(last),
            }),
            (Some(first), None) if last.is_empty() => Some(Self::From { first, last: None }),
            (None, Some(count)) if first.is_empty() => Some(Self::Suffix(count)),
            _ => None,
        }
    }

    /// The range within an object of `size` bytes. `None` stands for a suffix of an empty object,
    /// which is the whole object (RFC 9110 section 14.1.2).
    ///
    /// # Errors
    /// If the range does not overlap the object.
    pub fn resolve(self, size: u64) -> Result<Option<ByteRange>, Unsatisfiable> {
        let unsatisfiable = Unsatisfiable {
            requested: self,
            size,
        };
        let (first, last) = match (self, size.checked_sub(1)) {
            (Self::From { first, last }, Some(end)) => (first, last.unwrap_or(end).min(end)),
            (Self::From { .. }, None) | (Self::Suffix(0), _) => return Err(unsatisfiable),
            (Self::Suffix(count), Some(end)) => (size.saturating_sub(count), end),
            (Self::Suffix(_), None) => return Ok(None),
        };
        if first < size {
            Ok(Some(ByteRange { first, last, size }))
        } else {
            Err(unsatisfiable)
        }
    }
}

/// The value of `Range`.
impl fmt::Display for RangeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::From { first, last: None } => write!(f, "bytes={first}-"),
            Self::From {
                first,
                last: Some(last),
            } => write!(f, "bytes={first}-{last}"),
            Self::Suffix(count) => write!(f, "bytes=-{count}"),
        }
    }
}

impl ByteRange {
    /// Offset of the first byte.
    pub const fn offset(self) -> u64 {
        self.first
    }

    /// Number of bytes; at least one.
    #[allow(clippy::len_without_is_empty, reason = "a range is never empty")]
    pub const fn len(self) -> u64 {
        self.last - self.first + 1
    }

    /// The value of `Content-Range` for a 206 answer.
    pub fn content_range(self) -> String {
        format!("bytes {}-{}/{}", self.first, self.last, self.size)
    }
}

impl Unsatisfiable {
    /// The error of a 416 answer. Clients of the AWS CRT recognize an empty object by it.
    pub fn error(self) -> S3Error {
        S3Error::from(Code::InvalidRange)
            .with_detail("RangeRequested", self.requested.to_string())
            .with_detail("ActualObjectSize", self.size.to_string())
    }

    /// The value of `Content-Range` for a 416 answer.
    pub fn content_range(self) -> String {
        format!("bytes */{}", self.size)
    }
}

/// Reads digits only. A number that is too large for any object counts as the largest one.
fn offset(text: &str) -> Option<u64> {
    is_digits(text).then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ranges_of_ten_bytes() {
        /// Offset and length; `None` if it does not overlap.
        type Resolved = Option<(u64, u64)>;
        let rows: &[(&str, Option<Resolved>)] = &[
            ("bytes=0-3", Some(Some((0, 4)))),
            ("bytes=0-0", Some(Some((0, 1)))),
            ("Bytes = 5-", Some(Some((5, 5)))),
            ("bytes=9-99", Some(Some((9, 1)))),
            ("bytes=-3", Some(Some((7, 3)))),
            ("bytes=-99", Some(Some((0, 10)))),
            ("bytes=0-99999999999999999999999", Some(Some((0, 10)))),
            ("bytes=10-", Some(None)),
            ("bytes=99999999999999999999999-", Some(None)),
            ("bytes=-0", Some(None)),
            ("bytes=3-2", None),
            ("bytes=0-1,3-4", None),
            ("bytes=-", None),
            ("bytes=a-b", None),
            ("bytes=+1-2", None),
            ("bytes=--1", None),
            ("lines=0-1", None),
            ("0-1", None),
            ("", None),
        ];
        for (text, expected) in rows {
            let got = RangeSpec::parse(text)
                .map(|spec| spec.resolve(10).ok().flatten())
                .map(|range| range.map(|range| (range.offset(), range.len())));
            assert_eq!(got, *expected, "{text}");
        }
    }

    #[test]
    fn an_empty_object_has_suffixes_and_no_other_ranges() {
        let resolve = |text, size| RangeSpec::parse(text).unwrap().resolve(size);
        for text in ["bytes=0-", "bytes=-0", "bytes=0-8388607"] {
            let unsatisfiable = resolve(text, 0).unwrap_err();
            assert_eq!(unsatisfiable.content_range(), "bytes */0");
            let xml = String::from_utf8(unsatisfiable.error().xml("/b/k", "r1")).unwrap();
            let details = format!(
                "<RangeRequested>{text}</RangeRequested><ActualObjectSize>0</ActualObjectSize>"
            );
            assert!(xml.contains(&details), "{xml}");
        }
        assert_eq!(resolve("bytes=-1", 0), Ok(None));
        let range = resolve("bytes=2-4", 10).unwrap().unwrap();
        assert_eq!(range.content_range(), "bytes 2-4/10");
    }

    #[test]
    fn the_largest_object_does_not_overflow() {
        let range = RangeSpec::parse("bytes=0-")
            .unwrap()
            .resolve(u64::MAX)
            .unwrap()
            .unwrap();
        assert_eq!(range.len(), u64::MAX);
    }
}
