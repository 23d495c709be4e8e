//! Writes XML of answers.

use std::fmt::Display;

use crate::conditions::quoted;
use crate::time::{from_ms, iso_millis};

const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";

/// The owner of everything, because there are no accounts.
const OWNER: &str = "prism";

/// The beginning of every document. It may be sent while the rest is not yet known; white
/// space may follow it.
pub const PROLOG: &[u8] = PROLOG_TEXT.as_bytes();
const PROLOG_TEXT: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";

/// A document with this root element, which `fill` fills.
pub(crate) fn document(root: &str, fill: impl FnOnce(&mut Document)) -> Vec<u8> {
    let mut doc = Document::new();
    doc.push(&["<", root, " xmlns=\"", NAMESPACE, "\">"]);
    fill(&mut doc);
    doc.push(&["</", root, ">"]);
    doc.finish()
}

/// A document that is being written. Text is escaped; names of elements are not.
pub(crate) struct Document {
    written: String,
}

impl Document {
    pub(crate) fn new() -> Self {
        Self {
            written: PROLOG_TEXT.to_owned(),
        }
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.written.into_bytes()
    }

    /// Writes an element; `fill` writes what is inside.
    pub(crate) fn element(&mut self, name: &str, fill: impl FnOnce(&mut Self)) {
        self.push(&["<", name, ">"]);
        fill(self);
        self.push(&["</", name, ">"]);
    }

    pub(crate) fn text(&mut self, name: &str, text: &str) {
        self.element(name, |doc| doc.push_escaped(text));
    }

    /// Writes an element if there is a text for it.
    pub(crate) fn optional(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.text(name, text);
        }
    }

    /// Writes a number, or a truth value.
    pub(crate) fn value(&mut self, name: &str, value: impl Display) {
        self.text(name, &value.to_string());
    }

    /// Writes a time in milliseconds since the Unix epoch.
    pub(crate) fn time(&mut self, name: &str, ms: u64) {
        self.text(name, &iso_millis(from_ms(ms)));
    }

    /// Writes an ETag, which has no quotes yet.
    pub(crate) fn etag(&mut self, etag: &str) {
        self.text("ETag", &quoted(etag));
    }

    /// Writes the owner of everything, as S3 does.
    pub(crate) fn owner(&mut self, name: &str) {
        self.element(name, Self::owner_names);
    }

    /// Writes the owner of everything as the grantee of a right.
    pub(crate) fn grantee(&mut self) {
        let schema = "http://www.w3.org/2001/XMLSchema-instance";
        let start = [
            "<Grantee xmlns:xsi=\"",
            schema,
            "\" xsi:type=\"CanonicalUser\">",
        ];
        self.push(&start);
        self.owner_names();
        self.push(&["</Grantee>"]);
    }

    fn owner_names(&mut self) {
        self.text("ID", OWNER);
        self.text("DisplayName", OWNER);
    }

    fn push(&mut self, parts: &[&str]) {
        parts.iter().for_each(|part| self.written.push_str(part));
    }

    /// Writes text so that a parser gives back the same characters. Parsers would change or
    /// refuse control characters, so these become references, as in S3. Clients that need
    /// more ask for `encoding-type=url`.
    pub(crate) fn push_escaped(&mut self, text: &str) {
        for c in text.chars() {
            match c {
                '&' => self.written.push_str("&amp;"),
                '<' => self.written.push_str("&lt;"),
                '>' => self.written.push_str("&gt;"),
                '"' => self.written.push_str("&quot;"),
                '\0'..='\x1f' | '\x7f' | '\u{fffe}' | '\u{ffff}' => {
                    self.written.push_str(&format!("&#x{:x};", u32::from(c)));
                }
                _ => self.written.push(c),
            }
        }
    }
}
