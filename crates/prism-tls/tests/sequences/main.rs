//! Seeded random sequences of one session's life: data in both directions, KeyUpdates of both
//! sides, records in parts, hand-offs between hosts, records sealed by a kernel, close. The
//! server's end is the session that [`prism_tls`] takes out of a handshake. The client is rustls or
//! OpenSSL.
//!
//! Each sequence checks that every byte arrives once and in order, that there is no alert but
//! close_notify, and that no host uses a nonce twice under a key. Nonces of the handshake and of
//! the kernel count too.
//!
//! A failure prints its seed. `PRISM_SIM_SEED=<seed>` repeats that sequence alone, and
//! `PRISM_SIM_TIMES=<n>` runs n times as many.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout
)]

mod host;
mod kernel;
mod nonces;
mod openssl;
mod peer;
mod run;
mod setup;

use std::panic::{AssertUnwindSafe, catch_unwind};

use peer::{Peer, RustlsPeer};
use run::{Counts, Flaw, Run};
use setup::{SUITES, Server};

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Runs `sequences` seeds against peers from `make`, with the suites in turn.
fn explore(
    sequences: u64,
    flaw: Flaw,
    mut make: impl FnMut(&Server, &str) -> Box<dyn Peer>,
) -> Counts {
    let server = Server::new();
    let mut total = Counts::default();
    let times = number_from("PRISM_SIM_TIMES").unwrap_or(1);
    // An emulated processor is a twentieth as fast.
    let all = match number_from("PRISM_TEST_EMULATED") {
        Some(_) => 0..sequences * times / 20,
        None => 0..sequences * times,
    };
    let only = number_from("PRISM_SIM_SEED").map(|seed| seed..seed + 1);
    for seed in only.unwrap_or(all) {
        let suite = SUITES[seed as usize % SUITES.len()];
        let mut peer = make(&server, suite);
        let once = || Run::begin(&server, peer.as_mut(), suite, seed, flaw).finish();
        match catch_unwind(AssertUnwindSafe(once)) {
            Ok(counts) => total.add(&counts),
            Err(_) => panic!("{suite}: repeat with PRISM_SIM_SEED={seed}"),
        }
    }
    total
}

#[test]
fn no_byte_is_lost_and_no_nonce_used_twice_with_rustls() {
    let counts = explore(5_000, Flaw::None, |server, suite| {
        Box::new(RustlsPeer::new(server, suite))
    });
    println!("rustls: {counts:?}");
    if number_from("PRISM_SIM_SEED").is_none() {
        counts.assert_everything_occurred();
    }
}

#[test]
fn no_byte_is_lost_and_no_nonce_used_twice_with_openssl() {
    let process = openssl::Process::start();
    let counts = explore(1_000, Flaw::None, |_, suite| process.connect(suite));
    println!("OpenSSL: {counts:?}");
    if number_from("PRISM_SIM_SEED").is_none() {
        counts.assert_everything_occurred();
    }
}

/// The checks must find a known flaw.
#[test]
fn the_checks_find_a_session_that_two_hosts_go_on_with() {
    for seed in 0..SUITES.len() as u64 {
        let server = Server::new();
        let suite = SUITES[seed as usize];
        let mut peer = RustlsPeer::new(&server, suite);
        let flaw = Flaw::SourceGoesOn;
        let run = Run::begin(&server, &mut peer, suite, seed, flaw);
        assert!(run.finish().repeated_nonces > 0, "{suite}");
    }
}
