//! A node with one upstream, a client in memory or on the loopback interface, and a server that
//! does what the test says.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use prism_config::{Config, Node, Role, Upstream};
use prism_handoff::{Companion, Endpoint, EndpointConfig, Incoming, Moved};
use prism_http::{Limits, RequestHead, ResponseHead};
use prism_proto::facts::Facts;
use prism_service::{
    Exchange, Http1, Http1Parts, Input, Io, NodeRequests, Remote, Request, Service,
};
use prism_upstream::{Error, Meaning, Shared, Upstreams};
use tokio::net::TcpSocket;
use tokio::task::LocalSet;

/// The buffers of a client's kernel.
const CLIENT_BUFFER_BYTES: u32 = 128 << 10;

/// The beginning of a client's next request.
const NEXT: &[u8] = b"GET /next";

/// A client that has sent `sent`, of which reads get random pieces.
pub struct Client {
    sent: Vec<u8>,
    seen: usize,
    /// Whether it ends behind that.
    ends: bool,
    rng: fastrand::Rng,
    /// `None` for the stream of a node that relays.
    companion: Option<Companion>,
    pub got: Vec<u8>,
    /// The number of writes, and of waits for either side.
    pub writes: usize,
    pub waits: usize,
}

impl Input for Client {
    fn buffered(&self) -> &[u8] {
        &self.sent[..self.seen]
    }

    fn consume(&mut self, n: usize) {
        self.sent.drain(..n);
        self.seen -= n;
    }

    async fn fill(&mut self) -> io::Result<usize> {
        let left = self.sent.len() - self.seen;
        if left == 0 && self.ends {
            return Ok(0);
        }
        if left == 0 {
            std::future::pending::<()>().await;
        }
        let more = self.rng.usize(1..=left);
        self.seen += more;
        Ok(more)
    }
}

impl Io for Client {
    fn companion(&mut self) -> Option<&mut Companion> {
        self.companion.as_mut()
    }

    async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writes += 1;
        self.got.extend_from_slice(bytes);
        Ok(())
    }

    async fn write_more(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes).await
    }

    async fn send_file(&mut self, _: &File, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    async fn write_or_fill(&mut self, bytes: &[u8], reads: bool) -> io::Result<Moved> {
        self.waits += 1;
        if !bytes.is_empty() {
            let some = self.rng.usize(1..=bytes.len());
            self.write_all(&bytes[..some]).await?;
            return Ok(Moved::Written(some));
        }
        match reads {
            true => self.fill().await.map(Moved::Read),
            false => std::future::pending().await,
        }
    }
}

impl Client {
    /// The bytes that the client got, without the identifiers of its requests.
    pub fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.got);
        let mut parts = text.split("X-Request-ID: ");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| {
            text + &part["0123456789ABCDEF\r\n".len()..]
        })
    }
}

/// No other nodes ask.
pub struct Nobody;

impl NodeRequests for Nobody {
    const HEADER_BYTES: u64 = 0;

    async fn serve_node(
        &self,
        _: &mut impl Exchange,
        _: &RequestHead,
        _: &str,
        _: &Facts,
    ) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A node with one upstream.
pub struct Bed {
    shared: Arc<Shared>,
    config: Config,
    service: Upstreams<Nobody>,
    runtime: tokio::runtime::Runtime,
    pub rng: RefCell<fastrand::Rng>,
}

/// The verification by another node of the request `id`.
pub fn verified(id: u64) -> Facts {
    Facts::of_anonymous(id)
}

/// The outcome of a request, and whether its connection lives on.
#[derive(Debug, PartialEq, Eq)]
pub enum Served {
    Open,
    Closed,
    Elsewhere(Error),
    Redirected(ResponseHead),
}

/// The end of a request.
pub struct End {
    pub client: Client,
    pub served: io::Result<Served>,
    /// The status that logs have.
    pub status: Option<u16>,
}

impl Bed {
    pub fn new(address: SocketAddr, seed: u64, change: impl FnOnce(&mut Upstream)) -> Self {
        let mut upstream = Upstream {
            address: address.into(),
            connect_timeout_s: 2,
            answer_timeout_s: 1,
            ..Upstream::default()
        };
        change(&mut upstream);
        let mut config: Config = Config::default();
        config.service.upstream = Some(vec![upstream].into());
        config.limits.stall_timeout_s = 1;
        config.nodes.push(Node {
            name: "be0".into(),
            roles: vec![Role::Backend],
            ..Node::default()
        });
        let shared = Shared::new(&config, "be0", Arc::default(), Arc::default());
        let shared = Arc::new(shared);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        Self {
            service: Upstreams::new(shared.clone(), Nobody),
            shared,
            config,
            runtime: runtime.unwrap(),
            rng: RefCell::new(fastrand::Rng::with_seed(seed)),
        }
    }

