//! Pages of a bucket's keys, versions and uploads.

use super::write::{Document, document};
use crate::BucketName;
use crate::list::{Item, Line, ListMarked, ListObjects, ListVersion, Listing, Page};
use crate::query::name;

/// `ListBucketResult`, in the version of ListObjects that the client asked for.
pub fn list_objects(bucket: &BucketName, request: &ListObjects, page: &Page) -> Vec<u8> {
    let listing = &request.listing;
    let name = |text| name(text, listing.url_encoded);
    let next = page.next().map(|(key, _)| key);
    document("ListBucketResult", |doc| {
        doc.text("Name", bucket.as_str());
        write_listing(doc, listing, "MaxKeys");
        match &request.version {
            ListVersion::V1 { marker } => {
                doc.text("Marker", &name(marker));
                doc.optional("NextMarker", next.map(name).as_deref());
            }
            ListVersion::V2 {
                after_token,
                start_after,
            } => {
                doc.value("KeyCount", page.lines.len());
                let token = after_token.as_deref().map(ListObjects::token);
                doc.optional("ContinuationToken", token.as_deref());
                let start_after = start_after.as_deref().map(name);
                doc.optional("StartAfter", start_after.as_deref());
                let next = next.map(ListObjects::token);
                doc.optional("NextContinuationToken", next.as_deref());
            }
        }
        write_lines(doc, listing, page, request.with_owner);
    })
}

/// `ListVersionsResult`.
pub fn list_versions(bucket: &BucketName, request: &ListMarked, page: &Page) -> Vec<u8> {
    let listing = &request.listing;
    document("ListVersionsResult", |doc| {
        doc.text("Name", bucket.as_str());
        write_listing(doc, listing, "MaxKeys");
        doc.text("KeyMarker", &name(&request.key_marker, listing.url_encoded));
        doc.text("VersionIdMarker", &request.id_marker);
        if let Some((key, id)) = page.next() {
            doc.text("NextKeyMarker", &name(key, listing.url_encoded));
            doc.optional("NextVersionIdMarker", Some(id).filter(|id| !id.is_empty()));
        }
        write_lines(doc, listing, page, true);
    })
}

/// `ListMultipartUploadsResult`.
pub fn list_uploads(bucket: &BucketName, request: &ListMarked, page: &Page) -> Vec<u8> {
    let listing = &request.listing;
    document("ListMultipartUploadsResult", |doc| {
        doc.text("Bucket", bucket.as_str());
        doc.text("KeyMarker", &name(&request.key_marker, listing.url_encoded));
        doc.text("UploadIdMarker", &request.id_marker);
        if let Some((key, upload)) = page.next() {
            doc.text("NextKeyMarker", &name(key, listing.url_encoded));
            doc.text("NextUploadIdMarker", upload);
        }
        write_listing(doc, listing, "MaxUploads");
        write_lines(doc, listing, page, true);
    })
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

/// Writes the entries of a page, and then its common prefixes.
fn write_lines(doc: &mut Document, listing: &Listing, page: &Page, with_owner: bool) {
    doc.value("IsTruncated", page.next().is_some());
    let is_prefix = |(_, item): &&Line| *item == Item::Prefix;
    for (key, item) in page.lines.iter().filter(|line| !is_prefix(line)) {
        write_entry(doc, &name(key, listing.url_encoded), item, with_owner);
    }
    for (prefix, _) in page.lines.iter().filter(is_prefix) {
        doc.element("CommonPrefixes", |doc| {
            doc.text("Prefix", &name(prefix, listing.url_encoded));
        });
    }
}

fn write_entry(doc: &mut Document, key: &str, item: &Item, with_owner: bool) {
    match item {
        Item::Prefix => {}
        Item::Key {
            len,
            etag,
            created_ms,
            checksum,
        } => doc.element("Contents", |doc| {
            doc.text("Key", key);
            doc.time("LastModified", *created_ms);
            doc.etag(etag);
            write_checksum(doc, checksum.as_ref());
            doc.value("Size", len);
            if with_owner {
                doc.owner("Owner");
            }
            doc.text("StorageClass", "STANDARD");
        }),
        Item::Version {
            id,
            is_latest,
            created_ms,
            object,
            checksum,
        } => {
            let is_marker = object.is_none();
            let element = if is_marker { "DeleteMarker" } else { "Version" };
            doc.element(element, |doc| {
                doc.text("Key", key);
                doc.text("VersionId", id);
                doc.value("IsLatest", is_latest);
                doc.time("LastModified", *created_ms);
                if let Some((etag, len)) = object {
                    doc.etag(etag);
                    write_checksum(doc, checksum.as_ref());
                    doc.value("Size", len);
                    doc.text("StorageClass", "STANDARD");
                }
                doc.owner("Owner");
            });
        }
        Item::Upload {
            id,
            created_ms,
            checksum,
        } => doc.element("Upload", |doc| {
            doc.text("Key", key);
            doc.text("UploadId", id);
            doc.owner("Initiator");
            doc.owner("Owner");
            doc.text("StorageClass", "STANDARD");
            doc.time("Initiated", *created_ms);
            write_checksum(doc, checksum.as_ref());
        }),
    }
}

/// Writes the algorithm and the type of a checksum.
fn write_checksum(doc: &mut Document, checksum: Option<&(String, String)>) {
    if let Some((algorithm, kind)) = checksum {
        doc.text("ChecksumAlgorithm", algorithm);
        doc.text("ChecksumType", kind);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn versions_and_delete_markers_are_told_apart_and_in_order() {
        let entry = |id: &str, object: Option<(String, u64)>| {
            let item = Item::Version {
                id: id.to_owned(),
                is_latest: id == "2",
                created_ms: 0,
                checksum: object
                    .as_ref()
                    .map(|_| ("CRC32".to_owned(), "COMPOSITE".to_owned())),
                object,
            };
            ("a b".to_owned(), item)
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
        let page = Page {
            lines: vec![
                ("c/".to_owned(), Item::Prefix),
                entry("2", None),
                entry("1", Some(("e".to_owned(), 3))),
            ],
            is_truncated: true,
        };
        let bucket = BucketName::parse("bkt").unwrap();
        let xml = String::from_utf8(list_versions(&bucket, &request, &page)).unwrap();
        for part in [
            "<KeyMarker>k</KeyMarker><VersionIdMarker>9</VersionIdMarker>",
            "<NextKeyMarker>a%20b</NextKeyMarker><NextVersionIdMarker>1</NextVersionIdMarker>",
            "<DeleteMarker><Key>a%20b</Key><VersionId>2</VersionId><IsLatest>true</IsLatest>",
            "<Version><Key>a%20b</Key><VersionId>1</VersionId><IsLatest>false</IsLatest>",
            "</ETag><ChecksumAlgorithm>CRC32</ChecksumAlgorithm>\
             <ChecksumType>COMPOSITE</ChecksumType><Size>3</Size>",
            "</Version><CommonPrefixes><Prefix>c/</Prefix>",
        ] {
            assert!(xml.contains(part), "{part}: {xml}");
        }
    }
}
