//! Several nodes in one process, each a thread with an address of loopback. There is no switch, so
//! no connection moves: a request that another node answers is relayed to it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prism_config::{Config, Running};
use prism_core::Core;
use prism_gateway::{Gateway, Parts};
use prism_handoff::{Endpoint, EndpointConfig, Peer};
use prism_http::{BodyReader, Limits, Method, RequestHead, ResponseHead};
use prism_membership::Cluster;
use prism_objects::{Objects, Shared};
use prism_pki::Identity;
use prism_replicas::{Node, QuotaChange, QuotaReport, Replicator, keep_tasks};
use prism_service::{AccessLog, AuditLog, Link, Peers, Requests, Stage};
use tempfile::TempDir;
use tokio::sync::Notify;
use tokio::task::LocalSet;

use crate::support::{ADMIN, Answer, config, key, store_in, text_of};

/// The longest wait of a client for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A cluster. Its threads end with it.
pub(crate) struct Nodes {
    pub(crate) nodes: Vec<RunningNode>,
    _pki: TempDir,
}

/// A node that serves, and the address for its clients.
pub(crate) struct RunningNode {
    pub(crate) node: Arc<Node>,
    pub(crate) address: SocketAddr,
    ends: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
    _store: TempDir,
}

impl Nodes {
    /// Three nodes with as many replicas of each key, and the bucket `bkt`. The first node alone
    /// has the domain of buckets.
    pub(crate) fn with_bucket(replicas: u16) -> Self {
        let nodes = Self::start(replicas);
        for client in &mut nodes.clients() {
            let begun = Instant::now();
            // The nodes ask each other for their buckets first.
            while client.send("HEAD /bkt", &[], &[]).status != 200 {
                client.send("PUT /bkt", &[], &[]);
                assert!(begun.elapsed() < PATIENCE);
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        nodes
    }

    fn start(replicas: u16) -> Self {
        let names = ["a", "b", "c"];
        let pki = tempfile::tempdir().unwrap();
        prism_pki::init(pki.path(), &names.map(str::to_owned)).unwrap();
        let config = config(&names, replicas);
        let ports = [free_port(), free_port()];
        let start = |name: &&str| {
            let identity = Identity::of_node(pki.path(), name).unwrap();
            let mut config = config.clone();
            if *name != "a" {
                config.s3.domains.clear();
            }
            RunningNode::start(&config, name, identity, ports)
        };
        Self {
            nodes: names.iter().map(start).collect(),
            _pki: pki,
        }
    }

    /// A client of each node.
    pub(crate) fn clients(&self) -> Vec<Client> {
        let addresses = self.nodes.iter().map(|node| node.address);
        addresses.map(Client::connect).collect()
    }

    /// A key of the bucket `bkt` whose changes this node makes.
    pub(crate) fn key_of(&self, node: usize, label: &str) -> String {
        let node = &self.nodes[node].node;
        let mut keys = (0..).map(|n| format!("{label}-{n}"));
        keys.find(|key| node.replication.is_primary("bkt", key))
            .unwrap()
    }

    /// The quota of the bucket `bkt` and its usage, as a node knows them after a change.
    pub(crate) fn quota(&self, node: usize, change: Option<QuotaChange>) -> QuotaReport {
        let replication = &self.nodes[node].node.replication;
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let asked = replication.quota("bkt".to_owned(), change);
        runtime.unwrap().block_on(asked).unwrap()
    }
}

impl RunningNode {
    fn start(config: &Config, name: &str, identity: Identity, ports: [u16; 2]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let users = [key(ADMIN, None)];
        let cluster = Cluster::of_users(config, &users).unwrap();
        let running = Arc::new(Running::new(config.clone()));
        let core = Arc::new(Core::new(running.clone(), name, cluster));
        let node = Arc::new(Node::new(core.clone(), Some(store_in(dir.path()))).unwrap());
        let settings = config.node(name).unwrap();
        let link = Arc::new(Link::new(0));
        let parts = Parts {
            config: running,
            process: core.process.clone(),
            counters: core.counters.clone(),
            requests: Arc::new(Requests::new(
                AccessLog::default(),
                AuditLog::default(),
                None,
            )),
            link: link.clone(),
            orders: core.orders.clone(),
            neighbours: Box::new(Vec::new),
            challenges: None,
        };
        let gateway = Arc::new(prism_gateway::Shared::new(settings, parts));
        let objects = Arc::new(Shared::new(config, &users, link));
        let endpoint = endpoint_config(config, name, identity, ports);
        let address = endpoint.services[0];
        let ends = Arc::new(Notify::new());
        let (end, own) = (ends.clone(), node.clone());
        let (bound, is_bound) = std::sync::mpsc::channel();
        let serve = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            LocalSet::new().block_on(&runtime, async move {
                let process = own.core.process.clone();
                let endpoint = Endpoint::bind(endpoint, process).await.unwrap();
                let handle = endpoint.handle();
                let peers = Rc::new(Peers::new(handle.clone(), PATIENCE));
                let replicator = Rc::new(Replicator::new(own, peers.clone()));
                keep_tasks(&replicator);
                let service = Objects::new(objects, replicator);
                let gateway = Rc::new(Gateway::new(gateway, service, handle, peers));
                bound.send(()).unwrap();
                tokio::select! {
                    () = gateway.run(endpoint) => {}
                    () = end.notified() => {}
                }
            });
        };
        let thread = std::thread::spawn(serve);
        is_bound.recv().unwrap();
        Self {
            node,
            address,
            ends,
            thread: Some(thread),
            _store: dir,
        }
    }
}

impl Drop for RunningNode {
    fn drop(&mut self) {
        self.node.core.orders.enter(Stage::Leaving);
        self.ends.notify_one();
        let joined = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            joined.unwrap().unwrap();
        }
    }
}

