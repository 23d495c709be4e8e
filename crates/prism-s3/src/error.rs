//! S3 errors: status, code and message. [`crate::xml`] has the body of their answers.

use std::borrow::Cow;

use prism_http::{BodyError, HeadError};

macro_rules! codes {
    ($($name:ident $status:literal $message:literal,)*) => {
        /// The error codes of S3 that Prism answers with.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "named by S3; each row below holds its meaning")]
        pub enum Code { $($name,)* }

        impl Code {
            /// The code that clients see as `text`.
            pub fn parse(text: &str) -> Option<Self> {
                let all = [$(Self::$name,)*];
                all.into_iter().find(|code| code.as_str() == text)
            }

            /// The code as clients see it.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// The HTTP status of the code.
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }

            /// The general message of the code.
            pub const fn message(self) -> &'static str {
                match self { $(Self::$name => $message,)* }
            }
        }
    };
}

codes! {
    AccessDenied 403 "Access denied.",
    AccessForbidden 403 "Access forbidden.",
    AuthorizationHeaderMalformed 400 "The authorization header is malformed.",
    AuthorizationQueryParametersError 400 "The query parameters of the signature are malformed.",
    BadRequest 400 "The request is invalid.",
    BadDigest 400 "The body does not have the checksum that the request announced.",
    BucketAlreadyExists 409 "The bucket exists and belongs to someone else.",
    BucketAlreadyOwnedByYou 409 "The bucket exists and is yours.",
    BucketNotEmpty 409 "The bucket is not empty.",
    EntityTooLarge 400 "The object is larger than allowed.",
    EntityTooSmall 400 "The object is smaller than allowed.",
    IllegalLocationConstraintException 400 "The location constraint is that of another region.",
    IncompleteBody 400 "The connection ended within the body.",
    InsufficientStorage 507 "There is no room left to store the object.",
    InternalError 500 "Something went wrong on the server. Please try again.",
    InvalidAccessKeyId 403 "The access key is not known.",
    InvalidArgument 400 "An argument is invalid.",
    InvalidBucketName 400 "The bucket name is not valid.",
    InvalidDigest 400 "Content-MD5 is not the Base64 of 16 bytes.",
    InvalidLocationConstraint 400 "The location constraint is not valid.",
    InvalidPart 400 "A part of the upload is missing, or its ETag is another.",
    InvalidPartNumber 416 "The object does not have that many parts.",
    InvalidPartOrder 400 "The parts are not in ascending order.",
    InvalidRange 416 "The requested range does not overlap the object.",
    InvalidRequest 400 "The request is invalid.",
    InvalidStorageClass 400 "The storage class is not known.",
    InvalidTag 400 "A tag is invalid.",
    InvalidToken 400 "Session tokens are not supported.",
    InvalidURI 400 "The URI could not be parsed.",
    KeyTooLongError 400 "The key is longer than 1024 bytes.",
    MalformedPolicy 400 "The policy is not well-formed.",
    MalformedTrailerError 400 "The trailers behind the body are malformed.",
    MalformedXML 400 "The XML body is not well-formed or has the wrong shape.",
    MetadataTooLarge 400 "The metadata headers are larger than allowed.",
    MethodNotAllowed 405 "The method is not allowed on this resource.",
    MissingContentLength 411 "A Content-Length header is needed.",
    MissingSecurityHeader 400 "A security header is missing.",
    NoSuchCORSConfiguration 404 "The bucket has no CORS configuration.",
    NoSuchBucketPolicy 404 "The bucket has no policy.",
    NoSuchBucket 404 "The bucket does not exist.",
    NoSuchConfiguration 404 "The bucket has no configuration with this id.",
    NoSuchKey 404 "The key does not exist.",
    NoSuchLifecycleConfiguration 404 "The bucket has no lifecycle configuration.",
    NoSuchPublicAccessBlockConfiguration 404 "The bucket has no public access block.",
    NoSuchTagSet 404 "The bucket has no tags.",
    NoSuchVersion 404 "The version does not exist.",
    NoSuchUpload 404 "The upload does not exist.",
    NoSuchWebsiteConfiguration 404 "The bucket has no website configuration.",
    NotImplemented 501 "This operation is not implemented.",
    NotModified 304 "Not modified.",
    ObjectLockConfigurationNotFoundError 404 "The bucket has no configuration of object lock.",
    OperationAborted 409 "A conflicting operation is in progress. Please try again.",
    PreconditionFailed 412 "A condition of the request does not hold.",
    QuotaExceeded 403 "The quota of the bucket is exceeded.",
    ReplicationConfigurationNotFoundError 404 "The bucket has no replication configuration.",
    RequestTimeTooSkewed 403 "The request time differs too much from the server's.",
    RequestTimeout 400 "The request was not sent within the time allowed.",
    ServerSideEncryptionConfigurationNotFoundError 404 "The server side encryption configuration was not found.",
    ServiceUnavailable 503 "The service cannot answer now. Please try again.",
    SignatureDoesNotMatch 403 "The signature does not match. Check the secret key and the signing method.",
    SlowDown 503 "Please reduce the request rate.",
    XAmzContentSHA256Mismatch 400 "The body does not have the hash of x-amz-content-sha256.",
}

