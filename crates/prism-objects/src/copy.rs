//! CopyObject and UploadPartCopy: the destination's owner reads the source from its own store,
//! or from a node that has it, by a GET.

use prism_handoff::RelayStream;
use prism_http::{BodyReader, Headers, RequestHead, ResponseFraming, read_body};
use prism_replicas::delete::named;
use prism_replicas::{StoreResult, meta, store_error};
use prism_s3::op::{CopyObject, CopyPart, CopySource};
use prism_s3::query::{encode, encode_path};
use prism_s3::time::from_ms;
use prism_s3::{Algorithm, Code, Expected, ObjectHeaders, ObjectRef, Outcome, S3Error, Tags, xml};
use prism_service::{FramedBody, parse_own_head};
use prism_store::Object;

use crate::answer::{Answer, Failure, internal};
use crate::bodies::{Becomes, Pipe, Stored};
use crate::objects::Objects;
use crate::request::Request;
use crate::source::LocalObject;
use crate::versions;

/// The largest object that one copy takes: 5 GiB, as in S3.
const MAX_COPY_BYTES: u64 = prism_s3::op::MAX_PUT_BYTES;
/// Longest error document of another node, in bytes.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// An object to be copied, at its beginning.
struct Source {
    from: Origin,
    body: BodyReader,
    /// The number of bytes to copy.
    len: u64,
    /// MD5 of the bytes to copy, where it is known.
    md5: Option<String>,
    headers: ObjectHeaders,
    tags: Tags,
    checksum: Option<Algorithm>,
    /// The version's name, where there are versions.
    version: Option<String>,
}

/// The place from which a source's bytes come.
enum Origin {
    Here(Box<LocalObject>),
    Node {
        io: Box<RelayStream>,
        peer: String,
        /// Whether the connection can be used again.
        keep_alive: bool,
    },
}

impl Objects {
    pub(crate) async fn copy_object(
        &self,
        request: &Request<'_>,
        object: &ObjectRef,
        copy: &CopyObject,
    ) -> Result<Answer, Failure> {
        let CopySource {
            bucket,
            key,
            version,
            ..
        } = &copy.source;
        let is_itself = (bucket, key) == (&object.bucket, &object.key) && version.is_none();
        if is_itself && copy.headers.is_none() && copy.tags.is_none() {
            let message = "An object can be copied to itself only with other metadata.";
            return Err(Code::InvalidRequest.with_message(message).into());
        }
        let mut source = self.open_source(request, &copy.source, None).await?;
        let becomes = Becomes {
            headers: copy.headers.as_ref().unwrap_or(&source.headers).clone(),
            tags: copy.tags.as_ref().unwrap_or(&source.tags).clone(),
            conditions: copy.conditions.clone(),
        };
        let algorithm = copy.checksum.or(source.checksum);
        let algorithm = algorithm.unwrap_or(Algorithm::DEFAULT);
        let expected = Expected::default().or_computed(algorithm);
        let room = self.room_for_object(object, source.len).await?;
        let object = object.clone();
        let len = source.len;
        let begun = self.node.on_store(move |_, store| {
            let bucket = object.bucket.as_str();
            let key = object.key.as_str();
            store.begin_put(bucket, key, Some(len)).in_s3()
        });
        let pipe = Pipe::plain(begun.await?, expected, becomes, source.md5.take());
        self.receive_source(source, pipe.within(room), false).await
    }

    pub(crate) async fn copy_part(
        &self,
        request: &Request<'_>,
        object: &ObjectRef,
        part: &CopyPart,
    ) -> Result<Answer, Failure> {
        let opening = self.open_source(request, &part.source, part.range);
        let mut source = opening.await?;
        let len = Some(source.len);
        let expected = Expected::default();
        let begun = self.begin_part(object, &part.upload, part.number, len, expected);
        let (writer, expected) = begun.await?;
        let room = self.room_for_part(object, &part.upload, part.number, source.len);
        let room = room.await?;
        let pipe = Pipe::plain(writer, expected, Becomes::default(), source.md5.take());
        self.receive_source(source, pipe.within(room), true).await
    }