fn endpoint_config(
    config: &Config,
    name: &str,
    identity: Identity,
    [service_port, peer_port]: [u16; 2],
) -> EndpointConfig {
    let address = |node: &prism_config::Node| node.address.iter().next().unwrap();
    let peers = config.nodes.iter().map(|node| Peer {
        name: node.name.clone(),
        addresses: vec![address(node)],
    });
    let own = address(config.node(name).unwrap());
    let services = [(own, service_port).into()];
    let peers: Vec<Peer> = peers.collect();
    let mut endpoint = EndpointConfig::new(name, &peers, &services, identity).unwrap();
    endpoint.listen = true;
    endpoint.peer_port = peer_port;
    endpoint
}

fn free_port() -> u16 {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    free.local_addr().unwrap().port()
}

/// A client with one connection, which it opens again when a node ends it.
pub(crate) struct Client {
    address: SocketAddr,
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            address,
            stream,
            unread: Vec::new(),
        }
    }

    /// Sends `METHOD path` with these header fields, as somebody who may do everything.
    pub(crate) fn send(&mut self, start: &str, fields: &[(&str, &str)], body: &[u8]) -> Answer {
        let head = text_of(Some(ADMIN), start, fields, Some(body.len()));
        self.send_bytes(&[&head, body].concat())
    }

    /// The same without a signature and a body.
    pub(crate) fn send_unsigned(&mut self, start: &str) -> Answer {
        self.send_bytes(&text_of(None, start, &[], Some(0)))
    }

    /// The same with a body in one chunk, whose length is not said.
    pub(crate) fn send_chunked(&mut self, start: &str, body: &[u8]) -> Answer {
        let fields = [("Transfer-Encoding", "chunked")];
        let head = text_of(Some(ADMIN), start, &fields, None);
        let size = format!("{:x}\r\n", body.len());
        let bytes = [&head, size.as_bytes(), body, b"\r\n0\r\n\r\n"].concat();
        self.send_bytes(&bytes)
    }

    /// Sends the head of a PUT, and waits until the node has begun it and wants the body. Without
    /// `body_bytes` the body comes in chunks.
    pub(crate) fn begin_put(&mut self, target: &str, body_bytes: Option<usize>) {
        let mut fields = vec![("Expect", "100-continue")];
        if body_bytes.is_none() {
            fields.push(("Transfer-Encoding", "chunked"));
        }
        let head = text_of(Some(ADMIN), &format!("PUT {target}"), &fields, body_bytes);
        self.stream.write_all(&head).unwrap();
        assert_eq!(self.read(&Method::HEAD).status, 100);
    }

    /// Sends the body of a PUT that has begun.
    pub(crate) fn end_put(&mut self, body: &[u8]) -> Answer {
        self.stream.write_all(body).unwrap();
        self.read(&Method::PUT)
    }

    fn send_bytes(&mut self, bytes: &[u8]) -> Answer {
        // A node may answer, and end the connection, before it has read all.
        let sent = self.stream.write_all(bytes);
        let (request, _) = RequestHead::parse(bytes, &Limits::DEFAULT)
            .unwrap()
            .unwrap();
        let answer = self.read(request.method());
        if !answer.keep_alive {
            *self = Self::connect(self.address);
        } else {
            sent.unwrap();
        }
        answer
    }

    fn read(&mut self, method: &Method) -> Answer {
        let (head, len) = loop {
            match ResponseHead::parse(&self.unread, &Limits::ANSWER).unwrap() {
                Some(head) => break head,
                None => self.fill(),
            }
        };
        self.unread.drain(..len);
        let framing = head.framing(method).unwrap();
        let mut reader = BodyReader::new(framing, u64::MAX);
        let mut body = Vec::new();
        while !reader.is_done() {
            if self.unread.is_empty() {
                self.fill();
            }
            let step = reader.consume(&self.unread).unwrap();
            body.extend_from_slice(&self.unread[step.data]);
            self.unread.drain(..step.consumed);
        }
        Answer {
            status: head.status(),
            headers: head.headers().clone(),
            body,
            keep_alive: head.keep_alive(),
            unread: Vec::new(),
        }
    }

    fn fill(&mut self) {
        let mut bytes = [0; 1 << 16];
        let n = self.stream.read(&mut bytes).unwrap();
        assert!(n > 0, "the connection has ended");
        self.unread.extend_from_slice(&bytes[..n]);
    }
}
