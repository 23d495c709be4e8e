//! The questions and replies between backends, as they travel.
//!
//! A question is the JSON body of a `POST` after a preamble of the node itself. The answer is
//! JSON as well. Both travel in the nodes' mutual TLS. `docs/protocol.md` has the schemas.

use std::collections::VecDeque;

use prism_cluster::replica::Bucket;
use prism_core::Refused;
use prism_s3::list::Line;
use prism_s3::xml::DeleteTarget;
use prism_s3::{Code, S3Error};
use prism_store::{Decided, Pending, Refusal, Removed, Scope, ScopePage, Stamp, Standing};
use serde::{Deserialize, Serialize};

use crate::quota::UsageHere;

/// A question to a backend. It may be repeated, unless [`Question::is_repeatable`] is false.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// The primary tells the outcome of a change.
    Decided(Decided),
    /// Asks for the outcomes of changes whose primary is the asked node.
    Standing {
        /// The changes, by key and stamp.
        changes: Vec<(Scope, Stamp)>,
        /// The asked node answers in this epoch or a later one.
        epoch: u64,
    },
    /// Whether the asked node is in this epoch, without open changes of earlier ones.
    Settled {
        /// The epoch.
        epoch: u64,
    },
    /// Asks for the asked node's records of buckets, page by page.
    Buckets {
        /// The page begins after this name.
        after: String,
        /// The answer has no records if their version is still this one.
        unless: Option<u64>,
    },
    /// Asks the keeper for the agreed record of a bucket.
    Agreed {
        /// Its name.
        bucket: String,
    },
    /// Has the keeper replace the agreed record, if it has the stamp `before`.
    Agree {
        /// The bucket's name.
        bucket: String,
        /// The stamp; `None` if there was never a record.
        before: Option<Stamp>,
        /// The new record.
        next: Box<Bucket>,
    },
    /// Has the asked node act by an agreed record.
    TakeBucket {
        /// The bucket's name.
        bucket: String,
        /// Its record.
        record: Box<Bucket>,
    },
    /// Has the asked node act by the record of a bucket that is about to be deleted, and asks
    /// whether the bucket is empty.
    SealBucket {
        /// The bucket's name.
        bucket: String,
        /// Its record.
        record: Box<Bucket>,
    },
    /// Asks for a page of what the asked node has and the asking node may lack.
    #[serde(rename = "Held")]
    CatchUpPage(CatchUpPageWanted),
    /// Asks for one scope with its bytes. The answer is no [`Reply`]; see `hand_over.rs`.
    Fetch(Scope),
    /// Asks for one version of a key, in the same way.
    FetchVersion {
        /// The key.
        scope: Scope,
        /// The stamp of the version.
        at: Stamp,
    },
    /// Whether the asked node, in this epoch, has a change that is open at another node.
    HasChange {
        /// The key.
        scope: Scope,
        /// The change.
        open: Pending,
        /// The epoch.
        epoch: u64,
    },
    /// Asks for a bucket's policy.
    Policy {
        /// The bucket's name.
        bucket: String,
    },
    /// Asks for a bucket's CORS rules.
    Cors {
        /// The bucket's name.
        bucket: String,
    },
    /// Asks for the asked node's usage of a bucket.
    Usage {
        /// The bucket's name.
        bucket: String,
    },
    /// Asks for the asked node's share of a listing of keys, after a key or a common prefix.
    ListObjects(ListWanted<String>),
    /// Asks for its share of a listing of uploads, after all of a key, or after the upload of it
    /// with an id.
    ListUploads(ListWanted<(String, String)>),
    /// Asks for its share of a listing of versions, after all of a key, or after the version of it
    /// with an id.
    ListVersions(ListWanted<(String, String)>),
    /// Has the asked node delete keys whose primary it is.
    DeleteObjects {
        /// The bucket's name.
        bucket: String,
        /// The keys.
        targets: Vec<DeleteTarget>,
    },
}

/// The reply of a backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done.
    Done,
    /// A share of a listing.
    Share(ListShare),
    /// The outcome of each deletion, in the order of the question.
    Deleted(Vec<Deleted>),
    /// A document of a bucket, if it has one.
    Document(Option<String>),
    /// The outcomes of changes, in the order of the question.
    Standings {
        /// One outcome for each change.
        standings: Vec<Standing>,
        /// The epoch of the asked node.
        epoch: u64,
    },
    /// The asked node's usage of a bucket.
    Usage(UsageHere),
    /// Yes or no.
    Has(bool),
    /// Records of buckets.
    Buckets {
        /// The records' version.
        version: u64,
        /// The records with their names; empty after the last page.
        page: Vec<(String, Bucket)>,
    },
    /// An agreed record; `None` if there was never one.
    Agreed(Option<Box<Bucket>>),
    /// A page of what the asked node has.
    #[serde(rename = "Held")]
    CatchUpPage(ScopePage),
    /// A change was not prepared.
    NotPrepared(Refusal),
    /// An S3 error.
    Refused(Refused),
}

