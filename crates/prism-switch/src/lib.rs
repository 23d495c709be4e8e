//! The switch: loads the eBPF programs of `bpf/`, gives them their tables,
//! attaches them, and removes what idle flows leave behind.
//!
//! Packets and commands never pass through this crate: everything it loads is
//! pinned, so it may end, restart or be upgraded while flows go on. What a
//! command does is in `bpf/control.h` and docs/protocol.md; who sends commands
//! is `prism-handoff`'s business.
//!
//! - [`Switch::load`] loads or takes over; [`Switch::unload`] removes all.
//! - [`Agent`] ages flows, a bounded step at a time; [`Leases`] tell it which
//!   owners have ended.
//! - [`SwitchView`] reads flows and counters from any process.

mod agent;
mod attach;
pub mod bench;
mod bpffs;
mod config;
mod error;
mod frontends;
mod layout;
mod leases;
mod load;
mod reset;
mod runs;
mod tables;
mod view;

/// Generated from the object file: layouts of maps and programs.
#[allow(
    clippy::all,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::undocumented_unsafe_blocks,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    reason = "generated code"
)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/switch.skel.rs"));
}

pub use agent::{Aged, Agent};
pub use config::{
    FLOW_BYTES, InterfaceConfig, Link, MAX_FRONTENDS, MAX_INTERFACES, MAX_TENANT_SERVICES,
    MAX_TENANTS, NodeConfig, Roles, SenderConfig, ServiceConfig, SwitchConfig,
};
pub use error::{AgentError, AttachError, LoadError, UnloadError, ViewError};
pub use leases::{LEASE_GRACE, Leases, RunEnd};
pub use load::Switch;
pub use view::{Counter, Direction, FlowRecord, SwitchView};
