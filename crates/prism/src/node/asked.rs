//! Questions between nodes as they travel, and which of them are answered when.

use prism_s3::{Code, S3Error};
use prism_store::Replicas;
use serde::{Deserialize, Serialize};

use super::ask::Question;
use super::replication::Replication;

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
        matches!(
            self,
            Self::CreateBucket { .. }
                | Self::SealBucket { .. }
                | Self::DropBucket { .. }
                | Self::SetCors { .. }
                | Self::SetPolicy { .. }
                | Self::SetVersioning { .. }
        )
    }

    /// Whether the answer is of what counts in the cluster. The others are about
    /// this node itself, or tell it something.
    pub(super) fn is_of_store(&self) -> bool {
        !matches!(self, Self::Report | Self::Decided(_))
    }
}
