//! What nodes ask each other, as it travels.
//!
//! A question is the JSON body of a `POST` behind a preamble that says so; the answer is JSON
//! as well. All of it lies within the nodes' mutual TLS. `docs/protocol.md` has the schemas.

use std::collections::VecDeque;

use prism_replica::Bucket;
use prism_s3::{Code, S3Error};
use prism_store::{
    Decided, Pending, Refusal, Removed, Replicas, Scope, ScopePage, Stamp, Standing,
};
use serde::{Deserialize, Serialize};

use crate::progress::ProgressReport;
use crate::replication::Replication;

/// A question as it travels.
#[derive(Serialize, Deserialize)]
pub(crate) struct Asked {
    /// By which whoever asks knows whom to ask.
    pub epoch: u64,
    pub question: Question,
}

impl Asked {
    /// A question of this node's, as it travels.
    pub(crate) fn encode(
        replication: &Replication,
        question: &Question,
    ) -> Result<Vec<u8>, S3Error> {
        let asked = Self {
            epoch: replication.epoch(),
            question: question.clone(),
        };
        serde_json::to_vec(&asked).map_err(|_| Code::InternalError.into())
    }
}

/// Something that a backend does for itself. Asking twice does no harm, but for what
/// [`Question::is_repeatable`] says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// A change is over, says the primary.
    Decided(Decided),
    /// How the asked backend is.
    Report,
    /// What became of these changes, of which the asked node is the primary in this
    /// epoch or a later one.
    Standing {
        changes: Vec<(Scope, Stamp)>,
        epoch: u64,
    },
    /// Whether the asked node is in this epoch and has nothing open of before it.
    Settled {
        epoch: u64,
    },
    /// The asked node's records of buckets after this name, unless its version is still this
    /// one.
    Buckets {
        after: String,
        unless: Option<u64>,
    },
    /// The agreed record of a bucket, asked of the node that keeps the registry.
    Agreed {
        bucket: String,
    },
    /// Something else is to be agreed, if what is agreed has this stamp.
    Agree {
        bucket: String,
        before: Option<Stamp>,
        next: Box<Bucket>,
    },
    /// This is agreed, and to be acted by.
    TakeBucket {
        bucket: String,
        record: Box<Bucket>,
    },
    /// The same of a bucket that is to be deleted: whether it may be.
    SealBucket {
        bucket: String,
        record: Box<Bucket>,
    },
    /// What the asked node holds.
    #[serde(rename = "Held")]
    CatchUpPage(CatchUpPageWanted),
    /// One thing, with its bytes; the answer is no [`Reply`], but see `fetch`.
    Fetch(Scope),
    /// One version of a key likewise, by where it lies.
    FetchVersion {
        scope: Scope,
        at: Stamp,
    },
    /// Whether the asked node, in this epoch, has a change that is open elsewhere.
    HasChange {
        scope: Scope,
        open: Pending,
        epoch: u64,
    },
    Policy {
        bucket: String,
    },
    Cors {
        bucket: String,
    },
    ListObjects(ObjectsWanted),
    ListUploads(UploadsWanted),
    ListVersions(VersionsWanted),
    DeleteObjects {
        bucket: String,
        targets: Vec<Target>,
    },
}

/// What a backend says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    Done,
    Share(ListShare),
    /// What became of each target, in their order.
    Deleted(Vec<Deleted>),
    /// A document of a bucket, if it has one.
    Document(Option<String>),
    /// In the order of the question.
    Standings {
        standings: Vec<Standing>,
        epoch: u64,
    },
    Has(bool),
    /// The next ones; none behind the last.
    Buckets {
        version: u64,
        page: Vec<(String, Bucket)>,
    },
    /// None: nothing was ever agreed.
    Agreed(Option<Box<Bucket>>),
    #[serde(rename = "Held")]
    CatchUpPage(ScopePage),
    /// A change was not prepared.
    NotPrepared(Refusal),
    Report {
        open_changes: u64,
        bytes_used: u64,
        progress: ProgressReport,
    },
    Refused {
        code: String,
        message: String,
    },
}

impl Question {
    /// Whether it changes something that every backend has: whoever asks by an old
    /// view would not tell those who came since.
    pub fn is_for_all(&self) -> bool {
        matches!(self, Self::TakeBucket { .. } | Self::SealBucket { .. })
    }