    /// Stores the source's bytes.
    async fn receive_source(
        &self,
        mut source: Source,
        pipe: Pipe,
        is_part: bool,
    ) -> Result<Answer, Failure> {
        let reader = &mut source.body;
        let received = match &mut source.from {
            Origin::Here(object) => {
                let input = object.as_mut();
                let mut body = FramedBody { input, reader };
                self.bodies.receive(&mut body, pipe).await
            }
            Origin::Node { io, .. } => {
                let input = io.as_mut();
                let mut body = FramedBody { input, reader };
                self.bodies.receive(&mut body, pipe).await
            }
        };
        match (received, source.from) {
            (Ok(stored), from) => {
                if let Origin::Node {
                    io,
                    peer,
                    keep_alive: true,
                } = from
                    && source.body.is_done()
                    && io.is_clean()
                {
                    self.replicator.peers.keep(&peer, *io);
                }
                answer(is_part, &stored, source.version)
            }
            (Err(Failure::Connection(error)), Origin::Node { peer, .. }) => {
                Err(out_of_reach(&peer, &error).into())
            }
            (Err(Failure::Connection(error)), Origin::Here(_)) => {
                tracing::error!(%error, "the source of a copy cannot be read from this store");
                Err(Code::InternalError.into())
            }
            (Err(refused), _) => Err(refused),
        }
    }

    /// Opens the source at the first replica that can be read. `range`: offsets of the first and
    /// last byte, if not the whole object is wanted.
    async fn open_source(
        &self,
        request: &Request<'_>,
        wanted: &CopySource,
        range: Option<(u64, u64)>,
    ) -> Result<Source, S3Error> {
        let CopySource { bucket, key, .. } = wanted;
        let bucket = bucket.as_str();
        let key = key.as_str();
        let mut failure = S3Error::from(Code::ServiceUnavailable);
        for node in self.node.replication.readers(bucket, key) {
            let opened = if node == self.node.core.name {
                self.replicator.resolve_key(bucket, key).await?;
                let opened = self.open_here(wanted, range).await;
                self.if_still(request, opened)
            } else {
                self.open_at(&node, request, wanted, range).await
            };
            match opened {
                Err(error) if request.meaning.hides(&error) => {
                    return Err(Code::AccessDenied.into());
                }
                // Another replica may be in reach.
                Err(error) if error.code() == Code::ServiceUnavailable => failure = error,
                Ok(source) if source.len > MAX_COPY_BYTES => {
                    return Err(Code::InvalidRequest.with_message(
                        "The copy source is larger than 5368709120 bytes, the most that one copy takes.",
                    ));
                }
                opened => return opened,
            }
        }
        Err(failure)
    }

    async fn open_here(
        &self,
        wanted: &CopySource,
        range: Option<(u64, u64)>,
    ) -> Result<Source, S3Error> {
        let source = wanted.clone();
        let reading = self.node.on_store(move |_, store| {
            let bucket = source.bucket.as_str();
            let key = source.key.as_str();
            let version = named(source.version.as_deref())?;
            let object = store.get_version(bucket, key, version);
            let object = object.map_err(|e| source_read_error(&e))?;
            let object = object.ok_or(Code::NoSuchKey)?;
            let modified = from_ms(object.meta.created_ms);
            match source.conditions.for_read(&object.meta.etag, modified) {
                Outcome::Proceed => Ok(object),
                Outcome::NotModified | Outcome::Failed => Err(Code::PreconditionFailed.into()),
            }
        });
        let object = reading.await?;
        let total = object.len;
        check_range(range, total)?;
        let (at, end) = match range {
            Some((first, last)) => (first, last + 1),
            None => (0, total),
        };
        let meta = &object.meta;
        let is_md5 = end - at == total && !meta.etag.contains('-');
        Ok(Source {
            body: BodyReader::new(ResponseFraming::Length(end - at), u64::MAX),
            len: end - at,
            md5: is_md5.then(|| meta.etag.clone()),
            headers: stored_headers(&object)?,
            tags: meta::tags(meta),
            checksum: meta::checksum(&meta.headers).map(|(algorithm, ..)| algorithm),
            version: object.version.map(|id| id.to_string()),
            from: Origin::Here(Box::new(LocalObject::new(object, at, end))),
        })
    }

