//! XML bodies: those of answers are written, those of clients are read.

mod answers;
mod listing;
mod parts;
pub(crate) mod read;
mod requests;
pub(crate) mod write;

pub use self::answers::{
    Attributes, DeleteResult, Deleted, PartsOfObject, copy_result, delete_result, list_buckets,
    location, tagging, versioning,
};
pub use self::listing::{
    ListEntry, ListPage, Page, UploadEntry, UploadsPage, VersionEntry, VersionsPage,
};
pub use self::parts::{Completed, PartEntry, PartsPage, complete_result, initiate_result};
pub use self::requests::{
    CompletedPart, DeleteRequest, DeleteTarget, MAX_DELETED_KEYS, parse_complete, parse_delete,
    parse_location_constraint, parse_tagging, parse_versioning,
};
pub use self::write::PROLOG;