    /// Reloads a changed configuration.
    pub fn reload(&mut self, change: impl Fn(&mut Upstream)) {
        change_upstreams(&mut self.config, change);
        self.shared.reconfigure(&self.config);
    }

    /// A reload of a changed configuration, for another thread and a later time.
    pub fn later_reload(&self, change: impl Fn(&mut Upstream)) -> Box<dyn FnOnce() + Send> {
        let (shared, mut config) = (self.shared.clone(), self.config.clone());
        change_upstreams(&mut config, change);
        Box::new(move || shared.reconfigure(&config))
    }

    /// Whether each server gets requests.
    pub fn are_in(&self) -> Vec<bool> {
        let servers = self.shared.servers();
        servers.iter().map(|server| server.gets_requests).collect()
    }

    /// A request of a client, with its body.
    pub fn ask(&self, head: &str, body: &[u8]) -> End {
        self.pass(head, &[body, NEXT].concat(), None, |_| {})
    }

    /// The same, on a connection beside which the service keeps `companion`.
    pub fn ask_on(&self, companion: &mut Companion, head: &str) -> End {
        let kept = companion.take();
        let mut end = self.pass_on(head, NEXT, None, Some(kept), |_| {});
        *companion = end.client.companion.take().flatten();
        end
    }

    /// The same, relayed by another node that wants at most `max_bytes`.
    pub fn ask_relayed(&self, head: &str, id: u64, max_bytes: Option<u32>) -> End {
        self.pass(head, NEXT, Some(verified(id)), |request| {
            request.is_relayed = true;
            request.max_answer_bytes = max_bytes;
        })
    }

    /// A request that servers have got so often and have not answered.
    pub fn ask_again(&self, head: &str, retries: u8) -> End {
        self.pass(head, NEXT, None, |request| request.retries = retries)
    }

    /// The same, by a node that breaks off before it sends a byte of the body.
    pub fn ask_broken_off(&self, head: &str) -> End {
        self.pass(head, &[], Some(verified(1)), |request| {
            request.is_relayed = true;
        })
    }

    fn pass(
        &self,
        head: &str,
        sent: &[u8],
        verified: Option<Facts>,
        change: impl FnOnce(&mut Request<Meaning>),
    ) -> End {
        let companion = verified.is_none().then_some(None);
        self.pass_on(head, sent, verified, companion, change)
    }

    fn pass_on(
        &self,
        head: &str,
        sent: &[u8],
        verified: Option<Facts>,
        companion: Option<Companion>,
        change: impl FnOnce(&mut Request<Meaning>),
    ) -> End {
        let text = format!("{head}\r\n\r\n");
        let parsed = RequestHead::parse(text.as_bytes(), &Limits::DEFAULT).unwrap();
        let (head, _) = parsed.unwrap();
        let mut client = Client {
            sent: sent.to_vec(),
            seen: 0,
            ends: sent.is_empty(),
            rng: self.rng.borrow_mut().fork(),
            companion,
            got: Vec::new(),
            writes: 0,
            waits: 0,
        };
        let serving = self.serve(&mut client, head, verified, change);
        let (served, status) = self.runtime.block_on(serving);
        End {
            client,
            served,
            status,
        }
    }

