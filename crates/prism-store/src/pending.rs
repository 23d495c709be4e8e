//! Values of the tree `pending`: changes of other primaries, each of one scope. The bytes of a
//! change lie in the trees `inline` and `files`, as those of any object.

use prism_cluster::replica::{Pending, Stamp};
use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    layout::FileId,
    record::{Payload, Record},
    scope::{Change, Scope},
    types::ObjectMeta,
};

/// A value of the tree `pending`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PendingRecord {
    pub(crate) scope: Scope,
    pub(crate) epoch: u64,
    pub(crate) stamp: Stamp,
    /// The stamp of the key before the change, at a replica that the change can build on.
    pub(crate) before: Option<Stamp>,
    pub(crate) change: Change,
    pub(crate) bytes: Option<StoredBytes>,
}

/// The place of a change's bytes.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct StoredBytes {
    pub(crate) id: u64,
    /// The CRC32C of bytes in the tree `inline`; none for a file.
    pub(crate) crc: Option<u32>,
}

impl PendingRecord {
    pub(crate) fn decode(value: &[u8]) -> Result<Self, Error> {
        serde_json::from_slice(value).map_err(|_| Error::corrupt("prepared change"))
    }

    pub(crate) fn encode(&self) -> Result<Vec<u8>, Error> {
        serde_json::to_vec(self).map_err(|_| Error::corrupt("prepared change"))
    }

    pub(crate) fn pending(&self) -> Pending {
        Pending {
            epoch: self.epoch,
            stamp: self.stamp,
            removes: self.change.removes(),
        }
    }

    /// The bytes of the quota that the change takes from now on.
    pub(crate) fn bytes_taken(&self) -> u64 {
        match self.change.what() {
            Change::Write { len, .. } => *len,
            _ => 0,
        }
    }

    pub(crate) fn payload(&self) -> Option<Payload> {
        self.bytes.map(|bytes| {
            let id = FileId::from_bytes(bytes.id.to_be_bytes());
            match bytes.crc {
                Some(crc) => Payload::Inline { id, crc },
                None => Payload::File { id },
            }
        })
    }

    pub(crate) fn record(&self, payload: Payload, meta: ObjectMeta, len: u64) -> Record {
        Record {
            stamp: self.stamp,
            version: None,
            payload,
            len,
            meta,
        }
    }
}
