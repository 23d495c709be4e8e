//! The settings of a store.

use std::time::Duration;

/// Objects of at most this many bytes are kept in the tree, larger ones in files of their own.
/// Far larger values would make the tree's write buffers and its compaction the bottleneck.
/// Objects that are stored already stay where they are if this changes.
pub const INLINE_MAX: usize = 16 * 1024;

/// Longest object that is written at once, in bytes: 5 GiB, the largest
/// object S3 takes in one PUT. It bounds the checksums of one object to
/// 5,120 blocks, 20 KiB.
pub const OBJECT_LEN_LIMIT: u64 = 5 * 1024 * 1024 * 1024;

/// How durable an answered write is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// It is on the disk. Concurrent commits share one flush of the log.
    #[default]
    Fsync,
    /// It is in the kernel. It survives the death of the process, but not the loss of power,
    /// after which the store may have torn objects. For benchmarks and for file systems in
    /// memory.
    None,
}

/// Settings of a store. With [`Config::default`] a node stays below 128 MiB of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Files of recently read objects that stay open, each for a file descriptor. Default 512; 0
    /// for none.
    pub hot_files: usize,
    /// Bytes after which the tree moves new inline objects from memory to disk,
    /// and, divided by 2, 8, 8 and 8, those of its other parts. Up to four full
    /// buffers of each may wait beside the active one, so the worst case is 9.4
    /// times this, the usual one less than twice. Default 8 MiB, at least
    /// 64 KiB. Fixed when the store is created.
    pub write_buffer_bytes: u64,
    /// How durable an answered write is. Default [`Durability::Fsync`].
    pub durability: Durability,
    /// Longest object accepted, in bytes. Default, and at most, [`OBJECT_LEN_LIMIT`].
    pub max_object_len: u64,
    /// Bytes of the file system that new objects must leave free. The tree needs them for its
    /// log (up to 128 MiB) and for compaction, and takes no more writes where it finds none.
    /// Default 256 MiB.
    pub reserve_bytes: u64,
    /// Most bytes of objects and parts. Keys and metadata are not counted: some hundred bytes for
    /// each object. Default `None`: the file system is the bound. With a quota, opening the
    /// store looks at every small object.
    pub quota_bytes: Option<u64>,
    /// How long a block counts as good after it was compared with its checksum. Then the next
    /// reader compares it again. Whole seconds; with 0 every read compares. Default 60 s.
    pub recheck: Duration,
    /// The node's name, which makes its stamps differ from those of other nodes. Default empty,
    /// for a store alone.
    pub node: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            hot_files: 512,
            write_buffer_bytes: 8 * 1024 * 1024,
            durability: Durability::Fsync,
            max_object_len: OBJECT_LEN_LIMIT,
            reserve_bytes: 256 * 1024 * 1024,
            quota_bytes: None,
            recheck: Duration::from_secs(60),
            node: String::new(),
        }
    }
}
