//! Objects of one size, the same number on each backend.

use std::ops::Deref;
use std::str::FromStr;

use anyhow::{Result, ensure};
use prism_cluster::{NodeName, Placement};

use crate::blobs;

/// The bucket that everybody may read.
pub(crate) const BUCKET: &str = "bench";
/// Its policy.
pub(crate) const POLICY: &str = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow",
"Principal":"*","Action":["s3:GetObject"],"Resource":["arn:aws:s3:::bench/*"]}]}"#;
/// Distance of the beginnings of two objects in the pool, in bytes.
const STEP: usize = 64;
/// Blobs that are tried for each that is wanted.
const BLOBS_TRIED: usize = 16;

/// Objects of one size. Each key begins with the name of its backend, so proxies need no
/// table.
pub(crate) struct Objects {
    pub(crate) bytes: u64,
    /// The beginning of their targets.
    pub(crate) prefix: &'static str,
    /// Keys, by backend.
    pub(crate) keys: Vec<Vec<String>>,
    /// The beginnings of all objects in the pool.
    offsets: Vec<usize>,
    /// Random bytes. Each object is a piece with its own beginning, so all differ.
    pool: Vec<u8>,
}

/// One object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Object<'o> {
    pub(crate) key: &'o str,
    prefix: &'o str,
    /// The number of its backend.
    pub(crate) backend: usize,
    /// Its beginning in the pool.
    pub(crate) offset: usize,
    pub(crate) body: &'o [u8],
}

impl Object<'_> {
    /// The target of requests for it.
    pub(crate) fn target(&self) -> String {
        format!("/{}/{}", self.prefix, self.key)
    }
}

impl Objects {
    /// `each` objects for each of `backends` backends, with keys that Prism's placement gives
    /// to it.
    pub(crate) fn new(backends: usize, each: usize, bytes: u64) -> Result<Self> {
        let (names, placement) = placed(backends)?;
        let is_of = |name: &str, key: &str| {
            let owner = placement.owner(BUCKET, key);
            owner.is_some_and(|owner| owner.as_str() == name)
        };
        let keys = names.iter().map(|name| {
            let all = (0..).map(|n: u32| format!("{name}-{bytes}-{n}"));
            all.filter(|key| is_of(name, key)).take(each).collect()
        });
        let keys = keys.collect();
        Ok(Self {
            bytes,
            prefix: BUCKET,
            keys,
            offsets: (0..backends * each).map(|n| n * STEP).collect(),
            pool: pool(bytes, backends * each)?,
        })
    }

    /// The same of blobs of a registry, which are called by their SHA-256.
    pub(crate) fn blobs(backends: usize, each: usize, bytes: u64) -> Result<Self> {
        let (names, placement) = placed(backends)?;
        let mut all = Self {
            prefix: blobs::BLOBS,
            offsets: Vec::new(),
            pool: pool(bytes, backends * each * BLOBS_TRIED)?,
            keys: vec![Vec::new(); backends],
            bytes,
        };
        let mut offsets = vec![Vec::new(); backends];
        let mut next = 0;
        while all.keys.iter().any(|keys| keys.len() < each) {
            let body = all.body_at(next);
            ensure!(
                !body.is_empty(),
                "too few blobs have a place at some backend"
            );
            let name = blobs::name(body);
            let owner = placement.owner(BUCKET, &blobs::path_of_data(&name));
            let owner =
                owner.and_then(|owner| names.iter().position(|name| name == owner.as_str()));
            let room =
                owner.and_then(|owner| Some((all.keys.get_mut(owner)?, offsets.get_mut(owner)?)));
            if let Some((keys, offsets)) = room.filter(|(keys, _)| keys.len() < each) {
                keys.push(name);
                offsets.push(next);
            }
            next += STEP;
        }
        all.offsets = offsets.concat();
        Ok(all)
    }

    fn body_at(&self, offset: usize) -> &[u8] {
        let end = offset + usize::try_from(self.bytes).unwrap_or_default();
        self.pool.get(offset..end).unwrap_or_default()
    }

    /// The bytes that objects are cut from.
    pub(crate) fn pool(&self) -> &[u8] {
        &self.pool
    }

    /// All objects, backend by backend.
    pub(crate) fn all(&self) -> impl Iterator<Item = Object<'_>> {
        let keys = self.keys.iter().enumerate();
        let keys = keys.flat_map(|(backend, keys)| keys.iter().map(move |key| (backend, key)));
        let placed = keys.zip(&self.offsets);
        placed.map(|((backend, key), offset)| Object {
            key,
            prefix: self.prefix,
            backend,
            offset: *offset,
            body: self.body_at(*offset),
        })
    }

    /// The objects of one backend.
    pub(crate) fn of(&self, backend: usize) -> impl Iterator<Item = Object<'_>> {
        self.all().filter(move |object| object.backend == backend)
    }
}

/// The names of backends, and Prism's placement among them.
fn placed(backends: usize) -> Result<(Vec<String>, Placement)> {
    let names: Vec<String> = (0..backends).map(|n| format!("be{n}")).collect();
    let nodes = names
        .iter()
        .map(|name| NodeName::new(name.as_str()))
        .collect::<Result<_, _>>()?;
    Ok((names, Placement::new(&nodes)))
}

/// Random bytes for so many objects.
fn pool(bytes: u64, objects: usize) -> Result<Vec<u8>> {
    let mut pool = vec![0; usize::try_from(bytes)? + objects * STEP];
    fastrand::Rng::with_seed(bytes).fill(&mut pool);
    Ok(pool)
}

/// Sizes of objects, as in `64,4K,1M`.
#[derive(Debug, Clone)]
pub(crate) struct Sizes(pub(crate) Vec<u64>);

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',')
            .map(parse_size)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

impl Deref for Sizes {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.0
    }
}

/// Reads `4096`, `4K` or `4M`: at most 64M.
fn parse_size(text: &str) -> Result<u64, String> {
    let fault = || format!("{text:?} is not a size as in 4096, 4K or 4M");
    let (number, shift) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (text.get(..at), 10),
        Some((at, 'm' | 'M')) => (text.get(..at), 20),
        _ => (Some(text), 0),
    };
    let number: u64 = number.unwrap_or_default().parse().map_err(|_| fault())?;
    let bytes = number.checked_mul(1 << shift).ok_or_else(fault)?;
    if (1..=64 << 20).contains(&bytes) {
        Ok(bytes)
    } else {
        Err(format!("{text:?} is not within 1 and 64M"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_backend_has_as_many_objects_and_all_differ() {
        let objects = Objects::new(5, 8, 1000).unwrap();
        assert_eq!(objects.keys.len(), 5);
        for n in 0..5 {
            assert_eq!(objects.of(n).count(), 8);
            let mut keys = objects.of(n).map(|object| object.key);
            assert!(keys.all(|key| key.starts_with(&format!("be{n}-"))));
        }
        let mut bodies: Vec<_> = objects.all().map(|object| object.body).collect();
        assert!(bodies.iter().all(|body| body.len() == 1000));
        bodies.sort_unstable();
        bodies.dedup();
        assert_eq!(bodies.len(), 40);
    }

    #[test]
    fn sizes_are_read_with_their_units() {
        assert_eq!(parse_size("64"), Ok(64));
        assert_eq!(parse_size("16k"), Ok(16 << 10));
        assert_eq!(parse_size("64M"), Ok(64 << 20));
        for wrong in ["", "K", "0", "65M", "1G", "-1", "99999999999999999999"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
