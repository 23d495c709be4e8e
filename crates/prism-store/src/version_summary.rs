//! The versions of a key, as replicas compare them.

use prism_cluster::replica::Stamp;
use serde::{Deserialize, Serialize};

use crate::{
    record::{Payload, Record},
    types::VersionId,
};

/// The kind of name that a version has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum VersionName {
    /// No name: it is from before its bucket kept versions.
    None,
    /// The null version.
    Null,
    /// Named by the place where it lies.
    Place,
}

/// One version of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionSummary {
    /// Its place among the versions of the key.
    pub at: Stamp,
    /// Its name.
    pub name: VersionName,
    /// The stamp of its last change.
    pub stamp: Stamp,
    /// When a delete marker was made, in milliseconds since the Unix epoch; none for other
    /// versions.
    pub marker_ms: Option<u64>,
}

impl VersionSummary {
    pub(crate) fn of_record(at: Stamp, record: &Record) -> Self {
        let is_marker = record.payload == Payload::Marker;
        Self {
            at,
            name: match record.version {
                None => VersionName::None,
                Some(VersionId::Null) => VersionName::Null,
                Some(VersionId::Of(_)) => VersionName::Place,
            },
            stamp: record.stamp,
            marker_ms: is_marker.then_some(record.meta.created_ms),
        }
    }

    /// The version's name in its record.
    pub(crate) fn id(&self) -> Option<VersionId> {
        match self.name {
            VersionName::None => None,
            VersionName::Null => Some(VersionId::Null),
            VersionName::Place => Some(VersionId::Of(self.at)),
        }
    }

    /// Whether this record is of the same state of the version.
    pub(crate) fn is(&self, record: &Record) -> bool {
        record.stamp == self.stamp && record.version == self.id()
    }

    /// The delete marker that this describes.
    pub(crate) fn marker(&self) -> Option<Record> {
        Some(Record::marker(self.stamp, self.id(), self.marker_ms?))
    }
}
