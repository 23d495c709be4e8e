//! Listings of a bucket's keys, versions and uploads. Each backend gives its share, and the node
//! with the client's connection merges them. A share is requested in pieces, so a page of 1,000
//! keys moves little more than 1,000 keys between nodes.

use prism_replicas::{Item, ListWanted, Question};
use prism_s3::xml::{self, ListEntry, UploadEntry, VersionEntry};
use prism_s3::{Algorithm, BucketName, ChecksumType, ListMarked, ListObjects, Listing};

use crate::answer::{Answer, Failure, from_ms, quoted};
use crate::merge::{Page, Place, ShareWanted};
use crate::objects::Objects;
use crate::request::Request;

impl Objects {
    /// The page of keys that the client asks for.
    pub(crate) async fn list_objects(
        &self,
        request: &Request,
        bucket: &BucketName,
        list: &ListObjects,
    ) -> Result<Answer, Failure> {
        let after = list.after().map(|after| (after.to_owned(), String::new()));
        let question = |share: ShareWanted| {
            Question::ListObjects(wanted(bucket, &list.listing, share, |(key, _)| key))
        };
        let merged = self.merge_shares(request, after, list.listing.max, question);
        let page = page(bucket, list, merged.await?, |key, item| match item {
            Item::Key {
                etag,
                len,
                created_ms,
            } => Some(ListEntry {
                key,
                modified: from_ms(created_ms),
                etag: quoted(&etag),
                size: len,
            }),
            _ => None,
        });
        Ok(Answer::xml(page.xml()))
    }

    /// The page of versions that the client asks for.
    pub(crate) async fn list_versions(
        &self,
        request: &Request,
        bucket: &BucketName,
        list: &ListMarked,
    ) -> Result<Answer, Failure> {
        let question = |share: ShareWanted| {
            Question::ListVersions(wanted(bucket, &list.listing, share, |after| after))
        };
        let merged = self.merge_shares(request, list.after(), list.listing.max, question);
        let page = page(bucket, list, merged.await?, |key, item| match item {
            Item::Version {
                id,
                is_latest,
                created_ms,
                object,
            } => Some(VersionEntry {
                key,
                id,
                is_latest,
                modified: from_ms(created_ms),
                object: object.map(|(etag, len)| (quoted(&etag), len)),
            }),
            _ => None,
        });
        Ok(Answer::xml(page.xml()))
    }

    /// The page of uploads that the client asks for.
    pub(crate) async fn list_uploads(
        &self,
        request: &Request,
        bucket: &BucketName,
        list: &ListMarked,
    ) -> Result<Answer, Failure> {
        let question = |share: ShareWanted| {
            Question::ListUploads(wanted(bucket, &list.listing, share, |after| after))
        };
        let merged = self.merge_shares(request, list.after(), list.listing.max, question);
        let page = page(bucket, list, merged.await?, |key, item| match item {
            Item::Upload {
                id,
                created_ms,
                checksum,
            } => Some(UploadEntry {
                key,
                upload: id,
                initiated: from_ms(created_ms),
                checksum: checksum.and_then(|(algorithm, kind)| {
                    let algorithm = Algorithm::from_name(&algorithm).ok()?;
                    Some((algorithm, ChecksumType::parse(&kind)?))
                }),
            }),
            _ => None,
        });
        Ok(Answer::xml(page.xml()))
    }
}

/// The question about a share. `place` turns the place of a merged page into one of shares.
fn wanted<P>(
    bucket: &BucketName,
    listing: &Listing,
    share: ShareWanted,
    place: impl FnOnce(Place) -> P,
) -> ListWanted<P> {
    ListWanted {
        bucket: bucket.as_str().to_owned(),
        prefix: listing.prefix.clone(),
        delimiter: listing.delimiter.clone(),
        after: share.after.map(place),
        max: share.max,
        without: share.without,
    }
}

/// The page of an answer, with the entries that `entry` makes of lines.
fn page<'a, R, E>(
    bucket: &'a BucketName,
    request: &'a R,
    merged: Page,
    entry: impl Fn(String, Item) -> Option<E>,
) -> xml::Page<'a, R, E> {
    let next = merged.next();
    let (mut entries, mut common_prefixes) = (Vec::new(), Vec::new());
    for (name, item) in merged.lines {
        match item {
            Item::Prefix => common_prefixes.push(name),
            item => entries.extend(entry(name, item)),
        }
    }
    xml::Page {
        bucket,
        request,
        entries,
        common_prefixes,
        next,
    }
}
