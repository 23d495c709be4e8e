//! Processes of a whole cluster are killed at any moment while clients write: what
//! was answered is there afterwards, what was not happened entirely or not at
//! all, and no file is left that nothing refers to.
//!
//! Ten kills; with `PRISM_CRASH_KILLS=300` as many as that.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub,
    reason = "test code"
)]

#[path = "../support/mod.rs"]
mod support;
mod writers;

use std::path::Path;
use std::time::{Duration, Instant};

use prism_config::Config;

use support::{Cluster, eventually, say, turn};
use writers::{Model, Target, Writers};

/// Kills between two times that everything is read back.
const KILLS_PER_ROUND: usize = 5;
/// How long a node may take to answer after it was killed.
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn answered_writes_survive_kills_of_any_process() {
    crash(|_| {});
}

fn kills() -> usize {
    let asked = std::env::var("PRISM_CRASH_KILLS").ok();
    asked.map_or(10, |kills| kills.parse().unwrap())
}

fn crash(configure: impl FnOnce(&mut Config) + Send + 'static) {
    let Some(_turn) = turn() else { return };
    let seed = fastrand::u64(..1 << 32);
    let mut rng = fastrand::Rng::with_seed(seed);
    let begun = Instant::now();
    let mut cluster = Cluster::up_with(3, |spec| {
        spec.configure = Some(Box::new(configure));
    });
    let target = Target::of(&cluster);
    let mut model = Model::default();
    let (mut killed, kills) = (0, kills());
    while killed < kills {
        let context = format!("seed {seed}, after {killed} kills");
        let writers = Writers::start(&target, model, rng.u64(..));
        for _ in 0..KILLS_PER_ROUND.min(kills - killed) {
            killed += strike(&mut cluster, &mut rng);
        }
        model = writers.stop();
        wait_until_all_serve(&cluster, &target);
        model.judge(&target, &context);
        no_orphans(&cluster, &context);
    }
    say(&format!(
        "{killed} kills in {:.0?}: {} writes answered, {} not; all as they must be (seed {seed})",
        begun.elapsed(),
        model.answered,
        model.unanswered,
    ));
    assert!(
        model.answered > kills as u64,
        "the writers hardly got to write"
    );
}

/// Kills one process, now and then two, at some moment, and starts them again.
fn strike(cluster: &mut Cluster, rng: &mut fastrand::Rng) -> usize {
    let mut hosts: Vec<String> = cluster.frontends();
    hosts.extend(cluster.backends());
    hosts.push("switch".into());
    rng.shuffle(&mut hosts);
    hosts.truncate(if rng.u8(..4) == 0 { 2 } else { 1 });
    for host in &hosts {
        std::thread::sleep(Duration::from_micros(rng.u64(..250_000)));
        cluster.lab.kill(host).unwrap();
    }
    // Nodes are healthy only when the switch answers them.
    hosts.sort_by_key(|host| host != "switch");
    std::thread::sleep(Duration::from_micros(rng.u64(..100_000)));
    for host in &hosts {
        cluster.lab.restart(host).unwrap();
    }
    hosts.len()
}

/// Frontends reach every backend again.
fn wait_until_all_serve(cluster: &Cluster, target: &Target) {
    for backend in cluster.backends() {
        let key = cluster.key_on(&backend, "probe");
        eventually("every backend serves", PATIENCE, || {
            target
                .get(&key)
                .is_ok_and(|(status, _)| [200, 404].contains(&status))
        });
    }
}

/// Each file on a backend's disk is one that its tree knows, and is sound.
fn no_orphans(cluster: &Cluster, context: &str) {
    let config = Config::load(&cluster.lab.config_path()).unwrap();
    for backend in cluster.backends() {
        let run = cluster.lab.ask(&backend, "scrub start").unwrap()["run"].clone();
        let mut status = serde_json::Value::Null;
        eventually("the scrub ends", PATIENCE, || {
            status = cluster.lab.ask(&backend, "scrub status").unwrap();
            status["run"] == run && status["running"] == false
        });
        assert_eq!(status["fault_count"], 0, "{context}: {backend}: {status}");
        let store = &config.node(&backend).unwrap().store;
        let files = count_files(&store.join("files"));
        assert_eq!(
            status["files"], files,
            "{context}: files of {backend}: {status}"
        );
    }
}

fn count_files(dir: &Path) -> usize {
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    let count = |entry: std::fs::DirEntry| match entry.file_type().unwrap().is_dir() {
        true => count_files(&entry.path()),
        false => 1,
    };
    entries.map(count).sum()
}
