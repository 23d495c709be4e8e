//! The server behind Prism: it answers each request by the steps of the case, and keeps the bytes
//! that it got.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use prism_netns::NetNs;

use super::bytes::{known_bytes, unescape};
use super::script::ServerStep;
use super::wire::{chunks, position};

/// Its address at a backend.
pub const ADDRESS: &str = "127.0.0.1:9004";
/// The path of a long answer, by which a connection moves.
pub const LONG_PATH: &str = "/long";
const LONG_BYTES: usize = 100_000;
/// The longest silence within a request.
const PATIENCE: Duration = Duration::from_secs(5);

/// Its instructions, and the bytes that it got.
#[derive(Default)]
struct State {
    serves: VecDeque<Vec<ServerStep>>,
    got: Vec<Vec<u8>>,
    at_work: usize,
}

type Shared = Arc<Mutex<State>>;

fn locked(state: &Shared) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct Server {
    netns: NetNs,
    state: Shared,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(netns: NetNs) -> Self {
        let listener = netns.run(|| TcpListener::bind(ADDRESS).unwrap()).unwrap();
        let state = Shared::default();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let state = Arc::clone(&state);
            let stop = Arc::clone(&stop);
            move || {
                for stream in listener.incoming() {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let state = Arc::clone(&state);
                    std::thread::spawn(move || connection(stream.unwrap(), &state));
                }
            }
        });
        Self {
            netns,
            state,
            stop,
            thread: Some(thread),
        }
    }

    /// The steps for the next requests.
    pub fn begin(&self, serves: &[Vec<ServerStep>]) {
        let mut state = locked(&self.state);
        state.serves = serves.iter().cloned().collect();
        state.got.clear();
    }

    /// Waits until all requests with steps have come. On another connection a later request might
    /// come first.
    pub fn await_requests(&self) {
        self.wait(|state| state.serves.is_empty());
    }

    fn wait(&self, is_over: impl Fn(&State) -> bool) {
        let mut waits = 0..100;
        while !is_over(&locked(&self.state)) && waits.next().is_some() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The requests that it got since then, when it has done all of its steps.
    pub fn finish(&self) -> Vec<Vec<u8>> {
        self.wait(|state| state.serves.is_empty() && state.at_work == 0);
        let mut state = locked(&self.state);
        state.serves.clear();
        std::mem::take(&mut state.got)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.netns.run(|| TcpStream::connect(ADDRESS));
        let _ = self.thread.take().unwrap().join();
    }
}

/// One connection of Prism, which may only look whether the server is there.
fn connection(stream: TcpStream, state: &Shared) {
    stream.set_nodelay(true).unwrap();
    let mut exchange = Exchange {
        stream,
        unread: Vec::new(),
        request: Vec::new(),
        is_silent: false,
    };
    loop {
        exchange.stream.set_read_timeout(None).unwrap();
        if exchange.unread.is_empty() && !exchange.fill() {
            return;
        }
        exchange.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let steps = {
            let mut state = locked(state);
            let steps = state.serves.pop_front();
            state.at_work += usize::from(steps.is_some());
            steps
        };
        let Some(steps) = steps else {
            if !exchange.answer_by_path() {
                return;
            }
            continue;
        };
        let goes_on = exchange.serve(&steps);
        let mut state = locked(state);
        state.at_work -= 1;
        state.got.push(std::mem::take(&mut exchange.request));
        if !goes_on {
            return;
        }
    }
}

struct Exchange {
    stream: TcpStream,
    unread: Vec<u8>,
    /// The bytes of the request that the steps have read.
    request: Vec<u8>,
    /// Whether nothing came for [`PATIENCE`].
    is_silent: bool,
}

impl Exchange {
    fn fill(&mut self) -> bool {
        let mut piece = [0; 16_384];
        match self.stream.read(&mut piece) {
            Ok(n) => {
                self.unread.extend_from_slice(&piece[..n]);
                n > 0
            }
            Err(error) => {
                self.is_silent = error.kind() == ErrorKind::WouldBlock;
                false
            }
        }
    }

    /// Does the steps of one request. Whether the connection stays.
    fn serve(&mut self, steps: &[ServerStep]) -> bool {
        for step in steps {
            match step {
                ServerStep::ReadHead => {
                    self.read_until(|bytes| Some(position(bytes, b"\r\n\r\n")? + 4))
                }
                ServerStep::ReadBody => self.read_body(),
                ServerStep::Take(len) => {
                    self.read_until(|bytes| (bytes.len() >= *len).then_some(*len));
                }
                ServerStep::Send(text) => {
                    // Prism may have closed it.
                    let _ = self.stream.write_all(&bytes_of(text));
                }
                ServerStep::Pause(time) => std::thread::sleep(*time),
                ServerStep::Close => return false,
                ServerStep::Abort => {
                    let socket = socket2::SockRef::from(&self.stream);
                    socket.set_linger(Some(Duration::ZERO)).unwrap();
                    return false;
                }
            }
        }
        true
    }

    /// Moves bytes to the request, up to the length that `whole` finds, or to the end.
    fn read_until(&mut self, whole: impl Fn(&[u8]) -> Option<usize>) {
        loop {
            if let Some(len) = whole(&self.unread) {
                self.request.extend(self.unread.drain(..len));
                return;
            }
            if !self.fill() {
                self.request.append(&mut self.unread);
                let end: &[u8] = if self.is_silent {
                    b"silence"
                } else {
                    b"the end"
                };
                self.request
                    .extend_from_slice(&[b"\r\n(", end, b")"].concat());
                return;
            }
        }
    }

    fn read_body(&mut self) {
        let head = String::from_utf8_lossy(&self.request).to_ascii_lowercase();
        if head.contains("\r\ntransfer-encoding: chunked\r\n") {
            return self.read_until(chunks);
        }
        let length = head
            .split("\r\n")
            .find_map(|line| line.strip_prefix("content-length: "));
        let length = length.map_or(0, |length| length.parse().unwrap());
        self.read_until(|bytes| (bytes.len() >= length).then_some(length));
    }

    /// A request of no case.
    fn answer_by_path(&mut self) -> bool {
        self.read_until(|bytes| Some(position(bytes, b"\r\n\r\n")? + 4));
        self.read_body();
        let request = std::mem::take(&mut self.request);
        let is_long = request.starts_with(format!("GET {LONG_PATH} ").as_bytes());
        let answer = if is_long {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LONG_BYTES}\r\n\r\n");
            [head.into_bytes(), known_bytes(0, LONG_BYTES)].concat()
        } else {
            b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()
        };
        self.stream.write_all(&answer).is_ok()
    }
}

/// The bytes of a line, in which `$(bytes FROM LEN)` and `$(repeat COUNT TEXT)` stand for many.
fn bytes_of(text: &str) -> Vec<u8> {
    let Some((before, rest)) = text.split_once("$(") else {
        return unescape(text);
    };
    let (inner, after) = rest.split_once(')').unwrap();
    let mut words = inner.splitn(3, ' ');
    let [word, number, last] = [(); 3].map(|()| words.next().unwrap());
    let number: usize = number.parse().unwrap();
    let many = match word {
        "bytes" => known_bytes(number, last.parse().unwrap()),
        "repeat" => unescape(last).repeat(number),
        _ => panic!("{inner:?}"),
    };
    [unescape(before), many, bytes_of(after)].concat()
}
