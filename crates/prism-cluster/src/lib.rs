//! The rules of a cluster's state: the owners of keys, backends in sync, and safe changes. No
//! sockets, clocks, disks or threads. The module [`replica`] has the rules by which the
//! replicas of a key agree on its changes.
//!
//! A cluster's [`State`] has the backends that hold keys, the number of replicas of each
//! key, and the backends in sync. It changes by [`step`]s. Each step begins a new epoch. All
//! backends that live have adopted it before the next step is made. The views of two
//! backends are therefore at most one step apart, and may be in force at the same time:
//!
//! - The readers of a key by either view get every write that is made by the other. They are
//!   among the backends that such a write needs.
//! - If a key has two primaries, each needs the other one for its writes. The one in the later
//!   epoch refuses.
//!
//! A backend that does not live may have any view: it stops serving before the others may
//! notice that it is gone. A backend that leaves lives until the others go on without it. In
//! the first epoch of its leaving it serves no reads and gets every write. In the next one
//! it gets no writes.
//!
//! # Duties of the caller
//!
//! - A backend lives from the record of its report until the time when it must have stopped
//!   serving by its own clock. Its first report is recorded only if the state is still the
//!   one that it has read. It serves only from then on.
//! - A step is taken only if the state has not changed since the step was made, and no further
//!   backend has begun to live.
//! - A backend begins to fetch when all that live have adopted the epoch of
//!   [`State::fetches_since`]. It may delete keys that it no longer owns at once, because no
//!   view in force reads them there.
//!
//! If the state itself is lost, [`recover()`] restores it from the stores' testimonies. An older
//! copy of it, and of all else that the cluster has in etcd, is noticed by the [`Lineage`].
//!
//! [`View`] answers questions about a state quickly. [`Placement`] ranks backends for a key.
#![forbid(unsafe_code)]

mod fault;
mod life;
mod lineage;
mod min_replicas;
mod placement;
mod progress;
mod recover;
pub mod replica;
mod state;
mod step;
mod testimony;
mod view;

pub use fault::{Claim, Claims, Contents, Fault, Memory};
pub use life::{OPENINGS_MAX, Opening, StoreLife, StoreMark};
pub use lineage::{Lineage, LineageMark, SettledMark};
pub use min_replicas::{MinReplicas, TooFewCopies};
pub use placement::{InvalidName, NodeName, Placement};
pub use progress::ProgressReport;
pub use recover::{Choice, Doubt, RecoverError, Recovery, Verdict, latest_state, recover};
pub use state::{Backend, NODES_MAX, Phase, Placing, State, StateError, Status};
pub use step::{Live, Report, may_leave, step};
pub use testimony::{Testimonies, Testimony};
pub use view::View;
