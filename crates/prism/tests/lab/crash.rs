//! Processes of a whole cluster are killed at any moment while clients write. An answered write
//! stays, another one is whole or absent, and no file is left over.
//!
//! There are ten kills, five with replicas, and three with etcd, one of which lasts until the
//! others go on without the backend. `PRISM_CRASH_KILLS=300` makes as many kills of each kind,
//! and kills members of etcd too.

mod writers;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use prism_config::ConfigFile;
use prism_lab::LabSpec;

use crate::support::objects::Object;
use crate::support::plain::Target;
use crate::support::{BUCKET, Cluster, eventually, say, turn};
use writers::{Model, Writers, complete, upload};

/// Kills between two checks of all keys.
const KILLS_PER_ROUND: usize = 5;
/// The time, in seconds, after which the others go on without a backend.
const LEASE_S: u16 = 2;
/// The longest time of a killed node until it answers.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest time until a file without a record is gone. A change that a replica does not answer
/// ends after 10 s, is sent once more, and only then frees its file.
const FREED_IN: Duration = Duration::from_secs(25);

#[test]
fn answered_writes_survive_kills_of_any_process() {
    crash(|_| {}, kills(10));
}

#[test]
fn answered_writes_survive_kills_where_every_backend_has_everything() {
    let everything = |spec: &mut LabSpec| {
        spec.configure = Some(Box::new(|config| config.cluster.replicas = 3));
    };
    crash(everything, kills(5));
}

#[test]
fn answered_writes_survive_kills_where_backends_are_gone_on_without() {
    let with_etcd = |spec: &mut LabSpec| {
        spec.etcd = true;
        spec.etcd_members = if is_long() { 3 } else { 1 };
        spec.configure = Some(Box::new(|config| {
            config.cluster.replicas = 2;
            if let Some(etcd) = &mut config.cluster.etcd {
                etcd.lease_ttl_s = LEASE_S;
            }
        }));
    };
    crash(with_etcd, kills(3));
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
    let config = ConfigFile::load(&cluster.lab.config_path()).unwrap();
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
    // Readers get the written bytes or an error, and their reads start the repair.
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
    // Three blocks of the lost file.
    assert_eq!(mended.sum::<u64>(), damaged + 3);
    for object in &objects {
        assert_eq!(
            target.get(&object.key).unwrap(),
            (200, object.bytes().to_vec())
        );
    }
}

/// A part of an unfinished upload is not repaired by blocks, as no replica can be asked for
/// them.
#[test]
fn a_damaged_part_of_an_upload_is_taken_in_anew_from_another_replica() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::replicated(3, 3);
    let target = Target::of(&cluster);
    let object = Object::new("parts".into(), 700_000);
    let upload = upload(&target, &format!("/{BUCKET}/parts"), &object).unwrap();
    let store = |host: &str| {
        let config = ConfigFile::load(&cluster.lab.config_path()).unwrap();
        config.node(host).unwrap().store.clone()
    };
    for host in cluster.backends().iter().take(2) {
        each_file(&store(host).join("files"), &mut |path| {
            let file = std::fs::File::options().write(true).open(path).unwrap();
            if file.metadata().unwrap().len() == object.len {
                file.write_all_at(&[0; 100], 5000).unwrap();
            }
        });
        assert_eq!(scrub(&cluster, host)["fault_count"], 1);
    }
    no_faults_are_left(&cluster);
    assert_eq!(complete(&target, &upload).unwrap(), 200);
    for _ in 0..6 {
        let found = target.get("parts").unwrap();
        assert!(found == (200, object.bytes().to_vec()));
    }
    no_faults_are_left(&cluster);
}

/// Scrubs find fewer and fewer faults.
fn no_faults_are_left(cluster: &Cluster) {
    eventually("no fault is left", PATIENCE, || {
        let backends = cluster.backends();
        let scrubs = backends.iter().map(|host| scrub(cluster, host));
        let faults: Vec<_> = scrubs.map(|status| status["fault_count"].clone()).collect();
        faults.iter().all(|count| *count == 0)
    });
}

fn kills(short: usize) -> usize {
    let asked = std::env::var("PRISM_CRASH_KILLS").ok();
    asked.map_or(short, |kills| kills.parse().unwrap())
}

fn is_long() -> bool {
    std::env::var_os("PRISM_CRASH_KILLS").is_some()
}

