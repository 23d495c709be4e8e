//! CopyObject and UploadPartCopy: the destination's owner reads the source from
//! its own store, or from the node that has it, as that node would answer a GET.

use prism_replicas::meta::stored_meta;
use std::io;

use prism_handoff::RelayStream;
use prism_http::{BodyReader, Exchange, Headers, ResponseFraming, ResponseHead};
use prism_replicas::delete;
use prism_replicas::meta::checksum_wanted;
use prism_replicas::{meta, now_ms, preamble_for, store_error};
use prism_s3::op::{CopyObject, CopyPart, CopySource};
use prism_s3::query::{encode, encode_path};
use prism_s3::{
    Algorithm, BucketName, Code, Conditions, Digests, Expected, ObjectHeaders, ObjectKey, Outcome,
    S3Error, Tags, xml,
};
use prism_service::{Io, PeerRequest, read_all, set};
use prism_store::{ObjectMeta, VersionId};

use crate::answer::{Answer, from_ms};
use crate::bodies::{Failed, Finish, Pipe};
use crate::multipart::named_upload;
use crate::objects::{Objects, Request};
use crate::put::as_part;
use crate::source::LocalObject;
use crate::versions;

/// The largest object that one copy takes: 5 GiB, as in S3.
const MAX_COPY_BYTES: u64 = prism_s3::op::MAX_PUT_BYTES;
/// Longest error of another node.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// An object to be copied, at its beginning.
struct Source {
    from: Origin,
    body: BodyReader,
    /// Bytes that will come.
    len: u64,
    /// Bytes of the whole object.
    total: u64,
    /// MD5 of the bytes that will come, where that is known.
    md5: Option<String>,
    headers: ObjectHeaders,
    tags: Tags,
    checksum: Option<Algorithm>,
    /// The version's name, where there are versions.
    version: Option<String>,
}

/// Where its bytes come from.
enum Origin {
    Here(LocalObject),
    Node {
        io: Box<RelayStream>,
        peer: String,
        /// Whether the connection can be used again.
        keep_alive: bool,
    },
}

/// What a source is asked for.
struct Wanted<'a> {
    source: &'a CopySource,
    conditions: &'a Conditions,
    /// Offsets of the first and last byte.
    range: Option<(u64, u64)>,
}

/// A copy that was made.
struct Copied {
    digests: Digests,
    created_ms: u64,
    /// Of the copy.
    version: Option<VersionId>,
    /// Of what was copied, as it was named.
    source_version: Option<String>,
}

impl Objects {
    pub(crate) async fn copy_object(
        &self,
        io: &mut impl Io,
        request: &Request,
        exchange: &Exchange<'_>,
        (bucket, key, copy): (&BucketName, &ObjectKey, &CopyObject),
    ) -> io::Result<bool> {
        let work = async {
            let is_itself = (&copy.source.bucket, &copy.source.key) == (bucket, key)
                && copy.source.version.is_none();
            if is_itself && copy.headers.is_none() && copy.tags.is_none() {
                return Err(Code::InvalidRequest
                    .with_message("An object can be copied to itself only with other metadata."));
            }
            let wanted = Wanted {
                source: &copy.source,
                conditions: &copy.source_conditions,
                range: None,
            };
            let source = self.open_source(request, &wanted).await?;
            let copied = self.copy_whole(bucket, key, copy, source).await?;
            answer(false, &copied)
        };
        let path = request.head.path();
        self.answer_in_time(io, exchange, path, work).await
    }

    pub(crate) async fn copy_part(
        &self,
        io: &mut impl Io,
        request: &Request,
        exchange: &Exchange<'_>,
        (bucket, key, part): (&BucketName, &ObjectKey, &CopyPart),
    ) -> io::Result<bool> {
        let work = async {
            let wanted = Wanted {
                source: &part.source,
                conditions: &part.source_conditions,
                range: part.range,
            };
            let source = self.open_source(request, &wanted).await?;
            let copied = self.copy_as_part(bucket, key, part, source).await?;
            answer(true, &copied)
        };
        let path = request.head.path();
        self.answer_in_time(io, exchange, path, work).await
    }

