//! A scrub, or the opening of the store, finds every changed byte, and no reader gets wrong bytes.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use crate::common::{StoreExt, bytes, copy, put};
use prism_store::{
    BLOCK_LEN, Body, Config, Object, ObjectMeta, ObjectPlace, Place, Repair, ScrubFault, Store,
    UploadName,
};

const BUCKET: &str = "bucket";
/// The number of flips of each kind of file, in an open and in a closed store.
const FLIPS: usize = 12;

/// The bytes that a reader must get, if it gets any.
type Contents = BTreeMap<String, Vec<u8>>;

/// Settings with small buffers, so that there are tables and blobs.
fn config() -> Config {
    Config {
        reserve_bytes: 0,
        write_buffer_bytes: 64 * 1024,
        ..Config::default()
    }
}

/// A store with every kind of object and file.
fn filled(dir: &Path) -> Contents {
    let store = Store::open(dir, config()).unwrap();
    store.create_bucket(BUCKET, 1).unwrap();
    let mut contents = Contents::new();
    let mut keep = |key: String, data: Vec<u8>| {
        put(&store, BUCKET, &key, &data).unwrap();
        contents.insert(key, data);
    };
    for k in 0..160 {
        keep(format!("small/{k}"), bytes(k, 3_000));
        keep(format!("tiny/{k}"), bytes(k, 20));
    }
    for k in 0..4 {
        keep(
            format!("large/{k}"),
            bytes(k, 1_000_000 + 300_000 * k as usize),
        );
    }
    store.configure_bucket(BUCKET, "cors", "<a/>").unwrap();
    let (data, key) = (bytes(77, 700_000), "parts");
    let name = upload(&store, key, &data);
    let (parts, _) = store.uploads().parts(name, 0, 10).unwrap();
    let seen: Vec<_> = parts
        .iter()
        .map(|part| (part.number, part.version))
        .collect();
    store
        .uploads()
        .complete(name, &seen, ObjectMeta::default(), None, None)
        .unwrap();
    contents.insert(key.into(), data);
    upload(&store, "under way", &bytes(78, 300_000));
    contents
}

fn upload<'a>(store: &Store, key: &'a str, data: &[u8]) -> UploadName<'a> {
    let id = store
        .uploads()
        .create(BUCKET, key, ObjectMeta::default())
        .unwrap();
    let name = UploadName {
        bucket: BUCKET,
        key,
        id,
    };
    for (number, part) in (3..).zip(data.chunks(250_000)) {
        let mut writer = store.uploads().begin_part(name, number, None).unwrap();
        writer.write(part).unwrap();
        writer.commit(ObjectMeta::default()).unwrap();
    }
    name
}

/// Reads as a sender does; `None` where it would break off.
fn read(object: &Object) -> Option<Vec<u8>> {
    let mut data = vec![0; usize::try_from(object.len).unwrap()];
    match &object.body {
        Body::Inline(bytes) => data.copy_from_slice(bytes),
        Body::File(file) => {
            file.check_all(0, file.len()).ok()?;
            file.file().read_exact_at(&mut data, 0).unwrap();
        }
        Body::Parts(parts) => {
            let mut rest = data.as_mut_slice();
            for segment in parts.segments(0, u64::MAX) {
                let file = parts.open(segment.index).ok()?;
                file.check_all(segment.offset, segment.len).ok()?;
                let (part, behind) = rest.split_at_mut(segment.len as usize);
                file.file().read_exact_at(part, segment.offset).unwrap();
                rest = behind;
            }
        }
    }
    Some(data)
}

/// Checks that no read returns wrong bytes. Returns the number of failed reads.
fn no_wrong_bytes(store: &Store, contents: &Contents, context: &str) -> usize {
    let mut failed = 0;
    for (key, data) in contents {
        match store.get(BUCKET, key) {
            Ok(Some(object)) => match read(&object) {
                Some(found) => assert!(found == *data, "{context}: {key} is wrong"),
                None => failed += 1,
            },
            Ok(None) => panic!("{context}: {key} is lost"),
            Err(_) => failed += 1,
        }
    }
    failed
}

