//! Processes of a whole cluster are killed at any moment while clients write: what
//! was answered is there afterwards, what was not happened entirely or not at
//! all, and no file is left that nothing refers to.
//!
//! Ten kills, and five where there are replicas; with `PRISM_CRASH_KILLS=300` as
//! many as that, and half of it.

mod writers;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use prism_config::Config;

use crate::support::objects::Object;
use crate::support::{Cluster, eventually, say, turn};
use writers::{Model, Target, Writers};

/// Kills between two times that everything is read back.
const KILLS_PER_ROUND: usize = 5;
/// How long a node may take to answer after it was killed.
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn answered_writes_survive_kills_of_any_process() {
    crash(|_| {}, kills());
}

#[test]
fn answered_writes_survive_kills_where_every_backend_has_everything() {
    crash(|config| config.cluster.replicas = 3, kills().div_ceil(2));
}

#[test]
fn damage_is_mended_from_another_replica() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::replicated(3, 2);
    let target = Target::of(&cluster);
    let objects: Vec<Object> = (0..6)
        .map(|n| Object::new(format!("mend-{n}"), 2_500_000))
        .collect();
    cluster.put_all(&objects);
    let config = Config::load(&cluster.lab.config_path()).unwrap();
    let files = |host: &str| {
        let mut files = Vec::new();
        each_file(
            &config.node(host).unwrap().store.join("files"),
            &mut |path| {
                files.push(path.to_owned());
            },
        );
        files
    };
    // The other replica of an object may be damaged as well, in another block.
    let mut damaged = 0;
    for (host, n) in cluster.backends().iter().zip(0_u64..) {
        for path in files(host) {
            let file = std::fs::File::options().write(true).open(path).unwrap();
            file.write_all_at(&[0; 100], n << 20).unwrap();
            damaged += 1;
        }
    }
    assert_eq!(damaged, 2 * objects.len() as u64);
    // Readers get what was written or an error, and have it mended.
    for object in &objects {
        if let Ok((200, found)) = target.get(&object.key) {
            assert_eq!(found, object.bytes());
        }
    }
    no_faults_are_left(&cluster);
    std::fs::remove_file(&files("be0")[0]).unwrap();
    no_faults_are_left(&cluster);
    let backends = cluster.backends();
    let mended = backends
        .iter()
        .map(|host| cluster.counter(host, "store", "mended_blocks"));
    // Three blocks of the file that was lost.
    assert_eq!(mended.sum::<u64>(), damaged + 3);
    for object in &objects {
        assert_eq!(
            target.get(&object.key).unwrap(),
            (200, object.bytes().to_vec())
        );
    }
}

/// Scrubs find less and less.
fn no_faults_are_left(cluster: &Cluster) {
    eventually("no fault is left", PATIENCE, || {
        let backends = cluster.backends();
        let scrubs = backends.iter().map(|host| scrub(cluster, host));
        let faults: Vec<_> = scrubs.map(|status| status["fault_count"].clone()).collect();
        faults.iter().all(|count| *count == 0)
    });
}

fn kills() -> usize {
    let asked = std::env::var("PRISM_CRASH_KILLS").ok();
    asked.map_or(10, |kills| kills.parse().unwrap())
}

fn crash(configure: impl FnOnce(&mut Config) + Send + 'static, kills: usize) {
    let Some(_turn) = turn() else { return };
    let seed = fastrand::u64(..1 << 32);
    let mut rng = fastrand::Rng::with_seed(seed);
    let begun = Instant::now();
    let mut cluster = Cluster::up_with(3, |spec| {
        spec.configure = Some(Box::new(configure));
    });
    let target = Target::of(&cluster);
    let mut model = Model::default();
    let mut killed = 0;
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

/// Frontends reach every backend again, and nothing is open between replicas.
fn wait_until_all_serve(cluster: &Cluster, target: &Target) {
    for backend in cluster.backends() {
        let key = cluster.key_on(&backend, "probe");
        eventually("every backend serves", PATIENCE, || {
            target
                .get(&key)
                .is_ok_and(|(status, _)| [200, 404].contains(&status))
        });
    }
    eventually("no change is open", PATIENCE, || {
        let backends = cluster.backends();
        let mut open = backends
            .iter()
            .map(|host| cluster.counter(host, "store", "open_changes"));
        open.all(|open| open == 0)
    });
}

/// Each file on a backend's disk is one that its tree knows, and is sound.
fn no_orphans(cluster: &Cluster, context: &str) {
    let config = Config::load(&cluster.lab.config_path()).unwrap();
    for backend in cluster.backends() {
        let status = scrub(cluster, &backend);
        assert_eq!(status["fault_count"], 0, "{context}: {backend}: {status}");
        let store = &config.node(&backend).unwrap().store;
        let mut files = 0;
        each_file(&store.join("files"), &mut |_| files += 1);
        assert_eq!(
            status["files"], files,
            "{context}: files of {backend}: {status}"
        );
    }
}

/// What a scrub of a backend's store finds.
fn scrub(cluster: &Cluster, backend: &str) -> serde_json::Value {
    let run = cluster.lab.ask(backend, "scrub start").unwrap()["run"].clone();
    let mut status = serde_json::Value::Null;
    eventually("the scrub ends", PATIENCE, || {
        status = cluster.lab.ask(backend, "scrub status").unwrap();
        status["run"] == run && status["running"] == false
    });
    status
}

fn each_file(dir: &Path, visit: &mut dyn FnMut(&Path)) {
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => each_file(&entry.path(), visit),
            false => visit(&entry.path()),
        }
    }
}
