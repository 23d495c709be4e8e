//! Clients that record their answers, and the judge of the final contents.
//!
//! Each writer has its own keys and does one thing at a time. A write without an answer may
//! have happened, or may happen later. No client touches its key again until all keys are read
//! back.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::PATIENCE;
use crate::support::objects::Object;
use crate::support::plain::{Connection, Target};
use crate::support::{BUCKET, eventually};

const WRITERS: usize = 4;
const KEYS: usize = 10;
/// The least length of a part that is not the last.
const PART_BYTES: u64 = 5 << 20;

/// The content of a key.
type State = Option<Object>;

/// The possible contents of each key, and counts.
#[derive(Default)]
pub struct Model {
    allowed: BTreeMap<String, Vec<State>>,
    pub answered: u64,
    pub unanswered: u64,
}

/// Writers at work.
pub struct Writers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Model>>,
}

/// Begins an upload and sends its parts. Returns the body that completes it.
pub fn upload(target: &Target, path: &str, object: &Object) -> io::Result<(String, String)> {
    target.run(|| begin_upload(&mut Connection::open(target)?, path, object))
}

/// Completes the upload. Returns the status.
pub fn complete(target: &Target, (path, parts): &(String, String)) -> io::Result<u16> {
    let complete = || Connection::open(target)?.call("POST", path, parts.as_bytes());
    Ok(target.run(complete)?.0)
}

impl Model {
    /// Reads all keys. The values found are the expected ones from then on.
    pub fn judge(&mut self, target: &Target, context: &str) {
        for (key, allowed) in &mut self.allowed {
            let mut found = (0, Vec::new());
            eventually("every key is answered", PATIENCE, || {
                found = target.get(key).unwrap_or_default();
                [200, 404].contains(&found.0)
            });
            let holds = |state: &&State| match state {
                None => found.0 == 404,
                Some(object) => found.0 == 200 && found.1 == object.bytes(),
            };
            let Some(state) = allowed.iter().find(holds).cloned() else {
                let lengths: Vec<_> = allowed.iter().map(|s| s.as_ref().map(|o| o.len)).collect();
                panic!(
                    "{context}: {key} is {} with {} bytes; allowed are the lengths {lengths:?}",
                    found.0,
                    found.1.len(),
                );
            };
            *allowed = vec![state];
        }
    }

    fn take(&mut self, other: Self) {
        self.allowed.extend(other.allowed);
        self.answered += other.answered;
        self.unanswered += other.unanswered;
    }
}

impl Writers {
    pub fn start(target: &Target, mut model: Model, seed: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..WRITERS).map(|n| {
            let mut own = Model::default();
            for k in 0..KEYS {
                let key = format!("w{n}/k{k}");
                let allowed = model.allowed.remove(&key).unwrap_or(vec![None]);
                own.allowed.insert(key, allowed);
            }
            if n == 0 {
                (own.answered, own.unanswered) = (model.answered, model.unanswered);
            }
            let (target, stop) = (target.clone(), stop.clone());
            std::thread::spawn(move || {
                let rng = fastrand::Rng::with_seed(seed ^ n as u64);
                target.run(|| write(&target, own, rng, &stop))
            })
        });
        Self {
            threads: threads.collect(),
            stop,
        }
    }

    pub fn stop(self) -> Model {
        self.stop.store(true, Ordering::Relaxed);
        let mut model = Model::default();
        for thread in self.threads {
            model.take(thread.join().unwrap());
        }
        model
    }
}

fn write(target: &Target, mut model: Model, mut rng: fastrand::Rng, stop: &AtomicBool) -> Model {
    let mut connection = None;
    while !stop.load(Ordering::Relaxed) {
        // Keys with one possible content.
        let keys = model
            .allowed
            .iter()
            .filter(|(_, allowed)| allowed.len() == 1);
        let Some((key, _)) = rng.choice(keys.collect::<Vec<_>>()) else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        let key = key.clone();
        let state = (rng.u8(..5) > 0).then(|| {
            let len = match rng.u8(..5) {
                0 => rng.u64(..200),
                1 => rng.u64(..16_384),
                2 => rng.u64(16_000..40_000),
                3 => rng.u64(40_000..400_000),
                _ => rng.u64(1_000_000..3_000_000),
            };
            Object::new(format!("{key}#{}", rng.u64(..)), len)
        });
        let done = attempt(target, &mut connection, &key, state, &mut rng);
        let allowed = model.allowed.get_mut(&key).unwrap();
        match done {
            Done::Answered(state) => {
                *allowed = vec![state];
                model.answered += 1;
            }
            Done::InDoubt(state) => {
                allowed.push(state);
                model.unanswered += 1;
            }
            Done::NotBegun => model.unanswered += 1,
        }
        if connection.is_none() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    model
}

enum Done {
    Answered(State),
    InDoubt(State),
    NotBegun,
}

/// One write. Drops the connection unless it is good for another request.
fn attempt(
    target: &Target,
    connection: &mut Option<Connection>,
    key: &str,
    state: State,
    rng: &mut fastrand::Rng,
) -> Done {
    let mut open = match connection
        .take()
        .map_or_else(|| Connection::open(target), Ok)
    {
        Ok(open) => open,
        Err(_) => return Done::NotBegun,
    };
    let path = format!("/{BUCKET}/{key}");
    let (state, answer) = match state {
        None => (None, open.call("DELETE", &path, b"")),
        Some(object) if rng.u8(..5) > 0 => {
            let answer = open.call("PUT", &path, object.bytes());
            (Some(object), answer)
        }
        Some(object) => {
            let object = match rng.u8(..3) {
                0 => Object::new(object.key, PART_BYTES + 1 + object.len),
                _ => object,
            };
            match begin_upload(&mut open, &path, &object) {
                Ok(completing) => {
                    let answer = open.call("POST", &completing.0, completing.1.as_bytes());
                    (Some(object), answer)
                }
                Err(_) => return Done::NotBegun,
            }
        }
    };
    match answer {
        Ok((200 | 204, body)) if !body.windows(7).any(|word| word == b"<Error>") => {
            *connection = Some(open);
            Done::Answered(state)
        }
        _ => Done::InDoubt(state),
    }
}

/// Begins an upload and sends its parts. Returns the body that completes it.
fn begin_upload(
    open: &mut Connection,
    path: &str,
    object: &Object,
) -> io::Result<(String, String)> {
    let (status, body) = open.call("POST", &format!("{path}?uploads="), b"")?;
    let body = String::from_utf8_lossy(&body).into_owned();
    let id = body
        .split("<UploadId>")
        .nth(1)
        .and_then(|rest| rest.split('<').next());
    let (200, Some(id)) = (status, id) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let bytes = object.bytes();
    let at = bytes.len().min(PART_BYTES as usize);
    let (first, second) = bytes.split_at(at);
    let mut list = String::from("<CompleteMultipartUpload>");
    for (number, part) in [(1, first), (2, second)] {
        if number == 2 && part.is_empty() {
            break;
        }
        let target = format!("{path}?partNumber={number}&uploadId={id}");
        let (status, _) = open.call("PUT", &target, part)?;
        if status != 200 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let etag = open.etag.clone();
        list += &format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>");
    }
    list += "</CompleteMultipartUpload>";
    Ok((format!("{path}?uploadId={id}"), list))
}
