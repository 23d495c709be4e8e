//! The demo's objects: real files of a directory, and a few large ones.

use std::path::Path;

use anyhow::{Context, Result};
use prism_cluster::{NodeName, Placement};

use super::{BACKENDS, BUCKET};

/// The number of real files, from the smallest found to the largest.
const REAL_FILES: usize = 12;
/// The most files that are looked at, for huge trees.
const MAX_FOUND: usize = 5_000;
/// The depth of directories that are entered.
const MAX_DEPTH: usize = 4;
/// The largest file; aws-cli sends 8 MiB or more in parts.
const MAX_BYTES: u64 = 7 << 20;
/// Sizes of the made files, one for each backend: 1, 3 and 7 MiB.
const MADE_BYTES: [usize; BACKENDS] = [1 << 20, 3 << 20, 7 << 20];
/// Names tried for a made file. Each fits with a chance of one in three.
const MAX_NAMES: u32 = 1_000;

/// A file that has become an object.
pub(super) struct DemoFile {
    /// Its key in the bucket.
    pub(super) key: String,
    pub(super) content: Vec<u8>,
}

/// Copies some files of `from` to `to`, each under its key, and makes some more.
///
/// The names of made files are chosen so that every backend has an object, which chance does
/// not ensure for so few. The captures then show which backend answers.
pub(super) fn gather(from: &Path, to: &Path) -> Result<Vec<DemoFile>> {
    let mut found = Vec::new();
    walk(from, "", MAX_DEPTH, &mut found);
    found.sort();
    found.dedup_by_key(|(size, _)| *size);
    let mut files = Vec::new();
    for key in spread(&found, REAL_FILES) {
        let path = from.join(key);
        let content =
            std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let key = key.clone();
        files.push(DemoFile { key, content });
    }
    let backends = (0..BACKENDS).map(|index| NodeName::new(format!("be{index}")));
    let placement = Placement::new(&backends.collect::<Result<_, _>>()?);
    for (bytes, backend) in MADE_BYTES.into_iter().zip(placement.nodes()) {
        let key = key_of(backend, bytes, &placement).context("no name for a file")?;
        let content = noise(bytes);
        files.push(DemoFile { key, content });
    }
    for file in &files {
        let path = to.join(&file.key);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(&path, &file.content)
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(files)
}

/// Sizes and relative paths of the files in `dir`. Hidden and unreadable files are left out,
/// and names that a URL would have to escape.
fn walk(root: &Path, below: &str, depth: usize, found: &mut Vec<(u64, String)>) {
    let Ok(entries) = std::fs::read_dir(root.join(below)) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| is_plain(name)) else {
            continue;
        };
        let path = if below.is_empty() {
            name.to_owned()
        } else {
            format!("{below}/{name}")
        };
        // The metadata is the entry's own: links are not followed.
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        if found.len() >= MAX_FOUND {
            return;
        }
        if metadata.is_dir() && depth > 0 && name != "target" {
            walk(root, &path, depth - 1, found);
        } else if metadata.is_file() && (1..=MAX_BYTES).contains(&metadata.len()) {
            found.push((metadata.len(), path));
        }
    }
}

fn is_plain(name: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    !name.starts_with('.') && name.bytes().all(is_plain)
}

/// At most `count` of `found` at even distances, with the first and the last.
fn spread(found: &[(u64, String)], count: usize) -> impl Iterator<Item = &String> {
    let last = found.len().saturating_sub(1);
    let picks = count.min(found.len());
    (0..picks)
        .filter_map(move |pick| found.get(last * pick / picks.saturating_sub(1).max(1)))
        .map(|(_, path)| path)
}

/// A key that places a file of `bytes` bytes on `backend`.
fn key_of(backend: &NodeName, bytes: usize, placement: &Placement) -> Option<String> {
    let mut keys = (0..MAX_NAMES).map(|n| format!("made/{}MiB-{n}.bin", bytes >> 20));
    keys.find(|key| placement.owner(BUCKET, key) == Some(backend))
}

/// Always the same `bytes` bytes, which do not compress.
fn noise(bytes: usize) -> Vec<u8> {
    let mut content = vec![0; bytes];
    fastrand::Rng::with_seed(bytes as u64).fill(&mut content);
    content
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing, reason = "test code")]
    use super::*;

    #[test]
    fn picks_are_spread_from_the_smallest_to_the_largest() {
        let found: Vec<_> = (0..100).map(|n| (n, n.to_string())).collect();
        let picks: Vec<_> = spread(&found, 4).cloned().collect();
        assert_eq!(picks, ["0", "33", "66", "99"]);
        assert_eq!(spread(&found[..2], 4).count(), 2);
        assert_eq!(spread(&[], 4).count(), 0);
    }

    #[test]
    fn every_backend_gets_an_object() {
        let (from, to) = (tempdir("from"), tempdir("to"));
        let files = gather(&from, &to).unwrap_or_default();
        let _ = std::fs::remove_dir_all(&to);
        let names = ["be0", "be1", "be2"].map(|name| NodeName::new(name).ok());
        let placement = Placement::new(&names.into_iter().flatten().collect());
        let owner = |key: &str| placement.owner(BUCKET, key).map(ToString::to_string);
        let owners: Vec<_> = files.iter().filter_map(|file| owner(&file.key)).collect();
        assert_eq!(owners, ["be0", "be1", "be2"]);
    }

    /// An unused path in the temporary directory.
    fn tempdir(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("prism-demo-{}-{name}", std::process::id()))
    }

    #[test]
    fn names_that_need_escaping_are_left_out() {
        for name in ["a b", ".hidden", "ä", "a?b", "100%"] {
            assert!(!is_plain(name), "{name}");
        }
        assert!(is_plain("Cargo-1_2.lock"));
    }
}
