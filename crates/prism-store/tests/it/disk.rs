//! A full disk, and a loss of power.
//!
//! The tests need root for file systems of their own. Each runs itself again in a private mount
//! namespace, so that no mount is left behind on any path.

use std::{env, path::Path, process::Command, time::Duration};

use crate::common::{
    StoreExt, bytes, object_files, put, read,
    workload::{From, Model, config, run_and_kill, write_until_killed},
};
use prism_store::{Config, Error, Store};

/// The number of power cuts, which `PRISM_POWER_CUTS=200` sets.
fn power_cuts() -> u64 {
    let asked = env::var("PRISM_POWER_CUTS").ok();
    asked.map_or(12, |cuts| cuts.parse().unwrap())
}

#[test]
fn a_full_disk_refuses_writes_serves_reads_and_takes_writes_again() {
    in_mount_namespace("disk::full_disk");
}

#[test]
fn an_exhausted_disk_without_reserve_loses_nothing() {
    in_mount_namespace("disk::exhausted_disk");
}

#[test]
fn answered_writes_survive_the_loss_of_power() {
    if !Path::new("/dev/loop-control").exists() {
        assert!(env::var_os("CI").is_none(), "this test needs loop devices");
        println!("SKIPPED: needs loop devices");
        return;
    }
    in_mount_namespace("disk::power_loss");
}

/// Fills 64 MiB with the reserve in force: the tree never fails.
#[test]
#[ignore = "runs in a namespace, started by a test above"]
fn full_disk() {
    let dir = tmpfs("64m");
    let limits = Config {
        reserve_bytes: 24 << 20,
        ..Config::default()
    };
    let store = Store::open(dir.path(), limits).unwrap();
    store.create_bucket("b", 0).unwrap();
    let mut stored = 0;
    let error = loop {
        match put(&store, "b", &format!("k{stored}"), &bytes(stored, 1 << 20)) {
            Ok(_) => stored += 1,
            Err(e) => break e,
        }
    };
    assert!(matches!(error, Error::NoSpace), "{error}");
    assert!(stored > 10, "{stored} objects");
    // A PUT that finds no room halfway.
    let mut writer = store.begin_put("b", "endless", None).unwrap();
    let error = loop {
        if let Err(e) = writer.write(&bytes(0, 1 << 20)) {
            break e;
        }
    };
    assert!(matches!(error, Error::NoSpace), "{error}");
    drop(writer);
    let check = |from| {
        for k in from..stored {
            let object = store.get("b", &format!("k{k}")).unwrap().unwrap();
            assert_eq!(read(object), bytes(k, 1 << 20));
        }
    };
    check(0);
    for k in 0..5 {
        assert!(store.delete("b", &format!("k{k}")).unwrap());
    }
    put(&store, "b", "again", &bytes(99, 1 << 20)).unwrap();
    check(5);
    assert_eq!(object_files(dir.path()).len() as u64, stored - 5 + 1);
}

/// Fills the disk to the last byte, without the store.
#[test]
#[ignore = "runs in a namespace, started by a test above"]
fn exhausted_disk() {
    let dir = tmpfs("24m");
    let store = Store::open(dir.path(), config()).unwrap();
    store.create_bucket("b", 0).unwrap();
    let mut stored = Vec::new();
    let (mut refused, mut disabled) = (0, false);
    for k in 0..4000_u64 {
        // Small objects go to the log, large ones to files.
        let len = if k % 8 == 0 { 200_000 } else { 10_000 };
        match put(&store, "b", &format!("k{k}"), &bytes(k, len)) {
            Ok(_) => stored.push((k, len)),
            Err(Error::NoSpace) => refused += 1,
            // The tree itself may be the first to find no room.
            Err(Error::WritesDisabled) => {
                disabled = true;
                break;
            }
            Err(e) => panic!("{e}"),
        }
        if refused > 20 {
            break;
        }
    }
    assert!(refused > 0 || disabled, "the disk never filled up");
    let check = |store: &Store| {
        for (k, len) in &stored {
            let object = store.get("b", &format!("k{k}")).unwrap().unwrap();
            assert_eq!(read(object), bytes(*k, *len), "k{k}");
        }
    };
    check(&store);
    drop(store);
    // With more room, all answered objects are still there.
    mount(&["-o", "remount,size=256m"], "tmpfs", dir.path());
    let store = Store::open(dir.path(), config()).unwrap();
    check(&store);
    put(&store, "b", "again", &bytes(1, 200_000)).unwrap();
    assert_eq!(store.recovery().dangling, 0);
}

/// Cuts ext4 off its disk while a writer is at work, as a loss of power does. Then mounts it again.
#[test]
#[ignore = "runs in a namespace, started by a test above"]
fn power_loss() {
    let base_seed = fastrand::u64(..1 << 32);
    let mut rng = fastrand::Rng::with_seed(base_seed);
    let parent = tempfile::tempdir().unwrap();
    let (image, dir) = (parent.path().join("image"), parent.path().join("mount"));
    std::fs::create_dir(&dir).unwrap();
    std::fs::File::create(&image)
        .unwrap()
        .set_len(512 << 20)
        .unwrap();
    run(Command::new("mkfs.ext4").arg("-qF").arg(&image));
    let mut model = Model::default();
    let cuts = power_cuts();
    for cut in 0..cuts {
        mount(&["-o", "loop"], &image, &dir);
        let store = dir.join("store");
        let after = Duration::from_micros(rng.u64(..250_000));
        let context = format!("seed {base_seed}, cut {cut}, after {after:?}");
        let seed = rng.u64(..1 << 32);
        let power = || shut_down(&dir);
        run_and_kill(
            &mut model,
            "disk::writer",
            &store,
            seed,
            (From::FirstWrite, after),
            Some(&power),
        );
        run(Command::new("umount").arg(&dir));
        mount(&["-o", "loop"], &image, &dir);
        model.judge(&store, &context);
        run(Command::new("umount").arg(&dir));
    }
    println!(
        "{} answers over {cuts} power cuts, seed {base_seed}",
        model.answers
    );
    assert!(model.answers > cuts, "the writer hardly got to write");
}

/// Not a test: the process that writes when the power goes.
#[test]
#[ignore = "started by a test above"]
fn writer() {
    write_until_killed();
}

/// `EXT4_IOC_SHUTDOWN` with `EXT4_GOING_FLAGS_NOLOGFLUSH`: no more writes reach the disk, not even
/// those of the file system's journal. Through perl, which every Debian has, because this crate has
/// no unsafe code.
fn shut_down(dir: &Path) {
    let script = "my $no_flush = pack('L', 2); open(F, '<', $ARGV[0]) or die $!; \
                  ioctl(F, 0x8004587d, $no_flush) or die $!";
    run(Command::new("perl").args(["-e", script]).arg(dir));
}

fn tmpfs(size: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    mount(
        &["-t", "tmpfs", "-o", &format!("size={size}")],
        "tmpfs",
        dir.path(),
    );
    dir
}

fn mount(options: &[&str], what: impl AsRef<std::ffi::OsStr>, dir: &Path) {
    run(Command::new("mount").args(options).arg(what).arg(dir));
}

fn run(command: &mut Command) {
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
}

/// Runs the ignored test `name` of this executable in a mount namespace.
fn in_mount_namespace(name: &str) {
    if !rustix::process::geteuid().is_root() {
        assert!(env::var_os("CI").is_none(), "this test needs root");
        println!("SKIPPED: needs root for a file system of its own");
        return;
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--"]);
    command.arg(env::current_exe().unwrap());
    run(command.args(["--exact", name, "--ignored", "--nocapture"]));
}
