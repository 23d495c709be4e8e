//! An ordered multi-map of header fields that keeps the bytes as they came.
//!
//! Names and values lie in two buffers, so a parsed head costs three
//! allocations however many fields it has. What is inside is always fit to be
//! written: no path puts a line end or another control character into it.

use std::ops::Range;

use crate::HeaderError;

/// Header fields in the order they came. Names compare without regard to case.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers {
    names: String,
    values: Vec<u8>,
    fields: Vec<Field>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    name: Range<usize>,
    value: Range<usize>,
}

/// What a head with a few fields needs.
const USUAL_FIELDS: usize = 12;
const USUAL_NAME_BYTES: usize = 160;
const USUAL_VALUE_BYTES: usize = 320;

impl Headers {
    /// The most bytes of names plus values that one map holds: four times the
    /// default head, so that no head that was parsed fails to be written again.
    pub const MAX_BYTES: usize = 256 * 1024;

    /// An empty map.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            names: String::new(),
            values: Vec::new(),
            fields: Vec::new(),
        }
    }

    /// Adds a field behind the others. White space around the value is no part
    /// of it and is dropped.
    ///
    /// # Errors
    /// If the name is no token or the value holds a control character: this is
    /// what makes header injection impossible.
    pub fn append(&mut self, name: &str, value: impl AsRef<[u8]>) -> Result<(), HeaderError> {
        let value = trim(value.as_ref());
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(HeaderError::Name);
        }
        // All of them, which takes less time than to stop at the first.
        if value.iter().fold(false, |bad, byte| bad | !is_value(*byte)) {
            return Err(HeaderError::Value);
        }
        if self.names.len() + self.values.len() + name.len() + value.len() > Self::MAX_BYTES {
            return Err(HeaderError::TooLong);
        }
        self.push(name, value);
        Ok(())
    }

    /// Drops every field of this name, then adds it.
    ///
    /// # Errors
    /// As [`Headers::append`]; the old fields are gone in any case.
    pub fn set(&mut self, name: &str, value: impl AsRef<[u8]>) -> Result<(), HeaderError> {
        self.remove(name);
        self.append(name, value)
    }

    /// Drops every field of this name.
    pub fn remove(&mut self, name: &str) {
        if self.get(name).is_none() {
            return;
        }
        // Built anew, so that replacing a field often does not use up the bound.
        let mut kept = Self::new();
        for (n, value) in self.iter().filter(|(n, _)| !n.eq_ignore_ascii_case(name)) {
            kept.push(n, value);
        }
        *self = kept;
    }

    /// The first value of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v)
    }

    /// The first value of this name, if it is UTF-8.
    #[must_use]
    pub fn get_str(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(|v| std::str::from_utf8(v).ok())
    }

    /// Every value of this name, in order.
    pub fn get_all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.iter()
            .filter(move |(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v)
    }

    /// Every field, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.fields.iter().filter_map(|f| {
            Some((
                self.names.get(f.name.clone())?,
                self.values.get(f.value.clone())?,
            ))
        })
    }

    /// Number of fields.
    #[must_use]
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether there is no field.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// The members of all fields of this name, read as one comma-separated
    /// list. Empty members are skipped (RFC 9110 section 5.6.1).
    pub fn list<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.get_all(name)
            .flat_map(|v| v.split(|&b| b == b','))
            .map(trim)
            .filter(|member| !member.is_empty())
    }

    /// Whether the list of this name has this member, without regard to case.
    #[must_use]
    pub fn list_has(&self, name: &str, member: &str) -> bool {
        self.list(name)
            .any(|m| m.eq_ignore_ascii_case(member.as_bytes()))
    }

    /// Writes `name: value CRLF` for every field.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        for (name, value) in self.iter() {
            write_field(out, name, value);
        }
    }

    /// Takes what `httparse` found in bytes that hold no control character but
    /// line ends and HTAB. Names are tokens then and values are values, and a
    /// head is shorter than [`Headers::MAX_BYTES`] or its limit says otherwise.
    pub(crate) fn from_parsed(parsed: &[httparse::Header<'_>]) -> Self {
        let mut headers = Self {
            names: String::with_capacity(parsed.iter().map(|h| h.name.len()).sum()),
            values: Vec::with_capacity(parsed.iter().map(|h| h.value.len()).sum()),
            fields: Vec::with_capacity(parsed.len()),
        };
        for header in parsed {
            headers.push(header.name, trim(header.value));
        }
        headers
    }

    fn push(&mut self, name: &str, value: &[u8]) {
        if self.fields.is_empty() {
            // For the usual head, so that it is not moved as it grows.
            self.names.reserve(USUAL_NAME_BYTES);
            self.values.reserve(USUAL_VALUE_BYTES);
            self.fields.reserve(USUAL_FIELDS);
        }
        let (name_start, value_start) = (self.names.len(), self.values.len());
        self.names.push_str(name);
        self.values.extend_from_slice(value);
        self.fields.push(Field {
            name: name_start..self.names.len(),
            value: value_start..self.values.len(),
        });
    }
}

