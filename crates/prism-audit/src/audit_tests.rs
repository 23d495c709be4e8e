#![allow(clippy::unwrap_used, clippy::panic)]
use std::{io::Write, sync::mpsc, thread, time::Duration};

use super::{
    journal::tests::{batch, batch_without_tag, tag},
    *,
};

/// The audit reads files whose layout is private to these crates. Their versions are
/// exact in Cargo.toml for that reason.
#[test]
fn the_formats_that_the_audit_reads_are_those_of_these_releases() {
    const READ: [(&str, &str); 3] = [
        ("fjall", "3.1.13"),
        ("lsm-tree", "3.1.10"),
        ("sfa", "1.0.0"),
    ];
    let lock = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock"));
    for (name, version) in READ {
        let locked = lock.matches(&format!("\nname = \"{name}\"\n")).count();
        let exact = format!("\nname = \"{name}\"\nversion = \"{version}\"\n");
        assert!(
            locked == 1 && lock.contains(&exact),
            "{name} is not {version}. Compare with the new release, then change it here:\n\
             - fjall, src/journal/entry.rs and writer.rs: the layout in src/journal.rs of prism-audit; one \
             batch at a time is written and flushed; a new log is all zeros; batches have \
             ascending sequence numbers\n\
             - fjall, src/batch/mod.rs: items are written in the order in which they were \
             inserted, so the tag comes first\n\
             - fjall, src/journal/recovery.rs: what does it cut off, and what does it refuse?\n\
             - lsm-tree, src/version: the layout in src/versions.rs; `current`; which \
             checksums there are of tables and blobs\n\
             - sfa: the archive that a version is\n\
             - run `scrub::`, `crash::` and `disk::` of prism-store with PRISM_CRASH_KILLS=300 \
             PRISM_POWER_CUTS=200"
        );
    }
}

#[test]
fn a_batch_that_is_being_written_is_no_fault() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.jnl");
    let first = batch(1, b"first");
    let forged = batch_without_tag(3, b"forged");
    let (second, third) = (batch(2, &forged), batch(3, b"third"));
    let (head, rest) = second.split_at(second.len() - 20);
    fs::write(&path, [first.as_slice(), head].concat()).unwrap();
    let (writing, (begun, has_begun)) = (Mutex::new(()), mpsc::channel());
    thread::scope(|scope| {
        scope.spawn(|| {
            let _this = writing.lock();
            begun.send(()).unwrap();
            // A disk that takes long to take it.
            thread::sleep(Duration::from_millis(500));
            let mut log = fs::File::options().append(true).open(&path).unwrap();
            log.write_all(&[rest, &third].concat()).unwrap();
        });
        has_begun.recv().unwrap();
        let mut none = |fault: TreeFault| panic!("{fault:?}");
        logs(dir.path(), tag(), &writing, &mut none).unwrap();
    });
    // A batch that stays half written is a fault.
    let whole = fs::read(&path).unwrap();
    fs::write(&path, [whole.as_slice(), head].concat()).unwrap();
    let mut faults = Vec::new();
    logs(dir.path(), tag(), &writing, &mut |fault| faults.push(fault)).unwrap();
    let places: Vec<_> = faults.iter().map(|fault| fault.offset).collect();
    assert_eq!(places, [Some(whole.len() as u64)]);
}
