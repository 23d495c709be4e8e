//! A client for clusters whose processes are killed: a broken connection is an error and fails
//! no test.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use prism_netns::NetNs;
use prism_signer::Signer;

use super::client::{Client, signed};
use super::{BUCKET, Cluster};

/// The longest wait for an answer.
const IO_TIMEOUT: Duration = Duration::from_secs(3);

/// The addresses of the service, and the client's namespace and signer.
#[derive(Clone)]
pub struct Target {
    services: Vec<SocketAddr>,
    connections: Arc<AtomicUsize>,
    signer: Arc<Signer>,
    namespace: String,
}

impl Target {
    pub fn of(cluster: &Cluster) -> Self {
        let namespace = cluster.lab.namespace("client").unwrap();
        Self {
            services: cluster.lab.services().collect(),
            connections: Arc::default(),
            signer: Arc::new(cluster.new_signer()),
            namespace: namespace.file_name().unwrap().to_str().unwrap().to_owned(),
        }
    }

    /// The service of the next connection: the families take turns.
    fn next_service(&self) -> SocketAddr {
        let n = self.connections.fetch_add(1, Ordering::Relaxed);
        self.services[n % self.services.len()]
    }

    /// Runs `work` on the client's host.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        NetNs::named(&self.namespace).unwrap().run(work).unwrap()
    }

    /// One request over a connection of its own; `target` begins with the bucket.
    pub fn call(&self, method: &str, target: &str, body: &[u8]) -> io::Result<(u16, Vec<u8>)> {
        self.run(|| Connection::open(self)?.call(method, target, body))
    }

    /// GET of an object of [`BUCKET`].
    pub fn get(&self, key: &str) -> io::Result<(u16, Vec<u8>)> {
        self.call("GET", &format!("/{BUCKET}/{key}"), b"")
    }
}

/// A connection that may break.
pub struct Connection {
    client: Client,
    host: String,
    signer: Arc<Signer>,
    /// The `ETag` of the last answer.
    pub etag: String,
}

impl Connection {
    pub fn open(target: &Target) -> io::Result<Self> {
        let service = target.next_service();
        let stream = TcpStream::connect_timeout(&service, IO_TIMEOUT)?;
        Ok(Self {
            client: Client::new(stream).with_timeout(IO_TIMEOUT),
            host: service.to_string(),
            signer: target.signer.clone(),
            etag: String::new(),
        })
    }

    /// One request and its answer: status and body. `target` begins with the bucket.
    pub fn call(&mut self, method: &str, target: &str, body: &[u8]) -> io::Result<(u16, Vec<u8>)> {
        let request = signed(&self.signer, &self.host, method, target, body)?;
        let answer = self.client.try_call(&request)?;
        answer.header("ETag").clone_into(&mut self.etag);
        Ok((answer.status(), answer.body))
    }
}