    async fn copy_whole(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        copy: &CopyObject,
        source: Source,
    ) -> Result<Copied, S3Error> {
        check_length(source.total)?;
        let headers = copy.headers.as_ref().unwrap_or(&source.headers).clone();
        let tags = copy.tags.as_ref().unwrap_or(&source.tags).clone();
        let expected = match copy.checksum.or(source.checksum) {
            Some(algorithm) => Expected::default().want(algorithm)?,
            None => Expected::default(),
        };
        let (bucket, key, len) = (bucket.clone(), key.clone(), source.len);
        let writer = self
            .node
            .on_store(move |_, store| {
                let begun = store.begin_put(bucket.as_str(), key.as_str(), Some(len));
                begun.map_err(|e| store_error(&e))
            })
            .await?;
        let (conditions, md5) = (copy.conditions.clone(), source.md5.clone());
        let finish = move |digests: &Digests| {
            let meta = ObjectMeta {
                etag: checked(digests, md5.as_deref())?,
                created_ms: now_ms(),
                ..stored_meta(&headers, &tags, digests.checksum.as_ref())
            };
            Ok(Finish { meta, conditions })
        };
        self.pull(source, Pipe::plain(writer, expected), finish)
            .await
    }

    async fn copy_as_part(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        part: &CopyPart,
        source: Source,
    ) -> Result<Copied, S3Error> {
        check_length(source.len)?;
        let (bucket, key, part, len) = (bucket.clone(), key.clone(), part.clone(), source.len);
        let (writer, expected) = self
            .node
            .on_store(move |_, store| {
                let name = named_upload(&bucket, &key, &part.upload)?;
                let upload = store.uploads().get(name).map_err(|e| store_error(&e))?;
                let expected = match checksum_wanted(&upload.meta) {
                    Some((algorithm, _)) => Expected::default().want(algorithm)?,
                    None => Expected::default(),
                };
                let writer = store.uploads().begin_part(name, part.number, Some(len));
                Ok((writer.map_err(|e| store_error(&e))?, expected))
            })
            .await?;
        let md5 = source.md5.clone();
        let finish = move |digests: &Digests| {
            checked(digests, md5.as_deref())?;
            Ok(as_part(digests))
        };
        self.pull(source, Pipe::plain(writer, expected), finish)
            .await
    }

    /// Takes the source's bytes in.
    async fn pull(
        &self,
        mut source: Source,
        pipe: Pipe,
        finish: impl FnOnce(&Digests) -> Result<Finish, S3Error> + Send + 'static,
    ) -> Result<Copied, S3Error> {
        let body = &mut source.body;
        let pulled = match &mut source.from {
            Origin::Here(object) => self.bodies.receive(object, body, pipe, finish).await,
            Origin::Node { io, .. } => self.bodies.receive(io.as_mut(), body, pipe, finish).await,
        };
        let pulled = pulled.map(|stored| Copied {
            digests: stored.digests,
            created_ms: stored.created_ms,
            version: stored.committed.version,
            source_version: source.version,
        });
        match (pulled, source.from) {
            (
                Ok(copied),
                Origin::Node {
                    io,
                    peer,
                    keep_alive,
                },
            ) => {
                if keep_alive && source.body.is_done() && io.is_clean() {
                    self.replicator.peers.keep(&peer, *io);
                }
                Ok(copied)
            }
            (Ok(copied), Origin::Here(_)) => Ok(copied),
            (Err(Failed::Error(error)), _) => Err(error),
            (Err(Failed::Connection(error)), Origin::Node { peer, .. }) => {
                Err(out_of_reach(&peer, &error))
            }
            (Err(Failed::Connection(error)), Origin::Here(_)) => {
                tracing::error!(%error, "the source of a copy cannot be read");
                Err(Code::InternalError.into())
            }
        }
    }

    /// Finds the source.
    async fn open_source(&self, request: &Request, wanted: &Wanted<'_>) -> Result<Source, S3Error> {
        let CopySource { bucket, key, .. } = wanted.source;
        let (bucket, key) = (bucket.as_str(), key.as_str());
        let mut failure = S3Error::from(Code::ServiceUnavailable);
        for node in self.node.replication.readers(bucket, key) {
            let opened = match node == self.node.name {
                true => {
                    self.replicator.resolve_key(bucket, key).await?;
                    let opened = self.open_here(wanted).await;
                    self.if_still(request, opened)
                }
                false => self.open_at(&node, request, wanted).await,
            };
            match opened {
                // Another replica may be in reach.
                Err(error) if error.code() == Code::ServiceUnavailable => failure = error,
                opened => return opened,
            }
        }
        Err(failure)
    }