/// An S3 error on its way to another node.
pub(crate) fn refused(error: &S3Error) -> Refused {
    Refused {
        code: error.code().as_str().to_owned(),
        message: error.message().to_owned(),
    }
}

/// The S3 error that another node has sent.
pub fn error_of(refused: Refused) -> S3Error {
    let code = Code::parse(&refused.code).unwrap_or(Code::InternalError);
    code.with_message(refused.message)
}

impl Question {
    /// Whether the question changes a record that every backend has. A node that asks by an old
    /// view would leave out the newest backends.
    pub(crate) fn is_for_all(&self) -> bool {
        matches!(self, Self::TakeBucket { .. } | Self::SealBucket { .. })
    }

    /// The bucket whose objects the answer depends on.
    pub(crate) fn bucket(&self) -> Option<&str> {
        match self {
            Self::ListObjects(ListWanted { bucket, .. })
            | Self::ListUploads(ListWanted { bucket, .. })
            | Self::ListVersions(ListWanted { bucket, .. })
            | Self::CatchUpPage(CatchUpPageWanted { bucket, .. })
            | Self::DeleteObjects { bucket, .. } => Some(bucket),
            _ => None,
        }
    }

    /// Whether the question may be repeated. A repeated deletion adds a second delete marker in a
    /// bucket with versions.
    pub(crate) fn is_repeatable(&self) -> bool {
        !matches!(self, Self::DeleteObjects { .. })
    }

    /// Whether only a node with a lease may answer. The other questions are about the node
    /// itself, or tell it something.
    pub(crate) fn is_of_store(&self) -> bool {
        !matches!(self, Self::Usage { .. } | Self::Decided(_))
    }
}

impl Reply {
    pub(crate) fn from_result(result: Result<Self, S3Error>) -> Self {
        result.unwrap_or_else(|error| Self::Refused(refused(&error)))
    }

    pub(crate) fn into_result(self) -> Result<Self, S3Error> {
        match self {
            Self::Refused(refused) => Err(error_of(refused)),
            reply => Ok(reply),
        }
    }
}

/// A page of what one node has and another lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatchUpPageWanted {
    /// The bucket's name.
    pub bucket: String,
    /// Whether uploads and their parts are wanted, or objects.
    pub uploads: bool,
    /// The page begins after this scope.
    pub after: Option<Scope>,
    /// The asked node: only keys whose primary it is are wanted.
    pub source: String,
    /// The asking node: only keys that it lacks are wanted.
    pub by: String,
    /// Both nodes have to be in this epoch.
    pub epoch: u64,
}

/// A share of a listing. `P` is a place in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListWanted<P> {
    /// The bucket's name.
    pub bucket: String,
    /// Names begin with this.
    pub prefix: String,
    /// Names are cut after its first occurrence behind the prefix.
    pub delimiter: Option<String>,
    /// The share begins after this place.
    pub after: Option<P>,
    /// Most lines.
    pub max: usize,
    /// Nodes out of reach, whose keys other replicas list.
    pub without: Vec<String>,
}

/// One backend's share of a listing, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListShare {
    /// Names and the lines for them.
    pub items: VecDeque<Line>,
    /// Whether there is more after the last line.
    pub truncated: bool,
    /// The epoch of the view by which the backend left keys to others.
    pub epoch: u64,
}

/// The outcome of a deletion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Deleted {
    /// The key, or the version, is gone.
    Done {
        /// The delete marker that was made or removed.
        marker: Option<String>,
    },
    /// Nothing was deleted.
    Refused(Refused),
}

impl Deleted {
    pub(crate) fn from_result(result: Result<Option<Removed>, S3Error>) -> Self {
        match result {
            Ok(removed) => Self::Done {
                marker: removed
                    .filter(|removed| removed.is_marker)
                    .map(|removed| removed.version.to_string()),
            },
            Err(error) => Self::Refused(refused(&error)),
        }
    }
}

#[cfg(test)]
#[path = "question_tests.rs"]
mod tests;
