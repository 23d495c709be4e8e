//! Requests with a document as body, and answers that take long.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use prism_http::ResponseHead;
use prism_s3::{BodyDigest, Code, Expected, ObjectOperation, Operation, S3Error, xml};
use prism_service::{BodyFailure, Exchange, set};

use crate::answer::{Answer, Failure, request_id};
use crate::caller_shares::{CallerShares, DocumentRoom};
use crate::objects::Objects;
use crate::pieces::PIECE_BYTES;
use crate::request::Call;

/// The time after which a late answer begins, and the interval of its signs of life. Relaying
/// nodes and clients wait much longer for a silent connection.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

impl Objects {
    /// Reads a body that is a document, and verifies its digests. Its memory counts as used until
    /// the room is dropped.
    pub(crate) async fn read_document(
        &self,
        call: &mut Call<'_, impl Exchange>,
    ) -> Result<(Vec<u8>, DocumentRoom), Failure> {
        let max = call.request.meaning.operation.row().body.max_bytes();
        call.exchange.limit_body(max);
        let document = read_verified(call, &self.shared.callers, max).await;
        if !matches!(document, Err(Failure::Connection(_))) {
            call.exchange.skip_body().await;
        }
        document
    }

    /// Answers with the document that `work` makes, however long it takes. A late answer
    /// begins before its outcome is known, as in S3: its document says whether the work failed.
    pub(crate) async fn answer_in_time(
        &self,
        call: &mut Call<'_, impl Exchange>,
        work: impl Future<Output = Result<Answer, Failure>>,
    ) -> io::Result<()> {
        let mut work = std::pin::pin!(work);
        match tokio::time::timeout(SIGN_OF_LIFE, &mut work).await {
            Ok(answer) => self.send_answer(call, answer).await,
            Err(_) => {
                let path = call.request.head.path();
                answer_late(call.exchange, path, work, SIGN_OF_LIFE).await
            }
        }
    }
}

async fn read_verified(
    call: &mut Call<'_, impl Exchange>,
    callers: &CallerShares,
    max: u64,
) -> Result<(Vec<u8>, DocumentRoom), Failure> {
    let Call { exchange, request } = call;
    let longest = exchange.left_bytes().unwrap_or(max);
    if longest > max {
        return Err(Code::EntityTooLarge.into());
    }
    let headers = request.head.headers();
    let meaning = &request.meaning;
    let expected = match meaning.operation {
        // The checksum is that of the object, which `multipart.rs` compares.
        Operation::Object(_, ObjectOperation::CompleteUpload(_)) => {
            Expected::without_checksum(headers, &meaning.payload)?
        }
        _ => Expected::from_request(headers, &meaning.payload)?,
    };
    let room = callers.room(&meaning.principal, longest).await?;
    let bytes = exchange
        .read_to_end(max)
        .await
        .map_err(|error| match error {
            BodyFailure::TooLong => Code::EntityTooLarge.into(),
            BodyFailure::Malformed(error) => S3Error::from(error).into(),
            BodyFailure::Connection(error) => Failure::Connection(error),
        })?;
    let mut digest = BodyDigest::new(expected);
    for (n, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
        if n > 0 {
            tokio::task::yield_now().await;
        }
        digest.update(piece);
    }
    digest.finish()?;
    Ok((bytes, room))
}

/// Begins an answer, sends white space at intervals while `work` runs, and then its document.
async fn answer_late(
    exchange: &mut impl Exchange,
    resource: &str,
    mut work: Pin<&mut impl Future<Output = Result<Answer, Failure>>>,
    every: Duration,
) -> io::Result<()> {
    let id = request_id(exchange);
    let mut head = ResponseHead::new(200);
    set(&mut head, "Content-Type", "application/xml")?;
    set(&mut head, "x-amz-request-id", &id)?;
    set(&mut head, "Server", "Prism")?;
    exchange.begin(&head, None, None);
    exchange.data(xml::PROLOG).await?;
    let done = loop {
        match tokio::time::timeout(every, work.as_mut()).await {
            Ok(done) => break done,
            Err(_) => exchange.data(b" ").await?,
        }
    };
    // The head is sent already, so the answer's own head is dropped.
    let document = match done {
        Ok(answer) => answer.document,
        Err(Failure::Refused { error, .. }) => {
            tracing::warn!(%error, resource, "request failed after its answer had begun");
            error.xml(resource, &id)
        }
        Err(Failure::Connection(error)) => return Err(error),
    };
    exchange.put(document.strip_prefix(xml::PROLOG).unwrap_or(&document));
    exchange.end(None).await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use prism_http::{BodyReader, Limits, Method, RequestHead};
    use prism_service::{Http1, Http1Parts, Input, Io};

    use super::*;

    /// A client that keeps its answer.
    #[derive(Default)]
    struct Client {
        written: Vec<u8>,
    }

    impl Input for Client {
        fn buffered(&self) -> &[u8] {
            &[]
        }

        fn consume(&mut self, _: usize) {}

        async fn fill(&mut self) -> io::Result<usize> {
            Ok(0)
        }
    }

    impl Io for Client {
        async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
            self.written.extend_from_slice(bytes);
            Ok(())
        }

        async fn write_more(&mut self, bytes: &[u8]) -> io::Result<()> {
            self.write_all(bytes).await
        }

        async fn send_file(&mut self, _: &std::fs::File, _: u64, _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    /// The body of a late answer whose work has this result.
    fn late(result: Result<Vec<u8>, S3Error>) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        let mut io = Client::default();
        runtime.unwrap().block_on(async {
            let request = b"PUT /b/k HTTP/1.1\r\nHost: h\r\n\r\n";
            let parsed = RequestHead::parse(request, &Limits::DEFAULT);
            let (head, _) = parsed.unwrap().unwrap();
            let mut exchange = Http1::new(&mut io, &head, Http1Parts::default());
            let mut work = std::pin::pin!(async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                result.map(Answer::xml).map_err(Failure::from)
            });
            let every = Duration::from_millis(5);
            let answered = answer_late(&mut exchange, "/b/k", work.as_mut(), every);
            answered.await.unwrap();
            assert!(exchange.is_open());
        });
        let (head, len) = ResponseHead::parse(&io.written, &Limits::DEFAULT)
            .unwrap()
            .unwrap();
        assert_eq!(head.status(), 200);
        let mut body = BodyReader::new(head.framing(&Method::PUT).unwrap(), u64::MAX);
        let (mut rest, mut text) = (&io.written[len..], Vec::new());
        while !body.is_done() {
            let step = body.consume(rest).unwrap();
            text.extend_from_slice(&rest[step.data]);
            rest = &rest[step.consumed..];
        }
        assert!(rest.is_empty());
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_late_answer_is_one_document_with_white_space_behind_its_prolog() {
        let prolog = std::str::from_utf8(xml::PROLOG).unwrap();
        let done = late(Ok(xml::versioning(None)));
        let rest = done.strip_prefix(prolog).unwrap();
        assert!(rest.starts_with("  "), "{done}");
        assert!(
            rest.trim_start().starts_with("<VersioningConfiguration"),
            "{done}"
        );
        let failed = late(Err(Code::NoSuchKey.into()));
        let rest = failed.strip_prefix(prolog).unwrap().trim_start();
        assert!(rest.starts_with("<Error><Code>NoSuchKey<"), "{failed}");
    }
}
