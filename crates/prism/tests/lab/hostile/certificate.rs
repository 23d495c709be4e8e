//! A node's certificate in wrong hands, and its switch key with it: every frame and every field of
//! a hand-off, and every verification of a relayed request, against the connections of the others.

mod fields;
mod messages;

use std::time::Duration;

use prism_lab::{Failure, Mode};
use prism_proto::control::{FlowKey, Pass, Passage, Status};
use prism_proto::node::{ALPN_HAND_OFF, Frame, HandOff, Permit};
use prism_proto::tcp_state::{NegotiatedOptions, Window};
use prism_proto::{Behaviour, TcpState};

use crate::contained::{Broken, OWN, term_of};
use crate::support::client::{Client, Request};
use crate::support::objects::Object;
use crate::support::wire::{Wire, dialler};
use crate::support::{Cluster, Known, eventually, say, turn};
use fields::Field;

/// The node whose certificate and key are in wrong hands.
const THIEF: &str = "be2";
/// The nodes that it tries them on.
const TARGETS: [&str; 4] = ["fe0", "fe1", "be0", "be1"];
/// A claim takes 100 ms.
const CLAIMED_IN: Duration = Duration::from_secs(2);

/// A connection of a client, the request that it stays for, and its flow.
struct Victim {
    client: Client,
    stays: Option<Object>,
    known: Known,
}

struct Trial<'c> {
    cluster: &'c Cluster,
    thief: Broken<'c>,
    victims: Vec<Victim>,
    tried: u32,
}

impl<'c> Trial<'c> {
    /// Connections that rest at `be0`, at `be1` and at the frontend that accepted them.
    fn new(cluster: &'c Cluster, mode: Mode) -> Self {
        let objects = cluster.one_on_each("whole", |_| 5_000);
        cluster.put_all(&objects);
        let mut thief = Broken::of(cluster, THIEF);
        thief.is_at_service = mode == Mode::Host;
        let mut victims = Vec::new();
        for stays in [
            Some(objects[0].clone()),
            Some(objects[1].clone()),
            None,
            None,
        ] {
            let mut client = cluster.connect();
            ask(cluster, &mut client, stays.as_ref());
            eventually("the switch knows the flow", CLAIMED_IN, || {
                cluster.flow_of(client.local()).is_some()
            });
            let known = cluster.flow_of(client.local()).unwrap();
            victims.push(Victim {
                client,
                stays,
                known,
            });
        }
        Self {
            cluster,
            thief,
            victims,
            tried: 0,
        }
    }

    fn wire(&self, target: &str, alpn: &[u8]) -> Wire {
        let pki = self.cluster.pki();
        let config = dialler(&pki, Some((&pki, THIEF)), alpn);
        let address = self.cluster.node_port(target);
        self.cluster
            .on(THIEF, || Wire::dial(address, target, config))
            .unwrap()
    }

    /// Each connection is answered where it was, and the switch has nothing else of it.
    fn all_go_on(&mut self, what: &str) {
        self.tried += 1;
        for victim in &mut self.victims {
            ask(self.cluster, &mut victim.client, victim.stays.as_ref());
            let now = self.cluster.flow_of(victim.client.local());
            assert_eq!(now.as_ref(), Some(&victim.known), "{what}");
        }
    }

    /// Tries a hand-off on one target. A refusal may have a pass, which the thief's key then uses.
    fn hand_off(&mut self, wire: &mut Wire, hand_off: HandOff, what: &str) {
        let (flow, epoch) = (flow_of(&hand_off), hand_off.epoch);
        wire.send(&Frame::HandOff(Box::new(hand_off)).encode())
            .unwrap();
        let verdict = wire.verdict().unwrap();
        let pass = match verdict {
            Frame::Refused { pass, .. } => pass,
            Frame::Unknown { .. } => None,
            other => panic!("{what}: {other:?}"),
        };
        if pass.is_some() {
            let known = Known {
                flow,
                epoch,
                ..self.victims[0].known.clone()
            };
            let term = term_of(self.cluster);
            let answer = self.thief.command(&known, OWN, pass, term).unwrap();
            assert_ne!(answer.status, Status::Ok, "{what}: its pass is good");
        }
    }

    /// The offer that an honest source would send for the flow, at `epoch`.
    fn honest(&self, known: &Known, epoch: u64) -> HandOff {
        let client = known.flow.client;
        HandOff {
            id: fastrand::u64(..),
            epoch,
            moves: 1,
            origin: "fe0".to_owned(),
            context: Vec::new(),
            input: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
            output: Vec::new(),
            tls: None,
            proxied: None,
            tcp: TcpState {
                remote: client,
                service: known.flow.vip,
                write_seq: 1,
                receive_seq: 1,
                sent: Vec::new(),
                unsent: Vec::new(),
                received: Vec::new(),
                peer_closed: false,
                options: NegotiatedOptions::default(),
                timestamp: 0,
                window: Window {
                    send_wl1: 1,
                    send_window_bytes: 60_000,
                    max_window_bytes: 60_000,
                    receive_window_bytes: 60_000,
                    receive_wup: 1,
                },
                cwnd_segments: 10,
                srtt_us: 1_000,
                behaviour: Behaviour {
                    mss_clamp_bytes: 1_400,
                    congestion: "cubic".into(),
                    nodelay: true,
                    keepalive: None,
                    user_timeout_ms: 0,
                },
            },
            permit: self.permit(known, epoch, "be0"),
        }
    }

    /// The thief's own word that `target` may take the flow.
    fn permit(&self, known: &Known, epoch: u64, target: &str) -> Option<Permit> {
        let to_address = |node| self.cluster.address_like(node, known.flow.client.ip());
        let via = to_address(target);
        let flow = known.flow;
        let pass = Pass::new(&self.thief.key, &Passage { flow, epoch, via });
        Some(Permit {
            pass,
            source: to_address(THIEF),
        })
    }