fn crash(change: impl FnOnce(&mut LabSpec), kills: usize) {
    let Some(_turn) = turn() else { return };
    let seed = fastrand::u64(..1 << 32);
    let mut rng = fastrand::Rng::with_seed(seed);
    let begun = Instant::now();
    let mut cluster = Cluster::up_with(3, change);
    let target = Target::of(&cluster);
    let mut model = Model::default();
    let mut killed = 0;
    while killed < kills {
        let context = format!("seed {seed}, after {killed} kills");
        let writers = Writers::start(&target, model, rng.u64(..));
        for n in 0..KILLS_PER_ROUND.min(kills - killed) {
            killed += match n == 0 && has_etcd(&cluster) {
                true => strike_for_long(&mut cluster, &mut rng),
                false => strike(&mut cluster, &mut rng),
            };
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

/// Kills one process, sometimes two, at a random moment, and starts them again.
fn strike(cluster: &mut Cluster, rng: &mut fastrand::Rng) -> usize {
    let mut hosts: Vec<String> = cluster.frontends();
    hosts.extend(cluster.backends());
    hosts.push("switch".into());
    if is_long() {
        hosts.extend(etcd(cluster));
    }
    rng.shuffle(&mut hosts);
    hosts.truncate(if rng.u8(..4) == 0 { 2 } else { 1 });
    for host in &hosts {
        std::thread::sleep(Duration::from_micros(rng.u64(..250_000)));
        cluster.lab.kill(host).unwrap();
    }
    // A node is healthy only when the switch and etcd answer it.
    hosts.sort_by_key(|host| (host != "switch", !host.starts_with("etcd")));
    std::thread::sleep(Duration::from_micros(rng.u64(..100_000)));
    for host in &hosts {
        cluster.lab.restart(host).unwrap();
    }
    hosts.len()
}

/// Kills a backend, and starts it again when the others have gone on without it.
fn strike_for_long(cluster: &mut Cluster, rng: &mut fastrand::Rng) -> usize {
    let host = rng.choice(cluster.backends()).unwrap();
    std::thread::sleep(Duration::from_micros(rng.u64(..250_000)));
    cluster.lab.kill(&host).unwrap();
    let lease = Duration::from_secs(LEASE_S.into());
    std::thread::sleep(lease + Duration::from_micros(rng.u64(..1_500_000)));
    cluster.lab.restart(&host).unwrap();
    1
}

fn etcd(cluster: &Cluster) -> Vec<String> {
    let hosts = cluster.lab.hosts().filter(|host| host.starts_with("etcd"));
    hosts.map(str::to_owned).collect()
}

fn has_etcd(cluster: &Cluster) -> bool {
    !etcd(cluster).is_empty()
}

/// Every backend serves reads.
fn is_whole(cluster: &Cluster) -> bool {
    let seen = cluster.lab.ask("fe0", "cluster").unwrap();
    let backends = seen["backends"].as_array().unwrap();
    backends.len() == cluster.backends().len()
        && backends
            .iter()
            .all(|backend| backend["status"] == "in-sync")
}

/// Frontends reach every backend again, and replicas have no open changes.
fn wait_until_all_serve(cluster: &Cluster, target: &Target) {
    eventually("nobody lacks anything", PATIENCE, || is_whole(cluster));
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

/// Each file on a backend's disk is in its tree, and is sound. A commit removes the files that it
/// frees only after its change is no longer open, so the last ones may take a moment.
fn no_orphans(cluster: &Cluster, context: &str) {
    let config = ConfigFile::load(&cluster.lab.config_path()).unwrap();
    for backend in cluster.backends() {
        let store = &config.node(&backend).unwrap().store;
        let deadline = Instant::now() + FREED_IN;
        loop {
            let status = scrub(cluster, &backend);
            assert_eq!(status["fault_count"], 0, "{context}: {backend}: {status}");
            let mut files = Vec::new();
            each_file(&store.join("files"), &mut |path| {
                // Its name has the opening that has made it, and its place in it.
                let metadata = path.metadata().ok();
                let metadata = metadata.map(|found| (found.len(), found.modified().ok()));
                files.push((path.file_name().map(ToOwned::to_owned), metadata));
            });
            if status["files"] == files.len() {
                break;
            }
            assert!(
                Instant::now() < deadline,
                "{context}: {backend} has the files {files:?}: {status}"
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// The findings of a scrub of a backend's store.
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