    async fn open_here(&self, wanted: &Wanted<'_>) -> Result<Source, S3Error> {
        let (source, conditions) = (wanted.source.clone(), wanted.conditions.clone());
        let object = self
            .node
            .on_store(move |_, store| {
                let (bucket, key) = (source.bucket.as_str(), source.key.as_str());
                let version = delete::named(source.version.as_deref())?;
                let object = store.get_version(bucket, key, version);
                let object = object.map_err(|e| source_of_copy(&e))?;
                let object = object.ok_or(Code::NoSuchKey)?;
                let modified = from_ms(object.meta.created_ms);
                match conditions.for_read(&object.meta.etag, modified) {
                    Outcome::Proceed => Ok(object),
                    Outcome::NotModified | Outcome::Failed => Err(Code::PreconditionFailed.into()),
                }
            })
            .await?;
        let total = object.len;
        check_range(wanted.range, total)?;
        let (at, end) = match wanted.range {
            Some((first, last)) => (first, last + 1),
            None => (0, total),
        };
        let meta = &object.meta;
        let user = meta
            .user
            .iter()
            .map(|(n, v)| (format!("x-amz-meta-{n}"), v));
        let system = meta.headers.iter().map(|(n, v)| (n.clone(), v));
        let fields: Vec<(String, &String)> = system.chain(user).collect();
        let fields = fields.iter().map(|(n, v)| (n.as_str(), v.as_str()));
        let is_md5 = end - at == total && !meta.etag.contains('-');
        Ok(Source {
            body: BodyReader::new(ResponseFraming::Length(end - at), u64::MAX),
            len: end - at,
            total,
            md5: is_md5.then(|| meta.etag.clone()),
            headers: ObjectHeaders::from_stored(fields)?,
            tags: meta::tags(meta),
            checksum: meta::checksum(meta).map(|(algorithm, ..)| algorithm),
            version: object.version.map(|id| id.to_string()),
            from: Origin::Here(LocalObject::new(object, at, end)),
        })
    }

    /// Asks the source's owner for it.
    async fn open_at(
        &self,
        peer: &str,
        request: &Request,
        wanted: &Wanted<'_>,
    ) -> Result<Source, S3Error> {
        let head = source_head(wanted)?;
        let asked = PeerRequest {
            head: &head,
            preamble: preamble_for(&request.meaning.principal),
            is_repeatable: true,
        };
        let asked = self.replicator.peers.begin_asking(peer, &asked, &[]);
        let asked = asked.await.map_err(|error| out_of_reach(peer, &error));
        let (mut io, answer) = asked?;
        let bad = |_| Code::InternalError;
        let framing = answer.framing(head.method()).map_err(bad)?;
        if !matches!(answer.status(), 200 | 206) {
            let error = read_all(&mut io, framing, MAX_ERROR_BYTES).await;
            let xml = error.map_err(|error| out_of_reach(peer, &error))?;
            return Err(source_error(answer.status(), &xml));
        }
        let len = answer.declared_length().map_err(bad)?;
        let len = len.ok_or(Code::InternalError)?;
        let field = |name: &str| answer.headers().get_str(name);
        let total = match field("content-range").and_then(|range| range.rsplit_once('/')) {
            Some((_, total)) => total.parse().map_err(|_| Code::InternalError)?,
            None => len,
        };
        check_range(wanted.range, total)?;
        let etag = field("etag").map(|etag| etag.trim_matches('"').to_owned());
        let tags = field(meta::TAGS).map(Tags::decode).transpose()?;
        Ok(Source {
            body: BodyReader::new(framing, u64::MAX),
            len,
            total,
            md5: etag.filter(|etag| len == total && !etag.contains('-')),
            headers: ObjectHeaders::from_request(answer.headers())?,
            tags: tags.unwrap_or_default(),
            checksum: Algorithm::ALL
                .into_iter()
                .find(|algorithm| field(algorithm.header()).is_some()),
            version: field(versions::ID).map(str::to_owned),
            from: Origin::Node {
                io: Box::new(io),
                peer: peer.to_owned(),
                keep_alive: answer.keep_alive(),
            },
        })
    }
}

