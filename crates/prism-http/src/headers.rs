//! An ordered multi-map of header fields, with their bytes as they came.
//!
//! The fields lie in one buffer as they are written. So a parsed head costs two allocations,
//! whatever the number of its fields, and writing it is one copy. No field ever holds a line end
//! or another control character, so all of them can be written.

use crate::HeaderError;

/// Header fields in the order in which they came. Names compare without regard to case.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers {
    /// `name: value CRLF` for every field.
    bytes: Vec<u8>,
    fields: Vec<Field>,
}

/// The place of a field in the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Field {
    name_start: usize,
    name_end: usize,
    value_end: usize,
}

/// Between a name and its value, and behind it.
const SEPARATOR: &[u8] = b": ";
const END: &[u8] = b"\r\n";
/// Bytes of a field besides its name and value.
const FRAME_BYTES: usize = SEPARATOR.len() + END.len();

/// Fields and bytes of a usual head.
const USUAL_FIELDS: usize = 12;
const USUAL_BYTES: usize = 512;
/// Room in a parsed head for what is added to it.
const ADDED_FIELDS: usize = 8;
const ADDED_BYTES: usize = 256;

impl Field {
    fn name(self, bytes: &[u8]) -> &[u8] {
        bytes
            .get(self.name_start..self.name_end)
            .unwrap_or_default()
    }

    fn value(self, bytes: &[u8]) -> &[u8] {
        let start = self.name_end + SEPARATOR.len();
        bytes.get(start..self.value_end).unwrap_or_default()
    }

    /// Compares lengths first, as most names differ in them.
    #[inline]
    fn is_named(self, name: &str, bytes: &[u8]) -> bool {
        self.name_end - self.name_start == name.len()
            && self.name(bytes).eq_ignore_ascii_case(name.as_bytes())
    }
}

impl Headers {
    /// Most bytes of names and values together: four times the default head, so that every
    /// parsed head can be written again.
    pub const MAX_BYTES: usize = 256 * 1024;

    /// An empty map.
    pub const fn new() -> Self {
        Self {
            bytes: Vec::new(),
            fields: Vec::new(),
        }
    }

    /// Adds a field behind the others. White space around the value is dropped.
    ///
    /// # Errors
    /// If the name is no token, or the value holds a control character. This makes header
    /// injection impossible.
    pub fn append(&mut self, name: &str, value: impl AsRef<[u8]>) -> Result<(), HeaderError> {
        let value = trim(value.as_ref());
        if name.is_empty() || !is_token(name.as_bytes()) {
            return Err(HeaderError::Name);
        }
        // A check of all bytes is faster than one that stops at the first bad one.
        if value.iter().fold(false, |bad, byte| bad | !is_value(*byte)) {
            return Err(HeaderError::Value);
        }
        let present = self.bytes.len() - FRAME_BYTES * self.fields.len();
        if present + name.len() + value.len() > Self::MAX_BYTES {
            return Err(HeaderError::TooLong);
        }
        if self.fields.is_empty() {
            self.reserve_usual();
        }
        self.push(name.as_bytes(), value);
        Ok(())
    }

    /// Drops every field of this name, then adds it.
    ///
    /// # Errors
    /// As [`Headers::append`]. The old fields are gone even then.
    pub fn set(&mut self, name: &str, value: impl AsRef<[u8]>) -> Result<(), HeaderError> {
        self.remove(name);
        self.append(name, value)
    }

    /// Drops every field of this name.
    pub fn remove(&mut self, name: &str) {
        self.drop_where(|n| n.eq_ignore_ascii_case(name.as_bytes()));
    }

    /// Drops every field of some names.
    pub fn drop_where(&mut self, is_dropped: impl Fn(&[u8]) -> bool) {
        let is_dropped = |field: &Field| is_dropped(field.name(&self.bytes));
        if !self.fields.iter().any(is_dropped) {
            return;
        }
        // The map is built again, so that many replacements do not use up its bound.
        let mut others = Self::new();
        others.reserve_usual();
        for field in self.fields.iter().filter(|f| !is_dropped(f)) {
            others.push(field.name(&self.bytes), field.value(&self.bytes));
        }
        *self = others;
    }

