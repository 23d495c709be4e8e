//! Several hosts on one machine: network namespaces, joined by veth pairs through the switch's
//! namespace, with the program `prism` in each.
//!
//! ```text
//!   client ── eth0 ══ client ┐            ┌ fe0 ══ eth0 ── fe0 (and the VIP)
//!                            │   switch   │
//!                            └  (routes)  ┼ be0 ══ eth0 ── be0
//!                                         └ be1 ══ eth0 ── be1
//! ```
//!
//! With two switches each host's segment is a bridge between it and both (see `fabric.rs`), and
//! keepalived moves the switch's addresses. [`Lab::fail`] and [`Lab::heal`] break and repair hosts.
//!
//! [`Lab::up`] builds a lab and waits until it serves. [`Lab::command`] runs a program on one
//! of its hosts. Dropping the [`Lab`] takes all of it down. The machine's own network namespace
//! has no part of a lab, so labs of different names stand side by side.
//!
//! # Ownership and cleaning up
//! Every namespace is called `prism-<lab>-<host>`. All files of a lab are below
//! `/run/prism-lab/<lab>`, its stores below `/dev/shm/prism-lab-<lab>`, and its pins below
//! `/sys/fs/bpf/prism-lab-<lab>`, or beside it with the name of one of two switches. Taking a lab
//! down ends exactly the processes in those namespaces. It needs no saved state: after a SIGKILL at
//! any moment, the next `up` or `down` of that name finds all remains.
//!
//! This crate starts Prism and does not know what it does. It needs root.
#![forbid(unsafe_code)]

mod capture;
mod combined;
mod command_lines;
pub mod delay;
mod environment;
mod error;
mod fabric;
mod fail;
mod family;
mod files;
mod groups;
pub mod impair;
mod interrupt;
mod keepalived;
mod lab;
mod mode;
mod name;
mod network;
mod plan;
mod prism_program;
mod process;
mod programs;
mod rate;
mod ready;
mod spec;
mod start;
mod state;
mod status;
mod sweep;
pub mod testing;
mod tls;
mod tool;

pub use capture::{Capture, CaptureOptions, CaptureStats};
pub use combined::add_objects;
pub use error::LabError;
pub use fail::{Failure, InvalidFailure};
pub use family::{Families, Family, InvalidFamily};
pub use interrupt::cancel_on_signal;
pub use lab::Lab;
pub use mode::{InvalidMode, Layout, Mode};
pub use name::{InvalidName, LabName};
pub use network::InterfaceBytes;
pub use prism_program::prism_program;
pub use process::ProcessId;
pub use rate::{InvalidRate, Rate};
pub use spec::{Configure, LabSpec, MAX_SERVERS, Prepare, Programs};
pub use status::{HostStatus, LabStatus};
