//! How the replicas of an object agree on what it is. No sockets, clocks, disks
//! or threads: whoever uses this brings the time and carries out what is
//! decided.
//!
//! A change of a key is made by its *primary*, one after the other. It gives the
//! change a [`Stamp`] and has every other replica prepare it, which keeps it
//! durably beside what the key holds ([`receive`]). When all have ([`Write`]),
//! the primary commits, which is the moment of the change, answers, and tells the
//! others later. Until it hears of that, a replica does not know what the key
//! holds: whoever reads there makes it ask the primary ([`settle`]). A change of
//! which the primary knows nothing, because it gave up or died before its commit,
//! has not happened.
//!
//! Which node is a key's primary, and which are its replicas, is not decided
//! here: it changes from one *epoch* to the next. Every message says in which epoch
//! its sender is, and adopting an epoch and committing exclude one another: a
//! change is committed in the epoch in which it was begun, or never by whoever
//! began it. What was left open is settled by the primary of a later epoch
//! ([`Resolve`]); a replica that has missed changes compares what it has with what
//! another one has ([`missed`]).
//!
//! Buckets are agreed on apart from their objects: see [`Bucket`].

mod bucket;
mod catch_up;
mod pending;
mod resolve;
mod stamp;
mod write;

pub use bucket::{Bucket, BucketRefusal, BucketStamp, Phase, TakeBucket, take_bucket};
pub use catch_up::{Missed, is_over, missed};
pub use pending::{Asked, Pending, Receipt, Refusal, Settlement, Standing, receive, settle};
pub use resolve::{Resolve, Verdict, has};
pub use stamp::{Stamp, StampClock, origin};
pub use write::{Step, Write};
