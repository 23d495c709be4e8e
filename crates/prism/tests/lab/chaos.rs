//! Everything at once: clients write, read, and make and delete buckets, while processes are
//! killed and backends are drained and taken back.
//!
//! An answered write stays, and a read returns only possible values. In the end every node
//! gives the same answer about every bucket. It takes forty seconds, or as many as
//! `PRISM_CHAOS_S` says.
//!
//! The same holds while older copies of etcd and of stores are put back, once each or as often as
//! `PRISM_CHAOS_RESTORES` says.

mod clients;
mod known;
mod restores;

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::refill::{SETTLED, seen_by};
use crate::support::plain::Target;
use crate::support::{Cluster, eventually, say, turn};
use clients::Clients;
use restores::{Component, Copies};

/// The time without a lease after which the others go on without a backend.
const LEASE_S: u16 = 2;
/// The longest that an administrator waits for one step.
const STEP: Duration = Duration::from_secs(120);

#[test]
fn nothing_answered_is_lost_while_all_that_can_happen_happens() {
    let Some(_turn) = turn() else { return };
    let seed = fastrand::u64(..1 << 32);
    say(&format!("seed {seed}"));
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut cluster = up();
    let target = Target::of(&cluster);
    let clients = Clients::start(&target, seed);
    let (mut killed, mut administrator) = (0, Administrator::default());
    let end = Instant::now() + duration();
    while Instant::now() < end && !clients.have_failed() {
        std::thread::sleep(Duration::from_millis(rng.u64(500..3_000)));
        administrator.go_on(&cluster, &mut rng);
        killed += strike(&mut cluster, &mut rng);
    }
    administrator.stop();
    assert!(killed > 0, "too little happened");
    let events = format!(
        "{killed} kills, {} steps of the administrator",
        administrator.steps
    );
    check_all(cluster, &target, clients, &events);
}

#[test]
fn nothing_answered_is_lost_while_older_copies_are_put_back() {
    let Some(_turn) = turn() else { return };
    let seed = fastrand::u64(..1 << 32);
    say(&format!("seed {seed}"));
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut cluster = up();
    let target = Target::of(&cluster);
    let clients = Clients::start(&target, seed);
    let (mut killed, mut administrator) = (0, Administrator::default());
    let asked = std::env::var("PRISM_CHAOS_RESTORES").ok();
    let rounds = asked.map_or(Component::ALL.len(), |rounds| rounds.parse().unwrap());
    for round in 0..rounds {
        if clients.have_failed() {
            break;
        }
        let component = Component::ALL[round % Component::ALL.len()];
        let backend = rng.choice(cluster.backends()).unwrap();
        let copies = Copies::make(&mut cluster, component, &backend, round);
        administrator.go_on(&cluster, &mut rng);
        if rng.bool() {
            killed += strike(&mut cluster, &mut rng);
        }
        copies.wait_for_reports();
        // A drain may be under way, and nothing else is out of sync: no replica may be missing.
        eventually("all are in sync", STEP, || restores::is_well(&cluster));
        copies.put_back(&mut cluster);
        copies.mend(&cluster);
    }
    administrator.stop();
    let events = format!(
        "{rounds} copies put back, {killed} kills, {} steps of the administrator",
        administrator.steps
    );
    check_all(cluster, &target, clients, &events);
}

/// Ends the clients, and reads all that they know.
fn check_all(cluster: Cluster, target: &Target, clients: Clients, events: &str) {
    let mut known = clients.stop();
    settle(&cluster);
    for known in &mut known {
        known.check_all(target);
    }
    let sums = known.iter().fold([0; 3], |sums, known| {
        [
            sums[0] + known.answered,
            sums[1] + known.unanswered,
            sums[2] + known.lives,
        ]
    });
    say(&format!(
        "{events}; {} requests answered, {} not; {} bucket lives",
        sums[0], sums[1], sums[2]
    ));
    assert!(sums.iter().all(|n| *n > 0), "too little happened");
    clients::compare_buckets(cluster, &known);
}

