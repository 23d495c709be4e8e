//! The library's example, on a lab's hosts: a protocol that is not HTTP, on one
//! connection that every node serves in turn.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use crate::support::turn;
use prism_config::Config;
use prism_lab::{Lab, LabSpec};
use prism_proto::node::MAX_MOVES;
use prism_switch::SwitchView;
use prism_sys::netns::NetNs;

const NODES: [&str; 3] = ["fe0", "be0", "be1"];

/// Ends with the test, whatever its end.
struct Greeters(Vec<Child>);

impl Drop for Greeters {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// `make test` has built it, as it builds every example; otherwise it is built.
fn example() -> PathBuf {
    let prism = Path::new(env!("CARGO_BIN_EXE_prism"));
    let path = prism.parent().unwrap().join("examples/greeter");
    if !path.exists() {
        let arguments = [
            "build",
            "--release",
            "-p",
            "prism-handoff",
            "--example",
            "greeter",
        ];
        let built = Command::new(env!("CARGO")).args(arguments).status();
        assert!(built.unwrap().success(), "the example is built");
    }
    path
}

/// Greeters on all nodes; `order` gives the order in which each node's file has them.
fn start(lab: &Lab, order: impl Fn(&str, &mut Vec<String>)) -> Greeters {
    let config = Config::load(&lab.config_path()).unwrap();
    let switch = config.switch.as_ref().unwrap();
    let key = std::fs::read_to_string(&switch.key_file).unwrap();
    let nodes = config
        .nodes
        .iter()
        .map(|n| format!("{}={}", n.name, n.address));
    let nodes: Vec<String> = nodes.collect();
    let run = |node: &&str| {
        let mut command = lab.command(node, example()).unwrap();
        command.arg(node).arg(lab.service().to_string());
        command.arg(switch.control.to_string()).arg(key.trim());
        let mut nodes = nodes.clone();
        order(node, &mut nodes);
        command.arg(&config.peers.cert_dir).args(&nodes);
        command.spawn().unwrap()
    };
    Greeters(NODES.iter().map(run).collect())
}

fn connect(lab: &Lab) -> TcpStream {
    for _ in 0..100 {
        if let Ok(stream) = TcpStream::connect(lab.service()) {
            return stream;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("no greeter accepts clients")
}

/// Greets until both have answered the same connection in turn: at first the
/// frontend has not heard from the switch, and greets for others.
fn greeted_by_both(lab: &Lab) -> Vec<String> {
    let mut stream = connect(lab);
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    let mut last = Vec::new();
    for _ in 0..200 {
        let name = ["anna", "bert"][last.len() % 2];
        writeln!(stream, "{name}").unwrap();
        let mut answer = String::new();
        answers.read_line(&mut answer).unwrap();
        assert!(
            answer.starts_with(&format!("hello {name}, this is ")),
            "{answer:?}"
        );
        last.push(answer.trim().rsplit(' ').next().unwrap().to_owned());
        if last.iter().filter(|by| by.starts_with("be")).count() >= 20 {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    last
}

/// A lab whose nodes are greeters.
fn with_greeters<T: Send>(
    order: impl Fn(&str, &mut Vec<String>),
    work: impl FnOnce(&Lab) -> T + Send,
) -> T {
    let name = format!("greet-{}", std::process::id()).parse().unwrap();
    let mut spec = LabSpec::new(name, env!("CARGO_BIN_EXE_prism").into());
    spec.backends = 2;
    let mut lab = Lab::up(spec).unwrap();
    for node in NODES {
        lab.stop(node).unwrap();
    }
    let greeters = start(&lab, order);
    let namespace = lab.namespace("client").unwrap();
    let namespace = namespace.file_name().unwrap().to_str().unwrap();
    let netns = NetNs::named(namespace).unwrap();
    let done = netns.run(|| work(&lab)).unwrap();
    drop(greeters);
    lab.down().unwrap();
    done
}

#[test]
fn one_connection_is_greeted_by_the_node_of_each_name() {
    let Some(_turn) = turn() else { return };
    let by = with_greeters(|_, _| {}, greeted_by_both);
    // 'a' is odd, 'b' is even: names in turn are of different nodes.
    let tail = &by[by.len() - 10..];
    assert!(tail.windows(2).all(|pair| pair[0] != pair[1]), "{by:?}");
    assert!(tail.iter().all(|node| node.starts_with("be")), "{by:?}");
}

/// The epoch of the flow of a client's address at the switch.
fn epoch_of(lab: &Lab, client: SocketAddr) -> u64 {
    let config = Config::load(&lab.config_path()).unwrap();
    let view = SwitchView::open(&config.switch.unwrap().pin_dir).unwrap();
    let mut flows = view.flows().unwrap().map(Result::unwrap);
    flows
        .find(|flow| flow.flow.client == client)
        .expect("the flow")
        .epoch
}

#[test]
fn nodes_that_disagree_who_answers_hand_a_connection_to_and_fro_a_bounded_time() {
    let Some(_turn) = turn() else { return };
    // By its file each of the two takes the other for the greeter of 'a'.
    let differ = |node: &str, nodes: &mut Vec<String>| {
        if node == "be1" {
            nodes.swap(1, 2);
        }
    };
    let epochs = with_greeters(differ, |lab| {
        let mut stream = connect(lab);
        let limit = Some(Duration::from_secs(5));
        stream.set_read_timeout(limit).unwrap();
        let mut answers = BufReader::new(stream.try_clone().unwrap());
        let mut epochs = Vec::new();
        for _ in 0..500 {
            writeln!(stream, "anna").unwrap();
            let mut answer = String::new();
            answers.read_line(&mut answer).expect("an answer in time");
            assert!(answer.starts_with("hello anna, this is "), "{answer:?}");
            if answer.contains(" be") {
                epochs.push(epoch_of(lab, stream.local_addr().unwrap()));
            }
            if epochs.len() == 5 {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        epochs
    });
    assert_eq!(epochs.len(), 5, "no connection has moved");
    // Each move of a frozen connection is one epoch.
    for pair in epochs.windows(2) {
        let moves = pair[1] - pair[0];
        assert_eq!(moves, u64::from(MAX_MOVES), "{epochs:?}");
    }
}
