//! The tags of objects in this node's store.

use prism_replicas::delete::named;
use prism_replicas::{StoreResult, meta};
use prism_s3::{Code, ObjectRef, S3Error, Tags, xml};
use prism_service::Exchange;
use prism_store::{ObjectMeta, Store};

use crate::answer::{Answer, Failure};
use crate::objects::Objects;
use crate::request::Call;

impl Objects {
    /// Replaces an object's tags by those in the body.
    pub(crate) async fn put_tagging(
        &self,
        call: &mut Call<'_, impl Exchange>,
        object: &ObjectRef,
        version: Option<&str>,
    ) -> Result<Answer, Failure> {
        let (document, _memory) = self.read_document(call).await?;
        let tags = xml::parse_tagging(&document)?;
        let object = object.clone();
        let version = version.map(str::to_owned);
        let replaced = self
            .node
            .on_store(move |_, store| replace(store, &object, version.as_deref(), tags, 200));
        Ok(replaced.await?)
    }
}

/// Answers with an object's tags. Blocks on disk.
pub(crate) fn read(
    store: &Store,
    object: &ObjectRef,
    version: &Option<String>,
) -> Result<Answer, S3Error> {
    let version = named(version.as_deref())?;
    let found = store.head_version(object.bucket.as_str(), object.key.as_str(), version);
    let found = found.in_s3()?.ok_or(Code::NoSuchKey)?;
    Answer::xml(xml::tagging(&meta::tags(&found.meta))).with_version(found.version)
}

/// Deletes an object's tags. Blocks on disk.
pub(crate) fn delete(
    store: &Store,
    object: &ObjectRef,
    version: &Option<String>,
) -> Result<Answer, S3Error> {
    replace(store, object, version.as_deref(), Tags::default(), 204)
}

/// Replaces an object's tags, and answers with `status`. Blocks on disk.
fn replace(
    store: &Store,
    object: &ObjectRef,
    version: Option<&str>,
    tags: Tags,
    status: u16,
) -> Result<Answer, S3Error> {
    let bucket = object.bucket.as_str();
    let key = object.key.as_str();
    let change = move |meta: &mut ObjectMeta| meta::set_tags(meta, &tags);
    let id = store.change_meta(bucket, key, named(version)?, change);
    Answer::empty(status).with_version(id.in_s3()?)
}
