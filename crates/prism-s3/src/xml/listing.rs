//! Pages of a bucket's keys, versions and uploads.

use ::time::OffsetDateTime;

use super::parts::write_checksum_kind;
use super::write::{Document, document};
use crate::BucketName;
use crate::integrity::{Algorithm, ChecksumType};
use crate::list::{ListMarked, ListObjects, ListVersion, Listing};
use crate::query::name;
use crate::time::iso_millis;

/// One page of the listing that a client asked for.
#[derive(Debug, Clone)]
pub struct Page<'a, R, E> {
    /// The bucket.
    pub bucket: &'a BucketName,
    /// The parameters of the request.
    pub request: &'a R,
    /// By key. Versions of a key have the newest first, its uploads the oldest.
    pub entries: Vec<E>,
    /// Prefixes up to the delimiter, ascending.
    pub common_prefixes: Vec<String>,
    /// The last entry or common prefix of this page, if more follow: its key, and the name of
    /// the version or upload, or nothing.
    pub next: Option<(String, String)>,
}

/// A page of keys, written as the version of ListObjects that the client asked for.
pub type ListPage<'a> = Page<'a, ListObjects, ListEntry>;
/// A page of versions.
pub type VersionsPage<'a> = Page<'a, ListMarked, VersionEntry>;
/// A page of uploads.
pub type UploadsPage<'a> = Page<'a, ListMarked, UploadEntry>;

/// One key of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListEntry {
    /// The key.
    pub key: String,
    /// When it was written.
    pub modified: OffsetDateTime,
    /// The ETag, with its quotes.
    pub etag: String,
    /// Size in bytes.
    pub size: u64,
}

/// A version, or a delete marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionEntry {
    /// The key.
    pub key: String,
    /// Its name.
    pub id: String,
    /// Whether it is the newest of its key.
    pub is_latest: bool,
    /// When it was written.
    pub modified: OffsetDateTime,
    /// The ETag, with its quotes, and the size in bytes; none of a delete marker.
    pub object: Option<(String, u64)>,
}

/// An upload that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadEntry {
    /// The key of the object to be.
    pub key: String,
    /// Its name.
    pub upload: String,
    /// When it began.
    pub initiated: OffsetDateTime,
    /// Checksums that its parts have.
    pub checksum: Option<(Algorithm, ChecksumType)>,
}

impl<R, E> Page<'_, R, E> {
    /// Writes a page: its parameters, its entries and its common prefixes.
    fn write<'s>(
        &'s self,
        root: &str,
        listing: &Listing,
        parameters: impl FnOnce(&mut Document),
        entry: impl Fn(&mut Document, &'s E),
    ) -> Vec<u8> {
        document(root, |doc| {
            parameters(doc);
            doc.value("IsTruncated", self.next.is_some());
            self.entries.iter().for_each(|found| entry(doc, found));
            for prefix in &self.common_prefixes {
                doc.element("CommonPrefixes", |doc| {
                    doc.text("Prefix", &name(prefix, listing.url_encoded));
                });
            }
        })
    }
}

/// Writes the parameters of every listing. `max` is the element of the page's size.
fn write_listing(doc: &mut Document, listing: &Listing, max: &str) {
    doc.text("Prefix", &name(&listing.prefix, listing.url_encoded));
    if let Some(delimiter) = &listing.delimiter {
        doc.text("Delimiter", &name(delimiter, listing.url_encoded));
    }
    doc.value(max, listing.max);
    doc.optional("EncodingType", listing.url_encoded.then_some("url"));
}

impl ListPage<'_> {
    /// `ListBucketResult`.
    pub fn xml(&self) -> Vec<u8> {
        let listing = &self.request.listing;
        let parameters = |doc: &mut Document| {
            doc.text("Name", self.bucket.as_str());
            write_listing(doc, listing, "MaxKeys");
            self.position(doc);
        };
        self.write("ListBucketResult", listing, parameters, |doc, entry| {
            doc.element("Contents", |doc| {
                doc.text("Key", &name(&entry.key, listing.url_encoded));
                doc.text("LastModified", &iso_millis(entry.modified));
                doc.text("ETag", &entry.etag);
                doc.value("Size", entry.size);
                if self.request.with_owner {
                    doc.owner("Owner");
                }
                doc.text("StorageClass", "STANDARD");
            });
        })
    }

    fn position(&self, doc: &mut Document) {
        let name = |text| name(text, self.request.listing.url_encoded);
        let next = self.next.as_ref().map(|(key, _)| key.as_str());
        match &self.request.version {
            ListVersion::V1 { marker } => {
                doc.text("Marker", &name(marker));
                doc.optional("NextMarker", next.map(name).as_deref());
            }
            ListVersion::V2 {
                token, start_after, ..
            } => {
                doc.value("KeyCount", self.entries.len() + self.common_prefixes.len());
                doc.optional("ContinuationToken", token.as_deref());
                let start_after = start_after.as_deref().map(name);
                doc.optional("StartAfter", start_after.as_deref());
                let next = next.map(ListObjects::token);
                doc.optional("NextContinuationToken", next.as_deref());
            }
        }
    }
}

