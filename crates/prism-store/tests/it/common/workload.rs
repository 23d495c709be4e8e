//! A writer that is killed, and the check of the store that it leaves.
//!
//! The writer runs in a child process. It announces each operation, and then its answer, over a
//! socket whose contents outlive the process. Each of its threads owns some keys and makes one
//! operation at a time. So after a kill each key must have the state of the last answer, or that of
//! the operation under way. It reports marks, which the store must have lived.

use std::{
    collections::HashMap,
    env,
    io::{BufRead, BufReader, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use prism_store::{Config, Error, INLINE_MAX, ObjectMeta, Store, StoreMark, UploadName};

use super::{StoreExt, bytes, object_files, put, read, usage::check_usage};

pub(crate) const BUCKET: &str = "crash";
const THREADS: u64 = 4;
const KEYS_PER_THREAD: u64 = 6;
const START_LIMIT: Duration = Duration::from_secs(20);

const DIR: &str = "PRISM_TEST_CRASH_DIR";
const SOCKET: &str = "PRISM_TEST_CRASH_SOCKET";
const SEED: &str = "PRISM_TEST_CRASH_SEED";

/// The state of a key: none, or the bytes of a seed and a length, uploaded in this number of parts;
/// 0 for a plain PUT.
type State = Option<(u64, usize, usize)>;

/// Settings with small buffers, so that kills also hit the tree's flushes and compactions.
pub(crate) fn config() -> Config {
    Config {
        reserve_bytes: 0,
        write_buffer_bytes: 64 * 1024,
        ..Config::default()
    }
}

/// The states that the store must have, by the writers' messages.
#[derive(Default)]
pub(crate) struct Model {
    answered: HashMap<String, State>,
    /// The states of operations without an answer.
    under_way: HashMap<String, Vec<State>>,
    pub(crate) answers: u64,
    marks: Vec<StoreMark>,
}

impl Model {
    /// Compares the store with the expected states. The next writer starts from the found ones.
    pub(crate) fn judge(&mut self, dir: &Path, context: &str) {
        let store = Store::open(dir, config()).unwrap_or_else(|e| panic!("{context}: {e}"));
        assert_eq!(store.recovery().dangling, 0, "{context}");
        assert_eq!(store.recovery().foreign, 0, "{context}");
        for mark in self.marks.drain(..) {
            assert!(store.has_lived(&mark), "{context}: {mark:?}");
        }
        self.marks.push(store.mark());
        check_usage(&store, BUCKET, context);
        abort_uploads(&store);
        check_usage(&store, BUCKET, context);
        let mut files = 0;
        for thread in 0..THREADS {
            for key in keys(thread) {
                let found = self.judge_key(&store, &key, context);
                files += match found {
                    Some((_, len, 0)) => usize::from(len > INLINE_MAX),
                    Some((_, _, parts)) => parts,
                    None => 0,
                };
                self.answered.insert(key, found);
            }
        }
        self.under_way.clear();
        assert_eq!(
            object_files(dir).len(),
            files,
            "orphans after opening, {context}"
        );
    }

    fn judge_key(&self, store: &Store, key: &str, context: &str) -> State {
        let answered = self.answered.get(key).copied().flatten();
        let mut allowed = vec![answered];
        allowed.extend(self.under_way.get(key).into_iter().flatten());
        let object = match store.get(BUCKET, key) {
            Ok(object) => object.map(read),
            Err(Error::NoSuchBucket) => None,
            Err(e) => panic!("{context}: {key}: {e}"),
        };
        if object.is_some() {
            store.verify(BUCKET, key).unwrap();
        }
        let matching = allowed
            .iter()
            .find(|state| state.map(|(seed, len, _)| bytes(seed, len)) == object);
        *matching.unwrap_or_else(|| {
            panic!(
                "{context}: {key} holds {:?} bytes, allowed (seed, length): {allowed:?}",
                object.map(|data| data.len())
            )
        })
    }

    /// Takes a message of a writer. An answer is `binding` if it came before the strike; otherwise
    /// the operation may have failed after all.
    fn hear(&mut self, line: &str, binding: bool) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["put", key, seed, len, parts] => {
                let (seed, len) = (seed.parse().unwrap(), len.parse().unwrap());
                let state = Some((seed, len, parts.parse().unwrap()));
                self.under_way
                    .entry(key.to_owned())
                    .or_default()
                    .push(state);
            }
            ["delete", key] => {
                self.under_way.entry(key.to_owned()).or_default().push(None);
            }
            ["answered", key] if binding => {
                let state = self.under_way.remove(key).unwrap();
                self.answered.insert(key.to_owned(), *state.last().unwrap());
                self.answers += 1;
            }
            ["mark", mark] if binding => self.marks.push(serde_json::from_str(mark).unwrap()),
            ["answered" | "mark", _] => {}
            _ => panic!("the writer said {line:?}"),
        }
    }
}

/// The start of the time until the kill.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum From {
    /// The start of the process, so that kills hit the opening of the store.
    Start,
    /// The first write of the process, however long the opening took.
    FirstWrite,
}

