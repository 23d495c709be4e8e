//! The load: `redis-benchmark`, unmodified, as many processes as there are replicas.

use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::cluster::{Cluster, KEYS, System};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Get,
    Set,
}

impl Operation {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Set => "SET",
        }
    }
}

/// The requests of a turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) operation: Operation,
    pub(super) bytes: u64,
    pub(super) connections: usize,
}

/// The sums and means of all processes.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) requests: f64,
    pub(super) requests_s: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

impl Load {
    /// Asks `system` so many times.
    pub(super) fn run(
        &self,
        cluster: &Cluster,
        system: System,
        requests: usize,
    ) -> Result<Measured> {
        let addresses = cluster.addresses(system);
        let begun = Instant::now();
        let processes = addresses.len();
        let children = addresses.iter().map(|address| {
            let mut command = Command::new("redis-benchmark");
            command
                .args(["-h", &address.ip().to_string()])
                .args(["-p", &address.port().to_string()])
                .args(["-c", &self.connections.div_ceil(processes).to_string()])
                .args(["-n", &requests.div_ceil(processes).to_string()])
                .args(["-r", &KEYS.to_string(), "--csv"])
                .args([self.operation.name(), "key:__rand_int__"]);
            if self.operation == Operation::Set {
                command.arg("v".repeat(usize::try_from(self.bytes)?));
            }
            command.stdin(Stdio::null()).stdout(Stdio::piped());
            command.stderr(Stdio::null());
            cluster.spawn_client(system, &mut command)
        });
        let children = children.collect::<Result<Vec<Child>>>()?;
        let mut all = Measured {
            requests: requests.div_ceil(processes) as f64 * processes as f64,
            ..Measured::default()
        };
        for child in children {
            let output = child.wait_with_output()?;
            ensure!(
                output.status.success(),
                "redis-benchmark: {}",
                output.status
            );
            let said = String::from_utf8_lossy(&output.stdout);
            let [p50_ms, p99_ms] = of_csv(&said).context(said.into_owned())?;
            all.p50_us += p50_ms * 1e3 / processes as f64;
            all.p99_us += p99_ms * 1e3 / processes as f64;
        }
        // Their own rates do not add up, because one may end before the other.
        all.requests_s = all.requests / begun.elapsed().as_secs_f64();
        Ok(all)
    }
}

/// Milliseconds at the median and the 99th percentile.
fn of_csv(said: &str) -> Option<[f64; 2]> {
    let cells = |line: &str| -> Vec<String> {
        let cells = line.split("\",\"");
        cells
            .map(|cell| cell.trim_matches('"').to_owned())
            .collect()
    };
    let mut lines = said
        .lines()
        .skip_while(|line| !line.starts_with("\"test\""));
    let (names, values) = (cells(lines.next()?), cells(lines.next()?));
    let value = |name: &str| {
        let place = names.iter().position(|known| known == name)?;
        values.get(place)?.parse::<f64>().ok()
    };
    Some([value("p50_latency_ms")?, value("p99_latency_ms")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_redis_benchmark_is_read_by_its_names() {
        let said = "WARNING: Could not fetch server CONFIG\n\
            \"test\",\"rps\",\"avg_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\"p99_latency_ms\"\n\
            \"GET key:__rand_int__\",\"39840.64\",\"0.6\",\"0.5\",\"0.9\",\"1.25\"\n";
        assert_eq!(of_csv(said), Some([0.5, 1.25]));
        assert_eq!(of_csv("Error: Connection refused\n"), None);
    }
}
