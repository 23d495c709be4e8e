//! A primary and two replicas, each a process in a namespace of its own, and a client of RESP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use prism_kv::config::{Config, Node, Switch};
use prism_nodes::{CONTROL, KEY, KEY_ID, Network, Plan};
use tempfile::TempDir;

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
    /// Starts all nodes, and waits until both replicas have a lease.
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
        let mut client = cluster.client();
        client.eventually("both replicas follow", |c| c.info("followers") == "2");
        client.call(&[b"SET", b"is", &[b'x'; LARGE_BYTES]]);
        client.eventually("a replica has a lease", |c| {
            c.call(&[b"GET", b"is"]);
            c.info("node") != "primary"
        });
        cluster
    }

    fn start_node(&self, name: &str) -> Child {
        let nodes = PLAN.addresses().map(|(name, address)| Node {
            name: name.to_owned(),
            address: address.into(),
        });
        let config = Config {
            name: name.to_owned(),
            pki_dir: self.network.pki_dir().to_owned(),
            service: PLAN.service().into(),
            listen: name == PLAN.nodes[0],
            move_from_bytes: LARGE_BYTES,
            nodes: nodes.collect(),
            switch: Some(Switch {
                control: CONTROL.into(),
                key_id: KEY_ID,
                key: KEY,
            }),
        };
        let path = self.files.path().join(format!("{name}.toml"));
        std::fs::write(&path, toml::to_string(&config).unwrap()).unwrap();
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

    /// The process of a node.
    pub fn pid(&self, name: &str) -> rustix::process::Pid {
        let n = PLAN.nodes.iter().position(|node| *node == name).unwrap();
        rustix::process::Pid::from_child(&self.nodes[n])
    }

    pub fn client(&self) -> Client {
        let stream = self
            .network
            .client
            .run(|| TcpStream::connect(PLAN.service()));
        let stream = stream.unwrap().unwrap();
        let limit = Some(Duration::from_secs(20));
        stream.set_read_timeout(limit).unwrap();
        stream.set_nodelay(true).unwrap();
        Client {
            answers: BufReader::new(stream.try_clone().unwrap()),
            stream,
        }
    }

    /// A client whose connection is at a replica.
    pub fn client_at_replica(&self) -> Client {
        let mut client = self.client();
        client.call(&[b"SET", b"large", &[b'x'; LARGE_BYTES]]);
        client.call(&[b"GET", b"large"]);
        assert_ne!(client.info("node"), "primary");
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

pub struct Client {
    stream: TcpStream,
    answers: BufReader<TcpStream>,
}

impl Client {
    pub fn send(&mut self, arguments: &[&[u8]]) {
        let mut command = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            write!(command, "${}\r\n", argument.len()).unwrap();
            command.extend_from_slice(argument);
            command.extend_from_slice(b"\r\n");
        }
        self.stream.write_all(&command).unwrap();
    }

    /// The next answer, without its type; of no value, `nil`.
    pub fn answer(&mut self) -> Vec<u8> {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        let line = line.strip_suffix("\r\n").expect("an answer");
        match line.split_at(1) {
            ("$", "-1") => b"nil".to_vec(),
            ("$", bytes) => {
                let mut value = vec![0; bytes.parse::<usize>().unwrap() + 2];
                self.answers.read_exact(&mut value).unwrap();
                assert!(value.ends_with(b"\r\n"));
                value.truncate(value.len() - 2);
                value
            }
            (_, text) => text.as_bytes().to_vec(),
        }
    }

    pub fn call(&mut self, arguments: &[&[u8]]) -> Vec<u8> {
        self.send(arguments);
        self.answer()
    }

    /// A field of the information about the node that has the connection.
    pub fn info(&mut self, field: &str) -> String {
        let info = String::from_utf8(self.call(&[b"INFO"])).unwrap();
        let fields = info.lines().filter_map(|line| line.split_once(':'));
        let mut found = fields.filter(|(name, _)| *name == field);
        found
            .next()
            .map(|(_, value)| value.to_owned())
            .unwrap_or_default()
    }

    pub fn eventually(&mut self, what: &str, is_so: impl Fn(&mut Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_so(self) {
            assert!(Instant::now() < deadline, "not within 10 s: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
