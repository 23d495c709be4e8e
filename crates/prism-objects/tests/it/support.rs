//! One node that serves from memory to memory.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use prism_cluster::replica::Bucket;
use prism_config::{Config, Credential, Role, Running};
use prism_core::Core;
use prism_http::{BodyReader, Headers, Limits, RequestHead, ResponseHead};
use prism_membership::Cluster;
use prism_objects::{Objects, Shared};
use prism_proto::facts::{Caller, Facts};
use prism_replicas::{Node, Replicator};
use prism_s3::access::Rights;
use prism_service::{
    Exchange, Http1, Http1Parts, Io, Link, Peers, Remote, Request, Route, Served, Service,
};
use prism_signer::{Body as Signed, Signer};
use prism_store::Store;
use time::OffsetDateTime;
use tokio::task::LocalSet;

use crate::memory::MemoryIo;

/// The key with every right.
pub(crate) const ADMIN: &str = "admin";
const SECRET: &str = "secret";
/// The host of a request that names no other, and the domain of buckets.
pub(crate) const DOMAIN: &str = "memory";
/// The address of every client.
const CLIENT: &str = "192.0.2.7:4711";

/// The configuration of backends with these names.
pub(crate) fn config(backends: &[&str], replicas: u16) -> Config {
    let mut config: Config = Config::default();
    config.cluster.name = "memory".into();
    config.cluster.region = "us-east-1".into();
    config.cluster.replicas = replicas;
    config.s3.domains = vec![DOMAIN.into()];
    for (n, name) in backends.iter().enumerate() {
        config.nodes.push(prism_config::Node {
            name: (*name).into(),
            address: Ipv4Addr::new(127, 0, 0, 1 + n as u8).into(),
            roles: vec![Role::Frontend, Role::Backend],
            ..prism_config::Node::default()
        });
    }
    config
}

/// One node, its store, and the thread that it runs on.
pub(crate) struct Server {
    pub(crate) objects: Objects,
    shared: Arc<Shared>,
    runtime: tokio::runtime::Runtime,
    local: LocalSet,
    _dir: tempfile::TempDir,
}

/// An answer, read as a client does.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Headers,
    pub(crate) body: Vec<u8>,
    /// Whether the connection lives on.
    pub(crate) keep_alive: bool,
    /// The bytes that the client has sent behind the request.
    pub(crate) unread: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get_str(name).unwrap_or_default()
    }

    /// The text of each element with this name.
    pub(crate) fn elements(&self, name: &str) -> Vec<&str> {
        let (opening, closing) = (format!("<{name}>"), format!("</{name}>"));
        let pieces = self.text().split(&opening).skip(1);
        let found: Option<Vec<&str>> = pieces
            .map(|piece| piece.split_once(&closing).map(|(inner, _)| inner))
            .collect();
        found.unwrap()
    }
}

impl Server {
    /// The only node of its cluster.
    pub(crate) fn alone() -> Self {
        Self::of(config(&["a"], 1), "a")
    }

    /// The node `name` of a cluster whose other nodes are out of reach.
    pub(crate) fn of(config: Config, name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = store_in(dir.path());
        let users = [key(ADMIN, None)];
        let cluster = Cluster::of_users(&config, &users).unwrap();
        let shared = Arc::new(Shared::new(&config, &users, Arc::new(Link::new(0))));
        let config = Arc::new(Running::new(config));
        let core = Arc::new(Core::new(config, name, cluster));
        let node = Arc::new(Node::new(core, Some(store)).unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let replicator = Rc::new(Replicator::new(node, Rc::new(Peers::none())));
        Self {
            objects: Objects::new(shared.clone(), replicator),
            shared,
            runtime,
            local: LocalSet::new(),
            _dir: dir,
        }
    }

    /// Gives keys rights on buckets. The key of [`Self::send`] keeps all.
    pub(crate) fn set_rights(&self, rights: &[(&str, &str, Rights)]) {
        let mut users = vec![key(ADMIN, None)];
        for (name, bucket, rights) in rights {
            users.push(key(name, Some((bucket, *rights))));
        }
        self.shared.replace_users(&users);
    }

    /// Stores a document of a bucket without looking at it, as an earlier release may have.
    pub(crate) fn store_document(&self, bucket: &str, name: &str, text: &str) {
        let replicator = self.objects.nodes();
        let put = |next: &mut Bucket| drop(next.documents.insert(name.into(), text.into()));
        self.run(async {
            let changed = replicator
                .alter_bucket(bucket, |known, stamp| Bucket::change(known, stamp, put))
                .await
                .unwrap();
            replicator.push_record(bucket, &changed).await.unwrap();
        });
    }

    /// Sends `METHOD path` with these header fields, as somebody who may do everything.
    pub(crate) fn send(&self, start: &str, fields: &[(&str, &str)], body: &[u8]) -> Answer {
        self.send_by(Some(ADMIN), start, fields, body)
    }

    /// The same, without a signature.
    pub(crate) fn send_unsigned(&self, start: &str) -> Answer {
        self.send_by(None, start, &[], &[])
    }

    /// The same, signed with this key.
    pub(crate) fn send_by(
        &self,
        key: Option<&str>,
        start: &str,
        fields: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        self.run(self.answer(key, start, fields, body))
    }

    /// The same beside other work of the thread.
    pub(crate) async fn answer(
        &self,
        key: Option<&str>,
        start: &str,
        fields: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        let head = head_of(key, start, fields, body.len());
        let mut io = MemoryIo::sending([body, b"GET /next"].concat());
        let (keep_alive, head) = self.serve(head, &mut io).await;
        read(&head, &io, keep_alive)
    }

    /// Runs work on the thread of the node.
    pub(crate) fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.local.block_on(&self.runtime, work)
    }

