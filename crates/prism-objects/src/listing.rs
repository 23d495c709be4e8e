//! Listing the keys, or the uploads, of a bucket that lies on many nodes: each
//! backend gives its share, in order, and whoever holds the client's connection
//! merges. A share is asked for in pieces, so that a page of a thousand keys
//! costs little more than a thousand keys, however many backends there are.

use prism_replicas::{Item, Line, ListWanted, Question, place};
use prism_s3::xml::{ListEntry, ListPage, UploadEntry, UploadsPage};
use prism_s3::{BucketName, ListObjects, ListUploads, S3Error};

use crate::answer::from_ms;
use crate::get::quoted;
use crate::objects::{Objects, Request};

impl Objects {
    /// The page of keys that the client asked for.
    pub(crate) async fn list_objects(
        &self,
        request: &Request,
        bucket: &BucketName,
        list: &ListObjects,
    ) -> Result<Vec<u8>, S3Error> {
        let after = list.after().map(|after| (after.to_owned(), String::new()));
        let question = |after: Option<(String, String)>, max, without: &[String]| {
            Question::ListObjects(ListWanted {
                bucket: bucket.as_str().to_owned(),
                prefix: list.prefix.clone(),
                delimiter: list.delimiter.clone(),
                after: after.map(|(key, _)| key),
                max,
                without: without.to_vec(),
            })
        };
        let (lines, more) = self
            .merge(request, (after, list.max_keys), question)
            .await?;
        Ok(objects_page(bucket, list, &lines, more))
    }

    /// The page of uploads that the client asked for.
    pub(crate) async fn list_uploads(
        &self,
        request: &Request,
        bucket: &BucketName,
        list: &ListUploads,
    ) -> Result<Vec<u8>, S3Error> {
        let after = match list.key_marker.as_str() {
            "" => None,
            key => Some((key.to_owned(), list.upload_marker.clone())),
        };
        let question = |after: Option<(String, String)>, max, without: &[String]| {
            Question::ListUploads(ListWanted {
                bucket: bucket.as_str().to_owned(),
                prefix: list.prefix.clone(),
                delimiter: list.delimiter.clone(),
                after,
                max,
                without: without.to_vec(),
            })
        };
        let (lines, more) = self.merge(request, (after, list.max), question).await?;
        Ok(uploads_page(bucket, list, lines, more))
    }
}

fn objects_page(bucket: &BucketName, list: &ListObjects, lines: &[Line], more: bool) -> Vec<u8> {
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
        next: lines.last().filter(|_| more).map(|(name, _)| name.as_str()),
    };
    page.xml()
}

fn uploads_page(bucket: &BucketName, list: &ListUploads, lines: Vec<Line>, more: bool) -> Vec<u8> {
    let next = lines.last().filter(|_| more).map(|line| {
        let (name, id) = place(line);
        (name.to_owned(), id.to_owned())
    });
    let mut page = UploadsPage {
        bucket,
        request: list,
        uploads: Vec::new(),
        common_prefixes: Vec::new(),
        next,
    };
    for (name, item) in lines {
        match item {
            Item::Upload {
                id,
                created_ms,
                checksum,
            } => {
                let checksum = checksum.and_then(|(algorithm, kind)| {
                    let algorithm = prism_s3::Algorithm::from_name(&algorithm).ok()?;
                    Some((algorithm, prism_s3::ChecksumType::parse(&kind)?))
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