/// A GET as nodes send it to each other.
fn source_head(wanted: &Wanted<'_>) -> Result<prism_http::RequestHead, S3Error> {
    let CopySource {
        bucket,
        key,
        version,
    } = wanted.source;
    let mut headers = Headers::new();
    let invalid = |_| Code::InvalidArgument;
    headers.append("Host", "prism").map_err(invalid)?;
    headers
        .append("x-amz-checksum-mode", "ENABLED")
        .map_err(invalid)?;
    wanted.conditions.write_to(&mut headers).map_err(invalid)?;
    if let Some((first, last)) = wanted.range {
        let range = format!("bytes={first}-{last}");
        headers.append("Range", range).map_err(invalid)?;
    }
    let key = encode_path(key.as_str());
    let version = version.as_deref().map(encode);
    let query = version.map_or(String::new(), |version| format!("?versionId={version}"));
    let mut text = format!("GET /{}/{key}{query} HTTP/1.1\r\n", bucket.as_str()).into_bytes();
    headers.write_to(&mut text);
    text.extend_from_slice(b"\r\n");
    prism_service::parse_own_head(&text).map_err(|_| Code::InternalError.into())
}

/// What the destination's client is told of the source's answer.
fn source_error(status: u16, xml: &[u8]) -> S3Error {
    let text = String::from_utf8_lossy(xml);
    let code = text.split_once("<Code>").and_then(|(_, rest)| {
        let (code, _) = rest.split_once("</Code>")?;
        Code::parse(code)
    });
    match (status, code) {
        (304, _) => Code::PreconditionFailed.into(),
        (416, _) => Code::InvalidArgument.with_message("The range does not lie within the source."),
        (405, _) => source_of_copy(&prism_store::Error::IsDeleteMarker),
        (_, Some(code)) => code.into(),
        (_, None) => Code::ServiceUnavailable.into(),
    }
}

/// What a client is told of a source that cannot be read.
fn source_of_copy(error: &prism_store::Error) -> S3Error {
    match error {
        prism_store::Error::IsDeleteMarker => Code::InvalidRequest.with_message("The source of a copy request may not specifically refer to a delete marker by version id."),
        error => store_error(error),
    }
}

fn check_length(len: u64) -> Result<(), S3Error> {
    if len > MAX_COPY_BYTES {
        return Err(Code::InvalidRequest.with_message(
            "The copy source is larger than 5368709120 bytes, the most that one copy takes.",
        ));
    }
    Ok(())
}

/// Unlike that of a GET, the range of a copy must not go beyond the end.
fn check_range(range: Option<(u64, u64)>, total: u64) -> Result<(), S3Error> {
    match range {
        Some((_, last)) if last >= total => Err(Code::InvalidArgument.with_message(format!(
            "The range does not lie within the source of {total} bytes."
        ))),
        _ => Ok(()),
    }
}

/// The ETag, if the bytes are those that the source was made of.
fn checked(digests: &Digests, md5: Option<&str>) -> Result<String, S3Error> {
    let etag = digests.etag().trim_matches('"').to_owned();
    if md5.is_some_and(|md5| md5 != etag) {
        tracing::error!("the source of a copy is not what was stored");
        return Err(Code::InternalError.into());
    }
    Ok(etag)
}

fn out_of_reach(peer: &str, error: &dyn std::fmt::Display) -> S3Error {
    tracing::warn!(peer, %error, "the source of a copy cannot be read");
    Code::ServiceUnavailable.with_message("A storage node is out of reach.")
}

fn answer(is_part: bool, copied: &Copied) -> Result<Answer, S3Error> {
    let checksum = copied.digests.checksum.as_ref();
    let checksum = checksum.and_then(|(name, value)| {
        let algorithm = Algorithm::from_header(name)?;
        Some((algorithm, value.as_str()))
    });
    let modified = from_ms(copied.created_ms);
    let mut head = ResponseHead::new(200);
    versions::set_id(&mut head, copied.version).map_err(|_| Code::InternalError)?;
    if let Some(version) = &copied.source_version {
        set(&mut head, versions::SOURCE_ID, version).map_err(|_| Code::InternalError)?;
    }
    let xml = xml::copy_result(is_part, &copied.digests.etag(), modified, checksum);
    Ok((head, xml))
}
