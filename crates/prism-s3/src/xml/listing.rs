//! Pages of a bucket's keys.

use ::time::OffsetDateTime;

use super::{Document, NAMESPACE};
use crate::BucketName;
use crate::list::{ListObjects, ListVersion};
use crate::query::encode_path;
use crate::time::iso_millis;

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
        doc.text("IsTruncated", super::yes_or_no(self.next.is_some()));
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
            if self.request.with_owner {
                doc.owner("Owner");
            }
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
        name(text, self.request.url_encoded)
    }
}

/// A name, percent-encoded where that was asked for.
pub(super) fn name(text: &str, url_encoded: bool) -> String {
    if url_encoded {
        encode_path(text)
    } else {
        text.to_owned()
    }
}
