//! Objects with known bytes that take no memory: pieces of one pool of pseudo-random bytes,
//! each from another start.

use std::sync::OnceLock;

/// It exceeds the largest object that has to be one slice (64 MiB), with room for different
/// starts. Longer objects wrap around.
const POOL_BYTES: usize = (65 << 20) + 7;
/// The range of objects' starts.
const STARTS: u64 = 1 << 20;

/// An object of a test.
#[derive(Clone, Debug)]
pub struct Object {
    pub key: String,
    pub len: u64,
    start: usize,
}

impl Object {
    /// `len` bytes that depend on the key.
    pub fn new(key: String, len: u64) -> Self {
        let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let start = usize::try_from((hash ^ (hash >> 29)) % STARTS).unwrap();
        Self { key, len, start }
    }

    /// Other bytes under the same key.
    pub fn other(&self, len: u64) -> Self {
        let start = (self.start + 12_345) % usize::try_from(STARTS).unwrap();
        Self {
            key: self.key.clone(),
            len,
            start,
        }
    }

    /// Bytes of the object from `offset` on: at least one unless that is its end, but perhaps
    /// not all.
    pub fn at(&self, offset: u64) -> &'static [u8] {
        let pool = pool();
        let begin = (self.start as u64 + offset) % pool.len() as u64;
        let piece = &pool[usize::try_from(begin).unwrap()..];
        let left = usize::try_from(self.len - offset).unwrap();
        &piece[..left.min(piece.len())]
    }

    /// All bytes of an object of at most 64 MiB.
    pub fn bytes(&self) -> &'static [u8] {
        let bytes = self.at(0);
        assert_eq!(bytes.len() as u64, self.len, "too large for one slice");
        bytes
    }

    /// Checks that `bytes` are the object's from `offset` on.
    pub fn check(&self, mut offset: u64, mut bytes: &[u8]) {
        assert!(
            offset + bytes.len() as u64 <= self.len,
            "{}: more than its {} bytes",
            self.key,
            self.len
        );
        while !bytes.is_empty() {
            let wanted = self.at(offset);
            let n = wanted.len().min(bytes.len());
            let (now, later) = bytes.split_at(n);
            if now != &wanted[..n] {
                let at = now.iter().zip(wanted).position(|(a, b)| a != b).unwrap();
                panic!(
                    "{}: wrong at byte {} of {}",
                    self.key,
                    offset + at as u64,
                    self.len
                );
            }
            (offset, bytes) = (offset + n as u64, later);
        }
    }
}

/// Objects `<label>-<n>` whose lengths are log-uniform between 1 and `max`; the
/// first two have those lengths exactly.
pub fn log_uniform(label: &str, count: usize, max: u64, rng: &mut fastrand::Rng) -> Vec<Object> {
    let len = |n: usize, rng: &mut fastrand::Rng| match n {
        0 => 1,
        1 => max,
        _ => {
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "positive and at most max"
            )]
            let len = (rng.f64() * (max as f64).ln()).exp() as u64;
            len.clamp(1, max)
        }
    };
    (0..count)
        .map(|n| Object::new(format!("{label}-{n}"), len(n, rng)))
        .collect()
}

fn pool() -> &'static [u8] {
    static POOL: OnceLock<Vec<u8>> = OnceLock::new();
    POOL.get_or_init(|| {
        let mut pool = vec![0; POOL_BYTES];
        fastrand::Rng::with_seed(0x5eed).fill(&mut pool);
        pool
    })
}
