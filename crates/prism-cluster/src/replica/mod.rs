//! The rules by which the replicas of an object agree. The caller brings the time and carries
//! out the decisions.
//!
//! The *primary* of a key makes its changes, one after the other. It gives each change a
//! [`Stamp`] and has every other replica prepare it: the replica keeps the change durably
//! beside the present state of the key ([`receive`]). When all have prepared it, the
//! primary commits the change, answers the client, and tells the others later. Until a
//! replica hears of that, the change is open there, and a read makes the replica ask the
//! primary ([`settle`]). A change that the primary does not know, because it gave up or died
//! before the commit, has not happened.
//!
//! The caller knows the primary and the replicas of a key. They change from one *epoch* to
//! the next. Every message has the epoch of its sender. A primary commits a change in the
//! epoch in which it began it, or never. The primary of a later epoch ends the changes that
//! were left open ([`happened`]). A replica that has missed changes compares its keys with
//! those of another one ([`missed`]).
//!
//! Buckets are agreed on apart from their objects: see [`Bucket`].

mod bucket;
mod catch_up;
mod pending;
mod resolve;
mod stamp;

pub use bucket::{
    Ancestry, Bucket, BucketRefusal, BucketStamp, Correction, Phase, Proof, TakeBucket, take_bucket,
};
pub use catch_up::{Missed, is_over, missed};
pub use pending::{Asked, Pending, Receipt, Refusal, Settlement, Standing, receive, settle};
pub use resolve::{happened, has};
pub use stamp::{Stamp, StampClock, origin};
