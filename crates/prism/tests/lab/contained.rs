//! Keys of single nodes: what a node that has been broken into can do to the flows of others, and
//! the replacement of all keys.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prism_config::{ConfigFile, Switch, with_name, write_private};
use prism_proto::control::{
    Answer, ControlKey, FlowState, MESSAGE_BYTES, Ops, Owner, Pass, Passage, Request as Query,
    RunId, Status, Term,
};

use crate::support::client::Request;
use crate::support::objects::Object;
use crate::support::{Cluster, Known, Stop, eventually, node_key, output, say, turn};

const PRISM: &str = env!("CARGO_BIN_EXE_prism");
const CLIENTS: usize = 8;
/// Between two requests of a connection.
const REST: Duration = Duration::from_millis(5);
/// The longest time until all nodes use another key.
const NOTICED: Duration = Duration::from_secs(5);
const HOLD: Ops = Ops::OWN.and(Ops::BLOCK);
pub const OWN: Ops = Ops::OWN.and(Ops::UNBLOCK);

/// A node whose key is in the hands of another.
pub struct Broken<'c> {
    cluster: &'c Cluster,
    name: &'static str,
    key_id: u32,
    pub key: ControlKey,
    /// Its sockets have the service's own address, as in host mode.
    pub is_at_service: bool,
}

impl<'c> Broken<'c> {
    pub fn of(cluster: &'c Cluster, name: &'static str) -> Self {
        let (key_id, key) = node_key(&switch_of(cluster), name);
        Self {
            cluster,
            name,
            key_id,
            key,
            is_at_service: false,
        }
    }

    /// The switch's clock.
    pub fn clock_ns(&self, known: &Known, term: Term) -> u64 {
        self.command(known, Ops::QUERY, None, term).unwrap().time_ns
    }

    /// The answer to a command; its epoch, time and owner are right for this node.
    pub fn command(
        &self,
        known: &Known,
        ops: Ops,
        pass: Option<Pass>,
        term: Term,
    ) -> Option<Answer> {
        let own = self.cluster.address_like(self.name, known.flow.client.ip());
        let addr = match self.is_at_service {
            true => known.flow.vip,
            false => SocketAddr::new(own, 20_000),
        };
        let is_owner = ops.has(Ops::OWN);
        let mut query = Query {
            key_id: self.key_id,
            request_id: 1,
            time_ns: 0,
            ops,
            epoch: known.epoch + 1,
            flow: known.flow,
            owner: match is_owner {
                true => Owner { addr, via: own },
                false => Owner::NONE,
            },
            run: RunId::NONE,
        };
        let control = switch_of(self.cluster).control.of(own).unwrap();
        let ask = |query: &Query| {
            self.cluster.on(self.name, || {
                let socket = UdpSocket::bind(SocketAddr::new(own, 0)).unwrap();
                let patience = Some(Duration::from_millis(500));
                socket.set_read_timeout(patience).unwrap();
                socket.connect(control).unwrap();
                let datagram = query.in_term(term).encode_with(pass, &self.key);
                socket.send(&datagram).unwrap();
                let mut bytes = [0; MESSAGE_BYTES];
                socket.recv(&mut bytes).ok()?;
                Some(Answer::decode(&bytes, self.key_id, &self.key).unwrap())
            })
        };
        // A late command is answered with the switch's time.
        let late = ask(&query)?;
        assert_eq!(late.status, Status::Late);
        query.time_ns = late.time_ns;
        ask(&query)
    }
}

fn switch_of(cluster: &Cluster) -> Switch {
    let config = ConfigFile::load(&cluster.lab.config_path()).unwrap();
    config.switch.unwrap()
}

pub fn term_of(cluster: &Cluster) -> Term {
    cluster.view().term().unwrap().0
}

/// Clients fetch the objects in turn, over connections that move, while `work` is done. Returns the
/// number of answers; each is checked.
fn while_clients_fetch(cluster: &Cluster, objects: &[Object], work: impl FnOnce()) -> u64 {
    let (stop, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for n in 0..CLIENTS {
            let (mut client, stop, answers) = (cluster.connect(), &stop, &answers);
            scope.spawn(move || {
                let signer = cluster.new_signer();
                for object in objects.iter().cycle().skip(n) {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let get = Request::get(object).encode_by(&signer, cluster.service);
                    let answer = client.call(&get);
                    assert_eq!(answer.status(), 200, "{}", answer.text());
                    object.check(0, &answer.body);
                    answers.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(REST);
                }
            });
        }
        let _stop = Stop(&stop);
        work();
    });
    answers.into_inner()
}

#[test]
fn a_broken_node_cannot_change_the_flows_of_others() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(3);
    let objects = cluster.one_on_each("contained", |_| 50_000);
    cluster.put_all(&objects);
    // The victims' connections rest at be0 and at the frontend.
    let mut clients = [cluster.connect(), cluster.connect()];
    clients[0].get(&cluster, &objects[0]);
    let victims = || -> Vec<Known> {
        let ports: Vec<u16> = clients.iter().map(|c| c.local().port()).collect();
        let mut all = cluster.flows();
        all.retain(|known| ports.contains(&known.flow.client.port()));
        all
    };
    eventually("the other connection is claimed", NOTICED, || {
        victims().len() == 2
    });
    let before = victims();
    let broken = Broken::of(&cluster, "be2");
    let (foreign, denied) = ("control_foreign", "control_denied");
    let counts = || [foreign, denied].map(|name| cluster.switch_count(name));
    let counted = counts();
    let mut tried = 0;
    let answers = while_clients_fetch(&cluster, &objects, || {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(3) {
            for known in &before {
                tried += try_all(&broken, known);
            }
        }
    });
    say(&format!(
        "{tried} commands denied while {answers} requests were answered"
    ));
    assert!(answers > 0);
    assert_eq!(victims(), before, "nothing has changed");
    assert_eq!(counts(), [counted[0] + tried, counted[1]]);
    for client in &mut clients {
        client.get(&cluster, &objects[1]);
    }
    assert_eq!(cluster.sum("handoff", "kept_switch_refused"), 0);
    assert_eq!(cluster.sum("handoff", "kept_switch_silent"), 0);
    drop(clients);
    cluster.assert_no_flows();
}

