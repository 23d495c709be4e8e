//! A network that loses, delays and reorders packets, by netem, which not every kernel has.

use std::io::{self, Write};
use std::process::{Command, Output};

use super::Cluster;

/// Faults on the way to clients. The jitter exceeds the time between packets, so it reorders.
const FAR: &str = "delay 4ms 3ms loss 1%";
/// Faults on the ways to backends, which commands and hand-offs use too.
const NEAR: &str = "delay 500us 300us loss 1%";

/// Impairs both directions of a host's link until it is dropped.
pub struct Impaired<'c> {
    cluster: &'c Cluster,
    host: String,
}

impl<'c> Impaired<'c> {
    fn new(cluster: &'c Cluster, host: &str, how: &str) -> Self {
        let impaired = Self {
            cluster,
            host: host.to_owned(),
        };
        for output in impaired.tc("add", &format!("netem limit 10000 {how}")) {
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{errors}");
        }
        impaired
    }

    fn tc(&self, verb: &str, qdisc: &str) -> [Output; 2] {
        [(self.host.as_str(), "eth0"), ("switch", self.host.as_str())].map(|(host, device)| {
            let mut tc = self.cluster.lab.command(host, "tc").unwrap();
            tc.args(["qdisc", verb, "dev", device, "root"]);
            tc.args(qdisc.split_whitespace()).output().unwrap()
        })
    }
}

impl Drop for Impaired<'_> {
    fn drop(&mut self) {
        self.tc("del", "");
    }
}

/// Whether the kernel has netem; prints a line if not. It is tried on the loopback device of a
/// namespace that ends with the command.
pub fn has_netem() -> bool {
    let mut tc = Command::new("unshare");
    tc.args(["--net", "tc", "qdisc", "add", "dev", "lo", "root", "netem"]);
    let has = tc.output().unwrap().status.success();
    if !has {
        let _ = writeln!(io::stderr(), "SKIPPED: this kernel has no netem");
    }
    has
}

/// Impairs the ways to all backends and to the client.
pub fn impair_all(cluster: &Cluster) -> Vec<Impaired<'_>> {
    let near = cluster.backends();
    let near = near.iter().map(|host| Impaired::new(cluster, host, NEAR));
    let mut all: Vec<_> = near.collect();
    all.push(Impaired::new(cluster, "client", FAR));
    all
}