    /// Answers a request that came on `io`. Also returns the status that logs have.
    async fn serve(
        &self,
        io: &mut impl Io,
        mut head: RequestHead,
        verified: Option<Facts>,
        change: impl FnOnce(&mut Request<Meaning>),
    ) -> (io::Result<Served>, Option<u16>) {
        let id = verified.as_ref().map_or(0, |verified| verified.request_id);
        let meaning = match self.service.understand(&mut head, verified) {
            Ok(meaning) => meaning,
            Err(error) => return (Ok(Served::Elsewhere(error)), None),
        };
        let remote = Remote {
            address: "192.0.2.7:4711".parse().unwrap(),
            service: "203.0.113.10:443".parse().unwrap(),
            is_tls: false,
            has_companion: io.companion().is_some_and(|companion| companion.is_some()),
            is_proxied: false,
        };
        let mut request = Request::new(head, id, remote, meaning);
        change(&mut request);
        if !request.is_relayed {
            let (parts, meaning) = request.parts();
            self.service.admit(parts, meaning).await.unwrap();
        }
        let parts = Http1Parts {
            id,
            ..Http1Parts::default()
        };
        let mut exchange = Http1::new(io, &request.head, parts);
        exchange.record_mut().retries = request.retries;
        let served = self.service.serve(&mut exchange, request.view()).await;
        let served = served.map(|served| match served {
            prism_service::Served::Elsewhere(error) => Served::Elsewhere(error),
            prism_service::Served::Redirected(answer) => Served::Redirected(*answer),
            prism_service::Served::Answered if exchange.is_open() => Served::Open,
            prism_service::Served::Answered => Served::Closed,
        });
        (served, exchange.record().status)
    }

    /// One request of a client on the loopback interface, which does what `work` says.
    pub fn with_client<T>(
        &self,
        work: impl AsyncFnOnce(tokio::net::TcpStream) -> T,
    ) -> (T, io::Result<Served>) {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let client = async {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_recv_buffer_size(CLIENT_BUFFER_BYTES).unwrap();
            socket.set_send_buffer_size(CLIENT_BUFFER_BYTES).unwrap();
            work(socket.connect(address).await.unwrap()).await
        };
        LocalSet::new().block_on(&self.runtime, async {
            let config = EndpointConfig::alone("a", &[address]);
            let endpoint = Endpoint::bind(config, Arc::default()).await;
            let mut endpoint = endpoint.unwrap();
            let serving = async {
                let Some(Incoming::Client(mut connection)) = endpoint.next().await else {
                    panic!("no client");
                };
                connection.set_io_timeout(Duration::from_secs(5));
                let (head, len) = loop {
                    let parsed = RequestHead::parse(connection.buffered(), &Limits::DEFAULT);
                    match parsed.unwrap() {
                        Some(parsed) => break parsed,
                        None => assert!(connection.fill().await.unwrap() > 0),
                    }
                };
                connection.consume(len);
                let (served, _) = self.serve(&mut connection, head, None, |_| {}).await;
                if served.is_ok() {
                    connection.close().await;
                }
                served
            };
            tokio::join!(client, serving)
        })
    }
}

fn change_upstreams(config: &mut Config, change: impl Fn(&mut Upstream)) {
    let upstreams = config.service.upstream.iter();
    let upstreams = upstreams.flat_map(|all| all.iter().cloned());
    let mut upstreams: Vec<Upstream> = upstreams.collect();
    upstreams.iter_mut().for_each(change);
    config.service.upstream = Some(upstreams.into());
}

/// The server of a test: its n-th connection does what the n-th function says.
pub struct Server {
    pub address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

pub type Act = Box<dyn FnOnce(&mut TcpStream) + Send>;

impl Server {
    pub fn new(connections: Vec<Act>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let work = move || {
            for act in connections {
                act(&mut listener.accept().unwrap().0);
            }
        };
        Self {
            address,
            thread: Some(std::thread::spawn(work)),
        }
    }

    /// Waits until it has done everything.
    pub fn join(mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Something that a connection does.
pub fn act(work: impl FnOnce(&mut TcpStream) + Send + 'static) -> Act {
    Box::new(work)
}

/// Reads a request whose body has `body_bytes`.
pub fn read(stream: &mut TcpStream, body_bytes: usize) -> String {
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        text.push(byte[0]);
    }
    let mut body = vec![0; body_bytes];
    stream.read_exact(&mut body).unwrap();
    text.extend_from_slice(&body);
    String::from_utf8_lossy(&text).into_owned()
}

/// Sends an answer in random pieces.
pub fn write(stream: &mut TcpStream, answer: &[u8], seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    stream.set_nodelay(true).unwrap();
    let mut rest = answer;
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(rng.usize(1..=rest.len()));
        // The other side may have left.
        if stream.write_all(piece).is_err() {
            return;
        }
        rest = behind;
    }
}
