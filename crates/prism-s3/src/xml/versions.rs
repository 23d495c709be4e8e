//! Pages of the versions of a bucket's objects.

use ::time::OffsetDateTime;

use super::{Document, document, name};
use crate::BucketName;
use crate::list::ListVersions;
use crate::time::iso_millis;

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

/// One page of a bucket's versions.
#[derive(Debug, Clone)]
pub struct VersionsPage<'a> {
    /// The bucket.
    pub bucket: &'a BucketName,
    /// The parameters of the request.
    pub request: &'a ListVersions,
    /// By key, then the newest first.
    pub versions: Vec<VersionEntry>,
    /// Prefixes up to the delimiter, ascending.
    pub common_prefixes: Vec<String>,
    /// The last version or common prefix of this page, if more follow: its key, and the
    /// version's name or nothing.
    pub next: Option<(String, String)>,
}

impl VersionsPage<'_> {
    /// `ListVersionsResult`.
    #[must_use]
    pub fn xml(&self) -> Vec<u8> {
        let request = self.request;
        let name = |text| name(text, request.url_encoded);
        document("ListVersionsResult", |doc| {
            doc.text("Name", self.bucket.as_str());
            doc.text("Prefix", &name(&request.prefix));
            let delimiter = request.delimiter.as_deref();
            doc.optional("Delimiter", delimiter.map(name).as_deref());
            doc.value("MaxKeys", request.max);
            doc.encoding(request.url_encoded);
            doc.text("KeyMarker", &name(&request.key_marker));
            doc.text("VersionIdMarker", &request.version_marker);
            if let Some((key, id)) = &self.next {
                doc.text("NextKeyMarker", &name(key));
                let id = Some(id.as_str()).filter(|id| !id.is_empty());
                doc.optional("NextVersionIdMarker", id);
            }
            doc.value("IsTruncated", self.next.is_some());
            for version in &self.versions {
                self.version(doc, version);
            }
            let prefixes = self.common_prefixes.iter().map(String::as_str);
            doc.common_prefixes(prefixes, request.url_encoded);
        })
    }

    fn version(&self, doc: &mut Document, version: &VersionEntry) {
        let element = match version.object {
            Some(_) => "Version",
            None => "DeleteMarker",
        };
        doc.element(element, |doc| {
            doc.text("Key", &name(&version.key, self.request.url_encoded));
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
        let request = ListVersions {
            prefix: String::new(),
            delimiter: None,
            key_marker: "k".to_owned(),
            version_marker: "9".to_owned(),
            max: 2,
            url_encoded: true,
        };
        let page = VersionsPage {
            bucket: &BucketName::parse("bkt").unwrap(),
            request: &request,
            versions: vec![entry("2", None), entry("1", Some(("\"e\"".to_owned(), 3)))],
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
