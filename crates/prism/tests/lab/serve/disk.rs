//! A store that is over its quota, on a full disk, or damaged.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use super::{Place, Server, is_root};

#[test]
fn over_quota_writes_are_answered_507_and_deletes_make_room() {
    let place = Place::new();
    let mut command = place.serve(&place.data(), "127.0.0.1:0");
    command.args(["--quota-bytes", "12000000"]);
    let server = Server::start(command);
    server.full(&place, &["fill", "12000000"]);
    assert!(server.end(Signal::TERM).success());
}

#[test]
fn a_full_disk_is_answered_507_and_hurts_nobody() {
    if !is_root() {
        assert!(
            std::env::var_os("CI").is_none(),
            "CI must run this test as root"
        );
        println!("SKIPPED: needs root for a disk of its own");
        return;
    }
    let place = Place::new();
    let dir = place.data();
    fs::create_dir(&dir).unwrap();
    let mut inner = place.serve(&dir, "127.0.0.1:0");
    inner.args(["--reserve-bytes", "16777216"]);
    // A disk that only the server sees, and that ends with it.
    let script = "mount -t tmpfs -o size=48m,uid=65534,mode=0700 tmpfs \"$0\" && exec \"$@\"";
    let mut outer = Command::new("unshare");
    outer.args(["--mount", "--propagation", "private", "sh", "-c", script]);
    outer
        .arg(&dir)
        .arg(inner.get_program())
        .args(inner.get_args());
    outer.current_dir(place.dir.path()).stdin(Stdio::null());
    for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"] {
        outer.env_remove(name);
    }
    let server = Server::start(outer);
    server.full(&place, &["fill", "33554432"]);
    // Another program takes all space that is left, reserve included.
    let filler = dir.join("filler");
    let inside = |script: &str| {
        let target = server.child.id().to_string();
        let mut nsenter = Command::new("nsenter");
        nsenter.args(["--mount", "--root", "--target", &target]);
        nsenter.args(["sh", "-c", script]);
        nsenter.arg(&filler).stderr(Stdio::null());
        nsenter.status().unwrap()
    };
    let done = place.dir.path().join("done");
    let take = format!(
        "n=0; while [ ! -e {} ] && [ $n -lt 1000 ]; do \
         cat /dev/zero >> \"$0\"; sleep 0.02; n=$((n + 1)); done",
        done.display()
    );
    std::thread::scope(|scope| {
        let taking = scope.spawn(|| inside(&take));
        let key = (server.access_key.as_str(), server.secret_key.as_str());
        let none = server.run_python(&place, "full.py", &["none"], key);
        fs::write(&done, "").unwrap();
        taking.join().unwrap();
        assert!(none.success(), "{none}");
    });
    assert!(inside("rm \"$0\"").success());
    server.full(&place, &["some"]);
    assert!(server.end(Signal::TERM).success());
}

#[test]
fn damage_is_found_and_never_sent() {
    let place = Place::new();
    let server = Server::start(place.serve(&place.data(), "127.0.0.1:0"));
    let key = (server.access_key.as_str(), server.secret_key.as_str());
    let session = |what: &str| server.python(&place, "damaged.py", &[what], key);
    session("put");
    let (sound, found) = server.scrub(&place);
    assert!(sound, "{found}");
    assert_eq!((&found["objects"], &found["files"]), (&2.into(), &1.into()));
    let files = walk(&place.data().join("store/files"));
    let [file] = files.as_slice() else {
        panic!("one object has the files {files:?}");
    };
    for (what, at) in [("second", (1 << 20) + 77), ("first", 5)] {
        flip(file, at);
        session(what);
        let (sound, found) = server.scrub(&place);
        assert!(!sound && found["fault_count"] == 1, "{found}");
        let fault = &found["faults"][0];
        assert_eq!(
            (&fault["bucket"], &fault["key"]),
            (&"bucket".into(), &"large".into())
        );
        assert_eq!(fault["offset"], at >> 20 << 20);
        flip(file, at);
        session("sound");
    }
    let (sound, found) = server.scrub(&place);
    assert!(sound, "{found}");
    assert!(server.end(Signal::TERM).success());
}

fn walk(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let below = entries.flat_map(|path| match path.is_dir() {
        true => walk(&path),
        false => vec![path],
    });
    below.collect()
}

fn flip(path: &Path, at: u64) {
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}
