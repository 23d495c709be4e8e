//! A client's own keys and buckets, with the possible values of each.
//!
//! A client does one thing at a time, and nobody else writes to its keys. A write without an
//! answer may have happened, or may happen later. Until a read shows it, both values are
//! possible, and the client writes nothing else there.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::refill::SETTLED;
use crate::support::plain::Target;
use crate::support::{BUCKET, eventually};

/// Reads of each thing at the end; they reach different nodes.
const READS: usize = 6;

/// The version of a value, or nothing.
pub type Value = Option<u64>;

/// All possible values of one thing: one, or two while a write is in doubt.
#[derive(Clone, Debug)]
pub struct Possible(Vec<Value>);

impl Possible {
    pub fn nothing() -> Self {
        Self(vec![None])
    }

    pub fn is_sure(&self) -> bool {
        self.0.len() == 1
    }

    pub fn is_surely_nothing(&self) -> bool {
        self.0 == [None]
    }

    pub fn was_written(&mut self, value: Value, answered: bool) {
        match answered {
            true => self.0 = vec![value],
            false => self.0.push(value),
        }
    }

    /// Fails unless `value` is possible.
    pub fn was_seen(&self, value: Value, context: &str) {
        assert!(
            self.0.contains(&value),
            "{context} is {value:?}, and only {:?} could be",
            self.0
        );
    }

    /// The same. A read of a value in doubt decides it.
    pub fn was_read(&mut self, value: Value, context: &str) {
        self.was_seen(value, context);
        if self.0.last() == Some(&value) {
            self.0 = vec![value];
        }
    }
}

/// One bucket of a client: objects and the document of CORS.
#[derive(Clone)]
pub struct Bucket {
    pub name: String,
    pub exists: bool,
    pub cors: Possible,
    pub keys: BTreeMap<String, Possible>,
}

impl Bucket {
    pub fn new(name: String, exists: bool) -> Self {
        let (cors, keys) = (Possible::nothing(), BTreeMap::new());
        Self {
            name,
            exists,
            cors,
            keys,
        }
    }

    pub fn is_surely_empty(&self) -> bool {
        self.keys.values().all(Possible::is_surely_nothing)
    }

    pub fn is_sure(&self) -> bool {
        self.cors.is_sure() && self.keys.values().all(Possible::is_sure)
    }

    /// Reads an object. Returns false without an answer.
    pub fn read(&mut self, call: impl Fn(&str) -> Option<(u16, Vec<u8>)>, key: &str) -> bool {
        let Some((status, body)) = call(&format!("/{}/{key}", self.name)) else {
            return false;
        };
        let context = format!("{}/{key}", self.name);
        let text = String::from_utf8_lossy(&body);
        let found = match status {
            200 => Some(version_of(&context, &text)),
            404 => {
                assert!(text.contains("NoSuchKey"), "{context}: {text}");
                None
            }
            _ => return false,
        };
        let possible = self.keys.get_mut(key).unwrap();
        possible.was_read(found, &context);
        true
    }

    /// Reads the document of CORS. Returns false without an answer.
    pub fn read_cors(&mut self, call: impl Fn(&str) -> Option<(u16, Vec<u8>)>) -> bool {
        let Some((status, body)) = call(&format!("/{}?cors", self.name)) else {
            return false;
        };
        let context = format!("the document of {}", self.name);
        let text = String::from_utf8_lossy(&body);
        let found = match status {
            200 => {
                let seconds = text.split("<MaxAgeSeconds>").nth(1).unwrap();
                seconds.split('<').next().unwrap().parse().ok()
            }
            404 => {
                assert!(
                    text.contains("NoSuchCORSConfiguration"),
                    "{context}: {text}"
                );
                None
            }
            _ => return false,
        };
        // While etcd is out of reach, backends may differ about a change that was not answered.
        self.cors.was_seen(found, &context);
        true
    }
}

/// The whole knowledge of one client.
pub struct Known {
    /// The bucket that all clients share; the keys are the client's own.
    pub shared: Bucket,
    /// The bucket that it makes and deletes.
    pub own: Bucket,
    /// Buckets that were in doubt once; no client changes them again.
    pub resting: Vec<Bucket>,
    pub answered: u64,
    pub unanswered: u64,
    /// Buckets made and deleted.
    pub lives: u64,
}

impl Known {
    pub fn new(client: usize) -> Self {
        Self {
            shared: Bucket::new(BUCKET.into(), true),
            own: Bucket::new(format!("own-{client}-0"), false),
            resting: Vec::new(),
            answered: 0,
            unanswered: 0,
            lives: 0,
        }
    }

    /// The names of all buckets that exist.
    pub fn buckets(&self) -> impl Iterator<Item = &str> {
        let all = [&self.shared, &self.own].into_iter().chain(&self.resting);
        all.filter(|bucket| bucket.exists)
            .map(|bucket| bucket.name.as_str())
    }

    /// Reads everything, several times each.
    pub fn check_all(&mut self, target: &Target) {
        let own = [&mut self.shared, &mut self.own];
        for bucket in own.into_iter().chain(&mut self.resting) {
            for _ in 0..READS {
                check(bucket, target);
            }
        }
    }
}

fn check(bucket: &mut Bucket, target: &Target) {
    let get = |path: &str| target.call("GET", path, b"").ok();
    let surely = |what: &str, done: &mut dyn FnMut() -> bool| {
        eventually(&format!("{what} is answered"), SETTLED, || {
            let done = done();
            if !done {
                std::thread::sleep(Duration::from_millis(50));
            }
            done
        });
    };
    let name = bucket.name.clone();
    surely(&name, &mut || {
        let head = target.call("HEAD", &format!("/{name}"), b"");
        let Ok((status @ (200 | 404), _)) = head else {
            return false;
        };
        let expected = if bucket.exists { 200 } else { 404 };
        assert_eq!(status, expected, "the bucket {name}");
        true
    });
    if !bucket.exists {
        return;
    }
    surely(&name, &mut || bucket.read_cors(get));
    for key in bucket.keys.keys().cloned().collect::<Vec<_>>() {
        surely(&key, &mut || bucket.read(get, &key));
    }
}

/// The bytes of a version: of three lengths.
pub fn data_of(path: &str, version: u64) -> Vec<u8> {
    let filling = [10, 30_000, 200_000][usize::try_from(version % 3).unwrap()];
    format!("{path} {version} {}", "x".repeat(filling)).into_bytes()
}

fn version_of(path: &str, text: &str) -> u64 {
    let version = text.split(' ').nth(1).and_then(|v| v.parse().ok());
    let version = version.unwrap_or_else(|| panic!("{path} holds other bytes"));
    assert!(
        text.as_bytes() == data_of(path, version),
        "{path} is not what was written"
    );
    version
}
