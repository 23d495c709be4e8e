//! `[store]` and `[limits]` as structs: the bounds of stores and of nodes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

section! {
    /// `[store]`. The values apply to each backend.
    pub struct Store;
    /// Default 0: none. Most bytes of objects and parts. A write that would exceed it is
    /// answered 507. Keys and metadata, some hundred bytes for each object, are not counted.
    /// With a quota a backend looks at every small object when it starts.
    pub quota_bytes: u64,
    /// Default 268,435,456 (256 MiB). Free bytes of the file system that writes leave. A write
    /// that would use them is answered 507. The store's log, compaction and deletions use
    /// them.
    pub reserve_bytes: u64 = 256 << 20,
    /// Default 604,800 s (a week); 0 for never. The time between two scrubs.
    pub scrub_interval_s: u32 = 7 * 86_400,
    /// Default 33,554,432 (32 MiB). Bytes per second that a scrub reads.
    pub scrub_bytes_per_s: u64 = 32 << 20,
    /// Default 0: no limit. Bytes per second that a backend fetches while it catches up or
    /// receives another backend's keys.
    pub refill_bytes_per_s: u64,
    /// Default 60 s. The time for which a block of an object may be sent again without another
    /// comparison with its checksum. 0 compares every time, which reads the block and computes
    /// a CRC32C.
    pub recheck_s: u32 = 60,
    /// Default 0: never. The days without a new part after which an upload in parts is aborted
    /// and its parts are removed.
    pub expire_uploads_days: u32,
}

section! {
    /// `[limits]`. The values apply to each node.
    pub struct Limits;
    /// Default 16,384 bytes. The longest request head; a longer one is answered 431. It bounds
    /// the memory of a connection's head.
    pub head_bytes: u32 = 16 << 10,
    /// Default 100,000. Open client connections. One more closes the oldest newcomer, on which
    /// no request was let in yet. Without a newcomer the new connection is closed. An idle
    /// connection takes some 10 KiB, 7 of them in the kernel, and a file descriptor.
    pub connections: u32 = 100_000,
    /// Default 4,096. Newcomers of one client address; more are closed at once.
    pub unauthenticated_per_address: u32 = 4096,
    /// Default: a quarter of `connections`. Connections of one client address on which no caller
    /// was authenticated; more are closed at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown_per_address: Option<u32>,
    /// Default 30 s. The time for which a connection may be a newcomer.
    pub unauthenticated_timeout_s: u32 = 30,
    /// Default 60 s. The longest time between two requests of a connection.
    pub idle_timeout_s: u32 = 60,
    /// Default 10 s. The longest time from the first byte of a request head to its last.
    pub head_timeout_s: u32 = 10,
    /// Default 60 s. The longest time without progress of a body.
    pub stall_timeout_s: u32 = 60,
    /// Default 5 GiB (in bytes). The largest object that one PUT may write; a larger one is
    /// answered `EntityTooLarge`.
    pub max_object_bytes: u64 = 5 << 30,
    /// Default 10 s. The time after SIGTERM to move connections and to finish requests.
    pub drain_timeout_s: u32 = 10,
}

impl Limits {
    /// The largest number of connections of one client address on which no caller was
    /// authenticated.
    pub fn unknown_per_address(&self) -> u32 {
        let quarter = (self.connections / 4).max(1);
        self.unknown_per_address.unwrap_or(quarter)
    }
}

/// The time that a field with a number of seconds stands for.
pub fn seconds(field: impl Into<u64>) -> Duration {
    Duration::from_secs(field.into())
}