    /// Answers the request with this head. Returns whether the connection lives on, and the head.
    pub(crate) async fn serve(
        &self,
        mut head: RequestHead,
        io: &mut impl Io,
    ) -> (bool, RequestHead) {
        let objects = &self.objects;
        let meaning = match objects.understand(&mut head, None) {
            Ok(meaning) => meaning,
            Err(error) => return (refuse(objects, io, &head, &error).await, head),
        };
        let mut request = Request::new(head, 0, remote(), meaning);
        let (parts, meaning) = request.parts();
        if let Err(error) = objects.admit(parts, meaning).await {
            return (
                refuse(objects, io, &request.head, &error).await,
                request.head,
            );
        }
        assert_eq!(objects.route(&request.meaning, false), Route::Here);
        let mut exchange = Http1::new(io, &request.head, Http1Parts::default());
        let served = objects.serve(&mut exchange, request.view()).await;
        assert_eq!(served.unwrap(), Served::Answered);
        let is_open = exchange.is_open();
        (is_open, request.head)
    }

    /// Which nodes answer a request.
    pub(crate) fn route(&self, start: &str) -> Route {
        let mut head = head_of(None, start, &[], 0);
        let verified = Facts {
            caller: Caller::AccessKey(ADMIN.into()),
            ..Facts::of_anonymous(1)
        };
        let meaning = self.objects.understand(&mut head, Some(verified)).unwrap();
        self.objects.route(&meaning, false)
    }
}

/// A store that does not wait for the disk.
pub(crate) fn store_in(dir: &Path) -> Store {
    let settings = prism_store::Config {
        reserve_bytes: 0,
        durability: prism_store::Durability::None,
        ..prism_store::Config::default()
    };
    Store::open(dir, settings).unwrap()
}

/// The client's connection.
fn remote() -> Remote {
    Remote {
        address: CLIENT.parse::<SocketAddr>().unwrap(),
        service: ([203, 0, 113, 10], 80).into(),
        is_tls: false,
        has_companion: false,
        is_proxied: false,
    }
}

/// A key with every right, or with these rights on one bucket.
pub(crate) fn key(name: &str, rights: Option<(&str, Rights)>) -> Credential {
    Credential {
        access_key: name.to_owned(),
        secret_key: SECRET.to_owned(),
        admin: Some(rights.is_none()),
        buckets: rights.map(|(bucket, rights)| [(bucket.to_owned(), rights)].into()),
    }
}

/// The head of a request, signed with a key.
pub(crate) fn head_of(
    key: Option<&str>,
    start: &str,
    fields: &[(&str, &str)],
    body_bytes: usize,
) -> RequestHead {
    let text = text_of(key, start, fields, Some(body_bytes));
    let (head, len) = RequestHead::parse(&text, &Limits::DEFAULT)
        .unwrap()
        .unwrap();
    assert_eq!(len, text.len());
    head
}

/// The bytes of such a head. Without `body_bytes` it has no length of its own.
pub(crate) fn text_of(
    key: Option<&str>,
    start: &str,
    fields: &[(&str, &str)],
    body_bytes: Option<usize>,
) -> Vec<u8> {
    let (method, target) = start.split_once(' ').unwrap();
    let mut headers = Headers::new();
    headers.append("Host", DOMAIN).unwrap();
    for (name, value) in fields {
        let added = match *name {
            "Host" => headers.set(name, value),
            _ => headers.append(name, value),
        };
        added.unwrap();
    }
    if let Some(bytes) = body_bytes
        && (bytes > 0 || method.starts_with('P'))
    {
        headers.append("Content-Length", bytes.to_string()).unwrap();
    }
    if let Some(key) = key {
        let (signer, now) = (
            Signer::new(key, SECRET, "us-east-1"),
            OffsetDateTime::now_utc(),
        );
        signer
            .sign(method, target, &mut headers, Signed::Unsigned, now)
            .unwrap();
    }
    let mut text = format!("{start} HTTP/1.1\r\n").into_bytes();
    headers.write_to(&mut text);
    text.extend_from_slice(b"\r\n");
    text
}

async fn refuse(
    objects: &Objects,
    io: &mut impl Io,
    head: &RequestHead,
    error: &<Objects as Service>::Error,
) -> bool {
    let mut exchange = Http1::new(io, head, Http1Parts::default());
    let answered = objects.send_error(&mut exchange, error, head.path());
    answered.await.unwrap();
    exchange.is_open()
}

fn read(head: &RequestHead, io: &MemoryIo, keep_alive: bool) -> Answer {
    let (answer, len) = ResponseHead::parse(&io.written, &Limits::ANSWER)
        .unwrap()
        .unwrap();
    let mut reader = BodyReader::new(answer.framing(head.method()).unwrap(), u64::MAX);
    let (mut rest, mut body) = (&io.written[len..], Vec::new());
    while !reader.is_done() {
        let step = reader.consume(rest).unwrap();
        assert!(step.consumed > 0, "the answer breaks off");
        body.extend_from_slice(&rest[step.data]);
        rest = &rest[step.consumed..];
    }
    assert!(rest.is_empty(), "something follows the answer");
    Answer {
        status: answer.status(),
        headers: answer.headers().clone(),
        body,
        keep_alive,
        unread: io.unread().to_vec(),
    }
}
