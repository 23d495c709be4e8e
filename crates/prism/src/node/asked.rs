//! Questions between nodes as they travel, and which of them are answered when.

use prism_s3::{Code, S3Error};
use prism_store::Replicas;
use serde::{Deserialize, Serialize};

use super::ask::Question;
use super::held::HeldWanted;
use super::listing::{ObjectsWanted, UploadsWanted};
use super::replication::Replication;
use super::versions::VersionsWanted;

/// A question as it travels.
#[derive(Serialize, Deserialize)]
pub(super) struct Asked {
    /// By which whoever asks knows whom to ask.
    pub(super) epoch: u64,
    pub(super) question: Question,
}

impl Asked {
    /// A question of this node's, as it travels.
    pub(super) fn encode(
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

impl Question {
    /// Whether it changes something that every backend has: whoever asks by an old
    /// view would not tell those who came since.
    pub(super) fn is_for_all(&self) -> bool {
        matches!(self, Self::TakeBucket { .. } | Self::SealBucket { .. })
    }

    /// The bucket that it is about what this node's store has of.
    pub(super) fn bucket(&self) -> Option<&str> {
        match self {
            Self::ListObjects(ObjectsWanted { bucket, .. })
            | Self::ListUploads(UploadsWanted { bucket, .. })
            | Self::ListVersions(VersionsWanted { bucket, .. })
            | Self::Held(HeldWanted { bucket, .. })
            | Self::DeleteObjects { bucket, .. } => Some(bucket),
            _ => None,
        }
    }

    /// Whether asking twice is as good as asking once: a deletion that is repeated adds a
    /// delete marker where versions are kept.
    pub(super) fn is_repeatable(&self) -> bool {
        !matches!(self, Self::DeleteObjects { .. })
    }

    /// Whether the answer is of what counts in the cluster. The others are about
    /// this node itself, or tell it something.
    pub(super) fn is_of_store(&self) -> bool {
        !matches!(self, Self::Report | Self::Decided(_))
    }
}
