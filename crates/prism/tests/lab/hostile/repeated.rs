//! A node that reads a relayed request and disappears without an answer. The request may have
//! been carried out, so it is not repeated unless it only reads.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prism_http::{Limits, RequestHead};
use prism_proto::relay::Preamble;

use crate::support::client::Request;
use crate::support::wire::{Wire, acceptor};
use crate::support::{BUCKET, Cluster, turn};

const ANSWER: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";

/// A stand-in for a node, with its requests by method.
#[derive(Default)]
struct Double {
    asked: Mutex<BTreeMap<String, u32>>,
    /// Whether it reads a request and disappears without an answer.
    breaks: AtomicBool,
    /// Whether it ends its streams in order without reading a request.
    ends: AtomicBool,
    over: AtomicBool,
}

impl Double {
    /// Answers at the node port, each connection on its own thread, until `over` is set.
    fn run(self: &Arc<Self>, listener: &TcpListener, config: &Arc<rustls::ServerConfig>) {
        listener.set_nonblocking(true).unwrap();
        while !self.over.load(Ordering::Relaxed) {
            let Ok((tcp, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            tcp.set_nonblocking(false).unwrap();
            let (double, config) = (self.clone(), config.clone());
            std::thread::spawn(move || {
                // A dialler may disappear.
                if let Ok(wire) = Wire::accept(tcp, config)
                    && !wire.is_for_hand_offs()
                {
                    double.serve(wire);
                }
            });
        }
    }

    fn serve(&self, mut wire: Wire) {
        let mut read = Vec::new();
        while let Ok(method) = next_request(&mut wire, &mut read) {
            *self.asked.lock().unwrap().entry(method).or_default() += 1;
            if self.breaks.load(Ordering::Relaxed) || wire.send(ANSWER).is_err() {
                return;
            }
            if self.ends.swap(false, Ordering::Relaxed) {
                return wire.end();
            }
        }
    }

    /// Requests since the last call.
    fn asked(&self) -> BTreeMap<String, u32> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

/// Reads one relayed request without a body, and returns its method.
fn next_request(wire: &mut Wire, read: &mut Vec<u8>) -> std::io::Result<String> {
    loop {
        if let Some((_, preamble)) = Preamble::decode(read).unwrap()
            && let Some((head, len)) =
                RequestHead::parse(&read[preamble..], &Limits::DEFAULT).unwrap()
        {
            read.drain(..preamble + len);
            return Ok(head.method().to_string());
        }
        wire.read_some(read)?;
    }
}

#[test]
fn a_change_that_may_have_been_made_is_not_asked_for_again() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::relaying(2);
    let key = cluster.key_on("be1", "key");
    cluster.lab.stop("be1").unwrap();
    let address = SocketAddr::from((cluster.lab.address("be1").unwrap(), 7400));
    let pki = cluster.lab.config_path().with_file_name("pki");
    let (double, config) = (Arc::new(Double::default()), acceptor(&pki, "be1"));
    let be1 = cluster.lab.namespace("be1").unwrap();
    let be1 = be1.file_name().unwrap().to_str().unwrap().to_owned();
    let running = double.clone();
    let thread = std::thread::spawn(move || {
        let be1 = prism_netns::NetNs::named(&be1).unwrap();
        let listener = be1.run(|| TcpListener::bind(address)).unwrap().unwrap();
        running.run(&listener, &config);
    });

    let target = format!("/{key}");
    let copied = format!("/{BUCKET}/{key}");
    let call = |request: Request<'_>| {
        let mut client = cluster.connect();
        client.call(&request.encode(&cluster)).status()
    };
    let delete = || Request::new("DELETE", &target);
    crate::support::eventually("the double is dialled", Duration::from_secs(5), || {
        call(delete()) == 204
    });
    for (method, suffix, copies) in [
        ("DELETE", "", false),
        ("POST", "?uploads=", false),
        ("PUT", "", true),
        ("DELETE", "?tagging=", false),
        ("HEAD", "", false),
        ("GET", "?tagging=", false),
    ] {
        // The pool has a stream.
        double.breaks.store(false, Ordering::Relaxed);
        assert_eq!(call(delete()), 204);
        double.asked();
        double.breaks.store(true, Ordering::Relaxed);
        let target = format!("/{key}{suffix}");
        let request = Request::new(method, &target);
        let status = call(match copies {
            true => request.signed_header("x-amz-copy-source", copied.as_str()),
            false => request,
        });
        assert_eq!(status, 503, "{method} {suffix}");
        let reads = ["HEAD", "GET"].contains(&method);
        let times = BTreeMap::from([(method.to_owned(), if reads { 2 } else { 1 })]);
        assert_eq!(double.asked(), times, "{method} {suffix}");
    }

    // A stream that has ended in order did not take the request that was sent on it.
    double.breaks.store(false, Ordering::Relaxed);
    for _ in 0..20 {
        double.ends.store(true, Ordering::Relaxed);
        assert_eq!(call(delete()), 204);
        double.asked();
        assert_eq!(call(delete()), 204);
        assert_eq!(double.asked(), BTreeMap::from([("DELETE".to_owned(), 1)]));
    }
    double.over.store(true, Ordering::Relaxed);
    thread.join().unwrap();
}
