//! Requests that are answered from this node's store, and those that concern
//! every backend: creating, deleting and listing buckets' contents.
//!
//! Every backend knows every bucket. Creating and deleting reach all of them or
//! are answered with an error; both may be repeated.

use std::io;

use prism_http::{BodyReader, Exchange, ResponseHead};
use prism_proto::relay::Preamble;
use prism_s3::{BucketName, Code, Operation, S3Error, xml};
use prism_store::Store;

use super::answer::{discard_body, from_ms, send, send_xml, set};
use super::get::store_error;
use super::io::Io;
use super::listing::{self, MAX_SHARE_BYTES, Share};
use super::put::{blocking, joined};
use super::relay::Relayed;
use super::session::{Request, preamble};
use super::{Worker, now_ms};

/// Longest body of a CreateBucket.
const MAX_XML_BYTES: u64 = 64 << 10;

impl Worker {
    /// Answers from this node's store.
    pub(super) async fn serve_from_store(
        &self,
        io: &mut impl Io,
        request: &Request,
        exchange: &Exchange<'_>,
    ) -> io::Result<bool> {
        let node = self.node.clone();
        let Some(store) = node.store.as_ref() else {
            return self.serve_without_store(io, request, exchange).await;
        };
        match &request.operation {
            Operation::PutObject { bucket, key, put } => {
                self.put_object(io, request, exchange, (bucket, key, put))
                    .await
            }
            Operation::GetObject { bucket, key, read }
            | Operation::HeadObject { bucket, key, read } => {
                // A GET with a body is odd but allowed; the body means nothing.
                let keep_alive = exchange.keep_alive && discard_body(io, &request.head).await;
                let exchange = Exchange {
                    keep_alive,
                    ..*exchange
                };
                self.get_object(io, request, &exchange, store, (bucket, key, read))
                    .await
            }
            operation => {
                let skipped = discard_body(io, &request.head).await;
                let keep_alive = exchange.keep_alive && skipped;
                let exchange = Exchange {
                    keep_alive,
                    ..*exchange
                };
                match self.small(operation).await {
                    Ok((head, xml)) if xml.is_empty() => send(io, &exchange, head, &[]).await,
                    Ok((head, xml)) => send_xml(io, &exchange, head, &xml).await,
                    Err(error) => {
                        self.send_error(io, &exchange, &error, request.head.path())
                            .await
                    }
                }
            }
        }
    }

    async fn serve_without_store(
        &self,
        io: &mut impl Io,
        request: &Request,
        exchange: &Exchange<'_>,
    ) -> io::Result<bool> {
        let error = match &request.operation {
            Operation::Unsupported { what } => Operation::not_implemented(what),
            _ => Code::ServiceUnavailable.into(),
        };
        let keep_alive = exchange.keep_alive && discard_body(io, &request.head).await;
        let exchange = Exchange {
            keep_alive,
            ..*exchange
        };
        self.send_error(io, &exchange, &error, request.head.path())
            .await
    }

    /// Operations whose answer is an XML document or nothing.
    async fn small(&self, operation: &Operation) -> Result<(ResponseHead, Vec<u8>), S3Error> {
        if let Operation::Unsupported { what } = operation {
            return Err(Operation::not_implemented(what));
        }
        let region = self.node.config.cluster.region.clone();
        let operation = operation.clone();
        joined(blocking(&self.node, move |node| {
            let store = node.store.as_ref().ok_or(Code::InternalError)?;
            let failed = |e: prism_store::Error| store_error(&e);
            match &operation {
                Operation::ListBuckets => {
                    let buckets = store.list_buckets().map_err(failed)?;
                    let named: Vec<_> = buckets
                        .iter()
                        .filter_map(|b| {
                            Some((BucketName::parse(&b.name).ok()?, from_ms(b.created_ms)))
                        })
                        .collect();
                    let listed = named.iter().map(|(name, created)| (name, *created));
                    Ok((ResponseHead::new(200), xml::list_buckets("prism", listed)))
                }
                Operation::HeadBucket { bucket } => {
                    store.head_bucket(bucket.as_str()).map_err(failed)?;
                    let head = ResponseHead::new(200).with("x-amz-bucket-region", &region);
                    Ok((head.map_err(|_| Code::InternalError)?, Vec::new()))
                }
                Operation::GetBucketLocation { bucket } => {
                    store.head_bucket(bucket.as_str()).map_err(failed)?;
                    Ok((ResponseHead::new(200), xml::location(&region)))
                }
                Operation::DeleteObject { bucket, key } => {
                    store.head_bucket(bucket.as_str()).map_err(failed)?;
                    store
                        .delete(bucket.as_str(), key.as_str())
                        .map_err(failed)?;
                    Ok((ResponseHead::new(204), Vec::new()))
                }
                other => {
                    tracing::error!(operation = other.name(), "not for one node alone");
                    Err(Code::InternalError.into())
                }
            }
        }))
        .await
    }