    /// The bucket that it is about what this node's store has of.
    pub fn bucket(&self) -> Option<&str> {
        match self {
            Self::ListObjects(ObjectsWanted { bucket, .. })
            | Self::ListUploads(UploadsWanted { bucket, .. })
            | Self::ListVersions(VersionsWanted { bucket, .. })
            | Self::CatchUpPage(CatchUpPageWanted { bucket, .. })
            | Self::DeleteObjects { bucket, .. } => Some(bucket),
            _ => None,
        }
    }

    /// Whether asking twice is as good as asking once: a deletion that is repeated adds a
    /// delete marker where versions are kept.
    pub fn is_repeatable(&self) -> bool {
        !matches!(self, Self::DeleteObjects { .. })
    }

    /// Whether the answer is of what counts in the cluster. The others are about
    /// this node itself, or tell it something.
    pub fn is_of_store(&self) -> bool {
        !matches!(self, Self::Report | Self::Decided(_))
    }
}
impl Reply {
    pub fn from_result(result: Result<Self, S3Error>) -> Self {
        result.unwrap_or_else(|error| Self::Refused {
            code: error.code().as_str().to_owned(),
            message: error.message().to_owned(),
        })
    }

    pub fn into_result(self) -> Result<Self, S3Error> {
        match self {
            Self::Refused { code, message } => {
                let code = Code::parse(&code).unwrap_or(Code::InternalError);
                Err(S3Error::with_message(code, message))
            }
            reply => Ok(reply),
        }
    }
}

/// Which page of what a node holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatchUpPageWanted {
    pub bucket: String,
    /// And their parts, not objects.
    pub uploads: bool,
    pub after: Option<Scope>,
    /// The node that is asked: of keys of which it is the primary.
    pub source: String,
    /// Who asks: of keys that it lacks.
    pub by: String,
    /// In this epoch, in which both have to be.
    pub epoch: u64,
}

/// What is wanted of a node's objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectsWanted {
    pub bucket: String,
    pub prefix: String,
    pub delimiter: Option<String>,
    /// Behind this key or common prefix.
    pub after: Option<String>,
    pub max: usize,
    /// These nodes are out of reach: others that have their keys list them.
    pub without: Vec<String>,
}

/// What is wanted of a node's uploads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadsWanted {
    pub bucket: String,
    pub prefix: String,
    pub delimiter: Option<String>,
    /// Behind the uploads of this key; with an id, behind that upload of it.
    pub after: Option<(String, String)>,
    pub max: usize,
    /// As for objects.
    pub without: Vec<String>,
}

/// One line of a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Item {
    /// A key.
    Key {
        len: u64,
        etag: String,
        created_ms: u64,
    },
    /// All keys that begin with the name.
    Prefix,
    Upload {
        id: String,
        created_ms: u64,
        /// Algorithm and type of its parts' checksums.
        checksum: Option<(String, String)>,
    },
    /// A version, or a delete marker.
    Version {
        id: String,
        is_latest: bool,
        created_ms: u64,
        /// ETag and length of what is no delete marker.
        object: Option<(String, u64)>,
    },
}

/// What one backend has, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListShare {
    pub items: VecDeque<(String, Item)>,
    /// There is more behind the last.
    pub truncated: bool,
    /// Of the view by which the backend left to others what others list.
    pub epoch: u64,
}

/// What is wanted of a node's versions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionsWanted {
    pub bucket: String,
    pub prefix: String,
    pub delimiter: Option<String>,
    /// Behind the versions of this key; with a name, behind that one of it.
    pub after: Option<(String, String)>,
    pub max: usize,
    /// As for objects.
    pub without: Vec<String>,
}

/// What is to be deleted, between nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    pub key: String,
    pub version: Option<String>,
    pub etag: Option<String>,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Deleted {
    /// It is gone; with a delete marker, if one was made or is what is gone.
    Done {
        marker: Option<String>,
    },
    Refused {
        code: String,
        message: String,
    },
}

impl Deleted {
    pub fn from_result(result: Result<Option<Removed>, S3Error>) -> Self {
        match result {
            Ok(removed) => Self::Done {
                marker: removed
                    .filter(|removed| removed.is_marker)
                    .map(|removed| removed.version.to_string()),
            },
            Err(error) => Self::Refused {
                code: error.code().as_str().to_owned(),
                message: error.message().to_owned(),
            },
        }
    }
}