/// Runs a writer (the test `entry` of this executable) on `dir`, strikes and kills it `after` its
/// start, and reads its messages.
///
/// `strike` may do worse than the kill. Only earlier answers bind the store, because the writer
/// outlives its disk a little, and the kernel may lie to it: an fsync that finds its transaction
/// gone returns success.
pub(crate) fn run_and_kill(
    model: &mut Model,
    entry: &str,
    dir: &Path,
    seed: u64,
    (from, after): (From, Duration),
    strike: Option<&dyn Fn()>,
) {
    let sockets = tempfile::tempdir().unwrap();
    let path = sockets.path().join("report");
    let listener = UnixListener::bind(&path).unwrap();
    let child = Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            entry,
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(DIR, dir)
        .env(SOCKET, &path)
        .env(SEED, seed.to_string())
        .stdout(Stdio::null())
        .stderr(if strike.is_some() {
            Stdio::null()
        } else {
            Stdio::inherit()
        })
        .spawn()
        .unwrap();
    let mut child = Reaped(child);
    let stream = accept(&listener, &mut child);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let listening = thread::spawn({
        let heard = Arc::clone(&heard);
        move || listen(stream, &heard)
    });
    if from == From::FirstWrite {
        wait(&mut child, || {
            (!heard.lock().unwrap().is_empty()).then_some(())
        });
    }
    thread::sleep(after);
    let mut binding = usize::MAX;
    if let Some(strike) = strike {
        binding = heard.lock().unwrap().len();
        strike();
    }
    drop(child);
    listening.join().unwrap();
    for (index, line) in heard.lock().unwrap().iter().enumerate() {
        model.hear(line, index < binding);
    }
}

/// Collects whole lines. An incomplete last line announced no operation.
fn listen(stream: UnixStream, heard: &Mutex<Vec<String>>) {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while stream.read_line(&mut line).is_ok_and(|len| len > 0) {
        if let Some(whole) = line.strip_suffix('\n') {
            heard.lock().unwrap().push(whole.to_owned());
        }
        line.clear();
    }
}

fn accept(listener: &UnixListener, child: &mut Reaped) -> UnixStream {
    listener.set_nonblocking(true).unwrap();
    let (stream, _) = wait(child, || listener.accept().ok());
    stream.set_nonblocking(false).unwrap();
    stream
}

/// The interval of polls.
fn wait<T>(child: &mut Reaped, poll: impl Fn() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(done) = poll() {
            return done;
        }
        let ended = child.0.try_wait().unwrap();
        assert!(ended.is_none(), "the writer ended by itself: {ended:?}");
        assert!(started.elapsed() < START_LIMIT, "the writer does not start");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A child that is killed and waited for on every path.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The body of the writer's test. It returns only if [`run_and_kill`] did not start it.
pub(crate) fn write_until_killed() {
    let (Ok(dir), Ok(socket), Ok(seed)) = (env::var(DIR), env::var(SOCKET), env::var(SEED)) else {
        return;
    };
    let seed: u64 = seed.parse().unwrap();
    // Connects before it opens the store, so that kills hit the opening too.
    let report = UnixStream::connect(socket).unwrap();
    let store = Store::open(dir, config()).unwrap();
    match store.create_bucket(BUCKET, 0) {
        Ok(()) | Err(Error::AlreadyExists) => {}
        Err(e) => panic!("{e}"),
    }
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, report) = (&store, &report);
            scope.spawn(move || write(store, report, thread, seed));
        }
    });
}

fn write(store: &Store, mut report: &UnixStream, thread: u64, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed * THREADS + thread);
    let keys = keys(thread);
    let mut say = |line: String| report.write_all(format!("{line}\n").as_bytes()).unwrap();
    loop {
        let key = &keys[rng.usize(..keys.len())];
        if rng.u8(..5) == 0 {
            say(format!("delete {key}"));
            store.delete(BUCKET, key).unwrap();
        } else {
            let len = match rng.u8(..4) {
                0 => rng.usize(..200),
                1 => rng.usize(..16 * 1024),
                2 => rng.usize(16_000..40_000),
                _ => rng.usize(40_000..400_000),
            };
            let data_seed = rng.u64(..);
            let parts = [0, 0, 1, 2, 5][rng.usize(..5)].min(len);
            say(format!("put {key} {data_seed} {len} {parts}"));
            let data = bytes(data_seed, len);
            match parts {
                0 => drop(put(store, BUCKET, key, &data).unwrap()),
                _ => put_in_parts(store, key, &data, parts),
            }
        }
        say(format!("answered {key}"));
        let mark = serde_json::to_string(&store.mark()).unwrap();
        say(format!("mark {mark}"));
    }
}

/// Uploads an object in parts. One part is sent twice, and one is left out.
fn put_in_parts(store: &Store, key: &str, data: &[u8], parts: usize) {
    let meta = ObjectMeta::default();
    let id = store.uploads().create(BUCKET, key, meta.clone()).unwrap();
    let bucket = BUCKET;
    let name = UploadName { bucket, key, id };
    let send = |number: u16, data: &[u8]| {
        let mut writer = store.uploads().begin_part(name, number, None).unwrap();
        writer.write(data).unwrap();
        writer.commit(ObjectMeta::default()).unwrap();
    };
    send(1, b"will be sent again");
    send(9, b"left out");
    let mut rest = data;
    for number in 1..=parts {
        let (part, later) = rest.split_at(rest.len() / (parts + 1 - number));
        send(number as u16, part);
        rest = later;
    }
    let (seen, _) = store.uploads().parts(name, 0, parts).unwrap();
    let seen: Vec<_> = seen
        .iter()
        .map(|part| (part.number, part.version))
        .collect();
    store
        .uploads()
        .complete(name, &seen, meta, None, None)
        .unwrap();
}

/// The files of unfinished uploads, which belong there.
fn abort_uploads(store: &Store) {
    let Ok((uploads, _)) = store.uploads().list(BUCKET, "", None, usize::MAX) else {
        return;
    };
    for upload in uploads {
        let (bucket, key, id) = (BUCKET, upload.key.as_str(), upload.id);
        store
            .uploads()
            .abort(UploadName { bucket, key, id })
            .unwrap();
    }
}

fn keys(thread: u64) -> Vec<String> {
    (0..KEYS_PER_THREAD)
        .map(|k| format!("{thread}/{k}"))
        .collect()
}