    /// Answers another node that puts all backends' answers together.
    pub(super) async fn serve_alone(
        &self,
        io: &mut impl Io,
        request: &Request,
        exchange: &Exchange<'_>,
    ) -> io::Result<bool> {
        match self.alone(&request.operation).await {
            Ok(body) => {
                let mut head = ResponseHead::new(200);
                set(&mut head, "Content-Type", "application/json")?;
                send(io, exchange, head, &body).await
            }
            Err(error) => {
                self.send_error(io, exchange, &error, request.head.path())
                    .await
            }
        }
    }

    /// This store's part of what concerns every backend.
    async fn alone(&self, operation: &Operation) -> Result<Vec<u8>, S3Error> {
        let operation = operation.clone();
        joined(blocking(&self.node, move |node| {
            let store = node.store.as_ref().ok_or(Code::InternalError)?;
            match &operation {
                Operation::CreateBucket { bucket } => create(store, bucket),
                Operation::DeleteBucket { bucket } => {
                    store
                        .delete_bucket(bucket.as_str())
                        .map_err(|e| store_error(&e))?;
                    Ok(Vec::new())
                }
                Operation::ListObjects { bucket, list } => {
                    let share = listing::share(store, bucket, list)?;
                    serde_json::to_vec(&share).map_err(|_| Code::InternalError.into())
                }
                _ => Err(Code::InternalError.into()),
            }
        }))
        .await
    }

    /// Answers what concerns every backend.
    pub(super) async fn serve_together(
        &self,
        io: &mut impl Io,
        request: &Request,
    ) -> io::Result<bool> {
        let date = self.date();
        let result = match self.read_xml(io, request).await? {
            Ok(()) => self.together(request).await,
            Err(error) => Err(error),
        };
        let keep_alive = request.head.keep_alive() && result_keeps(&result) && !self.is_stopping();
        let exchange = Exchange {
            keep_alive,
            ..request.head.exchange(&date)
        };
        match result {
            Ok((head, xml)) if xml.is_empty() => send(io, &exchange, head, &[]).await,
            Ok((head, xml)) => send_xml(io, &exchange, head, &xml).await,
            Err(error) => {
                self.send_error(io, &exchange, &error, request.head.path())
                    .await
            }
        }
    }

