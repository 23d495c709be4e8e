//! A store's errors as S3 errors.

use prism_s3::{Code, S3Error};

/// A result of the store that becomes a client's answer.
pub trait StoreResult<T> {
    /// The result with its error as an S3 error, by [`store_error`].
    fn in_s3(self) -> Result<T, S3Error>;
}

impl<T> StoreResult<T> for Result<T, prism_store::Error> {
    fn in_s3(self) -> Result<T, S3Error> {
        self.map_err(|error| store_error(&error))
    }
}

/// The answer to a request that succeeds a moment later: the client tries again.
pub fn not_yet(why: &'static str) -> S3Error {
    Code::ServiceUnavailable.with_message(why)
}

/// A store's error as an S3 error. Internal errors are logged.
pub fn store_error(error: &prism_store::Error) -> S3Error {
    use prism_store::Error;
    match error {
        Error::NoSuchBucket => Code::NoSuchBucket.into(),
        Error::NoSuchObject => Code::NoSuchKey.into(),
        Error::NoSuchVersion => Code::NoSuchVersion.into(),
        // The request named a version that is a delete marker.
        Error::IsDeleteMarker => Code::MethodNotAllowed.into(),
        Error::TooManyVersions => Code::InvalidRequest.with_message(error.to_string()),
        Error::NoSuchUpload => Code::NoSuchUpload.into(),
        Error::PartChanged => Code::InvalidPart.into(),
        Error::ConditionFailed { .. } => Code::PreconditionFailed.into(),
        Error::QuotaExceeded(why) => Code::QuotaExceeded.with_message(why.to_string()),
        Error::BucketChanged | Error::Busy => Code::OperationAborted.into(),
        Error::AlreadyExists => Code::BucketAlreadyOwnedByYou.into(),
        Error::NotEmpty => Code::BucketNotEmpty.into(),
        Error::TooLarge => Code::EntityTooLarge.into(),
        Error::LengthMismatch { .. } => Code::IncompleteBody.into(),
        Error::MetaTooLarge => Code::MetadataTooLarge.into(),
        Error::InvalidName(what) => Code::InvalidArgument.with_message(*what),
        Error::NoSpace => Code::InsufficientStorage.into(),
        Error::Stalled => Code::SlowDown.into(),
        // Other nodes decide, so the change may take effect.
        Error::OtherEpoch | Error::Unsettled => {
            Code::ServiceUnavailable.with_message("The cluster has just changed. Try again.")
        }
        Error::Unreplicated { .. }
        | Error::TooFewCopies { .. }
        | Error::NotPrimary
        | Error::Refused(_) => {
            Code::ServiceUnavailable.with_message(format!("Nothing was written: {error}."))
        }
        Error::UnprovenDeletion(_) => Code::OperationAborted.with_message(format!(
            "The registry of buckets is older than a store: {error}."
        )),
        Error::TooManyBuckets | Error::WritesDisabled => Code::ServiceUnavailable.into(),
        error => {
            tracing::error!(%error, "the store failed");
            Code::InternalError.into()
        }
    }
}