fn duration() -> Duration {
    let asked = std::env::var("PRISM_CHAOS_S").ok();
    Duration::from_secs(asked.map_or(40, |seconds| seconds.parse().unwrap()))
}

fn up() -> Cluster {
    Cluster::up_with(4, |spec| {
        spec.frontends = 2;
        spec.etcd = true;
        spec.configure = Some(Box::new(|config| {
            config.cluster.replicas = 2;
            if let Some(etcd) = &mut config.cluster.etcd {
                etcd.lease_ttl_s = LEASE_S;
            }
        }));
    })
}

/// Kills a process, sometimes two, and starts them again: at once, or after the others have
/// gone on without them.
fn strike(cluster: &mut Cluster, rng: &mut fastrand::Rng) -> usize {
    let mut hosts: Vec<String> = cluster.lab.hosts().map(str::to_owned).collect();
    hosts.retain(|host| host != "client");
    rng.shuffle(&mut hosts);
    hosts.truncate(if rng.u8(..4) == 0 { 2 } else { 1 });
    for host in &hosts {
        cluster.lab.kill(host).unwrap();
        std::thread::sleep(Duration::from_millis(rng.u64(..300)));
    }
    let lease_ms = u64::from(LEASE_S) * 1000;
    let away_ms = if rng.bool() { 100 } else { lease_ms + 1500 };
    std::thread::sleep(Duration::from_millis(rng.u64(..away_ms)));
    // A node is healthy once the switch and etcd answer it.
    hosts.sort_by_key(|host| (host != "switch", !host.starts_with("etcd")));
    for host in &hosts {
        cluster.lab.restart(host).unwrap();
    }
    hosts.len()
}

/// Drains a backend and takes it back, again and again.
#[derive(Default)]
struct Administrator {
    step: Option<(Child, Instant)>,
    is_drained: bool,
    steps: usize,
}

impl Administrator {
    fn go_on(&mut self, cluster: &Cluster, rng: &mut fastrand::Rng) {
        if let Some((child, begun)) = &mut self.step
            && child.try_wait().unwrap().is_none()
            && begun.elapsed() < STEP
        {
            return;
        }
        self.stop();
        let backend = rng.choice(cluster.backends()).unwrap();
        let step = match self.is_drained {
            true => vec!["rebalance", "--wait"],
            false => vec!["drain", &backend, "--wait"],
        };
        self.is_drained = !self.is_drained;
        self.step = Some((ctl(cluster, &step), Instant::now()));
        self.steps += 1;
    }

    /// Ends the step under way. Its wish stays in the state.
    fn stop(&mut self) {
        if let Some((mut child, _)) = self.step.take() {
            let _ = child.kill();
            child.wait().unwrap();
        }
    }
}

fn ctl(cluster: &Cluster, arguments: &[&str]) -> Child {
    let prism = env!("CARGO_BIN_EXE_prism");
    let mut command = cluster.lab.command("fe0", prism).unwrap();
    command.arg("ctl").args(arguments).arg("--config");
    command.arg(cluster.lab.config_path());
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::null()).spawn().unwrap()
}

/// Every backend is a member again, and lacks nothing.
fn settle(cluster: &Cluster) {
    eventually("every backend is taken back", 2 * SETTLED, || {
        ctl(cluster, &["rebalance", "--wait"])
            .wait()
            .unwrap()
            .success()
    });
    let begun = Instant::now();
    loop {
        let seen = seen_by(cluster, "fe0");
        let backends = seen["backends"].as_array().unwrap();
        let in_sync = |backend: &serde_json::Value| backend["status"] == "in-sync";
        if backends.len() == 4 && backends.iter().all(in_sync) {
            return;
        }
        assert!(begun.elapsed() < SETTLED, "{seen:#}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