impl std::fmt::Debug for Headers {
    /// Names and lengths only: values may be credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map()
            .entries(self.iter().map(|(n, v)| (n, v.len())))
            .finish()
    }
}

pub(crate) fn write_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// `tchar` of RFC 9110 section 5.6.2.
pub(crate) const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}

/// `field-vchar`, SP or HTAB.
const fn is_value(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

/// Without optional white space (SP and HTAB only) at both ends.
pub(crate) fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = bytes {
        bytes = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn keeps_order_and_bytes_and_compares_names_without_case() {
        let mut h = Headers::new();
        h.append("X-A", "1").unwrap();
        h.append("x-b", b"\xc3\xa9").unwrap();
        h.append("x-a", " 2 ").unwrap();
        assert_eq!(h.get("X-a"), Some(&b"1"[..]));
        assert_eq!(h.get_all("x-A").collect::<Vec<_>>(), [b"1", b"2"]);
        let mut out = Vec::new();
        h.write_to(&mut out);
        assert_eq!(out, b"X-A: 1\r\nx-b: \xc3\xa9\r\nx-a: 2\r\n");
        h.set("X-A", "3").unwrap();
        assert_eq!(h.iter().map(|(n, _)| n).collect::<Vec<_>>(), ["x-b", "X-A"]);
    }

    #[test]
    fn injection_is_refused() {
        let mut h = Headers::new();
        for value in ["a\r\nEvil: 1", "a\nb", "a\rb", "a\0b", "\x7f", "a\x0bb"] {
            assert_eq!(h.append("X", value), Err(HeaderError::Value), "{value:?}");
        }
        for name in ["", "a b", "a:", "a\r\n", "é", "a\0"] {
            assert_eq!(h.append(name, "v"), Err(HeaderError::Name), "{name:?}");
        }
        assert!(h.is_empty());
    }

    #[test]
    fn the_map_is_bounded() {
        let mut h = Headers::new();
        h.append("x", vec![b'a'; Headers::MAX_BYTES - 1]).unwrap();
        assert_eq!(h.append("x", ""), Err(HeaderError::TooLong));
        for _ in 0..3 {
            h.set("x", vec![b'a'; Headers::MAX_BYTES - 1]).unwrap();
        }
    }

    #[test]
    fn lists_span_fields_and_skip_empty_members() {
        let mut h = Headers::new();
        h.append("Connection", "a, ,B").unwrap();
        h.append("connection", "c").unwrap();
        assert_eq!(h.list("connection").collect::<Vec<_>>(), [b"a", b"B", b"c"]);
        assert!(h.list_has("Connection", "b") && !h.list_has("Connection", ""));
    }

    #[test]
    fn debug_output_holds_no_values() {
        let mut h = Headers::new();
        h.append("Authorization", "secret").unwrap();
        assert!(!format!("{h:?}").contains("secret"));
    }
}