    /// Reads the body, which only CreateBucket has, and checks what it asks.
    async fn read_xml(
        &self,
        io: &mut impl Io,
        request: &Request,
    ) -> io::Result<Result<(), S3Error>> {
        let mut body = BodyReader::new(request.head.framing().into(), MAX_XML_BYTES);
        if body.left().is_some_and(|left| left > MAX_XML_BYTES) {
            return Ok(Err(Code::EntityTooLarge.into()));
        }
        if request.head.expects_continue() && io.buffered().is_empty() {
            io.write_all(prism_http::CONTINUE).await?;
        }
        let mut xml = Vec::new();
        while !body.is_done() {
            let step = match body.consume(io.buffered()) {
                Ok(step) => step,
                Err(error) => return Ok(Err(error.into())),
            };
            xml.extend_from_slice(io.buffered().get(step.data).unwrap_or_default());
            io.consume(step.consumed);
            if !body.is_done() && io.fill().await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let Operation::CreateBucket { .. } = request.operation else {
            return Ok(Ok(()));
        };
        let region = &self.node.config.cluster.region;
        Ok(match xml::parse_location_constraint(&xml) {
            Ok(Some(other)) if other != *region => Err(S3Error::with_message(
                Code::InvalidArgument,
                format!("Buckets can be created in {region} only."),
            )),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        })
    }

    async fn together(&self, request: &Request) -> Result<(ResponseHead, Vec<u8>), S3Error> {
        match &request.operation {
            Operation::CreateBucket { bucket } => {
                let existed = self.create_everywhere(request).await?;
                let us_east_1 = self.node.config.cluster.region == "us-east-1";
                if existed && !us_east_1 {
                    return Err(Code::BucketAlreadyOwnedByYou.into());
                }
                let head = ResponseHead::new(200).with("Location", format!("/{}", bucket.as_str()));
                Ok((head.map_err(|_| Code::InternalError)?, Vec::new()))
            }
            Operation::DeleteBucket { .. } => {
                self.delete_everywhere(request).await?;
                Ok((ResponseHead::new(204), Vec::new()))
            }
            operation => {
                let mut shares = Vec::new();
                for answer in self.ask_everyone(request, operation).await {
                    let share: Share =
                        serde_json::from_slice(&answer?).map_err(|_| Code::InternalError)?;
                    shares.push(share);
                }
                Ok((
                    ResponseHead::new(200),
                    listing::page_xml(operation, shares)?,
                ))
            }
        }
    }

    /// Returns whether every backend had the bucket already.
    async fn create_everywhere(&self, request: &Request) -> Result<bool, S3Error> {
        let mut existed = true;
        for answer in self.ask_everyone(request, &request.operation).await {
            match answer {
                Ok(_) => existed = false,
                Err(error) if error.code() == Code::BucketAlreadyOwnedByYou => {}
                Err(error) => return Err(error),
            }
        }
        Ok(existed)
    }

    /// Deletes the bucket on all backends, or on none where one of them holds
    /// objects of it.
    async fn delete_everywhere(&self, request: &Request) -> Result<(), S3Error> {
        let mut missing = 0;
        let mut failure = None;
        let answers = self.ask_everyone(request, &request.operation).await;
        let all = answers.len();
        for answer in answers {
            match answer {
                Ok(_) => {}
                Err(error) if error.code() == Code::NoSuchBucket => missing += 1,
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(error) => {
                // It must go on existing everywhere.
                if let Operation::DeleteBucket { bucket } = &request.operation {
                    let create = Operation::CreateBucket {
                        bucket: bucket.clone(),
                    };
                    for answer in self.ask_everyone(request, &create).await {
                        let again = answer.err().filter(|e| e.status() >= 500);
                        if let Some(error) = again {
                            tracing::error!(%error, "bucket half deleted: repeat the request");
                        }
                    }
                }
                Err(error)
            }
            None if missing == all => Err(Code::NoSuchBucket.into()),
            None => Ok(()),
        }
    }

    /// The answers of all backends, this node's own included, in no order.
    async fn ask_everyone(
        &self,
        request: &Request,
        operation: &Operation,
    ) -> Vec<Result<Vec<u8>, S3Error>> {
        let mut answers = Vec::new();
        for node in self.node.placement.nodes() {
            let answer = if node.as_str() == self.node.name {
                self.alone(operation).await
            } else {
                self.ask_one(node.as_str(), request, operation).await
            };
            answers.push(answer);
        }
        answers
    }

    async fn ask_one(
        &self,
        peer: &str,
        request: &Request,
        operation: &Operation,
    ) -> Result<Vec<u8>, S3Error> {
        let unavailable = |what: &dyn std::fmt::Display| {
            tracing::warn!(peer, error = %what, "a backend did not answer");
            S3Error::with_message(Code::ServiceUnavailable, "A storage node is out of reach.")
        };
        let head = head_for(request, operation)?;
        let preamble: Preamble = preamble(&request.principal, true);
        let relayed = Relayed {
            head: &head,
            preamble,
            max_body_bytes: 0,
        };
        let (answer, body) = self
            .ask(peer, &relayed, MAX_SHARE_BYTES)
            .await
            .map_err(|e| unavailable(&e))?;
        match answer.status() {
            200 => Ok(body),
            404 => Err(Code::NoSuchBucket.into()),
            409 if matches!(operation, Operation::CreateBucket { .. }) => {
                Err(Code::BucketAlreadyOwnedByYou.into())
            }
            409 => Err(Code::BucketNotEmpty.into()),
            507 => Err(Code::InsufficientStorage.into()),
            status => Err(unavailable(&format_args!("status {status}"))),
        }
    }
}

fn result_keeps(result: &Result<(ResponseHead, Vec<u8>), S3Error>) -> bool {
    // The only error that leaves a body unread.
    !matches!(result, Err(error) if error.code() == Code::EntityTooLarge)
}

fn create(store: &Store, bucket: &BucketName) -> Result<Vec<u8>, S3Error> {
    store
        .create_bucket(bucket.as_str(), now_ms())
        .map_err(|e| store_error(&e))?;
    Ok(Vec::new())
}

/// The request as nodes ask it of each other: no body, no signature.
fn head_for(request: &Request, operation: &Operation) -> Result<prism_http::RequestHead, S3Error> {
    let target = request.head.target();
    let (method, target) = match operation {
        Operation::CreateBucket { bucket } => ("PUT", format!("/{}", bucket.as_str())),
        Operation::DeleteBucket { bucket } => ("DELETE", format!("/{}", bucket.as_str())),
        _ => ("GET", target.to_owned()),
    };
    let text = format!("{method} {target} HTTP/1.1\r\nHost: prism\r\n\r\n");
    match prism_http::RequestHead::parse(text.as_bytes(), &prism_http::Limits::DEFAULT) {
        Ok(Some((head, _))) => Ok(head),
        _ => Err(Code::InternalError.into()),
    }
}
