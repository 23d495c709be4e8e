//! A store that has missed changes takes copies in from another one, and is the same afterwards.
//! Later changes stay, and keys that the store does not own are removed.

mod open_changes;

use crate::common::{
    StoreExt, agreed, bytes, meta, object_files, put, read, read_body, request, usage::check_usage,
};
use prism_store::{
    Body, BucketUsage, Change, Config, Decided, Durability, Entry, Error, Keeps, Missing, Position,
    Prepare, Proof, Refusal, Scope, ScopePage, ScopedChange, Stamp, Step, Store, ToDelete,
    UploadId, UploadName, VersionPosition, Versioning,
};

fn open(dir: &std::path::Path, node: &str) -> Store {
    let config = Config {
        reserve_bytes: 0,
        node: node.into(),
        // The test has no power cuts.
        durability: Durability::None,
        ..Config::default()
    };
    Store::open(dir, config).unwrap()
}

/// Two stores with a bucket, in epoch 2.
fn two() -> ([tempfile::TempDir; 2], [Store; 2]) {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let stores = [open(dirs[0].path(), "a"), open(dirs[1].path(), "b")];
    for store in &stores {
        store
            .buckets()
            .accept_record("b", &agreed(1, None), Proof::TRUSTED)
            .unwrap();
    }
    (dirs, stores)
}

fn all(_: &str) -> bool {
    true
}

fn bytes_of(body: Option<Body>) -> Vec<u8> {
    let Some(body) = body else { return Vec::new() };
    read_body(&body)
}

fn take_in(from: &Store, to: &Store, scope: &Scope, since: u64) -> bool {
    let (handed, body) = from.catch_up().hand_over(scope, None).unwrap().unwrap();
    let mut taken = to
        .catch_up()
        .begin_take_in(scope.clone(), handed, Some(since))
        .unwrap();
    for piece in bytes_of(body).chunks(70_001) {
        taken.write(piece).unwrap();
    }
    for version in taken.missing() {
        let found = from.catch_up().hand_over(scope, Some(version.at)).unwrap();
        let (handed, body) = found.unwrap();
        taken.begin_version(&version, handed).unwrap();
        taken.write(&bytes_of(body)).unwrap();
    }
    taken.finish().unwrap()
}

/// The scopes that `to` lacks or has too many, compared with `from` page by page.
fn missing(from: &Store, to: &Store, since: u64, uploads: bool) -> Missing {
    let mut found = Missing::default();
    let mut after: Option<Scope> = None;
    loop {
        let page = from
            .catch_up()
            .page(request("b", uploads, after.as_ref()), all)
            .unwrap();
        // In the form in which it is sent.
        let text = serde_json::to_vec(&page).unwrap();
        let page: ScopePage = serde_json::from_slice(&text).unwrap();
        let here = to
            .catch_up()
            .compare(request("b", uploads, after.as_ref()), &page, since, all);
        let here = here.unwrap();
        found.take.extend(here.take);
        found.remove.extend(here.remove);
        match page.end {
            Some(end) => after = Some(end),
            None => return found,
        }
    }
}

/// The numbers of scopes taken in and removed.
fn catch_up(from: &Store, to: &Store) -> (usize, usize) {
    let since = to.epoch();
    let (mut taken, mut removed) = (0, 0);
    for uploads in [false, true] {
        let missing = missing(from, to, since, uploads);
        removed += missing.remove.len();
        to.catch_up().remove_missing(missing.remove, since).unwrap();
        for scope in missing.take {
            taken += usize::from(take_in(from, to, &scope, since));
        }
    }
    (taken, removed)
}

fn content(store: &Store) -> Vec<String> {
    let mut lines = Vec::new();
    for uploads in [false, true] {
        let mut after = None;
        loop {
            let page = store
                .catch_up()
                .page(request("b", uploads, after.as_ref()), all)
                .unwrap();
            for (scope, stamp) in page.items {
                let (handed, body) = store.catch_up().hand_over(&scope, None).unwrap().unwrap();
                assert_eq!(handed.stamp, stamp);
                for version in handed.versions.iter().flatten() {
                    let found = store.catch_up().hand_over(&scope, Some(version.at));
                    // A delete marker has no bytes.
                    let Ok(found) = found else { continue };
                    let (handed, body) = found.unwrap();
                    let data = meta(&bytes_of(body)).etag;
                    lines.push(format!("{version:?} {handed:?} {data}"));
                }
                let data = meta(&bytes_of(body)).etag;
                lines.push(format!("{scope:?} {handed:?} {data}"));
            }
            match page.end {
                Some(end) => after = Some(end),
                None => break,
            }
        }
    }
    lines
}