    /// The first value of this name.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let mut fields = self.fields.iter();
        let field = fields.find(|f| f.is_named(name, &self.bytes))?;
        Some(field.value(&self.bytes))
    }

    /// The first value of this name, if it is UTF-8.
    pub fn get_str(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(|v| std::str::from_utf8(v).ok())
    }

    /// Every value of this name, in order.
    pub fn get_all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let named = self
            .fields
            .iter()
            .filter(move |f| f.is_named(name, &self.bytes));
        named.map(|f| f.value(&self.bytes))
    }

    /// Every field whose name has this ASCII prefix, in order.
    pub fn with_prefix<'a>(&'a self, prefix: &str) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let fields = self.fields.iter();
        let fields = fields.map(|f| (f.name(&self.bytes), f.value(&self.bytes)));
        fields.filter(move |(name, _)| {
            let start = name.get(..prefix.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
        })
    }

    /// Every field, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.fields.iter().filter_map(|f| self.field(*f))
    }

    fn field(&self, field: Field) -> Option<(&str, &[u8])> {
        let name = std::str::from_utf8(field.name(&self.bytes)).ok()?;
        Some((name, field.value(&self.bytes)))
    }

    /// Number of fields.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether there is no field.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// The members of all fields of this name as one comma-separated list, without empty ones
    /// (RFC 9110 section 5.6.1).
    pub fn list<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.get_all(name)
            .flat_map(|v| v.split(|&b| b == b','))
            .map(trim)
            .filter(|member| !member.is_empty())
    }

    /// Whether the list of this name has this member, without regard to case.
    pub fn list_has(&self, name: &str, member: &str) -> bool {
        self.list(name)
            .any(|m| m.eq_ignore_ascii_case(member.as_bytes()))
    }

    /// Writes `name: value CRLF` for every field.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes);
    }

    /// As [`Headers::write_to`], without the fields of some names.
    pub(crate) fn write_without(&self, without: impl Fn(&[u8]) -> bool, out: &mut Vec<u8>) {
        let mut from = 0;
        for field in self.fields.iter().filter(|f| without(f.name(&self.bytes))) {
            let before = self.bytes.get(from..field.name_start);
            out.extend_from_slice(before.unwrap_or_default());
            from = field.value_end + END.len();
        }
        out.extend_from_slice(self.bytes.get(from..).unwrap_or_default());
    }

    /// Bytes that [`Headers::write_to`] writes.
    pub(crate) fn written_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Reads the lines that [`Self::write_to`] has written.
    ///
    /// # Errors
    /// A line is no field.
    pub fn parse_lines(lines: &[u8]) -> Result<Self, HeaderError> {
        let mut headers = Self::new();
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let line = line.strip_suffix(END).ok_or(HeaderError::Value)?;
            let name_end = line
                .windows(SEPARATOR.len())
                .position(|part| part == SEPARATOR);
            let (name, value) = name_end
                .and_then(|end| Some((line.get(..end)?, line.get(end + SEPARATOR.len()..)?)))
                .ok_or(HeaderError::Name)?;
            let name = std::str::from_utf8(name).map_err(|_| HeaderError::Name)?;
            headers.append(name, value)?;
        }
        Ok(headers)
    }

    /// Takes fields that `httparse` found in `head`, which has no control characters but line ends
    /// and HTAB. So names are tokens and values are valid. The caller has limited the head's
    /// length.
    pub(crate) fn from_parsed(parsed: &[httparse::Header<'_>], head: &[u8]) -> Self {
        let mut headers = Self {
            bytes: Vec::with_capacity(head.len() + ADDED_BYTES),
            fields: Vec::with_capacity(parsed.len() + ADDED_FIELDS),
        };
        if !headers.take_lines(parsed, head) {
            headers.fields.clear();
            for header in parsed {
                headers.push(header.name.as_bytes(), trim(header.value));
            }
        }
        headers
    }

    /// Copies the lines of all fields at once. False if one of them is not as it would be written.
    fn take_lines(&mut self, parsed: &[httparse::Header<'_>], head: &[u8]) -> bool {
        let place = |part: &[u8]| (part.as_ptr() as usize).wrapping_sub(head.as_ptr() as usize);
        let Some(first) = parsed.first() else {
            return true;
        };
        let lines_start = place(first.name.as_bytes());
        let mut at = lines_start;
        for header in parsed {
            let name_end = at + header.name.len();
            let value_start = name_end + SEPARATOR.len();
            let value_end = value_start + header.value.len();
            let line_end = value_end + END.len();
            let is_plain = place(header.name.as_bytes()) == at
                && place(header.value) == value_start
                && head.get(name_end..value_start) == Some(SEPARATOR)
                && head.get(value_end..line_end) == Some(END);
            if !is_plain {
                return false;
            }
            self.fields.push(Field {
                name_start: at - lines_start,
                name_end: name_end - lines_start,
                value_end: value_end - lines_start,
            });
            at = line_end;
        }
        let lines = head.get(lines_start..at).unwrap_or_default();
        self.bytes.extend_from_slice(lines);
        true
    }

    /// Reserves memory for a usual head, so that it does not move as it grows.
    fn reserve_usual(&mut self) {
        self.bytes.reserve(USUAL_BYTES);
        self.fields.reserve(USUAL_FIELDS);
    }

    fn push(&mut self, name: &[u8], value: &[u8]) {
        let name_start = self.bytes.len();
        write_field(&mut self.bytes, name, value);
        self.fields.push(Field {
            name_start,
            name_end: name_start + name.len(),
            value_end: self.bytes.len() - END.len(),
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

pub(crate) fn write_field(out: &mut Vec<u8>, name: impl AsRef<[u8]>, value: &[u8]) {
    let name = name.as_ref();
    out.reserve(name.len() + value.len() + FRAME_BYTES);
    for part in [name, SEPARATOR, value, END] {
        out.extend_from_slice(part);
    }
}

/// `tchar` of RFC 9110 section 5.6.2.
pub(crate) static TOKEN: Class = Class::new(b"!#$%&'*+-.^_`|~");

/// Whether these are all `tchar`.
pub(crate) fn is_token(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| TOKEN.has(byte))
}

/// Letters, digits and some other bytes, looked up in a table.
pub(crate) struct Class([bool; 256]);

impl Class {
    pub(crate) const fn new(others: &[u8]) -> Self {
        let mut class = [false; 256];
        let mut entries = class.as_mut_slice();
        let mut byte = 0_u8;
        while let [entry, behind @ ..] = entries {
            *entry = byte.is_ascii_alphanumeric() || holds(others, byte);
            byte = byte.wrapping_add(1);
            entries = behind;
        }
        Self(class)
    }

    pub(crate) fn has(&self, byte: u8) -> bool {
        self.0.get(usize::from(byte)).is_some_and(|has| *has)
    }
}

const fn holds(mut bytes: &[u8], byte: u8) -> bool {
    while let [first, behind @ ..] = bytes {
        if *first == byte {
            return true;
        }
        bytes = behind;
    }
    false
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
    fn parsed_fields_are_kept_as_they_would_be_written() {
        for (text, written) in [
            ("A: 1\r\nB-c: 2 3\r\n\r\n", "A: 1\r\nB-c: 2 3\r\n"),
            ("A:1\r\nB: 2\r\n\r\n", "A: 1\r\nB: 2\r\n"),
            ("A: 1\r\nB:  2\r\n\r\n", "A: 1\r\nB: 2\r\n"),
            ("A: 1 \r\nB: 2\t\r\n\r\n", "A: 1\r\nB: 2\r\n"),
            ("A: 1\nB: 2\n\n", "A: 1\r\nB: 2\r\n"),
            ("A: 1\r\nB:\r\n\r\n", "A: 1\r\nB: \r\n"),
            ("A: 1\r\nB: \r\nC: 3\r\n\r\n", "A: 1\r\nB: \r\nC: 3\r\n"),
            ("\r\n", ""),
        ] {
            let mut fields = [httparse::EMPTY_HEADER; 4];
            let parsed = httparse::parse_headers(text.as_bytes(), &mut fields);
            let (_, fields) = parsed.unwrap().unwrap();
            let headers = Headers::from_parsed(fields, text.as_bytes());
            let mut out = Vec::new();
            headers.write_to(&mut out);
            assert_eq!(String::from_utf8(out).unwrap(), written);
            let mut each = Headers::new();
            for field in fields {
                each.append(field.name, field.value).unwrap();
            }
            assert_eq!(headers, each, "{text:?}");
        }
    }

    #[test]
    fn names_are_found_by_how_they_begin() {
        let mut h = Headers::new();
        for name in ["If", "IF-Match", "x-if-a", "if-"] {
            h.append(name, "1").unwrap();
        }
        let names = h.with_prefix("if-").map(|(name, _)| name);
        assert_eq!(names.collect::<Vec<_>>(), [&b"IF-Match"[..], b"if-"]);
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