    fn address_of(&self, node: &str, known: &Known) -> std::net::IpAddr {
        self.cluster.address_like(node, known.flow.client.ip())
    }

    fn object_of(&self, node: &str) -> String {
        self.cluster.key_on(node, "whole")
    }
}

fn ask(cluster: &Cluster, client: &mut Client, stays: Option<&Object>) {
    match stays {
        Some(object) => client.get(cluster, object),
        // Any backend answers this, by a relay.
        None => {
            let answer = client.call(&cluster.request("GET", "?location"));
            assert_eq!(answer.status(), 200, "{}", answer.text());
        }
    }
}

fn flow_of(hand_off: &HandOff) -> FlowKey {
    FlowKey {
        client: hand_off.tcp.remote,
        vip: hand_off.tcp.service,
    }
}

fn up(mode: Mode) -> Cluster {
    Cluster::up_with(3, |spec| {
        (spec.mode, spec.frontends) = (mode, 2);
    })
}

fn no_hand_off_breaks_a_connection(mode: Mode) {
    let cluster = up(mode);
    let mut trial = Trial::new(&cluster, mode);
    trial.all_go_on("before");
    let known: Vec<Known> = trial
        .victims
        .iter()
        .map(|victim| victim.known.clone())
        .collect();
    for target in TARGETS {
        let mut wire = trial.wire(target, ALPN_HAND_OFF);
        for known in &known {
            let clock_ns = trial.thief.clock_ns(known, term_of(&cluster));
            let epochs = [
                known.epoch - 1,
                known.epoch,
                known.epoch + 1,
                clock_ns + 1_500_000_000,
                clock_ns + 10_000_000_000,
                u64::MAX,
            ];
            for epoch in epochs {
                for field in Field::ALL {
                    let what = format!("{target}, {epoch}, {field:?} of {known:?}");
                    for hand_off in field.variants(&trial, known, epoch, target) {
                        trial.hand_off(&mut wire, hand_off, &what);
                    }
                }
                trial.all_go_on(&format!("{target}, {epoch}, {known:?}"));
            }
        }
    }
    // A connection that its frontend has accepted and not claimed yet.
    for target in TARGETS.into_iter().cycle().take(16) {
        let mut client = cluster.connect();
        let flow = FlowKey {
            client: client.local(),
            vip: client.stream.peer_addr().unwrap(),
        };
        let new = Known {
            flow,
            ..known[0].clone()
        };
        let epoch = trial.thief.clock_ns(&new, term_of(&cluster)) + 1_000_000_000;
        let mut wire = trial.wire(target, ALPN_HAND_OFF);
        for permit in [None, trial.permit(&new, epoch, target)] {
            let hand_off = HandOff {
                permit,
                ..trial.honest(&new, epoch)
            };
            trial.hand_off(&mut wire, hand_off, "a new connection");
        }
        ask(&cluster, &mut client, trial.victims[0].stays.as_ref());
    }
    trial.all_go_on("after all");
    say(&format!("the connections were whole {} times", trial.tried));
    assert_eq!(cluster.sum("handoff", "exports_lost"), 0);
}

#[test]
fn no_hand_off_by_one_certificate_breaks_a_connection_of_others() {
    let Some(_turn) = turn() else { return };
    no_hand_off_breaks_a_connection(Mode::Switch);
}

#[test]
fn no_hand_off_by_one_certificate_breaks_a_connection_of_others_in_host_mode() {
    let Some(_turn) = turn() else { return };
    no_hand_off_breaks_a_connection(Mode::Host);
}

#[test]
fn a_hand_off_under_way_is_not_disturbed_by_the_certificate_of_a_third_node() {
    let Some(_turn) = turn() else { return };
    let mut cluster = up(Mode::Switch);
    let objects = cluster.one_on_each("whole", |_| 5_000);
    cluster.put_all(&objects);
    for _ in 0..3 {
        let mut client = cluster.connect();
        client.get(&cluster, &objects[0]);
        client.get(&cluster, &objects[1]);
        client.get(&cluster, &objects[0]);
        cluster.lab.fail("be1", Failure::Stop).unwrap();
        // The source has sent its state, and no verdict comes for 2 s.
        let get = Request::get(&objects[1]).encode(&cluster);
        client.send(&get);
        std::thread::sleep(Duration::from_millis(500));
        {
            let trial = Trial {
                thief: Broken::of(&cluster, THIEF),
                cluster: &cluster,
                victims: Vec::new(),
                tried: 0,
            };
            let known = cluster.flow_of(client.local()).unwrap();
            for target in ["be0", "fe0", "fe1"] {
                let mut wire = trial.wire(target, ALPN_HAND_OFF);
                let epoch = trial.thief.clock_ns(&known, term_of(&cluster)) + 1_500_000_000;
                for epoch in [known.epoch + 1, known.epoch + 2, epoch] {
                    let hand_off = trial.honest(&known, epoch);
                    wire.send(&Frame::HandOff(Box::new(hand_off)).encode())
                        .unwrap();
                    let verdict = wire.verdict().unwrap();
                    let is_refused = matches!(verdict, Frame::Refused { pass: None, .. });
                    assert!(is_refused, "{target}: {verdict:?}");
                }
            }
        }
        let answer = client.answer(&prism_http::Method::GET);
        assert!([200, 503].contains(&answer.status()), "{}", answer.text());
        cluster.lab.heal("be1").unwrap();
        client.get(&cluster, &objects[0]);
    }
    assert_eq!(cluster.sum("handoff", "exports_lost"), 0);
}