fn name(key: &str, id: UploadId) -> UploadName<'_> {
    UploadName {
        bucket: "b",
        key,
        id,
    }
}

/// An upload of some parts, completed or not.
fn upload(store: &Store, key: &str, seed: u64, complete: bool) {
    let id = store.uploads().create("b", key, meta(&[])).unwrap();
    for number in [1, 2, 7] {
        let data = bytes(seed + u64::from(number), 90_000 / usize::from(number));
        let mut writer = store
            .uploads()
            .begin_part(name(key, id), number, None)
            .unwrap();
        writer.write(&data).unwrap();
        writer.commit(meta(&data)).unwrap();
    }
    if complete {
        let (parts, _) = store.uploads().parts(name(key, id), 0, 10).unwrap();
        let parts: Vec<_> = parts.iter().map(|p| (p.number, p.version)).collect();
        let meta = meta(&[seed as u8]);
        let done = store
            .uploads()
            .complete(name(key, id), &parts, meta, None, None);
        done.unwrap();
    }
}

/// Makes a random change of one of a few keys.
fn random_change(store: &Store, rng: &mut fastrand::Rng) {
    let key = format!("k{:02}", rng.u8(..40));
    let seed = rng.u64(..1 << 20);
    match rng.u8(..12) {
        0..5 => drop(put(store, "b", &key, &bytes(seed, rng.usize(..200))).unwrap()),
        5 => drop(put(store, "b", &key, &bytes(seed, 60_000)).unwrap()),
        6..9 => drop(store.delete("b", &key).unwrap()),
        9 => upload(store, &key, seed, true),
        10 => upload(store, &key, seed, false),
        _ => {
            let (uploads, _) = store.uploads().list("b", "", None, 100).unwrap();
            if let Some(upload) = rng.choice(uploads) {
                store.uploads().abort(name(&upload.key, upload.id)).unwrap();
            }
        }
    }
}

#[test]
fn whatever_was_missed_is_taken_in_and_the_stores_are_the_same() {
    let rounds = std::env::var("PRISM_CATCH_UP_ROUNDS").map_or(2, |n| n.parse().unwrap());
    for seed in 0..rounds {
        let (dirs, [from, to]) = two();
        let mut rng = fastrand::Rng::with_seed(seed);
        for epoch in 2..4 {
            for _ in 0..60 {
                random_change(&from, &mut rng);
            }
            from.adopt(epoch, None).unwrap();
            to.adopt(epoch, None).unwrap();
            let (taken, removed) = catch_up(&from, &to);
            assert!(
                taken > 10 && (removed > 0 || epoch == 2),
                "{taken} {removed}"
            );
            assert_eq!(content(&from), content(&to), "seed {seed}");
            for store in [&from, &to] {
                check_usage(store, "b", &format!("seed {seed}"));
            }
            assert_eq!(from.bucket_usage("b"), to.bucket_usage("b"), "seed {seed}");
            assert_eq!(catch_up(&from, &to), (0, 0));
        }
        drop(to);
        let to = open(dirs[1].path(), "b");
        assert_eq!(to.recovery().orphans_removed, 0);
        assert_eq!(to.recovery().dangling, 0);
        assert_eq!(to.epoch(), 3);
        assert_eq!(content(&from), content(&to));
        assert_eq!(
            object_files(dirs[0].path()).len(),
            object_files(dirs[1].path()).len()
        );
    }
}

