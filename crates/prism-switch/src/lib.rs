//! The switch: loads the eBPF programs of `bpf/`, fills their tables, attaches them to
//! interfaces, and removes the entries of idle flows.
//!
//! Packets and commands never pass through this crate. All that it loads is pinned, so the
//! process may end, restart or be upgraded while flows go on. `bpf/control.h` and
//! docs/protocol.md say what commands do; `prism-handoff` sends them.
//!
//! - [`Switch::load`] loads the programs or takes over; [`Switch::unload`] removes everything.
//! - [`Agent`] ages flows in bounded steps; [`Leases`] tell it which owners have ended.
//! - [`SwitchView`] reads flows and counters from any process.
//!
//! # Example
//!
//! A switch with one service, and a frontend for its connections. It needs root:
//!
//! ```no_run
//! use std::net::{IpAddr, SocketAddr};
//! use prism_switch::{NodeConfig, Roles, ServiceConfig, Switch, SwitchConfig};
//!
//! let frontend: IpAddr = "10.0.0.2".parse()?;
//! let service: SocketAddr = "198.51.100.1:80".parse()?;
//! let control: SocketAddr = "10.0.0.1:7400".parse()?;
//! let config = SwitchConfig {
//!     interfaces: vec!["eth0".into()],
//!     control: vec![control],
//!     services: vec![ServiceConfig { addr: service, tenant: 0, frontends: vec![frontend] }],
//!     nodes: vec![NodeConfig {
//!         addr: frontend,
//!         tenant: 0,
//!         roles: Roles { frontend: true, backend: false },
//!         link: None,
//!     }],
//!     ..SwitchConfig::default()
//! };
//! let switch = Switch::load(&config)?;
//! // Programs stay when `switch` is dropped.
//! drop(switch);
//! for counter in prism_switch::SwitchView::open(&config.pin_dir)?.counters()? {
//!     println!("{} {}", counter.name, counter.value);
//! }
//! Switch::unload(&config.pin_dir)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limits
//!
//! - Linux 6.1 or later, root, and a BPF file system at `/sys/fs/bpf`.
//! - Flows are TCP over IPv4 or IPv6. All addresses of one flow are of the same family.
//! - A service has at most [`MAX_FRONTENDS`] frontends, a tenant at most
//!   [`MAX_TENANT_SERVICES`] services, and a switch at most 1024 tenants (`bpf/maps.h`).
//! - [`SwitchConfig::max_flows`] limits the flows, with a fixed part of kernel memory each
//!   ([`FLOW_BYTES`]). Without an [`Agent`] the table fills up.
//! - XDP is for drivers with native XDP. On all other interfaces tc does the same work.

mod agent;
mod attach;
mod bpffs;
mod census;
mod config;
mod error;
mod frontends;
mod layout;
mod leases;
mod libbpf_log;
mod load;
mod reset;
mod runs;
mod tables;
mod terms;
mod view;
mod walk;

/// Generated from the object file: layouts of maps and programs.
#[allow(
    clippy::all,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::undocumented_unsafe_blocks,
    missing_docs,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    reason = "generated code"
)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/switch.skel.rs"));
}

pub use agent::{Aged, Agent};
pub use attach::interface_index;
pub use census::{Census, LastCensus};
pub use config::{
    ALL_TENANTS, FLOW_BYTES, Link, MAX_FRONTENDS, MAX_INTERFACES, MAX_TENANT_SERVICES, NodeConfig,
    Roles, SenderConfig, ServiceConfig, SwitchConfig,
};
pub use error::{KernelError, LoadError, ViewError};
pub use leases::{LEASE_GRACE, LeaseKey, Leases, RunEnd};
pub use load::Switch;
pub use skel::SwitchSkel;
pub use terms::TermPhase;
pub use view::{Counter, Direction, FlowRecord, SwitchView};