fn scrub(store: &Store) -> Vec<ScrubFault> {
    let mut faults = Vec::new();
    let report = store
        .integrity()
        .scrub(&mut |_| true, &mut |fault| faults.push(fault.clone()))
        .unwrap();
    assert!(report.complete);
    assert_eq!(report.faults, faults.len() as u64);
    faults
}

/// The kind of a file, by its name; `None` for files without content of their own.
fn kind(root: &Path, path: &Path) -> Option<&'static str> {
    let name = path.file_name().unwrap().to_str().unwrap();
    let relative = path.strip_prefix(root).unwrap().to_str().unwrap();
    Some(match name {
        _ if fs::metadata(path).unwrap().len() == 0 => return None,
        _ if relative.starts_with("files/") => "object",
        _ if name.ends_with(".jnl") => "log",
        _ if relative.contains("/tables/") => "table",
        _ if relative.contains("/blobs/") => "blob",
        "current" => "current",
        "version" => "version of the tree",
        "FORMAT" => "format",
        "LOGTAG" => "tag of the log",
        _ if name.starts_with('v') => {
            // A version that is not the present one is not used.
            let current = fs::read(path.with_file_name("current")).unwrap();
            let number = u64::from_le_bytes(current[..8].try_into().unwrap());
            return (name == format!("v{number}")).then_some("list of tables");
        }
        _ => panic!("what is {relative}?"),
    })
}

fn by_kind(root: &Path) -> BTreeMap<&'static str, Vec<PathBuf>> {
    let mut found: BTreeMap<_, Vec<PathBuf>> = BTreeMap::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => dirs.push(path),
                false => {
                    if let Some(kind) = kind(root, &path) {
                        found.entry(kind).or_default().push(path);
                    }
                }
            }
        }
    }
    found.values_mut().for_each(|paths| paths.sort());
    found
}

/// Changes one bit, and returns its place.
fn flip(path: &Path, rng: &mut fastrand::Rng) -> u64 {
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    // The bytes behind a log's end are zero and unused.
    let data = fs::read(path).unwrap();
    let end = data.iter().rposition(|byte| *byte != 0).unwrap_or(0) as u64 + 1;
    let at = rng.u64(..end);
    let bit = 1 << rng.u8(..8);
    file.write_all_at(&[data[at as usize] ^ bit], at).unwrap();
    at
}

#[test]
fn a_sound_store_has_no_faults_and_everything_is_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let contents = filled(dir.path());
    let kinds = by_kind(dir.path());
    assert_eq!(kinds.len(), 9, "{:?}", kinds.keys());
    let store = Store::open(dir.path(), config()).unwrap();
    assert_eq!(store.recovery().log_bytes_cut, 0);
    let mut paced = 0;
    let mut none = |fault: &ScrubFault| panic!("{fault}");
    let report = store
        .integrity()
        .scrub(
            &mut |bytes| {
                paced += bytes;
                true
            },
            &mut none,
        )
        .unwrap();
    assert_eq!(report.objects, contents.len() as u64);
    assert_eq!(report.files, kinds["object"].len() as u64);
    assert_eq!(report.bytes, paced);
    let stored: usize = contents.values().map(Vec::len).sum();
    assert!(report.bytes > stored as u64 && report.complete);
    assert_eq!(no_wrong_bytes(&store, &contents, "sound"), 0);
    assert_eq!(store.integrity().corrupt_reads(), 0);
    // The scrub was ended early.
    let report = store.integrity().scrub(&mut |_| false, &mut none).unwrap();
    assert!(!report.complete && report.bytes < stored as u64);
}

