//! PUT of objects into this node's store: the body goes from the client's
//! connection to the disk, one piece being written while the next arrives.
//!
//! Where the client signs or checks chunk by chunk, that framing is taken off
//! with the write, away from the thread that serves connections.

use std::io;
use std::sync::Arc;

use prism_http::{BodyReader, CONTINUE, Exchange, ResponseHead};
use prism_s3::op::PutObject;
use prism_s3::{
    BodyDigest, BucketName, Code, Digests, Expected, ObjectKey, Outcome, Payload, S3Error,
    StreamDecoder,
};
use prism_store::{ObjectMeta, PutWriter};
use tokio::task::JoinHandle;

use super::answer::{discard_body, send, set};
use super::get::store_error;
use super::io::Io;
use super::session::Request;
use super::{Node, Worker, now_ms};

/// Bytes written at a time. Two pieces are in memory for each PUT, and the data
/// of one more where it comes in chunks.
const PIECE_BYTES: usize = 512 << 10;

/// An object on its way to the disk.
struct Pipe {
    writer: PutWriter,
    digest: BodyDigest,
    chunks: Option<Chunks>,
}

/// A body whose data comes in chunks.
struct Chunks {
    decoder: StreamDecoder,
    /// The data of the piece under way.
    data: Vec<u8>,
}

/// A write under way on the blocking pool.
type Writing = JoinHandle<Result<Pipe, S3Error>>;

/// Why a PUT did not happen.
enum Failed {
    /// The client can be told.
    Error(S3Error),
    /// It cannot.
    Connection(io::Error),
}

impl From<S3Error> for Failed {
    fn from(error: S3Error) -> Self {
        Self::Error(error)
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Connection(error)
    }
}

impl Worker {
    pub(super) async fn put_object(
        &self,
        io: &mut impl Io,
        request: &Request,
        exchange: &Exchange<'_>,
        (bucket, key, put): (&BucketName, &ObjectKey, &PutObject),
    ) -> io::Result<bool> {
        let framing = request.head.framing().into();
        let mut body = BodyReader::new(framing, self.node.limits.body_bytes);
        let stored = match self.begin_put(request, bucket, key, put).await {
            Ok(pipe) => self.receive(io, request, &mut body, pipe, put).await,
            Err(error) => {
                let keep_alive = discard_body(io, &request.head).await && exchange.keep_alive;
                let exchange = Exchange {
                    keep_alive,
                    ..*exchange
                };
                return self
                    .send_error(io, &exchange, &error, request.head.path())
                    .await;
            }
        };
        match stored {
            Ok((digests, len)) => {
                self.node.counters.bytes_in.add(len);
                let mut head = ResponseHead::new(200);
                set(&mut head, "ETag", digests.etag())?;
                if let Some((name, value)) = &digests.checksum {
                    set(&mut head, name, value)?;
                }
                send(io, exchange, head, &[]).await
            }
            Err(Failed::Error(error)) => {
                let keep_alive = exchange.keep_alive && body.is_done();
                let exchange = Exchange {
                    keep_alive,
                    ..*exchange
                };
                self.send_error(io, &exchange, &error, request.head.path())
                    .await
            }
            Err(Failed::Connection(error)) => Err(error),
        }
    }

    async fn begin_put(
        &self,
        request: &Request,
        bucket: &BucketName,
        key: &ObjectKey,
        put: &PutObject,
    ) -> Result<Pipe, S3Error> {
        let headers = request.head.headers();
        let expected = Expected::from_request(headers, &request.payload)?;
        let chunks = match &request.payload {
            Payload::Streaming(streaming) => Some(Chunks {
                decoder: StreamDecoder::new(streaming.clone(), headers)?,
                data: Vec::new(),
            }),
            Payload::Unsigned | Payload::Sha256(_) => None,
        };
        let (bucket, key) = (bucket.as_str().to_owned(), key.as_str().to_owned());
        let (length, conditions) = (put.length, put.conditions.clone());
        let writer = blocking(&self.node, move |node| {
            let store = node.store.as_ref().ok_or(Code::InternalError)?;
            if !conditions.is_empty() {
                let current = store.head(&bucket, &key).map_err(|e| store_error(&e))?;
                let etag = current.map(|info| info.meta.etag);
                if conditions.for_write(etag.as_deref()) == Outcome::Failed {
                    return Err(Code::PreconditionFailed.into());
                }
            }
            store
                .begin_put(&bucket, &key, length)
                .map_err(|e| store_error(&e))
        });
        let writer = joined(writer).await?;
        Ok(Pipe {
            writer,
            digest: BodyDigest::new(expected),
            chunks,
        })
    }

