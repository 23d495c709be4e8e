#![allow(clippy::unwrap_used, clippy::panic)]

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prism_proto::node::HandOff;
use prism_proto::tcp_state::{NegotiatedOptions, Window};
use prism_proto::{Behaviour, TcpState};
use tokio::task::LocalSet;

use super::*;
use crate::channel::Channel;
use crate::{Endpoint, EndpointConfig, Peer, Process, Transit};
use prism_pki::{self as pki, Identity};

/// A node on loopback without a switch.
async fn node(name: &str, dir: &Path, port: u16, transit: Option<Transit>) -> Endpoint {
    let peer = |name: &str, host| Peer {
        name: name.to_owned(),
        addresses: vec![Ipv4Addr::new(127, 0, 0, host).into()],
    };
    let nodes = [peer("target", 1), peer("source", 2)];
    let service = (Ipv4Addr::LOCALHOST, 80).into();
    let identity = Identity::of_node(dir, name).unwrap();
    let mut config = EndpointConfig::new(name, &nodes, &[service], identity).unwrap();
    (config.peer_port, config.transit) = (port, transit);
    Endpoint::bind(config, Arc::new(Process::default()))
        .await
        .unwrap()
}

/// A connection that `origin` has accepted.
fn hand_off(id: u64, origin: &str) -> Frame {
    Frame::HandOff(Box::new(HandOff {
        id,
        epoch: 1,
        moves: 1,
        origin: origin.to_owned(),
        context: Vec::new(),
        input: Vec::new(),
        output: Vec::new(),
        tls: None,
        proxied: None,
        permit: None,
        tcp: TcpState {
            remote: "192.0.2.9:50000".parse().unwrap(),
            service: "127.0.0.1:80".parse().unwrap(),
            write_seq: 1,
            receive_seq: 1,
            sent: Vec::new(),
            unsent: Vec::new(),
            received: Vec::new(),
            peer_closed: false,
            options: NegotiatedOptions {
                sack: true,
                timestamps: false,
                window_scale: None,
            },
            timestamp: 0,
            window: Window {
                send_wl1: 1,
                send_window_bytes: 1,
                max_window_bytes: 1,
                receive_window_bytes: 1,
                receive_wup: 1,
            },
            cwnd_segments: 10,
            srtt_us: 1,
            behaviour: Behaviour {
                mss_clamp_bytes: 1460,
                congestion: "cubic".into(),
                nodelay: true,
                keepalive: None,
                user_timeout_ms: 0,
            },
        },
    }))
}

async fn verdict(channel: &Rc<Channel>, frame: &Frame, id: u64) -> Option<Frame> {
    let verdict = channel.await_verdict(id);
    channel.send(frame).unwrap();
    let limit = Duration::from_secs(5);
    tokio::time::timeout(limit, verdict.wait()).await.unwrap()
}

/// Runs `work` with two nodes. The first one asks `transit` about returning connections.
fn with_nodes(transit: Transit, work: impl AsyncFnOnce(Endpoint, Endpoint)) {
    let dir = tempfile::tempdir().unwrap();
    pki::init(dir.path(), &["target".into(), "source".into()]).unwrap();
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let target = node("target", dir.path(), port, Some(transit)).await;
        let source = node("source", dir.path(), port, None).await;
        work(target, source).await;
    });
}

#[test]
fn a_panic_in_one_import_is_told_and_leaves_the_channel_to_others() {
    let panics: Transit = Arc::new(|_, _| panic!("a fault of the application"));
    with_nodes(panics, async |target, source| {
        let channel = source.handle().peers.channel("target").await;
        let channel = channel.unwrap();
        // The application is asked about returning connections only.
        for id in 1..4 {
            let told = verdict(&channel, &hand_off(id, "target"), id).await;
            assert_eq!(told, Some(Frame::Unknown { id }));
        }
        let reason = Refusal::Unwilling;
        let told = verdict(&channel, &hand_off(4, "source"), 4).await;
        assert_eq!(
            told,
            Some(Frame::Refused {
                id: 4,
                reason,
                pass: None
            })
        );
        assert_eq!(target.handle().lifecycle.importing.get(), 0);
    });
}

#[test]
fn a_node_that_leaves_says_so_and_refuses_what_is_offered_all_the_same() {
    let is_asked = Arc::new(AtomicBool::new(false));
    let asked = is_asked.clone();
    let asks: Transit = Arc::new(move |_, _| {
        asked.store(true, Ordering::Relaxed);
        None
    });
    with_nodes(asks, async |target, source| {
        let (target, source) = (target.handle(), source.handle());
        let channel = source.peers.channel("target").await;
        let channel = channel.unwrap();
        let reason = Refusal::Unwilling;
        for (id, leaves) in [(1, false), (2, true)] {
            is_asked.store(false, Ordering::Relaxed);
            if leaves {
                target.leave().await;
            }
            assert_eq!(source.is_leaving("target"), leaves);
            // A source may offer a connection before it hears that the target leaves.
            let told = verdict(&channel, &hand_off(id, "target"), id).await;
            assert_eq!(
                told,
                Some(Frame::Refused {
                    id,
                    reason,
                    pass: None
                })
            );
            // The target has no switch and takes no connection, but looks at each offer.
            assert_eq!(is_asked.load(Ordering::Relaxed), !leaves);
        }
    });
}