#[test]
fn a_changed_bit_of_a_stopped_store_is_found_and_never_read() {
    let seed = fastrand::u64(..1 << 32);
    let mut rng = fastrand::Rng::with_seed(seed);
    let original = tempfile::tempdir().unwrap();
    let contents = filled(original.path());
    let mut refused = 0;
    for (kind, paths) in by_kind(original.path()) {
        for _ in 0..FLIPS {
            let dir = tempfile::tempdir().unwrap();
            copy(original.path(), dir.path());
            let path = rng
                .choice(&paths)
                .unwrap()
                .strip_prefix(original.path())
                .unwrap();
            let at = flip(&dir.path().join(path), &mut rng);
            let context = format!("seed {seed}, {kind} {} at {at}", path.display());
            let store = match Store::open(dir.path(), config()) {
                Ok(store) => store,
                Err(_) => {
                    refused += 1;
                    continue;
                }
            };
            no_wrong_bytes(&store, &contents, &context);
            let found = scrub(&store);
            // The log's end only says that the store was closed.
            let harmless = store.recovery().log_bytes_cut > 0;
            assert!(!found.is_empty() || harmless, "{context} was not found");
        }
    }
    assert!(refused > 0);
}

#[test]
fn a_changed_bit_of_a_killed_store_undoes_nothing_that_its_log_was_sealed_behind() {
    let seed = fastrand::u64(..1 << 32);
    let mut rng = fastrand::Rng::with_seed(seed);
    let original = tempfile::tempdir().unwrap();
    let mut contents = filled(original.path());
    let store = Store::open(original.path(), config()).unwrap();
    let (key, data) = ("last", bytes(99, 500));
    put(&store, BUCKET, key, &data).unwrap();
    contents.insert(key.into(), data);
    store.seal_log().unwrap();
    // A copy of the open store is the state after a kill.
    let killed = tempfile::tempdir().unwrap();
    copy(original.path(), killed.path());
    let log = by_kind(killed.path())["log"].last().cloned().unwrap();
    let end = fs::read(&log)
        .unwrap()
        .iter()
        .rposition(|byte| *byte != 0)
        .unwrap();
    let mut refused = 0;
    for _ in 0..3 * FLIPS {
        let dir = tempfile::tempdir().unwrap();
        copy(killed.path(), dir.path());
        let log = dir.path().join(log.strip_prefix(killed.path()).unwrap());
        // Near the end, with the last writes.
        let at = end - rng.usize(..1_500.min(end));
        let byte = fs::read(&log).unwrap()[at] ^ 1 << rng.u8(..8);
        let file = fs::File::options().write(true).open(&log).unwrap();
        file.write_all_at(&[byte], at as u64).unwrap();
        match Store::open(dir.path(), config()) {
            Ok(store) => {
                let context = format!("seed {seed}, byte {at} of {end}");
                assert_eq!(no_wrong_bytes(&store, &contents, &context), 0);
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 0);
}

#[test]
fn a_changed_bit_of_an_open_store_is_found_and_never_read() {
    let seed = fastrand::u64(..1 << 32);
    let mut rng = fastrand::Rng::with_seed(seed);
    let dir = tempfile::tempdir().unwrap();
    let contents = filled(dir.path());
    let store = Store::open(dir.path(), config()).unwrap();
    // The bytes read before do not count any more.
    no_wrong_bytes(&store, &contents, "before");
    for (kind, paths) in by_kind(dir.path()) {
        if ["format", "version of the tree"].contains(&kind) {
            // The file is read only at opening.
            continue;
        }
        for _ in 0..FLIPS {
            let path = rng.choice(&paths).unwrap();
            let before = fs::read(path).unwrap();
            let at = flip(path, &mut rng);
            let context = format!("seed {seed}, {kind} {} at {at}", path.display());
            let failed = no_wrong_bytes(&store, &contents, &context);
            let found = scrub(&store);
            assert!(!found.is_empty(), "{context} was not found");
            if kind == "object" {
                let place = &found[0].place;
                let Place::Object(ObjectPlace {
                    bucket,
                    key,
                    upload,
                    part,
                    offset,
                }) = place
                else {
                    panic!("{context}: found as {place:?}");
                };
                assert_eq!(bucket, BUCKET);
                assert_eq!(*offset, at / BLOCK_LEN * BLOCK_LEN, "{context}");
                assert_eq!(
                    part.is_some(),
                    !contents.contains_key(key) || key == "parts"
                );
                let readable = contents.contains_key(key);
                assert_eq!(upload.is_none(), readable, "{context}");
                assert_eq!(failed, usize::from(readable), "{context}");
            }
            let file = fs::File::options().write(true).open(path).unwrap();
            file.write_all_at(&before, 0).unwrap();
        }
    }
    assert_eq!(no_wrong_bytes(&store, &contents, "after"), 0);
    assert!(scrub(&store).is_empty());
}

#[test]
fn lost_and_cut_files_are_found() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let store = Store::open(dir.path(), config()).unwrap();
    let kinds = by_kind(dir.path());
    let files = &kinds["object"];
    fs::remove_file(&files[0]).unwrap();
    fs::File::options()
        .write(true)
        .open(&files[1])
        .unwrap()
        .set_len(5)
        .unwrap();
    fs::remove_file(&kinds["table"][0]).unwrap();
    let found = scrub(&store);
    assert_eq!(found.len(), 3, "{found:?}");
    let of_objects = found
        .iter()
        .filter(|fault| matches!(fault.place, Place::Object(_)));
    assert_eq!(of_objects.count(), 2);
}

#[derive(Default)]
struct Told(Mutex<Vec<ScrubFault>>);

impl Repair for Told {
    fn damaged(&self, fault: &ScrubFault) {
        self.0.lock().unwrap().push(fault.clone());
    }
}

#[test]
fn whoever_repairs_is_told_by_readers_of_missing_files() {
    let dir = tempfile::tempdir().unwrap();
    let contents = filled(dir.path());
    let store = Store::open(dir.path(), config()).unwrap();
    let told = Arc::new(Told::default());
    store.integrity().set_repair(told.clone());
    for path in &by_kind(dir.path())["object"] {
        fs::remove_file(path).unwrap();
    }
    let refused = no_wrong_bytes(&store, &contents, "missing");
    let told = told.0.lock().unwrap();
    assert!(refused > 1);
    assert_eq!(told.len(), refused, "{told:?}");
}

#[test]
fn whoever_repairs_is_told_by_readers_and_by_scrubs() {
    let dir = tempfile::tempdir().unwrap();
    let contents = filled(dir.path());
    let store = Store::open(dir.path(), config()).unwrap();
    let told = Arc::new(Told::default());
    store.integrity().set_repair(told.clone());
    let mut rng = fastrand::Rng::with_seed(1);
    flip(&by_kind(dir.path())["object"][0], &mut rng);
    assert_eq!(no_wrong_bytes(&store, &contents, "damaged"), 1);
    assert_eq!(store.integrity().corrupt_reads(), 1);
    let by_reader = told.0.lock().unwrap().pop().unwrap();
    assert_eq!(scrub(&store), std::slice::from_ref(&by_reader));
    assert_eq!(*told.0.lock().unwrap(), [by_reader]);
}

#[test]
fn everything_that_was_written_meanwhile_is_sound() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let store = Store::open(dir.path(), config()).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for t in 0..2_u64 {
            let (store, done) = (&store, &done);
            scope.spawn(move || {
                let mut k = 0;
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    k += 1;
                    let key = format!("{t}/{}", k % 40);
                    put(
                        store,
                        BUCKET,
                        &key,
                        &bytes(k, [50, 9_000, 60_000][k as usize % 3]),
                    )
                    .unwrap();
                    if k % 7 == 0 {
                        store.delete(BUCKET, &key).unwrap();
                    }
                }
            });
        }
        for _ in 0..15 {
            let found = scrub(&store);
            if !found.is_empty() {
                done.store(true, std::sync::atomic::Ordering::Relaxed);
                panic!("{found:?}");
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