impl VersionsPage<'_> {
    /// `ListVersionsResult`.
    pub fn xml(&self) -> Vec<u8> {
        let listing = &self.request.listing;
        let name = |text| name(text, listing.url_encoded);
        let parameters = |doc: &mut Document| {
            doc.text("Name", self.bucket.as_str());
            write_listing(doc, listing, "MaxKeys");
            doc.text("KeyMarker", &name(&self.request.key_marker));
            doc.text("VersionIdMarker", &self.request.id_marker);
            if let Some((key, id)) = &self.next {
                doc.text("NextKeyMarker", &name(key));
                let id = Some(id.as_str()).filter(|id| !id.is_empty());
                doc.optional("NextVersionIdMarker", id);
            }
        };
        self.write("ListVersionsResult", listing, parameters, |doc, version| {
            let element = match version.object {
                Some(_) => "Version",
                None => "DeleteMarker",
            };
            doc.element(element, |doc| {
                doc.text("Key", &name(&version.key));
                doc.text("VersionId", &version.id);
                doc.value("IsLatest", version.is_latest);
                doc.text("LastModified", &iso_millis(version.modified));
                if let Some((etag, size)) = &version.object {
                    doc.text("ETag", etag);
                    doc.value("Size", size);
                    doc.text("StorageClass", "STANDARD");
                }
                doc.owner("Owner");
            });
        })
    }
}

impl UploadsPage<'_> {
    /// `ListMultipartUploadsResult`.
    pub fn xml(&self) -> Vec<u8> {
        let listing = &self.request.listing;
        let name = |text| name(text, listing.url_encoded);
        let parameters = |doc: &mut Document| {
            doc.text("Bucket", self.bucket.as_str());
            doc.text("KeyMarker", &name(&self.request.key_marker));
            doc.text("UploadIdMarker", &self.request.id_marker);
            if let Some((key, upload)) = &self.next {
                doc.text("NextKeyMarker", &name(key));
                doc.text("NextUploadIdMarker", upload);
            }
            write_listing(doc, listing, "MaxUploads");
        };
        let root = "ListMultipartUploadsResult";
        self.write(root, listing, parameters, |doc, upload| {
            doc.element("Upload", |doc| {
                doc.text("Key", &name(&upload.key));
                doc.text("UploadId", &upload.upload);
                doc.owner("Initiator");
                doc.owner("Owner");
                doc.text("StorageClass", "STANDARD");
                doc.text("Initiated", &iso_millis(upload.initiated));
                write_checksum_kind(doc, upload.checksum);
            });
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn versions_and_delete_markers_are_told_apart_and_in_order() {
        let entry = |id: &str, object| VersionEntry {
            key: "a b".to_owned(),
            id: id.to_owned(),
            is_latest: id == "2",
            modified: OffsetDateTime::UNIX_EPOCH,
            object,
        };
        let listing = Listing {
            prefix: String::new(),
            delimiter: None,
            max: 2,
            url_encoded: true,
        };
        let request = ListMarked {
            listing,
            key_marker: "k".to_owned(),
            id_marker: "9".to_owned(),
        };
        let page = VersionsPage {
            bucket: &BucketName::parse("bkt").unwrap(),
            request: &request,
            entries: vec![entry("2", None), entry("1", Some(("\"e\"".to_owned(), 3)))],
            common_prefixes: vec!["c/".to_owned()],
            next: Some(("a b".to_owned(), "1".to_owned())),
        };
        let xml = String::from_utf8(page.xml()).unwrap();
        for part in [
            "<KeyMarker>k</KeyMarker><VersionIdMarker>9</VersionIdMarker>",
            "<NextKeyMarker>a%20b</NextKeyMarker><NextVersionIdMarker>1</NextVersionIdMarker>",
            "<DeleteMarker><Key>a%20b</Key><VersionId>2</VersionId><IsLatest>true</IsLatest>",
            "<Version><Key>a%20b</Key><VersionId>1</VersionId><IsLatest>false</IsLatest>",
            "<Size>3</Size>",
            "</Version><CommonPrefixes><Prefix>c/</Prefix>",
        ] {
            assert!(xml.contains(part), "{part}: {xml}");
        }
    }
}
