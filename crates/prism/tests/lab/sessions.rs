//! Fourteen S3 clients, as their users have them. Each runs a session of its own (see the scripts
//! beside this file) against a whole cluster, several at a time. Every byte is compared.
//!
//! Each makes a bucket, stores files, reads them back whole and in part, uploads a large file
//! in parts, copies it, has a URL presigned, lists 10,000 keys, and deletes its objects.
//!
//! Some do their own work instead. Restic backs a tree up, checks and restores it. A page in a
//! browser uploads by presigned URLs. s3fs renames large files. The AWS Common Runtime reads in
//! ranges, also of empty objects. Terraform's provider reads all configurations of a bucket.
//!
//! `make test` runs each over IPv4 and over IPv6, one of them by HTTP and one by HTTPS, with a
//! file of 24 MiB. With `PRISM_SESSIONS=full` each runs in all four ways, with 200 MiB, and so
//! do those that take long to install.

mod programs;

use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use crate::support::client::Request;
use crate::support::packets::{ClientResets, Watch};
use crate::support::{Cluster, say, turn};
use programs::Program;

/// Sessions at a time. More would only wait for each other.
const AT_A_TIME: usize = 3;
/// Connections that store the keys to be listed.
const WRITERS: usize = 4;
/// Folders in the bucket that is listed, and keys in each.
const FOLDERS: usize = 100;

/// The files that all sessions read: `large`, `slice` (a part of it), `tree` with files of many
/// sizes and names, and the expected listing, in `keys` and `folders`.
struct Shared {
    directory: tempfile::TempDir,
}

impl Shared {
    fn new(large_mib: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let mut bytes = vec![0; large_mib << 20];
        fastrand::Rng::with_seed(17).fill(&mut bytes);
        std::fs::write(path.join("large"), &bytes).unwrap();
        std::fs::write(path.join("slice"), &bytes[1_000_001..][..70_000]).unwrap();
        let tree = path.join("tree");
        for (n, folder) in ["", "a folder", "a folder/be\u{f6}w", "x"]
            .into_iter()
            .enumerate()
        {
            std::fs::create_dir_all(tree.join(folder)).unwrap();
            for (m, len) in [0, 1, 4_096, 70_001, 300_000].into_iter().enumerate() {
                let name = tree.join(folder).join(format!("file {m} +&=,\u{e9}"));
                std::fs::write(name, &bytes[n * 1_000 + m..][..len]).unwrap();
            }
        }
        let (mut keys, mut folders) = (String::new(), String::new());
        for folder in 0..FOLDERS {
            folders += &format!("folder-{folder:02}/\n");
            for key in 0..10_000 / FOLDERS {
                keys += &format!("{}\n", key_name(folder, key));
            }
        }
        std::fs::write(path.join("keys"), keys).unwrap();
        std::fs::write(path.join("folders"), folders).unwrap();
        Self { directory }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }
}

fn key_name(folder: usize, key: usize) -> String {
    format!("folder-{folder:02}/key-{key:03}")
}

/// Stores the keys that every session lists.
fn store_keys(cluster: &Cluster) {
    let start = Instant::now();
    let create = Request::new("PUT", "").bucket("keys").encode(cluster);
    assert_eq!(cluster.connect().call(&create).status(), 200);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            scope.spawn(move || {
                let mut client = cluster.connect();
                for folder in (writer..FOLDERS).step_by(WRITERS) {
                    for key in 0..10_000 / FOLDERS {
                        let target = format!("/{}", key_name(folder, key));
                        let put = Request::new("PUT", &target).bucket("keys");
                        let put = put.header("Content-Length", "0").encode(cluster);
                        assert_eq!(client.call(&put).status(), 200);
                    }
                }
            });
        }
    });
    say(&format!("10,000 keys in {:.1?}", start.elapsed()));
}

#[test]
fn clients_of_many_makes_do_their_sessions() {
    let Some(_turn) = turn() else { return };
    let full = std::env::var("PRISM_SESSIONS").is_ok_and(|form| form == "full");
    let programs = Program::ALL.into_iter();
    let programs = programs.filter(|p| (full || p.is_quick()) && p.is_there());
    let programs: Vec<Program> = programs.collect();
    let mut sessions = Vec::new();
    for program in &programs {
        let ways = match full {
            true => program.long_form(),
            false => program.short_form().to_vec(),
        };
        sessions.extend(ways.into_iter().map(|way| (*program, way)));
    }
    let shared = Shared::new(if full { 200 } else { 24 });
    let classes = programs::compile_java(&programs);
    let cluster = Cluster::up_with(3, |spec| spec.tls = true);
    store_keys(&cluster);
    let watch = Watch::events(&cluster, "sessions");
    sessions.reverse();
    let (queue, failed) = (Mutex::new(sessions), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().unwrap().pop();
                    let Some((program, way)) = next else {
                        break;
                    };
                    let start = Instant::now();
                    let done = program.session(&cluster, way, shared.path(), classes.path());
                    let label = format!("{program:?} over {:?} and {}", way.0, way.1);
                    match done {
                        Ok(()) => say(&format!("{label}: {:.1?}", start.elapsed())),
                        Err(said) => {
                            say(&format!("{label} FAILED: {said}"));
                            failed.lock().unwrap().push(label);
                        }
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{failed:?}");
    watch.finish(ClientResets::AtItsEnd);
}
