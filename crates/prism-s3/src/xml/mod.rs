//! XML bodies: those of answers are written, those of clients are read.

mod answers;
mod listing;
mod parts;
mod read;
mod requests;
mod versions;

use std::borrow::Cow;
use std::fmt::Display;

use ::time::OffsetDateTime;

pub(crate) use self::answers::cors_configuration;
pub use self::answers::{
    Attributes, DeleteResult, Deleted, PartsOfObject, copy_result, delete_result, tagging,
    versioning,
};
pub use self::listing::{ListEntry, ListPage};
pub use self::parts::{
    Completed, PartEntry, PartsPage, UploadEntry, UploadsPage, complete_result, initiate_result,
};
pub use self::requests::{
    CompletedPart, DeleteRequest, DeleteTarget, MAX_DELETED_KEYS, parse_complete, parse_cors,
    parse_delete, parse_location_constraint, parse_tagging, parse_versioning,
};
pub use self::versions::{VersionEntry, VersionsPage};
use crate::BucketName;
use crate::query::encoded_path;
use crate::time::iso_millis;

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
    fn value(&mut self, name: &str, value: impl Display) {
        self.text(name, &value.to_string());
    }

    /// Writes the owner of everything, as S3 does.
    fn owner(&mut self, name: &str) {
        self.element(name, |doc| {
            doc.text("ID", OWNER);
            doc.text("DisplayName", OWNER);
        });
    }

    /// Writes how names are encoded, if they are.
    fn encoding(&mut self, url_encoded: bool) {
        self.optional("EncodingType", url_encoded.then_some("url"));
    }

    fn common_prefixes<'p>(&mut self, prefixes: impl Iterator<Item = &'p str>, url_encoded: bool) {
        for prefix in prefixes {
            self.element("CommonPrefixes", |doc| {
                doc.text("Prefix", &name(prefix, url_encoded));
            });
        }
    }

    fn push(&mut self, parts: &[&str]) {
        parts.iter().for_each(|part| self.written.push_str(part));
    }

    /// Writes text so that a parser gives back the same characters. Parsers would change or
    /// refuse control characters, so these become references, as in S3. Clients that need
    /// more ask for `encoding-type=url`.
    fn push_escaped(&mut self, text: &str) {
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

/// A name, percent-encoded where the client asked for that.
fn name(text: &str, url_encoded: bool) -> Cow<'_, str> {
    match url_encoded {
        true => encoded_path(text),
        false => Cow::Borrowed(text),
    }
}

/// `ListAllMyBucketsResult`: buckets with their creation times.
#[must_use]
pub fn list_buckets<'a>(
    buckets: impl IntoIterator<Item = (&'a BucketName, OffsetDateTime)>,
) -> Vec<u8> {
    document("ListAllMyBucketsResult", |doc| {
        doc.owner("Owner");
        doc.element("Buckets", |doc| {
            for (name, created) in buckets {
                doc.element("Bucket", |doc| {
                    doc.text("Name", name.as_str());
                    doc.text("CreationDate", &iso_millis(created));
                });
            }
        });
    })
}

/// `LocationConstraint`. S3 writes nothing for `us-east-1`.
#[must_use]
pub fn location(region: &str) -> Vec<u8> {
    document("LocationConstraint", |doc| {
        if region != "us-east-1" {
            doc.push_escaped(region);
        }
    })
}
