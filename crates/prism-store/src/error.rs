//! The errors of a store.

use std::{io, path::PathBuf, sync::Arc};

use prism_audit::AuditError;
use prism_cluster::replica::Refusal;

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process, or another `Store` of this one, has it open.
    #[error("{0} is in use by another process; end that one, or name another directory")]
    Locked(PathBuf),
    /// The directory holds something that is not a store.
    #[error("{0} is neither empty nor a prism store; name a store or an empty directory")]
    NotAStore(PathBuf),
    /// The file system is full, or a quota of it is used up.
    #[error(
        "no space is left on its file system; make room there, or name a directory on another one"
    )]
    NoSpace,
    /// Written by another release.
    #[error(
        "it has format {found}, and this release reads {supported}; start the release that wrote \
         it, or copy its objects to a new store through S3"
    )]
    OtherFormat {
        /// The version the directory records.
        found: u32,
        /// The version that this release reads.
        supported: u32,
    },
    /// Object files without the tree that names them. Opening the store would remove all of
    /// them as orphans.
    #[error("{0} holds object files but no metadata; restore its \"db\" directory")]
    MetadataMissing(PathBuf),
    /// The store was filled with another number of replicas of each key.
    #[error(
        "the store was filled with {noted} replicas of each key, the configuration wants {wanted}; \
         replicas can be changed only while there are no buckets"
    )]
    Replicas {
        /// The number that it was filled with.
        noted: u32,
        /// The configured number.
        wanted: u32,
    },
    /// The metadata is damaged, or could not be checked. A damaged store is not opened, because it
    /// would forget what lies behind the damage.
    #[error(transparent)]
    Audit(#[from] AuditError),
    /// The file system cannot make unnamed files (`O_TMPFILE`).
    #[error("the file system of {0} does not support O_TMPFILE")]
    NoTmpfile(PathBuf),
    /// The directory was opened more often than file names can tell apart.
    #[error("the store has used up its file name generations; copy it to a new one")]
    GenerationsExhausted,
    /// The kernel refused something.
    #[error("{what}: {source}")]
    Io {
        /// The action, and its path.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The metadata could not be read.
    #[error("metadata: {0}")]
    Metadata(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl OpenError {
    /// The same error, or [`Self::NoSpace`] if that is the cause.
    pub(crate) fn or_no_space(self) -> Self {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        let mut next: Option<&(dyn std::error::Error + 'static)> = Some(&self);
        while let Some(cause) = next {
            let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
            if matches!(kind, Some(StorageFull | QuotaExceeded)) {
                return Self::NoSpace;
            }
            next = cause.source();
        }
        self
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

impl From<Error> for OpenError {
    fn from(error: Error) -> Self {
        Self::Metadata(Box::new(error))
    }
}

impl From<fjall::Error> for OpenError {
    fn from(error: fjall::Error) -> Self {
        Self::Metadata(Box::new(error))
    }
}

/// Why an operation on an open store failed.
///
/// Cloneable, because commits that share a flush share its failure.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such bucket.
    #[error("no such bucket")]
    NoSuchBucket,
    /// The bucket to create exists.
    #[error("the bucket already exists")]
    AlreadyExists,
    /// The bucket to delete holds objects.
    #[error("the bucket is not empty")]
    NotEmpty,
    /// The store holds [`BUCKETS_MAX`](crate::BUCKETS_MAX) buckets.
    #[error("too many buckets")]
    TooManyBuckets,
    /// A bucket name or key is empty or too long.
    #[error("{0}")]
    InvalidName(&'static str),
    /// There is no such object.
    #[error("no such object")]
    NoSuchObject,
    /// There is no such version of the object.
    #[error("no such version")]
    NoSuchVersion,
    /// The version is a delete marker, which has neither bytes nor metadata.
    #[error("the version is a delete marker")]
    IsDeleteMarker,
    /// The key has [`VERSIONS_MAX`](crate::VERSIONS_MAX) versions, the most where there
    /// are other replicas.
    #[error("the key has as many versions as a key with replicas can have")]
    TooManyVersions,
    /// The bucket's record is not the one that the change was made from.
    #[error("the bucket was changed meanwhile")]
    BucketChanged,
    /// The cluster has left the epoch in which the operation was begun.
    #[error("the cluster has changed meanwhile")]
    OtherEpoch,
    /// A change of the key by another primary is open.
    #[error("an earlier change is open: its outcome is not known yet; try again")]
    Unsettled,
    /// There is no such upload, or it has ended.
    #[error("no such upload")]
    NoSuchUpload,
    /// A part is no longer what the caller has seen.
    #[error("a part was replaced meanwhile")]
    PartChanged,
    /// The write's condition does not hold.
    #[error("the condition does not hold")]
    ConditionFailed {
        /// Whether there is an object.
        exists: bool,
    },
    /// The write does not fit in the quota of its bucket any more.
    #[error("{0}")]
    QuotaExceeded(Arc<str>),
    /// The bucket is being deleted, or its deletion has just failed. Ask again.
    #[error("the bucket is being deleted")]
    Busy,
    /// Nothing proves that the life of the bucket that this store has was deleted. The registry
    /// of buckets is older than the store.
    #[error(
        "the registry has another bucket named {0}, and no proof that the one of this store was \
         deleted"
    )]
    UnprovenDeletion(String),
    /// Another replica of the key did not prepare the change, which has not happened. Ask again
    /// later.
    #[error("replica {node} {why}")]
    Unreplicated {
        /// The replica.
        node: String,
        /// The reason.
        why: Arc<str>,
        /// The rule by which the replica refused, if one was the reason.
        refusal: Option<Refusal>,
    },
    /// Fewer copies of the key are in sync than a write needs.
    #[error("{in_sync} of the key's copies are in sync, and a write needs {min}")]
    TooFewCopies {
        /// The copies in sync.
        in_sync: usize,
        /// The copies that a write needs.
        min: u16,
    },
    /// The change was sent to a node that is not the key's primary.
    #[error("this node is not the primary of the key")]
    NotPrimary,
    /// A change of another primary was refused by the rules of replication.
    #[error("not prepared: {0}")]
    Refused(Refusal),
    /// Headers and user metadata exceed [`META_MAX`](crate::META_MAX) bytes.
    #[error("metadata too large")]
    MetaTooLarge,
    /// The object is longer than the configured limit.
    #[error("object too large")]
    TooLarge,
    /// The bytes written are not as many as announced.
    #[error("{written} bytes written, {expected} announced")]
    LengthMismatch {
        /// Announced to `begin_put`, in bytes.
        expected: u64,
        /// Written so far (or attempted), in bytes.
        written: u64,
    },
    /// The file system or the quota has too little room. Reads go on.
    #[error("no space left for objects")]
    NoSpace,
    /// The disk could not keep up for 10 s.
    #[error("the disk cannot keep up with the writes")]
    Stalled,
    /// An earlier failure of the disk made further writes unsafe. Reads go on. Writes need the
    /// store to be opened again.
    #[error("writes are disabled after a disk failure")]
    WritesDisabled,
    /// The store was closed, and its handle is still in use.
    #[error("the store has been closed")]
    Closed,
    /// The bytes read are not those that were written.
    #[error("corrupt object: {0}")]
    Corrupt(Arc<str>),
    /// The kernel refused something.
    #[error("i/o: {0}")]
    Io(#[source] Arc<io::Error>),
    /// The metadata engine failed.
    #[error("metadata: {0}")]
    Metadata(#[source] Arc<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// Whether the error means that stored data is damaged.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self, Self::Corrupt(_) | Self::Metadata(_) | Self::Io(_))
    }

    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt(what.into().into())
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            _ => Self::Io(Arc::new(error)),
        }
    }
}

impl From<fjall::Error> for Error {
    fn from(error: fjall::Error) -> Self {
        match error {
            fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => {
                error.into()
            }
            fjall::Error::Poisoned => Self::WritesDisabled,
            error => Self::Metadata(Arc::new(error)),
        }
    }
}
