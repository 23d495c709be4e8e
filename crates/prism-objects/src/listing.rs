//! Listings of a bucket's keys, versions and uploads. Each backend gives its share, and the node
//! with the client's connection merges them. A share is requested in pieces, so a page of 1,000
//! keys moves little more than 1,000 keys between nodes.

use prism_replicas::{ListWanted, Question};
use prism_s3::{BucketName, ListMarked, ListObjects, Listing, xml};

use crate::answer::{Answer, Failure};
use crate::merge::{Place, ShareWanted};
use crate::objects::Objects;
use crate::request::Request;

impl Objects {
    /// The page of keys that the client asks for.
    pub(crate) async fn list_objects(
        &self,
        request: &Request<'_>,
        bucket: &BucketName,
        list: &ListObjects,
    ) -> Result<Answer, Failure> {
        let after = list.after().map(|after| (after.to_owned(), String::new()));
        let question = |share: ShareWanted| {
            Question::ListObjects(wanted(bucket, &list.listing, share, |(key, _)| key))
        };
        let merged = self.merge_shares(request, after, list.listing.max, question);
        Ok(Answer::xml(xml::list_objects(bucket, list, &merged.await?)))
    }

    /// The page of versions that the client asks for.
    pub(crate) async fn list_versions(
        &self,
        request: &Request<'_>,
        bucket: &BucketName,
        list: &ListMarked,
    ) -> Result<Answer, Failure> {
        let question = |share: ShareWanted| {
            Question::ListVersions(wanted(bucket, &list.listing, share, |after| after))
        };
        let merged = self.merge_shares(request, list.after(), list.listing.max, question);
        Ok(Answer::xml(xml::list_versions(
            bucket,
            list,
            &merged.await?,
        )))
    }

    /// The page of uploads that the client asks for.
    pub(crate) async fn list_uploads(
        &self,
        request: &Request<'_>,
        bucket: &BucketName,
        list: &ListMarked,
    ) -> Result<Answer, Failure> {
        let question = |share: ShareWanted| {
            Question::ListUploads(wanted(bucket, &list.listing, share, |after| after))
        };
        let merged = self.merge_shares(request, list.after(), list.listing.max, question);
        Ok(Answer::xml(xml::list_uploads(bucket, list, &merged.await?)))
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
