//! The client: one connection at a time, each for a second.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::client::{self, Stream, Trust};
use crate::cluster::System;
use crate::http;
use crate::objects::{Object, Objects};
use crate::plan::Asked;
use crate::rows::Values;
use crate::stats::named;

/// Time for which a connection is measured.
const SECOND: Duration = Duration::from_secs(1);
/// Steps of that time.
const STEPS: usize = 10;
const STEP_MS: u64 = 100;

/// Sums over the connections of a turn.
#[derive(Default)]
struct Second {
    /// Bytes of answers in each step, with their heads.
    steps: [u64; STEPS],
    /// Complete answers.
    requests: u64,
    /// Time of the TCP handshakes.
    connect: Duration,
}

/// Counts the bytes of each step.
struct Noted<'s> {
    stream: &'s mut dyn Stream,
    began: Instant,
    steps: &'s mut [u64; STEPS],
}

impl Read for Noted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.stream.read(buffer)?;
        let step = self.began.elapsed().as_millis() / u128::from(STEP_MS);
        let step = usize::try_from(step).ok();
        if let Some(bytes) = step.and_then(|step| self.steps.get_mut(step)) {
            *bytes += len as u64;
        }
        Ok(len)
    }
}

/// Opens as many connections as the turn has seconds, each for one of them.
#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
pub(super) fn run(turn: &Asked<'_, ()>) -> Result<Values> {
    let Asked {
        cluster,
        system,
        objects,
        seconds: connections,
        ..
    } = *turn;
    let asked = in_turn(objects, system);
    let address = cluster.address(system, 0)?;
    let moved = cluster.moves()?;
    let mut all = Second::default();
    cluster.clients(system)?.run(|| {
        for _ in 0..connections {
            all.look_at(address, &asked, cluster.trust())?;
        }
        anyhow::Ok(())
    })??;
    let mut values = all.values(connections as f64);
    if system == System::Prism {
        let moves = cluster.moves()? - moved;
        ensure!(moves > 0, "no connection was handed off");
        values.insert("moves_s".to_owned(), moves as f64 / connections as f64);
    }
    Ok(values)
}

/// Objects in the order of their requests. Neighbours are of different backends, except with
/// *direct*, which asks only one.
fn in_turn(objects: &Objects, system: System) -> Vec<Object<'_>> {
    let backends = match system {
        System::Direct => 1,
        _ => objects.keys.len(),
    };
    let mut asked: Vec<_> = (0..backends)
        .flat_map(|backend| objects.of(backend).enumerate())
        .collect();
    asked.sort_by_key(|(n, _)| *n);
    asked.into_iter().map(|(_, object)| object).collect()
}

impl Second {
    /// Fetches objects over a new connection for a second.
    fn look_at(
        &mut self,
        address: SocketAddr,
        asked: &[Object<'_>],
        trust: Option<&Trust>,
    ) -> Result<()> {
        let began = Instant::now();
        let mut connection = client::connect(address, trust)?;
        self.connect += connection.connected.saturating_duration_since(began);
        for object in asked.iter().cycle() {
            if began.elapsed() >= SECOND {
                break;
            }
            let target = object.target();
            let stream = &mut *connection.stream;
            stream.write_all(&http::anonymous(address, &target))?;
            let mut noted = Noted {
                stream,
                began,
                steps: &mut self.steps,
            };
            let answer = http::answer(&mut noted);
            let answer = answer.with_context(|| format!("GET {target}"))?;
            ensure!(answer.body == object.body, "{target} has other bytes");
            if began.elapsed() < SECOND {
                self.requests += 1;
            }
        }
        Ok(())
    }

    /// Means over the connections.
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52 bytes")]
    fn values(&self, connections: f64) -> Values {
        let until = (1..).zip(&self.steps).scan(0, |sum, (n, bytes)| {
            *sum += bytes;
            let name = format!("in_{}_ms_bytes", n * STEP_MS);
            Some((name, *sum as f64 / connections))
        });
        let mut values: Values = until.collect();
        let bytes = self.steps.iter().sum::<u64>() as f64;
        values.extend(named([
            ("connections", connections),
            ("requests", self.requests as f64),
            ("requests_s", self.requests as f64 / connections),
            ("mb_s", bytes / 1e6 / connections),
            ("connect_us", self.connect.as_secs_f64() * 1e6 / connections),
        ]));
        values
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn neighbours_are_of_different_backends_but_direct_one_backend_is_asked() {
        let objects = Objects::new(2, 3, 64).unwrap();
        let backends = |system| {
            let asked = in_turn(&objects, system).into_iter();
            asked.map(|object| object.backend).collect::<Vec<_>>()
        };
        assert_eq!(backends(System::Prism), [0, 1, 0, 1, 0, 1]);
        assert_eq!(backends(System::Nginx), [0, 1, 0, 1, 0, 1]);
        assert_eq!(backends(System::Direct), [0, 0, 0]);
    }

    #[test]
    fn bytes_are_those_until_each_moment_of_a_connection() {
        let mut steps = [0; STEPS];
        (steps[0], steps[1], steps[9]) = (100, 300, 2_000_000);
        let second = Second {
            steps,
            requests: 6,
            connect: Duration::from_millis(44),
        };
        let values = second.values(2.0);
        let value = |name: &str| values.get(name).copied().unwrap();
        let is = |name: &str, expected: f64| assert!((value(name) - expected).abs() < 1e-6);
        is("in_100_ms_bytes", 50.0);
        is("in_200_ms_bytes", 200.0);
        is("in_900_ms_bytes", 200.0);
        is("in_1000_ms_bytes", 1_000_200.0);
        is("mb_s", 1.000_2);
        is("requests_s", 3.0);
        is("connect_us", 22_000.0);
    }
}