#[test]
fn objects_and_parts_without_their_files_are_taken_in_anew() {
    let (dirs, [from, to]) = two();
    let mut rng = fastrand::Rng::with_seed(5);
    for _ in 0..60 {
        random_change(&from, &mut rng);
    }
    put(&from, "b", "long", &bytes(3, 60_000)).unwrap();
    upload(&from, "whole", 1, true);
    upload(&from, "unfinished", 2, false);
    for store in [&from, &to] {
        store.adopt(2, None).unwrap();
    }
    catch_up(&from, &to);
    assert_eq!(to.catch_up().remove_dangling(2).unwrap(), 0);
    drop(to);
    let files = object_files(dirs[1].path());
    for path in &files {
        std::fs::remove_file(path).unwrap();
    }
    let to = open(dirs[1].path(), "b");
    assert_eq!(to.recovery().dangling, files.len() as u64);
    // An object of the present epoch has its file.
    for store in [&from, &to] {
        store.adopt(3, None).unwrap();
        put(store, "b", "present", &bytes(4, 60_000)).unwrap();
    }
    // The records say that nothing is missing.
    assert_eq!(missing(&from, &to, 3, false).take, []);
    let removed = to.catch_up().remove_dangling(3).unwrap();
    assert_eq!(removed, files.len());
    assert_eq!(to.catch_up().remove_dangling(3).unwrap(), 0);
    assert!(to.get("b", "present").unwrap().is_some());
    catch_up(&from, &to);
    let of_others = |store: &Store| {
        let mut all = content(store);
        all.retain(|line| !line.contains("present"));
        all
    };
    assert_eq!(of_others(&from), of_others(&to));
}

/// Makes a random change where versions are kept.
fn random_change_of_versions(store: &Store, rng: &mut fastrand::Rng) {
    if rng.u8(..3) > 0 {
        return random_change(store, rng);
    }
    let mut all = Vec::new();
    let begin = VersionPosition::Key(Position::Start);
    let visit = |entry: Entry| {
        all.push(entry);
        Step::Entry
    };
    store.scan_versions("b", "", begin, visit).unwrap();
    match rng.choice(all) {
        Some(entry) if rng.bool() || entry.is_marker => {
            let (key, version) = (entry.key.as_str(), Some(entry.id));
            let deletion = ToDelete { key, version };
            store.delete_version("b", deletion, None).unwrap();
        }
        Some(entry) => {
            let tag = move |meta: &mut prism_store::ObjectMeta| meta.etag.push('x');
            let done = store.change_meta("b", &entry.key, Some(entry.id), tag);
            done.unwrap();
        }
        None => {}
    }
    if rng.u8(..20) == 0 {
        let versioning = [Versioning::Enabled, Versioning::Suspended];
        let versioning = rng.choice(versioning).unwrap();
        store.set_versioning("b", versioning).unwrap();
    }
}

#[test]
fn versions_that_were_missed_are_taken_in_with_those_that_are_gone() {
    let rounds = std::env::var("PRISM_CATCH_UP_ROUNDS").map_or(2, |n| n.parse().unwrap());
    for seed in 0..rounds {
        let (dirs, [from, to]) = two();
        let mut rng = fastrand::Rng::with_seed(seed);
        for epoch in 2..6 {
            for _ in 0..60 {
                random_change_of_versions(&from, &mut rng);
            }
            from.adopt(epoch, None).unwrap();
            to.adopt(epoch, None).unwrap();
            let said = from.buckets().record("b").unwrap().unwrap();
            to.buckets()
                .accept_record("b", &said, Proof::TRUSTED)
                .unwrap();
            let (taken, _) = catch_up(&from, &to);
            assert!(taken > 0);
            assert_eq!(content(&from), content(&to), "seed {seed}");
            for store in [&from, &to] {
                check_usage(store, "b", &format!("seed {seed}"));
            }
            assert_eq!(from.bucket_usage("b"), to.bucket_usage("b"), "seed {seed}");
            assert_eq!(catch_up(&from, &to), (0, 0));
            if epoch == 2 {
                from.set_versioning("b", Versioning::Enabled).unwrap();
            }
        }
        assert!(to.buckets().get("b").unwrap().versioning != Versioning::Never);
        drop(to);
        let to = open(dirs[1].path(), "b");
        assert_eq!(to.recovery().orphans_removed, 0);
        assert_eq!(to.recovery().dangling, 0);
        assert_eq!(content(&from), content(&to));
        let files = |at: usize| object_files(dirs[at].path()).len();
        assert_eq!(files(0), files(1));
        // A store that does not own the keys removes all of them.
        let scopes = to
            .catch_up()
            .page(request("b", false, None), all)
            .unwrap()
            .items;
        let scopes = scopes.into_iter().map(|(scope, _)| scope).collect();
        to.catch_up().remove_without_place(scopes, 5).unwrap();
        let (uploads, _) = to.uploads().list("b", "", None, 1000).unwrap();
        for upload in uploads {
            to.uploads().abort(name(&upload.key, upload.id)).unwrap();
        }
        assert!(content(&to).is_empty() && files(1) == 0);
        assert_eq!(to.bucket_usage("b"), BucketUsage::default());
        to.delete_bucket("b").unwrap();
    }
}