impl Code {
    /// An error with a message of its own. The client sees the message, so it must not hold
    /// secrets, addresses or paths of this host.
    pub fn with_message(self, message: impl Into<Cow<'static, str>>) -> S3Error {
        S3Error {
            message: message.into(),
            ..S3Error::new(self)
        }
    }
}

/// An error as a client sees it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", code.as_str())]
pub struct S3Error {
    code: Code,
    status: u16,
    message: Cow<'static, str>,
    /// Further elements of the body: names and texts.
    details: Vec<(&'static str, String)>,
    /// The time in seconds after which the caller, who asks too much, may ask again.
    retry_after_s: Option<u32>,
}

impl S3Error {
    /// An error with the general message of its code.
    pub const fn new(code: Code) -> Self {
        Self {
            code,
            status: code.status(),
            message: Cow::Borrowed(code.message()),
            details: Vec::new(),
            retry_after_s: None,
        }
    }

    /// The same for a caller who asks too much, and may ask again after this time.
    pub fn until(mut self, retry_after_s: u32) -> Self {
        self.retry_after_s = Some(retry_after_s);
        self
    }

    /// The time in seconds after which a caller who asks too much may ask again.
    pub const fn retry_after_s(&self) -> Option<u32> {
        self.retry_after_s
    }

    /// The same with one more element in the body, which some clients read.
    pub(crate) fn with_detail(mut self, name: &'static str, text: impl Into<String>) -> Self {
        self.details.push((name, text.into()));
        self
    }

    /// The code.
    pub const fn code(&self) -> Code {
        self.code
    }

    /// The HTTP status.
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Further elements of the body: names and texts.
    pub(crate) fn details(&self) -> &[(&'static str, String)] {
        &self.details
    }
}

impl From<Code> for S3Error {
    fn from(code: Code) -> Self {
        Self::new(code)
    }
}

/// The error has HTTP's status, which is more precise than S3's.
impl From<HeadError> for S3Error {
    fn from(error: HeadError) -> Self {
        let code = match error.status() {
            413 => Code::EntityTooLarge,
            414 => Code::InvalidURI,
            501 => Code::NotImplemented,
            _ => Code::InvalidRequest,
        };
        Self {
            status: error.status(),
            ..code.with_message(error.to_string())
        }
    }
}

impl From<BodyError> for S3Error {
    fn from(error: BodyError) -> Self {
        let code = match error {
            BodyError::TooLong => Code::EntityTooLarge,
            BodyError::Truncated => Code::IncompleteBody,
            _ => Code::InvalidRequest,
        };
        Self {
            status: error.status(),
            ..code.with_message(error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_http_keep_their_status() {
        let error = S3Error::from(HeadError::HeadTooLong);
        assert_eq!((error.status(), error.code()), (431, Code::InvalidRequest));
        assert_eq!(
            S3Error::from(HeadError::Method).code(),
            Code::NotImplemented
        );
        assert_eq!(
            S3Error::from(BodyError::Truncated).code(),
            Code::IncompleteBody
        );
    }
}
