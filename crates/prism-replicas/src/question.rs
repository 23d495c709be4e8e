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

/// A question with the epoch of the node that asks it.
#[derive(Serialize, Deserialize)]
pub(crate) struct Asked {
    /// The epoch by which the asking node chose whom to ask.
    pub(crate) epoch: u64,
    pub(crate) question: Question,
}

impl Asked {
    /// A question of this node, as it travels.
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

/// Something that a backend is asked. A repeated question does no harm, except where
/// [`Question::is_repeatable`] says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// The primary says that a change is over.
    Decided(Decided),
    /// How is the asked backend?
    Report,
    /// What became of these changes, whose primary is the asked node?
    Standing {
        /// The changes, by key and stamp.
        changes: Vec<(Scope, Stamp)>,
        /// The asked node answers in this epoch or a later one.
        epoch: u64,
    },
    /// Is the asked node in this epoch, with nothing open of before it?
    Settled {
        /// The epoch.
        epoch: u64,
    },
    /// The asked node's records of buckets.
    Buckets {
        /// Names behind this one.
        after: String,
        /// None are wanted if the records' version is still this one.
        unless: Option<u64>,
    },
    /// The agreed record of a bucket, asked of the node that keeps the registry.
    Agreed {
        /// Its name.
        bucket: String,
    },
    /// Another record is to be agreed, if what is agreed has a certain stamp.
    Agree {
        /// The bucket's name.
        bucket: String,
        /// That stamp; none where nothing was ever agreed.
        before: Option<Stamp>,
        /// The other record.
        next: Box<Bucket>,
    },
    /// A record is agreed, and the asked node acts by it from now on.
    TakeBucket {
        /// The bucket's name.
        bucket: String,
        /// Its record.
        record: Box<Bucket>,
    },
    /// The same of a bucket that is to be deleted: is it empty?
    SealBucket {
        /// The bucket's name.
        bucket: String,
        /// Its record.
        record: Box<Bucket>,
    },
    /// A page of what the asked node has and the asking one may lack.
    #[serde(rename = "Held")]
    CatchUpPage(CatchUpPageWanted),
    /// One thing with its bytes. The answer is no [`Reply`]; see `fetch`.
    Fetch(Scope),
    /// One version of a key, in the same way.
    FetchVersion {
        /// The key.
        scope: Scope,
        /// Where the version lies.
        at: Stamp,
    },
    /// Does the asked node, in this epoch, have a change that is open elsewhere?
    HasChange {
        /// The key.
        scope: Scope,
        /// The change.
        open: Pending,
        /// The epoch.
        epoch: u64,
    },
    /// A bucket's policy.
    Policy {
        /// The bucket's name.
        bucket: String,
    },
    /// A bucket's CORS rules.
    Cors {
        /// The bucket's name.
        bucket: String,
    },
    /// The asked node's share of a listing of keys.
    ListObjects(ObjectsWanted),
    /// Its share of a listing of uploads.
    ListUploads(UploadsWanted),
    /// Its share of a listing of versions.
    ListVersions(VersionsWanted),
    /// Keys to delete whose primary is the asked node.
    DeleteObjects {
        /// The bucket's name.
        bucket: String,
        /// The keys.
        targets: Vec<Target>,
    },
}

/// What a backend says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// It was done.
    Done,
    /// A share of a listing.
    Share(ListShare),
    /// What became of each target, in their order.
    Deleted(Vec<Deleted>),
    /// A document of a bucket, if it has one.
    Document(Option<String>),
    /// What became of changes, in the order of the question.
    Standings {
        /// One for each change.
        standings: Vec<Standing>,
        /// The epoch of the asked node.
        epoch: u64,
    },
    /// Yes or no.
    Has(bool),
    /// Records of buckets.
    Buckets {
        /// The records' version.
        version: u64,
        /// The next ones, with their names; empty behind the last.
        page: Vec<(String, Bucket)>,
    },
    /// An agreed record; none where nothing was ever agreed.
    Agreed(Option<Box<Bucket>>),
    /// A page of what the asked node has.
    #[serde(rename = "Held")]
    CatchUpPage(ScopePage),
    /// A change was not prepared.
    NotPrepared(Refusal),
    /// How a backend is.
    Report {
        /// Changes that are open there.
        open_changes: u64,
        /// Bytes of its store's objects.
        bytes_used: u64,
        /// How far it has come in catching up.
        progress: ProgressReport,
    },
    /// An error in S3's words.
    Refused {
        /// Its code.
        code: String,
        /// What the client is told.
        message: String,
    },
}