/// Tries each command on a flow of another node. Returns how many were denied.
fn try_all(broken: &Broken<'_>, known: &Known) -> u64 {
    let term = term_of(broken.cluster);
    let own = broken
        .cluster
        .address_like(broken.name, known.flow.client.ip());
    let to = |epoch| Passage {
        flow: known.flow,
        epoch,
        via: own,
    };
    // By its own key, and one that was right for the epoch before.
    let forged = Pass::new(&broken.key, &to(known.epoch + 1));
    let owner = broken.cluster.nodes().into_iter().find(|node| {
        let address = broken.cluster.address_like(node, known.flow.client.ip());
        address == known.owner.via
    });
    let (_, key) = node_key(&switch_of(broken.cluster), &owner.unwrap());
    let replayed = Pass::new(&key, &to(known.epoch));
    let passes = [None, Some(forged), Some(replayed)];
    let mut denied = 0;
    for pass in passes {
        for ops in [OWN, HOLD, Ops::OWN] {
            let answer = broken.command(known, ops, pass, term).unwrap();
            assert_eq!(answer.status, Status::Denied, "{ops:?}");
            denied += 1;
        }
        // In a settled term an announcement changes nothing.
        let stated = broken.command(known, OWN.and(Ops::ANNOUNCE), pass, term);
        assert_eq!(stated.unwrap().status, Status::OldTerm);
    }
    for ops in [Ops::BLOCK, Ops::UNBLOCK, Ops::RELEASE] {
        let answer = broken.command(known, ops, None, term).unwrap();
        assert_eq!(answer.status, Status::Denied, "{ops:?}");
        assert_ne!(answer.state, FlowState::Absent);
        denied += 1;
    }
    denied
}

/// Runs `prism ctl switch` on the switch's host.
fn ctl(cluster: &Cluster, words: &[&str]) -> Command {
    let mut command = cluster.lab.command("switch", PRISM).unwrap();
    command.args(["ctl", "switch"]).args(words);
    command.arg("--config").arg(cluster.lab.config_path());
    command
}

/// Installs a node's file from `dir`.
fn install(cluster: &Cluster, dir: &Path, node: &str) {
    let to = with_name(&switch_of(cluster).key_file, node);
    let from = dir.join(to.file_name().unwrap());
    write_private(&to, &std::fs::read_to_string(from).unwrap()).unwrap();
}

#[test]
fn all_keys_are_replaced_under_load_without_a_failed_hand_off() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(3);
    let objects = cluster.one_on_each("rotated", |_| 20_000);
    cluster.put_all(&objects);
    let old = Broken::of(&cluster, "be1");
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("keys");
    let kept = || {
        [
            "kept_switch_silent",
            "kept_switch_refused",
            "kept_target_refused",
        ]
        .map(|name| cluster.sum("handoff", name))
    };
    let (before, moved) = (kept(), cluster.sum("handoff", "exports_moved"));
    let answers = while_clients_fetch(&cluster, &objects, || {
        std::thread::sleep(Duration::from_secs(1));
        let told = output(&mut ctl(
            &cluster,
            &["rotate-key", "--out", out.to_str().unwrap()],
        ));
        assert!(told.contains("4 nodes"), "{told}");
        for node in cluster.nodes() {
            let early = ctl(&cluster, &["rotate-key", "--finish"]).output().unwrap();
            let told = String::from_utf8_lossy(&early.stderr);
            assert!(!early.status.success() && told.contains(&node), "{told}");
            install(&cluster, &out, &node);
            std::thread::sleep(Duration::from_millis(700));
        }
        eventually("no node uses an old key", NOTICED, || {
            let told = output(&mut ctl(&cluster, &["status"]));
            told.contains("4 nodes use") && told.contains(", 0 nodes")
        });
        output(&mut ctl(&cluster, &["rotate-key", "--finish"]));
        std::thread::sleep(Duration::from_secs(2));
    });
    let moved = cluster.sum("handoff", "exports_moved") - moved;
    say(&format!("{answers} answers and {moved} hand-offs"));
    assert!(moved > 0);
    assert_eq!(kept(), before, "no hand-off has failed");
    // The old key is refused.
    let mut client = cluster.connect();
    client.get(&cluster, &objects[1]);
    let known = cluster.flow_of(client.local()).unwrap();
    let forged = cluster.switch_count("control_forged");
    assert_eq!(old.command(&known, Ops::BLOCK, None, Term::NONE), None);
    assert_eq!(cluster.switch_count("control_forged"), forged + 1);
    let new = Broken::of(&cluster, "be1");
    let term = term_of(&cluster);
    let answer = new.command(&known, Ops::UNBLOCK, None, term).unwrap();
    assert_eq!(answer.status, Status::Ok);
}
