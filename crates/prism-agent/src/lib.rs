//! `prism switch`: the agent of the eBPF switch on this host. Packets do not pass through
//! this process, and go on while it is away.
//!
//! Not here: the eBPF programs, their tables, and the rules of leases (`prism-switch`).
#![forbid(unsafe_code)]

mod beside;
mod interfaces;
mod pages;
mod reload;
mod role;
mod run;
mod secrets;
mod shared;
mod tables;

pub use run::{Args, run};