    /// Opens the source at another node.
    async fn open_at(
        &self,
        peer: &str,
        request: &Request<'_>,
        wanted: &CopySource,
        range: Option<(u64, u64)>,
    ) -> Result<Source, S3Error> {
        let head = source_head(wanted, range)?;
        let asked = self
            .replicator
            .request_for(&head, &request.meaning.principal);
        let asked = self.replicator.peers.begin_asking(peer, &asked, &[]);
        let asked = asked.await.map_err(|error| out_of_reach(peer, &error));
        let (mut io, answer) = asked?;
        let bad = |_| Code::InternalError;
        let framing = answer.framing(head.method()).map_err(bad)?;
        if !matches!(answer.status(), 200 | 206) {
            let error = read_body(&mut io, framing, MAX_ERROR_BYTES).await;
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
        check_range(range, total)?;
        let etag = field("etag").map(|etag| etag.trim_matches('"').to_owned());
        let tags = field(meta::TAGS).map(Tags::decode).transpose()?;
        Ok(Source {
            body: BodyReader::new(framing, u64::MAX),
            len,
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

/// The headers with which an object was stored.
fn stored_headers(object: &Object) -> Result<ObjectHeaders, S3Error> {
    let user = object.meta.user.iter();
    let user = user.map(|(name, value)| (format!("x-amz-meta-{name}"), value));
    let system = object.meta.headers.iter();
    let system = system.map(|(name, value)| (name.clone(), value));
    let fields: Vec<(String, &String)> = system.chain(user).collect();
    ObjectHeaders::from_stored(fields.iter().map(|(n, v)| (n.as_str(), v.as_str())))
}

/// The GET by which a node reads the source from another node.
fn source_head(wanted: &CopySource, range: Option<(u64, u64)>) -> Result<RequestHead, S3Error> {
    let CopySource {
        bucket,
        key,
        version,
        conditions,
    } = wanted;
    let (mut headers, invalid) = (Headers::new(), |_| Code::InvalidArgument);
    conditions.write_to(&mut headers).map_err(invalid)?;
    if let Some((first, last)) = range {
        let range = format!("bytes={first}-{last}");
        headers.append("Range", range).map_err(invalid)?;
    }
    let key = encode_path(key.as_str());
    let version = version.as_deref().map(encode);
    let query = version.map_or(String::new(), |version| format!("?versionId={version}"));
    let start = format!("GET /{}/{key}{query} HTTP/1.1\r\n", bucket.as_str());
    let mut text = (start + "Host: prism\r\nx-amz-checksum-mode: ENABLED\r\n").into_bytes();
    headers.write_to(&mut text);
    text.extend_from_slice(b"\r\n");
    parse_own_head(&text).map_err(internal)
}

/// The error for the client when another node does not give the source.
fn source_error(status: u16, xml: &[u8]) -> S3Error {
    let text = String::from_utf8_lossy(xml);
    let code = text.split_once("<Code>").and_then(|(_, rest)| {
        let (code, _) = rest.split_once("</Code>")?;
        Code::parse(code)
    });
    match (status, code) {
        (304, _) => Code::PreconditionFailed.into(),
        (416, _) => Code::InvalidArgument.with_message("The range does not lie within the source."),
        (405, _) => source_read_error(&prism_store::Error::IsDeleteMarker),
        (_, Some(code)) => code.into(),
        (_, None) => Code::ServiceUnavailable.into(),
    }
}

/// The error for the client when the store does not give the source.
fn source_read_error(error: &prism_store::Error) -> S3Error {
    match error {
        prism_store::Error::IsDeleteMarker => Code::InvalidRequest.with_message("The source of a copy request may not specifically refer to a delete marker by version id."),
        error => store_error(error),
    }
}

/// Checks the range of a copy, which must end within the source, unlike that of a GET.
fn check_range(range: Option<(u64, u64)>, total: u64) -> Result<(), S3Error> {
    match range {
        Some((_, last)) if last >= total => Err(Code::InvalidArgument.with_message(format!(
            "The range does not lie within the source of {total} bytes."
        ))),
        _ => Ok(()),
    }
}

fn out_of_reach(peer: &str, error: &dyn std::fmt::Display) -> S3Error {
    tracing::warn!(peer, %error, "the source of a copy cannot be read");
    Code::ServiceUnavailable.with_message("A storage node is out of reach.")
}

fn answer(is_part: bool, stored: &Stored, source: Option<String>) -> Result<Answer, Failure> {
    let digests = &stored.digests;
    let checksum = digests
        .checksum
        .as_ref()
        .and_then(|(name, value)| Some((Algorithm::from_header(name)?, value.clone())));
    let etag = digests.etag();
    let created_ms = stored.created_ms;
    let document = xml::copy_result(is_part, &etag, created_ms, checksum.as_ref());
    let answer = Answer::xml(document);
    let answer = answer.with_version(stored.committed.version)?;
    Ok(match source {
        Some(version) => answer.with(versions::SOURCE_ID, version)?,
        None => answer,
    })
}
