//! Damage that cannot be repaired block by block, because it is in the tree or in an unfinished
//! upload, is repaired by a copy from another store.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use crate::common::{StoreExt, bytes, copy, meta, put, read, read_body};
use prism_store::{
    Config, Durability, ObjectPlace, Place, Scope, ScrubFault, Store, UploadId, UploadName,
};

/// Settings with small buffers, so that small objects and manifests get files of their own.
fn open(dir: &Path) -> Store {
    let config = Config {
        reserve_bytes: 0,
        write_buffer_bytes: 64 * 1024,
        durability: Durability::None,
        ..Config::default()
    };
    Store::open(dir, config).unwrap()
}

fn name(key: &str, id: UploadId) -> UploadName<'_> {
    let bucket = "b";
    UploadName { bucket, key, id }
}

/// Small objects, objects of many parts, and an unfinished upload of the key of one of these.
fn filled(dir: &Path) -> (BTreeMap<String, Vec<u8>>, UploadId) {
    let store = open(dir);
    store.create_bucket("b", 1).unwrap();
    let mut contents = BTreeMap::new();
    for k in 0..120 {
        let (key, data) = (format!("small/{k}"), bytes(k, 3_000));
        put(&store, "b", &key, &data).unwrap();
        contents.insert(key, data);
    }
    let part = |key: &str, id, number: u16, data: &[u8]| {
        let mut writer = store
            .uploads()
            .begin_part(name(key, id), number, None)
            .unwrap();
        writer.write(data).unwrap();
        writer.commit(meta(data)).unwrap();
    };
    for n in 0..12 {
        let key = format!("parts/{n}");
        let id = store.uploads().create("b", &key, meta(&[])).unwrap();
        let mut whole = Vec::new();
        for number in 1..=60 {
            let data = bytes(number.into(), 100 + usize::from(number));
            part(&key, id, number, &data);
            whole.extend_from_slice(&data);
        }
        let (parts, _) = store.uploads().parts(name(&key, id), 0, 1000).unwrap();
        let seen: Vec<_> = parts.iter().map(|p| (p.number, p.version)).collect();
        let done = store
            .uploads()
            .complete(name(&key, id), &seen, meta(&[]), None, None);
        done.unwrap();
        contents.insert(key, whole);
    }
    let open = store.uploads().create("b", "parts/0", meta(&[])).unwrap();
    part("parts/0", open, 7, &bytes(7, 300_000));
    (contents, open)
}

fn files_below(dir: &Path, wanted: &dyn Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files_below(&path, wanted)),
            false if wanted(path.to_str().unwrap()) => found.push(path),
            false => {}
        }
    }
    found.sort();
    found
}

/// The faults of objects. Damage of the tree's files is reported too, and stays.
fn faults(store: &Store) -> Vec<ObjectPlace> {
    let mut faults = Vec::new();
    let mut found = |fault: &ScrubFault| faults.push(fault.clone());
    store.integrity().scrub(&mut |_| true, &mut found).unwrap();
    let places = faults.into_iter().filter_map(|fault| match fault.place {
        Place::Object(place) => Some(place),
        Place::Store { .. } => None,
    });
    places.collect()
}

fn take_in_again(from: &Store, to: &Store, scope: &Scope) -> bool {
    let (handed, body) = from.catch_up().hand_over(scope, None).unwrap().unwrap();
    let data = body.as_ref().map_or_else(Vec::new, read_body);
    let mut writer = to
        .catch_up()
        .begin_take_in(scope.clone(), handed, None)
        .unwrap();
    for piece in data.chunks(70_001) {
        writer.write(piece).unwrap();
    }
    writer.finish().unwrap()
}

fn assert_contents(store: &Store, contents: &BTreeMap<String, Vec<u8>>) {
    for (key, data) in contents {
        let object = store.get("b", key).unwrap().unwrap();
        assert!(read(object) == *data, "{key}");
    }
}

#[test]
fn objects_and_lists_of_parts_in_damaged_files_of_the_tree_are_taken_in_anew() {
    let (sound, damaged) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (contents, _) = filled(sound.path());
    // The writes are in the tree's files after it is opened again.
    drop(open(sound.path()));
    copy(sound.path(), damaged.path());
    let mut rng = fastrand::Rng::new();
    let blobs = files_below(damaged.path(), &|path| path.contains("/blobs/"));
    // The ends of the files index them: without them the store is not opened.
    for path in blobs.iter().cycle().take(40) {
        let len = fs::metadata(path).unwrap().len();
        let file = fs::File::options().write(true).open(path).unwrap();
        file.write_all_at(&[rng.u8(..); 3], rng.u64(..len / 2))
            .unwrap();
    }
    let (from, to) = (open(sound.path()), open(damaged.path()));
    let used = to.bytes_used();
    let found = faults(&to);
    let mut keys = Vec::new();
    for fault in &found {
        let scope = to.integrity().damaged_scope(fault).unwrap().unwrap();
        assert!(take_in_again(&from, &to, &scope), "{fault:?}");
        assert_eq!(to.integrity().damaged_scope(fault).unwrap(), None);
        keys.push(scope.key);
    }
    assert!(keys.iter().any(|key| key.starts_with("parts")), "{keys:?}");
    assert!(keys.len() > 5, "{keys:?}");
    assert_contents(&to, &contents);
    assert!(faults(&to).is_empty());
    assert_eq!(to.bytes_used(), used);
    drop(to);
    let to = open(damaged.path());
    assert_eq!(to.recovery().orphans_removed, 0);
    assert_eq!(to.recovery().dangling, 0);
    assert_contents(&to, &contents);
}

#[test]
fn a_damaged_part_of_an_upload_under_way_is_taken_in_anew() {
    let (sound, damaged) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_, id) = filled(sound.path());
    copy(sound.path(), damaged.path());
    let (from, to) = (open(sound.path()), open(damaged.path()));
    let is_long = |path: &PathBuf| fs::metadata(path).unwrap().len() == 300_000;
    let mut files = files_below(damaged.path(), &|path| path.contains("/files/"));
    files.retain(is_long);
    let file = fs::File::options().write(true).open(&files[0]).unwrap();
    file.write_all_at(b"something else", 1234).unwrap();
    for _ in 0..2 {
        let found = faults(&to);
        assert_eq!(found.len(), 1, "{found:?}");
        let scope = to.integrity().damaged_scope(&found[0]).unwrap().unwrap();
        assert_eq!(scope.upload, Some((id, Some(7))));
        assert!(take_in_again(&from, &to, &scope));
        assert!(faults(&to).is_empty());
        // Then with a missing file.
        let mut files = files_below(damaged.path(), &|path| path.contains("/files/"));
        files.retain(is_long);
        fs::remove_file(&files[0]).unwrap();
    }
}

#[test]
fn what_has_changed_meanwhile_is_not_taken_in_again() {
    let (sound, damaged) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (mut contents, _) = filled(sound.path());
    copy(sound.path(), damaged.path());
    let (from, to) = (open(sound.path()), open(damaged.path()));
    put(&to, "b", "small/1", b"newer").unwrap();
    contents.insert("small/1".into(), b"newer".to_vec());
    let scope = Scope {
        bucket: "b".into(),
        key: "small/1".into(),
        upload: None,
    };
    assert!(!take_in_again(&from, &to, &scope));
    assert_contents(&to, &contents);
}
