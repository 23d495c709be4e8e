//! Clients that write down what they were answered, and the judge of what is
//! there afterwards.
//!
//! Each writer has keys of its own and does one thing at a time. A write that was
//! not answered may have happened or not, and may even happen a moment later; so
//! its key rests until everything is read back.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use prism_http::Headers;
use prism_s3::Signer;
use prism_s3::sign::Body;
use prism_sys::netns::NetNs;
use time::OffsetDateTime;

use super::PATIENCE;
use crate::support::objects::Object;
use crate::support::{BUCKET, Cluster, eventually};

const WRITERS: usize = 4;
const KEYS: usize = 10;
/// No answer is waited for longer.
const IO_TIMEOUT: Duration = Duration::from_secs(3);
/// Least length of a part that another follows.
const PART_BYTES: u64 = 5 << 20;

/// What a key holds.
type State = Option<Object>;

/// What each key may hold, and what was counted.
#[derive(Default)]
pub struct Model {
    allowed: BTreeMap<String, Vec<State>>,
    pub answered: u64,
    pub unanswered: u64,
}

/// Where to write.
#[derive(Clone)]
pub struct Target {
    service: SocketAddr,
    signer: Arc<Signer>,
    namespace: String,
}

/// Writers at work.
pub struct Writers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Model>>,
}

impl Target {
    pub fn of(cluster: &Cluster) -> Self {
        let namespace = cluster.lab.namespace("client").unwrap();
        let credential = cluster.lab.credential();
        let signer = Signer::new(&credential.access_key, &credential.secret_key, "us-east-1");
        Self {
            service: cluster.service,
            signer: Arc::new(signer),
            namespace: namespace.file_name().unwrap().to_str().unwrap().to_owned(),
        }
    }

    fn netns(&self) -> NetNs {
        NetNs::named(&self.namespace).unwrap()
    }

    /// GET over a connection of its own.
    pub fn get(&self, key: &str) -> io::Result<(u16, Vec<u8>)> {
        let get = || Connection::open(self)?.call("GET", &format!("/{key}"), b"");
        self.netns().run(get).unwrap()
    }
}

impl Target {
    /// Begins an upload and sends its parts; gives what completes it.
    pub fn upload(&self, path: &str, object: &Object) -> io::Result<(String, String)> {
        let begin = || upload(&mut Connection::open(self)?, path, object);
        self.netns().run(begin).unwrap()
    }

    /// Completes it; gives the status.
    pub fn complete(&self, (path, parts): &(String, String)) -> io::Result<u16> {
        let complete = || Connection::open(self)?.call("POST", path, parts.as_bytes());
        Ok(self.netns().run(complete).unwrap()?.0)
    }
}

impl Model {
    /// Reads everything back, and takes what is there as what must be there next.
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
                let netns = target.netns();
                let rng = fastrand::Rng::with_seed(seed ^ n as u64);
                netns.run(move || write(&target, own, rng, &stop)).unwrap()
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
        // Those about which nothing is in doubt.
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

/// One write. The connection is gone afterwards unless it is good for another.
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
    let path = format!("/{key}");
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
            match upload(&mut open, &path, &object) {
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

/// Begins an upload and sends its parts; gives what completes it.
fn upload(open: &mut Connection, path: &str, object: &Object) -> io::Result<(String, String)> {
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

/// A connection whose end is no surprise.
struct Connection {
    stream: TcpStream,
    service: SocketAddr,
    signer: Arc<Signer>,
    /// Of the last answer.
    etag: String,
}

impl Connection {
    fn open(target: &Target) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&target.service, IO_TIMEOUT)?;
        stream.set_read_timeout(Some(IO_TIMEOUT))?;
        stream.set_write_timeout(Some(IO_TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            service: target.service,
            signer: target.signer.clone(),
            etag: String::new(),
        })
    }

    /// One request and its answer: status and body.
    fn call(&mut self, method: &str, path: &str, body: &[u8]) -> io::Result<(u16, Vec<u8>)> {
        let target = format!("/{BUCKET}{path}");
        let mut headers = Headers::new();
        headers.append("Host", self.service.to_string()).unwrap();
        headers
            .append("Content-Length", body.len().to_string())
            .unwrap();
        let (now, signed) = (OffsetDateTime::now_utc(), Body::Bytes(body));
        let signature = self.signer.sign(method, &target, &mut headers, signed, now);
        signature.map_err(io::Error::other)?;
        let mut bytes = format!("{method} {target} HTTP/1.1\r\n").into_bytes();
        headers.write_to(&mut bytes);
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(body);
        self.stream.write_all(&bytes)?;
        self.answer()
    }

    fn answer(&mut self) -> io::Result<(u16, Vec<u8>)> {
        let (mut bytes, mut piece) = (Vec::new(), vec![0; 64 << 10]);
        let mut more = |bytes: &mut Vec<u8>| match self.stream.read(&mut piece)? {
            0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            n => {
                bytes.extend_from_slice(&piece[..n]);
                Ok(())
            }
        };
        let end = loop {
            match bytes.windows(4).position(|end| end == b"\r\n\r\n") {
                Some(at) => break at + 4,
                None => more(&mut bytes)?,
            }
        };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let field = |name: &str| {
            let mut lines = head.lines().filter_map(|line| line.split_once(": "));
            let found = lines.find(|(field, _)| field.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.to_owned())
        };
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        let status = status.ok_or(io::ErrorKind::InvalidData)?;
        self.etag = field("etag").unwrap_or_default();
        let len = field("content-length").and_then(|len| len.parse::<usize>().ok());
        let Some(len) = len.or((status == 204).then_some(0)) else {
            // An answer that is kept alive by chunks (a completed upload).
            while !bytes.ends_with(b"0\r\n\r\n") {
                more(&mut bytes)?;
            }
            return Ok((status, bytes.split_off(end)));
        };
        while bytes.len() < end + len {
            more(&mut bytes)?;
        }
        Ok((status, bytes.split_off(end)))
    }
}
