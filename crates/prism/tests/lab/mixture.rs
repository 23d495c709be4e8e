//! Everything that clients do, by many of them at once and in random order, for cases that no
//! single test covers. The seed is printed; `PRISM_SEED` in the environment sets it.

use std::time::Duration;

use fastrand::Rng;
use prism_config::{HandOffMethod, HandOffMode};
use prism_http::Method;

use crate::support::client::{Client, Request};
use crate::support::objects::{self, Object};
use crate::support::packets::{ClientResets, Watch};
use crate::support::{Cluster, eventually, say, turn};

const CLIENTS: u64 = 24;
/// Connections that each client makes, one after the other.
const CONNECTIONS: usize = 12;
/// The most things done on one connection.
const MAX_STEPS: usize = 12;

/// One client's life; the seed decides all of it.
struct Life<'c> {
    cluster: &'c Cluster,
    objects: &'c [Object],
    rng: Rng,
    id: u64,
}

/// How a connection ends.
enum End {
    Close,
    HalfClose,
    Reset,
}

impl Life<'_> {
    fn live(&mut self) {
        for _ in 0..CONNECTIONS {
            let mut client = match self.rng.u8(..4) {
                0 => self.cluster.connect_with(|socket| {
                    socket.set_recv_buffer_size(16 << 10).unwrap();
                }),
                _ => self.cluster.connect(),
            };
            for _ in 0..self.rng.usize(..=MAX_STEPS) {
                self.step(&mut client);
            }
            self.end(client);
        }
    }

    fn object(&mut self) -> Object {
        self.objects[self.rng.usize(..self.objects.len())].clone()
    }

    fn get(&self, object: &Object) -> Vec<u8> {
        Request::get(object).encode(self.cluster)
    }

    fn step(&mut self, client: &mut Client) {
        let object = self.object();
        match self.rng.u8(..8) {
            0 => self.pipeline(client),
            1 => self.trickle(client, &object),
            2 => self.put(client),
            3 => {
                client.send(&self.get(&object));
                std::thread::sleep(Duration::from_millis(self.rng.u64(..60)));
                client.expect(&object);
            }
            4 => {
                let head = Request::new("HEAD", &format!("/{}", object.key));
                let answer = client.call(&head.encode(self.cluster));
                assert_eq!(answer.status(), 200);
            }
            _ => client.get(self.cluster, &object),
        }
    }

    fn pipeline(&mut self, client: &mut Client) {
        let wanted: Vec<Object> = (0..self.rng.usize(2..6)).map(|_| self.object()).collect();
        for object in &wanted {
            client.send(&self.get(object));
        }
        for object in &wanted {
            client.expect(object);
        }
    }

    /// A request in small pieces, the first together with another request.
    fn trickle(&mut self, client: &mut Client, object: &Object) {
        let before = self.object();
        let bytes = [self.get(&before), self.get(object)].concat();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(self.rng.usize(1..=rest.len()));
            client.send(now);
            std::thread::sleep(Duration::from_micros(self.rng.u64(..300)));
            rest = later;
        }
        client.expect(&before);
        client.expect(object);
    }

    /// Writes an object of this client alone, reads it back, and deletes it.
    fn put(&mut self, client: &mut Client) {
        let key = format!("own-{}-{}", self.id, self.rng.u32(..));
        let object = Object::new(key, self.rng.u64(1..500_000));
        if self.rng.bool() {
            let put = Request::put_signed(&object).header("Expect", "100-continue");
            client.send(&put.encode(self.cluster));
            assert_eq!(client.head().status(), 100);
            client.send_object(&object);
            assert_eq!(client.answer(&Method::PUT).status(), 200);
        } else {
            client.put(self.cluster, &object);
        }
        client.get(self.cluster, &object);
        let delete = self.cluster.request("DELETE", &format!("/{}", object.key));
        assert_eq!(client.call(&delete).status(), 204);
    }

    fn end(&mut self, mut client: Client) {
        let end = match self.rng.u8(..3) {
            0 => End::Close,
            1 => End::HalfClose,
            _ => End::Reset,
        };
        let object = self.object();
        match end {
            End::Close => {}
            End::HalfClose => {
                client.send(&self.get(&object));
                client.half_close();
                client.expect(&object);
                client.expect_end();
            }
            End::Reset => {
                let requests = self.rng.usize(..3);
                for _ in 0..requests {
                    client.send(&self.get(&object));
                }
                if requests > 0 && self.rng.bool() {
                    assert_eq!(client.head().status(), 200);
                }
                client.reset();
            }
        }
    }
}

fn mixture(mode: HandOffMode, method: HandOffMethod, label: &str) {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up_with(3, |spec| {
        spec.configure = Some(Box::new(move |config| {
            config.service.first_mut().hand_off = mode;
            config.service.first_mut().hand_off_method = method;
        }));
    });
    let seed = std::env::var("PRISM_SEED").map_or_else(
        |_| u64::from(std::process::id()),
        |seed| seed.parse().unwrap(),
    );
    say(&format!("{label}: seed {seed}"));
    let objects = objects::log_uniform("mixture", 60, 4 << 20, &mut Rng::with_seed(seed));
    cluster.put_all(&objects);
    cluster.assert_no_flows();
    let watch = Watch::events(&cluster, label);
    let failed = cluster.sum("requests", "failed");
    let (cluster_ref, objects) = (&cluster, &objects);
    std::thread::scope(|scope| {
        let lives: Vec<_> = (0..CLIENTS)
            .map(|id| {
                let mut life = Life {
                    cluster: cluster_ref,
                    objects,
                    rng: Rng::with_seed(seed ^ (id << 32)),
                    id,
                };
                scope.spawn(move || life.live())
            })
            .collect();
        let ended: Vec<_> = lives.into_iter().map(|life| life.join()).collect();
        assert!(ended.iter().all(Result::is_ok), "a client failed");
    });
    eventually("no connection is left", Duration::from_secs(5), || {
        cluster.sum("handoff", "connections_open") == 0
    });
    cluster.assert_no_flows();
    for (group, name) in [("requests", "failed"), ("handoff", "exports_lost")] {
        say(&format!("{label}: {} {name}", cluster.sum(group, name)));
    }
    let names = [
        "exports_moved",
        "exports_kept",
        "kept_save_failed",
        "kept_switch_refused",
        "kept_switch_silent",
        "kept_target_refused",
        "kept_target_silent",
        "releases_failed",
    ];
    for name in names {
        say(&format!("{label}: {} {name}", cluster.sum("handoff", name)));
    }
    assert_eq!(cluster.sum("requests", "failed"), failed);
    watch.finish(ClientResets::Meant);
}

#[test]
fn a_mixture_of_clients_is_served_right_when_backends_hand_over_directly() {
    mixture(HandOffMode::Direct, HandOffMethod::Freeze, "mixture-direct");
}

#[test]
fn a_mixture_of_clients_is_served_right_when_connections_return() {
    mixture(HandOffMode::Return, HandOffMethod::Freeze, "mixture-return");
}

#[test]
fn a_mixture_of_clients_is_served_right_when_the_switch_blocks_the_flows() {
    mixture(
        HandOffMode::Direct,
        HandOffMethod::TwoPhase,
        "mixture-block",
    );
}

#[test]
fn a_mixture_of_clients_is_served_right_when_blocked_connections_return() {
    mixture(
        HandOffMode::Return,
        HandOffMethod::TwoPhase,
        "mixture-block-return",
    );
}
