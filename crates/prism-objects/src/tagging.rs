//! The tags of objects in this node's store.

use std::io;

use prism_replicas::delete::named;
use prism_replicas::{StoreResult, meta};
use prism_s3::{Code, ObjectRef, S3Error, Tags, xml};
use prism_service::Io;
use prism_store::{ObjectMeta, Store};

use crate::answer::{Answer, internal};
use crate::call::Call;
use crate::objects::Objects;
use crate::versions;

/// Longest body of a PutObjectTagging: ten tags with every character escaped.
const MAX_TAGGING_BYTES: u64 = 64 << 10;

impl Objects {
    /// Replaces an object's tags by those in the body.
    pub(crate) async fn put_tagging(
        &self,
        call: &mut Call<'_, impl Io>,
        object: &ObjectRef,
        version: Option<&str>,
    ) -> io::Result<Result<Answer, S3Error>> {
        let body = call.read_document(MAX_TAGGING_BYTES).await?;
        let tags = match body.and_then(|xml| xml::parse_tagging(&xml)) {
            Ok(tags) => tags,
            Err(error) => return Ok(Err(error)),
        };
        let (object, version) = (object.clone(), version.map(str::to_owned));
        let replaced = self
            .node
            .on_store(move |_, store| replace(store, &object, version.as_deref(), tags, 200));
        Ok(replaced.await)
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
    let mut answer = Answer::xml(xml::tagging(&meta::tags(&found.meta)));
    versions::set_id(&mut answer.head, found.version).map_err(internal)?;
    Ok(answer)
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
    let (bucket, key) = (object.bucket.as_str(), object.key.as_str());
    let change = move |meta: &mut ObjectMeta| meta::set_tags(meta, &tags);
    let id = store.change_meta(bucket, key, named(version)?, change);
    let mut answer = Answer::empty(status);
    versions::set_id(&mut answer.head, id.in_s3()?).map_err(internal)?;
    Ok(answer)
}
