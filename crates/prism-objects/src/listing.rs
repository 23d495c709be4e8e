//! Listings of a bucket's keys and uploads. Each backend gives its share, and the node with
//! the client's connection merges them. A share is requested in pieces, so a page of 1,000 keys
//! moves little more than 1,000 keys between nodes.

use prism_replicas::{Item, Line, ListWanted, Question};
use prism_s3::xml::{ListEntry, ListPage, UploadEntry, UploadsPage};
use prism_s3::{Algorithm, BucketName, ChecksumType, ListObjects, ListUploads, S3Error};

use crate::answer::{Answer, from_ms};
use crate::get::quoted;
use crate::merge::{Page, ShareWanted};
use crate::objects::Objects;
use crate::request::Request;

impl Objects {
    /// The page of keys that the client asks for.
    pub(crate) async fn list_objects(
        &self,
        request: &Request,
        bucket: &BucketName,
        list: &ListObjects,
    ) -> Result<Answer, S3Error> {
        let after = list.after().map(|after| (after.to_owned(), String::new()));
        let question = |share: ShareWanted| {
            Question::ListObjects(ListWanted {
                bucket: bucket.as_str().to_owned(),
                prefix: list.prefix.clone(),
                delimiter: list.delimiter.clone(),
                after: share.after.map(|(key, _)| key),
                max: share.max,
                without: share.without,
            })
        };
        let merged = self.merge_shares(request, after, list.max_keys, question);
        Ok(Answer::xml(objects_page(bucket, list, &merged.await?)))
    }

    /// The page of uploads that the client asks for.
    pub(crate) async fn list_uploads(
        &self,
        request: &Request,
        bucket: &BucketName,
        list: &ListUploads,
    ) -> Result<Answer, S3Error> {
        let after = match list.key_marker.as_str() {
            "" => None,
            key => Some((key.to_owned(), list.upload_marker.clone())),
        };
        let question = |share: ShareWanted| {
            Question::ListUploads(ListWanted {
                bucket: bucket.as_str().to_owned(),
                prefix: list.prefix.clone(),
                delimiter: list.delimiter.clone(),
                after: share.after,
                max: share.max,
                without: share.without,
            })
        };
        let merged = self.merge_shares(request, after, list.max, question);
        Ok(Answer::xml(uploads_page(bucket, list, merged.await?)))
    }
}

fn objects_page(bucket: &BucketName, list: &ListObjects, merged: &Page) -> Vec<u8> {
    let lines: &[Line] = &merged.lines;
    let etags: Vec<String> = lines
        .iter()
        .map(|(_, item)| match item {
            Item::Key { etag, .. } => quoted(etag),
            _ => String::new(),
        })
        .collect();
    let entries = lines
        .iter()
        .zip(&etags)
        .filter_map(|((key, item), etag)| match item {
            Item::Key {
                len, created_ms, ..
            } => Some(ListEntry {
                key,
                modified: from_ms(*created_ms),
                etag,
                size: *len,
            }),
            _ => None,
        });
    let prefixes = lines.iter().filter(|(_, item)| *item == Item::Prefix);
    let page = ListPage {
        bucket,
        request: list,
        entries: entries.collect(),
        common_prefixes: prefixes.map(|(name, _)| name.as_str()).collect(),
        next: lines
            .last()
            .filter(|_| merged.is_truncated)
            .map(|(name, _)| name.as_str()),
    };
    page.xml()
}

fn uploads_page(bucket: &BucketName, list: &ListUploads, merged: Page) -> Vec<u8> {
    let mut page = UploadsPage {
        bucket,
        request: list,
        uploads: Vec::new(),
        common_prefixes: Vec::new(),
        next: merged.next(),
    };
    for (name, item) in merged.lines {
        match item {
            Item::Upload {
                id,
                created_ms,
                checksum,
            } => {
                let checksum = checksum.and_then(|(algorithm, kind)| {
                    let algorithm = Algorithm::from_name(&algorithm).ok()?;
                    Some((algorithm, ChecksumType::parse(&kind)?))
                });
                page.uploads.push(UploadEntry {
                    key: name,
                    upload: id,
                    initiated: from_ms(created_ms),
                    checksum,
                });
            }
            Item::Prefix => page.common_prefixes.push(name),
            Item::Key { .. } | Item::Version { .. } => {}
        }
    }
    page.xml()
}
