//! XML bodies, written and (where S3 clients send one) read.

use ::time::OffsetDateTime;
use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesEnd, BytesStart, BytesText, Event};
use quick_xml::reader::Reader;

use crate::list::{ListObjects, ListVersion};
use crate::query::encode_path;
use crate::time::iso_millis;
use crate::{BucketName, Code, S3Error};

const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";

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
    owner: &str,
    buckets: impl IntoIterator<Item = (&'a BucketName, OffsetDateTime)>,
) -> Vec<u8> {
    let mut doc = Document::new();
    doc.open("ListAllMyBucketsResult", Some(NAMESPACE));
    doc.open("Owner", None);
    doc.text("ID", owner);
    doc.text("DisplayName", owner);
    doc.close("Owner");
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

/// One key of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListEntry<'a> {
    /// The key.
    pub key: &'a str,
    /// When it was written.
    pub modified: OffsetDateTime,
    /// The ETag, with its quotes.
    pub etag: &'a str,
    /// Size in bytes.
    pub size: u64,
}

/// One page of a listing, to be written as the version that was asked for.
#[derive(Debug, Clone)]
pub struct ListPage<'a> {
    /// The bucket.
    pub bucket: &'a BucketName,
    /// What was asked.
    pub request: &'a ListObjects,
    /// Keys, ascending.
    pub entries: Vec<ListEntry<'a>>,
    /// Prefixes up to the delimiter, ascending.
    pub common_prefixes: Vec<&'a str>,
    /// The last key or common prefix of this page, if there is more behind it.
    pub next: Option<&'a str>,
}

impl ListPage<'_> {
    /// `ListBucketResult`.
    #[must_use]
    pub fn xml(&self) -> Vec<u8> {
        let mut doc = Document::new();
        doc.open("ListBucketResult", Some(NAMESPACE));
        doc.text("Name", self.bucket.as_str());
        doc.text("Prefix", &self.name(&self.request.prefix));
        if let Some(delimiter) = &self.request.delimiter {
            doc.text("Delimiter", &self.name(delimiter));
        }
        doc.text("MaxKeys", &self.request.max_keys.to_string());
        if self.request.url_encoded {
            doc.text("EncodingType", "url");
        }
        self.position(&mut doc);
        doc.text(
            "IsTruncated",
            if self.next.is_some() { "true" } else { "false" },
        );
        self.contents(&mut doc);
        doc.close("ListBucketResult");
        doc.finish()
    }

    fn position(&self, doc: &mut Document) {
        match &self.request.version {
            ListVersion::V1 { marker } => {
                doc.text("Marker", &self.name(marker));
                if let Some(next) = self.next {
                    doc.text("NextMarker", &self.name(next));
                }
            }
            ListVersion::V2 {
                token, start_after, ..
            } => {
                let count = self.entries.len() + self.common_prefixes.len();
                doc.text("KeyCount", &count.to_string());
                if let Some(token) = token {
                    doc.text("ContinuationToken", token);
                }
                if let Some(start_after) = start_after {
                    doc.text("StartAfter", &self.name(start_after));
                }
                if let Some(next) = self.next {
                    doc.text("NextContinuationToken", &ListObjects::token(next));
                }
            }
        }
    }

    fn contents(&self, doc: &mut Document) {
        for entry in &self.entries {
            doc.open("Contents", None);
            doc.text("Key", &self.name(entry.key));
            doc.text("LastModified", &iso_millis(entry.modified));
            doc.text("ETag", entry.etag);
            doc.text("Size", &entry.size.to_string());
            doc.text("StorageClass", "STANDARD");
            doc.close("Contents");
        }
        for prefix in &self.common_prefixes {
            doc.open("CommonPrefixes", None);
            doc.text("Prefix", &self.name(prefix));
            doc.close("CommonPrefixes");
        }
    }

    fn name(&self, text: &str) -> String {
        if self.request.url_encoded {
            encode_path(text)
        } else {
            text.to_owned()
        }
    }
}

/// The region of a `CreateBucketConfiguration`, or `None` if the body is empty
/// or names none.
///
/// # Errors
/// `MalformedXML`. Document types are refused, so nothing expands.
pub fn parse_location_constraint(body: &[u8]) -> Result<Option<String>, S3Error> {
    let text = std::str::from_utf8(body).map_err(|_| Code::MalformedXML)?;
    let mut reader = Reader::from_str(text);
    let (mut inside, mut region, mut depth) = (false, String::new(), 0usize);
    loop {
        match reader.read_event().map_err(|_| Code::MalformedXML)? {
            Event::Start(start) => {
                let name = start.local_name();
                let root = name.as_ref() == b"CreateBucketConfiguration";
                if (depth == 0) != root || depth > MAX_DEPTH {
                    return Err(Code::MalformedXML.into());
                }
                inside = name.as_ref() == b"LocationConstraint";
                depth += 1;
            }
            Event::End(_) => {
                inside = false;
                depth = depth.saturating_sub(1);
            }
            Event::Text(t) if inside => {
                region.push_str(&t.decode().map_err(|_| Code::MalformedXML)?);
            }
            Event::DocType(_) | Event::GeneralRef(_) => return Err(Code::MalformedXML.into()),
            Event::Eof if depth != 0 => return Err(Code::MalformedXML.into()),
            Event::Eof => break,
            _ => {}
        }
    }
    let region = region.trim();
    Ok((!region.is_empty()).then(|| region.to_owned()))
}

/// Nesting of a `CreateBucketConfiguration`, with room for its newer parts.
const MAX_DEPTH: usize = 8;
