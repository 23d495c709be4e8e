//! A primary and two replicas, each a process in a namespace of its own, and a client of RESP.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use prism_nodes::{CONTROL, KEY, KEY_ID, Network, Plan};
use tempfile::TempDir;

use crate::client::Client;

pub const PLAN: Plan = Plan {
    nodes: &["primary", "r1", "r2"],
    port: 6379,
};
/// Readers of values of this size move.
pub const LARGE_BYTES: usize = 16 << 10;

pub struct Cluster {
    pub network: Network,
    nodes: Vec<Child>,
    files: TempDir,
}

impl Cluster {
    /// Starts all nodes.
    pub fn start(what: &str) -> Self {
        let pin_dir = format!("prism-kv-{what}-{}", std::process::id());
        let files = tempfile::tempdir().unwrap();
        let mut cluster = Self {
            network: Network::new(&PLAN, &pin_dir).unwrap(),
            nodes: Vec::new(),
            files,
        };
        for name in PLAN.nodes {
            let node = cluster.start_node(name);
            cluster.nodes.push(node);
        }
        cluster
    }

    fn start_node(&self, name: &str) -> Child {
        let pki_dir = self.network.pki_dir().display();
        let mut config = format!(
            "name = \"{name}\"\npki_dir = \"{pki_dir}\"\nservice = \"{}\"\n\
             move_from_bytes = {LARGE_BYTES}\n\
             switch = {{ control = \"{CONTROL}\", key_id = {KEY_ID}, key = {KEY:?} }}\n",
            PLAN.service()
        );
        for (name, address) in PLAN.addresses() {
            let node = format!("[[nodes]]\nname = \"{name}\"\naddress = \"{address}\"\n");
            config.push_str(&node);
        }
        let path = self.files.path().join(format!("{name}.toml"));
        std::fs::write(&path, config).unwrap();
        let mut command = Command::new(Path::new(env!("CARGO_BIN_EXE_prism-kv")));
        command
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let namespace = self.network.node(name).unwrap();
        let mut node = namespace.run(|| command.spawn()).unwrap().unwrap();
        let mut ready = String::new();
        let mut said = BufReader::new(node.stdout.take().unwrap());
        said.read_line(&mut ready).unwrap();
        assert_eq!(ready, format!("{name} is ready\n"));
        node
    }

    /// Kills a node, and starts it again.
    pub fn restart(&mut self, name: &str) {
        let n = number(name);
        self.nodes[n].kill().unwrap();
        self.nodes[n].wait().unwrap();
        self.nodes[n] = self.start_node(name);
    }

    /// The process of a node.
    pub fn pid(&self, name: &str) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.nodes[number(name)])
    }

    pub fn client(&self) -> Client {
        let connected = self
            .network
            .client
            .run(|| Client::connect(PLAN.service().into()));
        connected.unwrap().unwrap()
    }

    /// A client whose connection is at a replica.
    pub fn client_at_replica(&self) -> Client {
        let mut client = self.client();
        client
            .call(&[b"SET", b"large", &[b'x'; LARGE_BYTES]])
            .unwrap();
        eventually(&mut client, "a connection moves", |client| {
            client.call(&[b"GET", b"large"]).unwrap();
            client.info("node").unwrap() != "primary"
        });
        client
    }

    /// Drops the packets from the primary to a replica, or no longer.
    pub fn set_reachable(&self, replica: &str, is_reachable: bool) {
        let mut nodes = PLAN.addresses();
        let (_, address) = nodes.find(|(name, _)| *name == replica).unwrap();
        let change = if is_reachable { "delete" } else { "add" };
        let mut ip = Command::new("ip");
        ip.args(["route", change, "blackhole", &address.to_string()]);
        let namespace = self.network.node("primary").unwrap();
        let status = namespace.run(|| ip.status()).unwrap().unwrap();
        assert!(status.success());
    }

    /// The output of a program at the client's host.
    pub fn run(&self, command: &mut Command) -> String {
        let output = self.network.client.run(|| command.output());
        let output = output.unwrap().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}{errors}");
        said
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            let _ = node.kill();
            let _ = node.wait();
        }
    }
}

fn number(name: &str) -> usize {
    PLAN.nodes.iter().position(|node| *node == name).unwrap()
}

pub fn eventually(client: &mut Client, what: &str, is_so: impl Fn(&mut Client) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is_so(client) {
        assert!(Instant::now() < deadline, "not within 10 s: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
