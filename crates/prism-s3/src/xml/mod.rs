//! XML bodies: those of answers are written, those of clients are read.

mod answers;
mod error;
mod listing;
mod parts;
pub(crate) mod read;
mod requests;
pub(crate) mod write;

pub use self::answers::{
    DeleteResult, acl, copy_result, delete_result, list_buckets, location, policy_status, tagging,
    versioning,
};
pub use self::listing::{list_objects, list_uploads, list_versions};
pub use self::parts::{
    PartEntry, PartsPage, attributes, complete_result, initiate_result, list_parts,
};
pub use self::requests::{
    CompletedPart, DeleteRequest, DeleteTarget, MAX_DELETED_KEYS, parse_complete, parse_delete,
    parse_location_constraint, parse_tagging, parse_versioning,
};
pub use self::write::PROLOG;
