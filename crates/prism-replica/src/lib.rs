//! How the replicas of an object agree on what it is. No sockets, clocks, disks
//! or threads: whoever uses this brings the time and carries out what is
//! decided.
//!
//! [`Stamp`] orders all versions of one key, whoever wrote them.

mod stamp;

pub use stamp::{Stamp, StampClock, origin};
