//! A store as one of several replicas, by the rules of [`prism_cluster::replica`].
//!
//! `open_changes` prepares the changes of other primaries. `catch_up`, `hand_over` and `take_in`
//! exchange copies with other stores. `state` has the facts that a replica remembers. Changes
//! of this store as a primary are in `primary`.

mod catch_up;
mod hand_over;
mod open_changes;
mod state;
mod take_in;

pub use catch_up::{CatchUp, Missing, PageRequest, ScopePage};
pub use hand_over::{Handed, Piece};
pub use open_changes::OpenChanges;
pub use state::Deletion;
pub use take_in::TakeIn;