#[test]
fn a_change_of_versions_is_not_prepared_where_others_are_lacking() {
    let (_dirs, [from, to]) = two();
    for store in [&from, &to] {
        store
            .buckets()
            .accept_record("b", &agreed(2, Some(true)), Proof::TRUSTED)
            .unwrap();
    }
    put(&from, "b", "k", b"one").unwrap();
    to.adopt(2, None).unwrap();
    let scope = Scope::object("b", "k");
    let change = |builds, before| Prepare {
        epoch: 2,
        life: Stamp::NONE,
        stamp: stamp_of(2, 9),
        changes: vec![ScopedChange {
            scope: scope.clone(),
            before,
            change: Change::Kept(
                Keeps {
                    versioning: Versioning::Enabled,
                    builds,
                },
                Box::new(Change::Remove),
            ),
        }],
    };
    let before = from
        .catch_up()
        .hand_over(&scope, None)
        .unwrap()
        .unwrap()
        .0
        .stamp;
    let prepare = || {
        to.open_changes()
            .begin_prepare(change(true, Some(before)))
            .unwrap()
            .prepare()
    };
    let lacking = prepare();
    let Err(Error::Refused(Refusal::Lacking)) = lacking else {
        panic!("{lacking:?}");
    };
    assert!(take_in(&from, &to, &scope, 2));
    prepare().unwrap();
    let decided = Decided {
        scopes: vec![scope.clone()],
        stamp: stamp_of(2, 9),
        committed: true,
        epoch: 2,
    };
    to.open_changes().decided(decided).unwrap();
    let (handed, _) = to.catch_up().hand_over(&scope, None).unwrap().unwrap();
    assert_eq!(handed.stamp, stamp_of(2, 9));
    let versions = handed.versions.unwrap();
    assert_eq!(versions.len(), 2);
    assert!(versions[0].marker_ms.is_some());
    // An older page does not bring the removed keys back.
    assert!(!take_in(&from, &to, &scope, 2));
    assert!(to.delete_marker("b", "k").unwrap().is_some());
}

fn stamp_of(epoch: u64, time_us: u64) -> Stamp {
    Stamp {
        epoch,
        time_us,
        origin: 7,
    }
}

#[test]
fn uploads_with_more_parts_than_a_page_are_taken_in_too() {
    let (_dirs, [from, to]) = two();
    let id = from.uploads().create("b", "many", meta(&[])).unwrap();
    for number in 1..=1100 {
        let writer = from
            .uploads()
            .begin_part(name("many", id), number, None)
            .unwrap();
        writer.commit(meta(&[])).unwrap();
    }
    upload(&from, "zzz", 1, false);
    assert!(
        from.catch_up()
            .page(request("b", true, None), all)
            .unwrap()
            .end
            .is_some()
    );
    to.adopt(2, None).unwrap();
    assert_eq!(catch_up(&from, &to), (1105, 0));
    assert_eq!(content(&from), content(&to));
    from.uploads().abort(name("many", id)).unwrap();
    from.adopt(3, None).unwrap();
    to.adopt(3, None).unwrap();
    assert_eq!(catch_up(&from, &to), (0, 1101));
    assert_eq!(content(&from), content(&to));
}