    /// Reads the body to its end and commits the object.
    async fn receive(
        &self,
        io: &mut impl Io,
        request: &Request,
        body: &mut BodyReader,
        pipe: Pipe,
        put: &PutObject,
    ) -> Result<(Digests, u64), Failed> {
        if request.head.expects_continue() && io.buffered().is_empty() {
            io.write_all(CONTINUE).await?;
        }
        let mut writing: Writing = tokio::task::spawn_blocking(move || Ok(pipe));
        let mut piece = Vec::new();
        while !body.is_done() {
            let step = body.consume(io.buffered()).map_err(S3Error::from)?;
            piece.extend_from_slice(io.buffered().get(step.data).unwrap_or_default());
            io.consume(step.consumed);
            if piece.len() >= PIECE_BYTES {
                let pipe = joined(writing).await?;
                writing = write(pipe, std::mem::take(&mut piece));
            }
            if !body.is_done() && io.buffered().is_empty() && io.fill().await? == 0 {
                return Err(Failed::Connection(io::ErrorKind::UnexpectedEof.into()));
            }
        }
        let pipe = joined(writing).await?;
        Ok(joined(commit(pipe, piece, put)).await?)
    }
}

fn write(mut pipe: Pipe, piece: Vec<u8>) -> Writing {
    tokio::task::spawn_blocking(move || {
        pipe.take(&piece)?;
        Ok(pipe)
    })
}

impl Pipe {
    /// Writes the data of the next bytes of the body.
    fn take(&mut self, piece: &[u8]) -> Result<(), S3Error> {
        let data = match &mut self.chunks {
            Some(chunks) => chunks.take_off(piece)?,
            None => piece,
        };
        self.digest.update(data);
        self.writer.write(data).map_err(|e| store_error(&e))
    }

    /// Verifies what stands behind the data, and the data.
    fn verify(mut self) -> Result<(PutWriter, Digests), S3Error> {
        if let Some(chunks) = self.chunks
            && let Some((algorithm, value)) = chunks.decoder.finish()?
        {
            self.digest.take_trailer(algorithm, value);
        }
        Ok((self.writer, self.digest.finish()?))
    }
}

impl Chunks {
    /// Gives the data in the next bytes, put together for one write.
    fn take_off(&mut self, mut piece: &[u8]) -> Result<&[u8], S3Error> {
        self.data.clear();
        while !piece.is_empty() {
            let step = self.decoder.consume(piece)?;
            let data = piece.get(step.data).unwrap_or_default();
            self.data.extend_from_slice(data);
            piece = piece.get(step.consumed..).unwrap_or_default();
        }
        Ok(&self.data)
    }
}

/// Writes the last piece, verifies the digests and makes the object visible.
fn commit(
    mut pipe: Pipe,
    last: Vec<u8>,
    put: &PutObject,
) -> JoinHandle<Result<(Digests, u64), S3Error>> {
    let kept: Vec<(String, String)> = put
        .headers
        .iter()
        .map(|(n, v)| (n.to_owned(), v.to_owned()))
        .collect();
    tokio::task::spawn_blocking(move || {
        pipe.take(&last)?;
        let (writer, digests) = pipe.verify()?;
        let mut meta = ObjectMeta {
            etag: digests.etag().trim_matches('"').to_owned(),
            created_ms: now_ms(),
            ..ObjectMeta::default()
        };
        for (name, value) in kept {
            match name.strip_prefix("x-amz-meta-") {
                Some(short) => meta.user.push((short.to_owned(), value)),
                None => meta.headers.push((name, value)),
            }
        }
        if let Some((name, value)) = &digests.checksum {
            meta.headers.push(((*name).to_owned(), value.clone()));
        }
        let committed = writer.commit(meta).map_err(|e| store_error(&e))?;
        Ok((digests, committed.len))
    })
}

/// Runs `work` where it may block on the disk.
pub(super) fn blocking<T: Send + 'static>(
    node: &Arc<Node>,
    work: impl FnOnce(&Node) -> Result<T, S3Error> + Send + 'static,
) -> JoinHandle<Result<T, S3Error>> {
    let node = node.clone();
    tokio::task::spawn_blocking(move || work(&node))
}

/// The result of a blocking task; its panic is an internal error.
pub(super) async fn joined<T>(task: JoinHandle<Result<T, S3Error>>) -> Result<T, S3Error> {
    match task.await {
        Ok(result) => result,
        Err(error) => {
            tracing::error!(%error, "a blocking task failed");
            Err(Code::InternalError.into())
        }
    }
}
