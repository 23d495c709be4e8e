//! Answers that fit into memory, and the reasons for an error instead.

use std::io;

use prism_http::{Headers, ResponseHead};
use prism_s3::{Code, S3Error};
use prism_service::{Exchange, request_id_text, set};
use prism_store::VersionId;

use crate::versions;

/// The delay after which a client repeats a request that was answered 503, in seconds.
const RETRY_AFTER_S: u32 = 1;

/// The answer to an operation that moves no object's bytes.
pub(crate) struct Answer {
    pub(crate) head: ResponseHead,
    /// XML, unless the head has another content type.
    pub(crate) document: Vec<u8>,
}

impl Answer {
    /// An answer without a document.
    pub(crate) fn empty(status: u16) -> Self {
        Self {
            head: ResponseHead::new(status),
            document: Vec::new(),
        }
    }

    /// A 200 with an XML document.
    pub(crate) fn xml(document: Vec<u8>) -> Self {
        Self {
            head: ResponseHead::new(200),
            document,
        }
    }

    /// Sets a header field, whose value should have been checked before.
    pub(crate) fn with(mut self, name: &str, value: impl AsRef<[u8]>) -> Result<Self, S3Error> {
        set(&mut self.head, name, value).map_err(internal)?;
        Ok(self)
    }

    /// Names the version that the answer is about.
    pub(crate) fn with_version(mut self, version: Option<VersionId>) -> Result<Self, S3Error> {
        versions::set_id(&mut self.head, version).map_err(internal)?;
        Ok(self)
    }

    /// Sends the answer.
    pub(crate) async fn send(mut self, exchange: &mut impl Exchange) -> io::Result<()> {
        let has = |head: &ResponseHead, name| head.headers().get(name).is_some();
        if !self.document.is_empty() && !has(&self.head, "content-type") {
            set(&mut self.head, "Content-Type", "application/xml")?;
        }
        if !has(&self.head, "x-amz-request-id") {
            set(&mut self.head, "x-amz-request-id", request_id(exchange))?;
        }
        prism_service::send(exchange, self.head, &self.document).await
    }
}

/// Why an operation has no answer.
pub(crate) enum Failure {
    /// The client gets this error.
    Refused {
        error: S3Error,
        /// Further header fields of its answer.
        fields: Headers,
    },
    /// The connection failed that the answer goes to or that the body comes from.
    Connection(io::Error),
}

impl From<S3Error> for Failure {
    fn from(error: S3Error) -> Self {
        let fields = Headers::new();
        Self::Refused { error, fields }
    }
}

impl From<Code> for Failure {
    fn from(code: Code) -> Self {
        S3Error::from(code).into()
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Connection(error)
    }
}

/// The error for a header field that cannot be written.
pub(crate) fn internal<E>(_: E) -> S3Error {
    Code::InternalError.into()
}

/// Whether the fault is this system's own.
pub(crate) fn is_ours(error: &S3Error) -> bool {
    let is_callers = error.code() == Code::NotImplemented || error.retry_after_s().is_some();
    error.status() >= 500 && !is_callers
}

/// The identifier of a request, for its answer.
pub(crate) fn request_id(exchange: &impl Exchange) -> String {
    request_id_text(exchange.request_id())
}

/// Sends an error as S3 does, with further header fields.
pub(crate) async fn send_error(
    exchange: &mut impl Exchange,
    error: &S3Error,
    fields: Headers,
    resource: &str,
) -> io::Result<()> {
    let id = request_id(exchange);
    exchange.record_mut().error = Some(error.code().as_str());
    let mut answer = Answer::empty(error.status());
    *answer.head.headers_mut() = fields;
    set(&mut answer.head, "x-amz-request-id", &id)?;
    if error.status() == 503 {
        let after_s = error.retry_after_s().unwrap_or(RETRY_AFTER_S);
        set(&mut answer.head, "Retry-After", after_s.to_string())?;
    }
    if error.status() != 304 {
        answer.document = error.xml(resource, &id);
    }
    answer.send(exchange).await
}
