//! Pages of a bucket's keys.

use std::borrow::Cow;

use ::time::OffsetDateTime;

use super::{Document, document, name};
use crate::BucketName;
use crate::list::{ListObjects, ListVersion};
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

/// One page of a listing, written as the version that the client asked for.
#[derive(Debug, Clone)]
pub struct ListPage<'a> {
    /// The bucket.
    pub bucket: &'a BucketName,
    /// The parameters of the request.
    pub request: &'a ListObjects,
    /// Keys, ascending.
    pub entries: Vec<ListEntry<'a>>,
    /// Prefixes up to the delimiter, ascending.
    pub common_prefixes: Vec<&'a str>,
    /// The last key or common prefix of this page, if more follow.
    pub next: Option<&'a str>,
}

impl ListPage<'_> {
    /// `ListBucketResult`.
    #[must_use]
    pub fn xml(&self) -> Vec<u8> {
        let request = self.request;
        document("ListBucketResult", |doc| {
            doc.text("Name", self.bucket.as_str());
            doc.text("Prefix", &self.name(&request.prefix));
            let delimiter = request.delimiter.as_deref();
            doc.optional("Delimiter", delimiter.map(|d| self.name(d)).as_deref());
            doc.value("MaxKeys", request.max_keys);
            doc.encoding(request.url_encoded);
            self.position(doc);
            doc.value("IsTruncated", self.next.is_some());
            self.entries.iter().for_each(|entry| self.entry(doc, entry));
            let prefixes = self.common_prefixes.iter().copied();
            doc.common_prefixes(prefixes, request.url_encoded);
        })
    }

    fn position(&self, doc: &mut Document) {
        match &self.request.version {
            ListVersion::V1 { marker } => {
                doc.text("Marker", &self.name(marker));
                doc.optional(
                    "NextMarker",
                    self.next.map(|next| self.name(next)).as_deref(),
                );
            }
            ListVersion::V2 {
                token, start_after, ..
            } => {
                doc.value("KeyCount", self.entries.len() + self.common_prefixes.len());
                doc.optional("ContinuationToken", token.as_deref());
                let start_after = start_after.as_deref().map(|key| self.name(key));
                doc.optional("StartAfter", start_after.as_deref());
                let next = self.next.map(ListObjects::token);
                doc.optional("NextContinuationToken", next.as_deref());
            }
        }
    }

    fn entry(&self, doc: &mut Document, entry: &ListEntry<'_>) {
        doc.element("Contents", |doc| {
            doc.text("Key", &self.name(entry.key));
            doc.text("LastModified", &iso_millis(entry.modified));
            doc.text("ETag", entry.etag);
            doc.value("Size", entry.size);
            if self.request.with_owner {
                doc.owner("Owner");
            }
            doc.text("StorageClass", "STANDARD");
        });
    }

    fn name<'n>(&self, text: &'n str) -> Cow<'n, str> {
        name(text, self.request.url_encoded)
    }
}
