//! The questions that every node answers, as they travel (docs/protocol.md, 2.8).

use prism_cluster::ProgressReport;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A question with the epoch of the node that asks it.
#[derive(Serialize, Deserialize)]
pub struct NodeQuestion<Q> {
    /// The epoch by which the asking node chose the asked nodes.
    pub epoch: u64,
    /// The question.
    pub question: Q,
}

/// A question to any node. It may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CoreQuestion {
    /// Asks for the report of a backend.
    Report,
    /// Asks for the figures of a node, which may be only a frontend.
    Figures,
}

/// The reply of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CoreReply {
    /// The report of a backend.
    Report(StoreReport),
    /// The figures of a node, for an administrator. Their names may change.
    Figures(Value),
    /// An error.
    Refused(Refused),
}

/// The report of a backend's store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreReport {
    /// Open changes of the backend.
    pub open_changes: u64,
    /// Bytes of its store's objects.
    pub bytes_used: u64,
    /// Its progress in catching up.
    pub progress: ProgressReport,
}

/// An error on its way to another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Its code, one of S3's.
    pub code: String,
    /// The message for the client.
    pub message: String,
}

impl Refused {
    /// The error for a body that is no question.
    pub(crate) fn no_question() -> Self {
        Self {
            code: "InvalidRequest".into(),
            message: "This is no question that this node knows.".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    #[test]
    fn questions_and_replies_have_the_documented_form() {
        let question = NodeQuestion {
            epoch: 7,
            question: CoreQuestion::Figures,
        };
        let text = serde_json::to_string(&question).unwrap();
        assert_eq!(text, r#"{"epoch":7,"question":"Figures"}"#);
        let report = CoreReply::Report(StoreReport {
            open_changes: 2,
            bytes_used: 30,
            progress: ProgressReport::default(),
        });
        let document = serde_json::to_value(&report).unwrap();
        assert_eq!(document["Report"]["open_changes"], 2);
        assert_eq!(document["Report"]["bytes_used"], 30);
        assert_eq!(
            serde_json::from_value::<CoreReply>(document).unwrap(),
            report
        );
    }
}