impl Question {
    /// Whether it changes something that every backend has. A node that asks by an old view
    /// would leave the newest backends out.
    pub(crate) fn is_for_all(&self) -> bool {
        matches!(self, Self::TakeBucket { .. } | Self::SealBucket { .. })
    }

    /// The bucket whose objects in this node's store the answer is about.
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

    /// Whether asking twice is as good as asking once. A repeated deletion adds a delete
    /// marker where versions are kept.
    pub(crate) fn is_repeatable(&self) -> bool {
        !matches!(self, Self::DeleteObjects { .. })
    }

    /// Whether the answer says what counts in the cluster. Other questions are about
    /// the asked node itself, or tell it something.
    pub(crate) fn is_of_store(&self) -> bool {
        !matches!(self, Self::Report | Self::Decided(_))
    }
}

impl Reply {
    pub(crate) fn from_result(result: Result<Self, S3Error>) -> Self {
        result.unwrap_or_else(|error| Self::Refused {
            code: error.code().as_str().to_owned(),
            message: error.message().to_owned(),
        })
    }

    pub(crate) fn into_result(self) -> Result<Self, S3Error> {
        match self {
            Self::Refused { code, message } => {
                let code = Code::parse(&code).unwrap_or(Code::InternalError);
                Err(code.with_message(message))
            }
            reply => Ok(reply),
        }
    }
}

/// A page of what a node has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatchUpPageWanted {
    /// The bucket's name.
    pub bucket: String,
    /// Uploads and their parts are wanted, not objects.
    pub uploads: bool,
    /// The page begins behind this.
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
    /// Names are cut behind its first occurrence after the prefix.
    pub delimiter: Option<String>,
    /// The share begins behind this.
    pub after: Option<P>,
    /// Most lines.
    pub max: usize,
    /// These nodes are out of reach: others that have their keys list them.
    pub without: Vec<String>,
}

/// A share of the keys, behind a key or a common prefix.
pub(crate) type ObjectsWanted = ListWanted<String>;

/// A share of the uploads, behind those of a key; with an id, behind that upload of it.
pub(crate) type UploadsWanted = ListWanted<(String, String)>;

/// A share of the versions, behind those of a key; with a name, behind that one of it.
pub(crate) type VersionsWanted = ListWanted<(String, String)>;

/// One line of a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Item {
    /// A key.
    Key {
        /// Bytes of the object.
        len: u64,
        /// Its ETag, without quotes.
        etag: String,
        /// When it was made, in milliseconds since the Unix epoch.
        created_ms: u64,
    },
    /// All keys that begin with the name.
    Prefix,
    /// An upload.
    Upload {
        /// Its name.
        id: String,
        /// When it was begun.
        created_ms: u64,
        /// Algorithm and type of its parts' checksums.
        checksum: Option<(String, String)>,
    },
    /// A version, or a delete marker.
    Version {
        /// Its name.
        id: String,
        /// It is what a GET without a version reads.
        is_latest: bool,
        /// When it was made.
        created_ms: u64,
        /// ETag and length; none of a delete marker.
        object: Option<(String, u64)>,
    },
}

/// What one backend has, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListShare {
    /// Names and what they stand for.
    pub items: VecDeque<(String, Item)>,
    /// There is more behind the last.
    pub truncated: bool,
    /// The epoch of the view by which the backend left keys to others.
    pub epoch: u64,
}

/// A key to delete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The key.
    pub key: String,
    /// The name of the version to delete, if the client has given one.
    pub version: Option<String>,
    /// The ETag that the object has to have, if the client has given one.
    pub etag: Option<String>,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Deleted {
    /// It is gone.
    Done {
        /// The delete marker that was made, or that is gone.
        marker: Option<String>,
    },
    /// It is still there.
    Refused {
        /// S3's code for the reason.
        code: String,
        /// What the client is told.
        message: String,
    },
}

impl Deleted {
    pub(crate) fn from_result(result: Result<Option<Removed>, S3Error>) -> Self {
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

#[cfg(test)]
#[path = "question_tests.rs"]
mod tests;
