//! The cost of one hand-off in system calls: medians and 99th percentiles of each step, for an idle
//! connection over loopback that moves in place.
//!
//! `cargo run --release -p prism-bench --example handoff_cost [rounds]`, as root. It runs in a
//! network namespace of its own.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::{Duration, Instant};

use prism_netns::NetNs;
use prism_sys::tcp::{Paused, restore};

const STEPS: [&str; 5] = ["pause", "save", "close_silently", "restore", "go_live"];

type Sample = [Duration; STEPS.len()];

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args()
        .nth(1)
        .map_or(Ok(20_000), |text| text.parse())?;
    let samples =
        NetNs::anonymous()?.run(|| measure(rounds).map_err(|error| error.to_string()))??;
    println!(
        "{:<16}{:>10}{:>10}",
        format!("{rounds} rounds"),
        "p50 µs",
        "p99 µs"
    );
    for (step, name) in STEPS.iter().enumerate() {
        report(
            name,
            samples
                .iter()
                .filter_map(|sample| sample.get(step).copied()),
        );
    }
    report("sum", samples.iter().map(|sample| sample.iter().sum()));
    Ok(())
}

fn report(name: &str, times: impl Iterator<Item = Duration>) {
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    let at = |share: f64| {
        let index = (times.len() as f64 * share) as usize;
        times
            .get(index)
            .map_or(0.0, |time| time.as_nanos() as f64 / 1000.0)
    };
    println!("{name:<16}{:>10.2}{:>10.2}", at(0.5), at(0.99));
}

fn measure(rounds: usize) -> Result<Vec<Sample>, Box<dyn Error>> {
    Command::new("ip")
        .args(["link", "set", "lo", "up"])
        .status()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    client.set_nodelay(true)?;
    let (server, _) = listener.accept()?;
    let mut fd = OwnedFd::from(server);
    let mut samples = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let (sample, next) = hand_off(fd)?;
        samples.push(sample);
        fd = ping(&mut client, next)?;
    }
    Ok(samples)
}

fn hand_off(fd: OwnedFd) -> Result<(Sample, OwnedFd), Box<dyn Error>> {
    let service = socket2::SockRef::from(&fd).local_addr()?;
    let service = service.as_socket().ok_or("not an IP socket")?;
    let mut last = Instant::now();
    let mut lap = || {
        let now = Instant::now();
        now - std::mem::replace(&mut last, now)
    };
    let paused = Paused::pause(fd)?;
    let pause = lap();
    let state = paused.save(service)?;
    let save = lap();
    paused.close_silently();
    let close = lap();
    let restored = restore(&state, service)?;
    let restore = lap();
    let live = restored.go_live()?;
    let go_live = lap();
    Ok(([pause, save, close, restore, go_live], live.fd))
}

/// Shows that the connection still works in both directions, and lets every
/// acknowledgement arrive.
fn ping(client: &mut TcpStream, fd: OwnedFd) -> Result<OwnedFd, Box<dyn Error>> {
    let mut server = TcpStream::from(fd);
    server.set_nonblocking(false)?;
    server.set_nodelay(true)?;
    let mut byte = [0];
    client.write_all(b"?")?;
    server.read_exact(&mut byte)?;
    server.write_all(b"!")?;
    client.read_exact(&mut byte)?;
    client.write_all(b"?")?;
    server.read_exact(&mut byte)?;
    Ok(server.into())
}
