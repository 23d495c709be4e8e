//! The object engine of one node.
//!
//! [`Store`] keeps buckets and objects in one directory. Metadata and small objects lie in a
//! log-structured merge tree. Larger objects are immutable files, so that an answer can leave by
//! `sendfile`. An object uploaded in parts stays the files of its parts.
//!
//! With [`Durability::Fsync`] (the default) an answered write survives the death of any process
//! and the loss of power, as far as the disk keeps its word. A write without an answer happened
//! entirely or not at all.
//!
//! Every object has a [`Stamp`], which grows with each change of its key.
//!
//! This crate knows nothing of S3, HTTP or other nodes. The caller checks the names of buckets
//! beyond their length, groups listings by delimiters, makes conditions of requests, and reaches
//! the other replicas: see [`Replicas`].
//!
//! ```
//! use prism_store::{Body, Bucket, Config, Error, ObjectMeta, Stamp, Store};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let dir = dir.path();
//! let store = Store::open(dir, Config { reserve_bytes: 0, ..Config::default() })?;
//! let stamp = Stamp { epoch: 1, time_us: 1_700_000_000_000_000, origin: 0 };
//! let bucket = Bucket::create(None, stamp, 1_700_000_000_000).map_err(Error::from)?;
//! store.buckets().change_record("photos", None, &bucket)?;
//! let mut writer = store.begin_put("photos", "cat.jpg", None)?;
//! writer.write(b"not really")?;
//! writer.commit(ObjectMeta { etag: "none".into(), ..ObjectMeta::default() })?;
//! let object = store.get("photos", "cat.jpg")?.ok_or("gone")?;
//! assert!(matches!(&object.body, Body::Inline(bytes) if bytes == b"not really"));
//! # Ok(())
//! # }
//! ```
//!
//! # Blocking
//!
//! All types are synchronous and safe to share between threads. Each function says whether it
//! may wait for the disk. Call those on the blocking pool of an asynchronous runtime. They fail
//! where the disk does, or where the tree cannot be read or written: [`Error::Io`],
//! [`Error::Metadata`], [`Error::Corrupt`], [`Error::WritesDisabled`]. The sections on errors
//! name the others.

// Each module uses only modules of its own layer and of those below, without a circle:
//
// - operations: `buckets`, `change`, `multipart`, `notes`, `put`, `read`, `repair`, `replica`,
//   `scan`, `scrub`
// - the store, and changes on all replicas: `store`, `primary`
// - changes of this store: `commit`
// - open objects: `object`, `checked`
// - trees and files together: `storage`, `recovery`, `damage`, `bucket_usage`
// - trees: `view`, `past`, `lsm`
// - files, and facts in memory: `files`, `hot`, `known`, `log_tag`, `pins`, `under_way`,
//   `write_behind`
// - formats and values: all others

mod blocks;
mod bucket_usage;
mod buckets;
mod change;
mod checked;
mod codec;
mod commit;
mod config;
mod damage;
mod error;
mod files;
mod hot;
mod keys;
mod known;
mod layout;
mod log_tag;
mod lsm;
mod merge;
mod multipart;
mod notes;
mod object;
mod past;
mod pending;
mod pins;
mod primary;
mod put;
mod read;
mod record;
mod recovery;
mod repair;
mod replica;
mod replicas;
mod scan;
mod scope;
mod scrub;
mod storage;
mod store;
mod types;
mod under_way;
mod uploads;
mod version_summary;
mod view;
mod write_behind;

pub use blocks::BLOCK_LEN;
pub use bucket_usage::BucketUsage;
pub use buckets::Buckets;
pub use change::DeleteResult;
pub use checked::CheckedFile;
pub use codec::META_MAX;
pub use commit::{Condition, QuotaCheck};
pub use config::{Config, Durability, INLINE_MAX, OBJECT_LEN_LIMIT};
pub use damage::{ObjectPlace, Place, Repair, ScrubFault};
pub use error::{Error, OpenError};
pub use layout::FORMAT_VERSION;
pub use multipart::Uploads;
pub use notes::WeakStore;
pub use object::{Body, Derived, Object, Parts, Segment};
pub use prism_audit::AuditError;
pub use prism_cluster::replica::{
    Bucket, BucketRefusal, BucketStamp, Pending, Phase, Proof, Refusal, Stamp, Standing,
};
pub use prism_cluster::{Opening, StoreLife, StoreMark};
pub use put::{Commit, PutWriter};
pub use recovery::RecoveryReport;
pub use repair::DamagedBlock;
pub use replica::{
    CatchUp, Deletion, Handed, Missing, OpenChanges, PageRequest, Piece, ScopePage, TakeIn,
};
pub use replicas::{Bytes, Decided, Replicas};
pub use scan::VersionPosition;
pub use scope::{Change, Keeps, Prepare, Scope, ScopedChange};
pub use scrub::{Integrity, ScrubReport};
pub use store::Store;
pub use types::{
    BUCKET_NAME_MAX, BUCKET_RECORDS_MAX, BUCKETS_MAX, BucketInfo, CONFIG_MAX, Committed, Entry,
    KEY_MAX, OBJECT_LEN_MAX, ObjectInfo, ObjectMeta, PARTS_MAX, Part, PartVersion, Position,
    Removed, Step, ToDelete, Upload, UploadId, UploadName, VERSIONS_MAX, VersionId, Versioning,
};
pub use version_summary::{VersionName, VersionSummary};
