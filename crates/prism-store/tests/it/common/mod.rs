//! What the tests of this crate share.

pub(crate) mod workload;

use std::{
    borrow::Borrow,
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use prism_store::{Body, Bucket, Committed, Error, Object, ObjectMeta, Phase, Stamp, Store};

/// A bucket's record for several stores: the same life, as of a time.
pub(crate) fn agreed(time_us: u64, versions: Option<bool>) -> Bucket {
    Bucket {
        stamp: Stamp {
            epoch: 1,
            time_us,
            origin: 1,
        },
        life: Stamp::NONE,
        phase: Phase::Live,
        created_ms: 1,
        versions,
        documents: std::collections::BTreeMap::new(),
    }
}

/// `len` bytes that depend on `seed` only.
pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut data);
    data
}

/// Metadata whose entity tag is a digest of `data`.
pub(crate) fn meta(data: &[u8]) -> ObjectMeta {
    let digest = data.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    ObjectMeta {
        etag: format!("{digest:016x}"),
        created_ms: data.len() as u64,
        headers: vec![("content-type".into(), "application/octet-stream".into())],
        user: vec![("digest".into(), digest.to_string())],
    }
}

pub(crate) fn put(store: &Store, bucket: &str, key: &str, data: &[u8]) -> Result<Committed, Error> {
    let mut writer = store.begin_put(bucket, key, Some(data.len() as u64))?;
    for chunk in data.chunks(50_000) {
        writer.write(chunk)?;
    }
    writer.commit(meta(data))
}

pub(crate) fn read(object: impl Borrow<Object>) -> Vec<u8> {
    read_body(&object.borrow().body)
}

pub(crate) fn read_body(body: &Body) -> Vec<u8> {
    match body {
        Body::Inline(bytes) => bytes.clone(),
        Body::Parts(parts) => {
            let mut data = Vec::new();
            for segment in parts.segments(0, parts.len()) {
                let mut part = vec![0; usize::try_from(segment.len).unwrap()];
                let file = parts.open(segment.index).unwrap();
                file.check_all(segment.offset, segment.offset + segment.len)
                    .unwrap();
                file.file()
                    .read_exact_at(&mut part, segment.offset)
                    .unwrap();
                data.extend_from_slice(&part);
            }
            data
        }
        Body::File(file) => {
            file.check_all(0, file.len()).unwrap();
            let mut data = vec![0; usize::try_from(file.len()).unwrap()];
            file.file().read_exact_at(&mut data, 0).unwrap();
            data
        }
    }
}

/// Every file under `files`.
pub(crate) fn object_files(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir.join("files"))
        .unwrap()
        .flat_map(|shard| fs::read_dir(shard.unwrap().path()).unwrap())
        .map(|entry| entry.unwrap().path())
        .collect()
}

/// A directory with all that is in it.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}