#[test]
fn what_came_meanwhile_is_not_replaced_by_what_was_there_before() {
    let (dirs, [from, to]) = two();
    for key in ["new", "gone", "changed"] {
        put(&from, "b", key, &bytes(1, 50_000)).unwrap();
    }
    to.adopt(2, None).unwrap();
    let missing = missing(&from, &to, 2, false);
    assert_eq!(missing.take.len(), 3);
    let begun: Vec<_> = missing
        .take
        .iter()
        .map(|scope| {
            let (handed, body) = from.catch_up().hand_over(scope, None).unwrap().unwrap();
            let mut writer = to
                .catch_up()
                .begin_take_in(scope.clone(), handed, Some(2))
                .unwrap();
            writer.write(&bytes_of(body)).unwrap();
            writer
        })
        .collect();
    put(&to, "b", "changed", b"newer").unwrap();
    put(&to, "b", "other", b"newer").unwrap();
    let taken: usize = begun
        .into_iter()
        .map(|w| usize::from(w.finish().unwrap()))
        .sum();
    assert_eq!(taken, 2);
    assert_eq!(read(to.get("b", "changed").unwrap().unwrap()), b"newer");
    to.catch_up()
        .remove_missing(vec![Scope::object("b", "other")], 2)
        .unwrap();
    assert!(to.head("b", "other").unwrap().is_some());
    to.catch_up()
        .remove_missing(vec![Scope::object("b", "gone")], 2)
        .unwrap();
    assert!(to.head("b", "gone").unwrap().is_none());
    // The files of the refused copy and of the removed object are gone.
    assert_eq!(object_files(dirs[1].path()).len(), 1);
    // A copy that was begun in an earlier epoch has no effect.
    let (handed, body) = from
        .catch_up()
        .hand_over(&missing.take[0], None)
        .unwrap()
        .unwrap();
    let mut late = to
        .catch_up()
        .begin_take_in(missing.take[0].clone(), handed, Some(2))
        .unwrap();
    late.write(&bytes_of(body)).unwrap();
    to.adopt(3, None).unwrap();
    assert!(matches!(late.finish(), Err(Error::OtherEpoch)));
    let remove = to
        .catch_up()
        .remove_missing(vec![Scope::object("b", "new")], 2);
    assert!(matches!(remove, Err(Error::OtherEpoch)));
    assert_eq!(object_files(dirs[1].path()).len(), 1);
}

#[test]
fn bytes_that_do_not_come_or_are_too_many_leave_nothing() {
    let (dirs, [from, to]) = two();
    upload(&from, "parts", 1, true);
    let scope = Scope::object("b", "parts");
    let (handed, body) = from.catch_up().hand_over(&scope, None).unwrap().unwrap();
    let data = bytes_of(body);
    let mut short = to
        .catch_up()
        .begin_take_in(scope.clone(), handed.clone(), Some(1))
        .unwrap();
    short.write(&data[..data.len() - 1]).unwrap();
    assert!(matches!(short.finish(), Err(Error::LengthMismatch { .. })));
    let mut long = to
        .catch_up()
        .begin_take_in(scope.clone(), handed.clone(), Some(1))
        .unwrap();
    long.write(&data).unwrap();
    assert!(long.write(b"x").is_err());
    drop(long);
    let mut odd = handed;
    odd.len = Some(5);
    assert!(to.catch_up().begin_take_in(scope, odd, Some(1)).is_err());
    assert!(to.head("b", "parts").unwrap().is_none());
    assert!(object_files(dirs[1].path()).is_empty());
}

#[test]
fn what_has_no_place_goes_and_the_rest_stays() {
    let (dirs, [store, _]) = two();
    for n in 0..30 {
        put(&store, "b", &format!("k{n}"), &bytes(n, 20_000)).unwrap();
    }
    upload(&store, "k3", 1, false);
    upload(&store, "k4", 1, true);
    store.adopt(2, None).unwrap();
    let has_place = |key: &str| key.len() == 3;
    for uploads in [false, true] {
        let page = store
            .catch_up()
            .without_place(request("b", uploads, None), has_place)
            .unwrap();
        assert!(page.end.is_none());
        let scopes: Vec<_> = page.items.into_iter().map(|(scope, _)| scope).collect();
        let late = store.catch_up().remove_without_place(scopes.clone(), 1);
        assert!(matches!(late, Err(Error::OtherEpoch)));
        store.catch_up().remove_without_place(scopes, 2).unwrap();
    }
    assert_eq!(store.list("b", "", "", 100).unwrap().len(), 20);
    assert!(
        store
            .uploads()
            .list("b", "", None, 10)
            .unwrap()
            .0
            .is_empty()
    );
    assert_eq!(object_files(dirs[0].path()).len(), 20);
}
