//! `prism-lab simulate`: clusters from measured unit costs, as queues.
//!
//! `costs` has the unit costs, `engine` the queues, `hosts` the steps of a request. `lab`
//! and `cases` reproduce what was measured; `growth` and `slice` go beyond it. Nothing here
//! is part of the product.

#![forbid(unsafe_code)]

pub mod cases;
pub mod costs;
mod engine;
mod growth;
mod hosts;
mod lab;
mod slice;

use std::fmt::Write as _;

/// The `share` quantile of times in ns, in µs; 0 without times.
fn percentile_us(times_ns: &mut [u64], share: f64) -> f64 {
    times_ns.sort_unstable();
    let place = (times_ns.len() as f64 * share) as usize;
    let place = place.min(times_ns.len().saturating_sub(1));
    times_ns.get(place).map_or(0.0, |ns| *ns as f64 / 1e3)
}

/// The tables that the command prints, as Markdown. Equal in each run.
#[must_use]
pub fn report() -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}", cases::table());
    let _ = writeln!(text, "{}", growth::table());
    let _ = write!(text, "{}", slice::table());
    text
}
