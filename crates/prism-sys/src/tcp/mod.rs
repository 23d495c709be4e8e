//! Taking a live TCP connection out of one socket and into another.
//!
//! ```text
//! OwnedFd ──pause──▶ Paused ──save──▶ TcpState ──restore──▶ Restored ──go_live──▶ Live
//!    ▲                 │  │
//!    └────resume───────┘  └──close_silently──▶ (gone, nothing sent)
//! ```
//!
//! The kernel's side is `TCP_REPAIR` (`tcp(7)`; `net/ipv4/tcp.c`). A socket in repair mode
//! **still receives and acknowledges segments**, and its timers still run: repair mode changes
//! system calls, not packets. The packets of a connection must therefore be stopped before the
//! pause, at the switch ([`Paused::pause`]) or at the socket ([`Paused::freeze`]). Otherwise
//! the client may get an acknowledgement of a byte that came after the state was saved.
//! [`Paused::save`] returns a state that is consistent in itself, whatever arrives meanwhile.
//!
//! All of this needs `CAP_NET_ADMIN` over the socket's network namespace.

mod bpf;
mod freeze;
mod group;
pub mod info;
mod initial_window;
pub mod ktls;
mod options;
mod pause;
mod program;
mod renew;
mod restore;
mod save;
mod send_queue;
mod silent;

pub use freeze::{FROZEN_MARKS, Freezer};
pub use info::{TcpInfo, TcpStateName};
pub use initial_window::InitialWindow;
pub use options::probe_peer;
pub use pause::{PauseError, PauseFault, Paused, ResumeError};
pub use program::ProgramError;
pub use renew::{RenewError, renew};
pub use restore::{
    Blank, Live, MAX_WINDOW_SEGMENTS, RestoreError, Restored, restore, restore_into,
};
pub use save::SaveError;
