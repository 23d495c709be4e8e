//! Leases, as nodes hold them, and the file of the agent that grants them.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use prism_proto::control::{MESSAGE_BYTES, RunId, Term};
use prism_proto::lease::{CHALLENGE_BYTES, LeaseRequest, NO_DIGEST};
use prism_switch::{LeaseKey, Leases};

use super::{IP_BYTES, KEY_ID, key};

/// Leases for these nodes, which share one key.
pub fn leases_of(nodes: impl IntoIterator<Item = Vec<IpAddr>>) -> Leases {
    let nodes: Vec<_> = nodes.into_iter().collect();
    let shared = LeaseKey {
        key_id: KEY_ID,
        key: key(),
        nodes: nodes.iter().flatten().copied().collect(),
    };
    Leases::new(nodes, [shared])
}

/// Leases of these nodes, granted on a loopback address.
pub fn serve_leases(nodes: &[IpAddr]) -> (Arc<Leases>, SocketAddr) {
    let nodes = nodes.iter().map(|node| vec![*node]);
    let leases = Arc::new(leases_of(nodes));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let serving = leases.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            serving.serve(listener).await;
        });
    });
    (leases, address)
}

pub fn lease(address: SocketAddr, node: IpAddr, run: u16) -> TcpStream {
    lease_in(address, node, run, None)
}

/// The lease of a run that knows `term`; `None`: it does not speak of terms.
pub fn lease_in(address: SocketAddr, node: IpAddr, run: u16, term: Option<Term>) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let mut challenge = [0; CHALLENGE_BYTES];
    stream.read_exact(&mut challenge).unwrap();
    let request = LeaseRequest {
        challenge,
        node,
        run: RunId(run),
        digest: NO_DIGEST,
        term,
    };
    let request = request.encode(KEY_ID, &key());
    stream.write_all(&request).unwrap();
    stream.read_exact(&mut [0; MESSAGE_BYTES]).unwrap();
    stream
}

/// A directory of its own for the file of the last term, which is removed in the end.
pub struct TermFile(PathBuf);

impl TermFile {
    pub fn new(name: &str) -> Self {
        let name = format!("prism-{}-{name}-{IP_BYTES}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    pub fn path(&self) -> PathBuf {
        self.0.join("term")
    }

    pub fn store(&self, term: u32) {
        std::fs::create_dir_all(&self.0).unwrap();
        std::fs::write(self.path(), term.to_string()).unwrap();
    }
}

impl Drop for TermFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
