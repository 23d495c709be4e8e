//! Which backends have a key, now and while that changes. No sockets, clocks,
//! disks or threads.
//!
//! A cluster's [`State`] says which backends hold keys, how many of them each
//! key, and which of them are in sync. It changes by [`step`]s, each of which
//! begins a new epoch, and each of which every backend that lives has adopted
//! before the next one is made. So the views of two backends are never more than
//! one step apart, and each step is such that both sides of it may be in force at
//! the same time:
//!
//! - who reads a key by one of them gets every write that is made by the other:
//!   readers of either are among those that a write of the other needs;
//! - of two primaries of a key each needs the other for its writes, and the one
//!   in the later epoch refuses.
//!
//! A backend that does not live need not have adopted anything: it stops serving
//! before anybody else may notice that it is gone. One that leaves in order lives until
//! the others go on without it: first nothing is read there, while it still gets every
//! write, and in the next epoch it gets none.
//!
//! # What is left to whoever keeps the state
//!
//! - A backend lives from when its report is noted until it must have stopped
//!   serving by its own clock. Its first report is noted only if the state is
//!   still the one that it has read, and it serves only from then on.
//! - A step is taken only if the state is still the one that it was made from, and
//!   if still nobody lives who did not when it was made.
//! - What a backend fetches, it begins to fetch when all that live have adopted
//!   the epoch of [`State::fetches_since`]. What it has no place for it may throw
//!   away at once: nobody reads it by any view that may be in force.
//!
//! Where the state itself is lost, [`recover()`] makes it anew from what the stores have
//! noted of it.
//!
//! [`View`] is a state made quick to ask; [`Placement`] ranks backends for a key.
#![forbid(unsafe_code)]

mod min_replicas;
mod placement;
mod recover;
mod state;
mod step;
mod testimony;
mod view;

pub use min_replicas::{MinReplicas, TooFewCopies};
pub use placement::{NODES_MAX, NodeName, Placement, PlacementError};
pub use recover::{Choice, Doubt, RecoverError, Recovery, Verdict, recover};
pub use state::{Backend, Phase, Placing, State, StateError, Status};
pub use step::{Live, Report, may_leave, step};
pub use testimony::{Testimonies, Testimony};
pub use view::View;
