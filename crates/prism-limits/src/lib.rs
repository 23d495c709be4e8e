//! Bounds for the requests of a client, a key or any other thing that a hash stands for.
//!
//! Each node admits requests by its own counts and by those that other nodes have reported
//! (docs/design/limits.md). [`Rates`] bounds requests in a time, by the generic cell rate
//! algorithm (ITU-T I.371, annex A), which is a token bucket with one number. [`UnderWay`] bounds
//! requests at the same time. [`Usage`] is both, with the reports.
//!
//! Nothing here does I/O or reads a clock.
//!
//! Not here: which limits a request falls under, and how reports travel (`prism-gateway`).
#![forbid(unsafe_code)]

mod rate;
mod rates;
mod under_way;
mod usage;

pub use rate::Rate;
pub use rates::Rates;
pub use under_way::{Holds, UnderWay};
pub use usage::{Charge, Refusal, Usage, key_of};
