//! XML bodies, written and (where S3 clients send one) read.

mod answers;
mod listing;
mod parts;
mod read;
mod requests;
mod versions;

use ::time::OffsetDateTime;
use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesEnd, BytesStart, BytesText, Event};

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
use crate::time::iso_millis;

const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";

/// There are no accounts: everything belongs to the service.
const OWNER: &str = "prism";

/// The beginning of every document: what may be sent while the rest is not yet
/// known, with white space behind it.
pub const PROLOG: &[u8] = b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";

/// A document in the making. Text is escaped; element names are ours.
pub(crate) struct Document {
    writer: Writer<Vec<u8>>,
}

impl Document {
    pub(crate) fn new() -> Self {
        let mut document = Self {
            writer: Writer::new(Vec::new()),
        };
        document.event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)));
        document.event(Event::Text(BytesText::from_escaped("\n")));
        document
    }

    pub(crate) fn open(&mut self, name: &str, namespace: Option<&str>) {
        let mut start = BytesStart::new(name);
        if let Some(namespace) = namespace {
            start.push_attribute(("xmlns", namespace));
        }
        self.event(Event::Start(start));
    }

    pub(crate) fn close(&mut self, name: &str) {
        self.event(Event::End(BytesEnd::new(name)));
    }

    /// Who owns everything, as S3 writes it.
    fn owner(&mut self, element: &str) {
        self.open(element, None);
        self.text("ID", OWNER);
        self.text("DisplayName", OWNER);
        self.close(element);
    }

    pub(crate) fn text(&mut self, name: &str, text: &str) {
        self.open(name, None);
        self.event(Event::Text(BytesText::from_escaped(escape(text))));
        self.close(name);
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.writer.into_inner()
    }

    /// Writing to memory cannot fail, so the result holds nothing to act on.
    fn event(&mut self, event: Event<'_>) {
        let _ = self.writer.write_event(event);
    }
}

/// Escapes text so that a parser gives back the same characters: control
/// characters, which parsers would change or refuse, become references as S3
/// writes them (clients that need more ask for `encoding-type=url`).
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\0'..='\x1f' | '\x7f' | '\u{fffe}' | '\u{ffff}' => {
                out.push_str(&format!("&#x{:x};", u32::from(c)));
            }
            _ => out.push(c),
        }
    }
    out
}

/// `ListAllMyBucketsResult`: buckets with their creation times.
#[must_use]
pub fn list_buckets<'a>(
    buckets: impl IntoIterator<Item = (&'a BucketName, OffsetDateTime)>,
) -> Vec<u8> {
    let mut doc = Document::new();
    doc.open("ListAllMyBucketsResult", Some(NAMESPACE));
    doc.owner("Owner");
    doc.open("Buckets", None);
    for (name, created) in buckets {
        doc.open("Bucket", None);
        doc.text("Name", name.as_str());
        doc.text("CreationDate", &iso_millis(created));
        doc.close("Bucket");
    }
    doc.close("Buckets");
    doc.close("ListAllMyBucketsResult");
    doc.finish()
}

/// `LocationConstraint`. S3 writes nothing for `us-east-1`.
#[must_use]
pub fn location(region: &str) -> Vec<u8> {
    let mut doc = Document::new();
    doc.open("LocationConstraint", Some(NAMESPACE));
    if region != "us-east-1" {
        doc.event(Event::Text(BytesText::from_escaped(escape(region))));
    }
    doc.close("LocationConstraint");
    doc.finish()
}

fn yes_or_no(yes: bool) -> &'static str {
    if yes { "true" } else { "false" }
}
