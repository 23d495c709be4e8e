//! An application whose connections do as their clients say, and a client of it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use prism_handoff::{Connection, Endpoint, EndpointConfig, Exported, Handle, Incoming, Process};
use prism_netns::NetNs;
use prism_nodes::{Network, Plan, is_root};
use tokio::sync::Notify;
use tokio::task::LocalSet;

/// The network of the tests.
const PLAN: Plan = Plan {
    nodes: &["left", "right"],
    port: 7,
};

/// What `bulk` answers.
pub static BULK: [u8; 300_000] = [7; 300_000];

/// Runs `work` as the process of a node.
pub fn run<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, work)
}

/// Both nodes of a network, each a thread with an endpoint that serves [`answer`].
pub struct Nodes<'n> {
    pub network: &'n Network,
    pub left: Node,
    pub right: Node,
}

/// One of them, as the tests reach it.
#[derive(Clone, Default)]
pub struct Node {
    pub process: Arc<Process>,
    ends: Arc<Notify>,
    leaves: Arc<Notify>,
    has_left: Arc<Notify>,
}

impl Node {
    /// Ends the node without a word to the other one.
    pub fn end(&self) {
        self.ends.notify_one();
    }

    /// Has the node say that it leaves, and waits until it has.
    pub fn leave(&self) {
        self.leaves.notify_one();
        run(self.has_left.notified());
    }

    async fn serve(&self, config: EndpointConfig) {
        let mut endpoint = Endpoint::bind(config, self.process.clone()).await.unwrap();
        let (here, leaving) = (self.clone(), endpoint.handle());
        tokio::task::spawn_local(async move {
            here.leaves.notified().await;
            leaving.leave().await;
            here.has_left.notify_one();
        });
        let serving = async {
            while let Some(incoming) = endpoint.next().await {
                if let Incoming::Client(client) = incoming {
                    tokio::task::spawn_local(answer(client, endpoint.handle()));
                }
            }
        };
        tokio::select! {
            () = serving => {}
            () = self.ends.notified() => {}
        }
    }
}

/// Runs `work` in the client's namespace while both nodes serve. `configure` changes the
/// configuration of the node that it is given the name of.
pub fn with_nodes(
    name: &str,
    configure: impl Fn(&str, &mut EndpointConfig) + Sync,
    work: impl FnOnce(&Nodes<'_>) + Send,
) {
    if !is_root() {
        return;
    }
    let network = Network::new(&PLAN, &format!("prism-{name}-{}", std::process::id())).unwrap();
    let nodes = Nodes {
        network: &network,
        left: Node::default(),
        right: Node::default(),
    };
    std::thread::scope(|threads| {
        for (name, node) in PLAN.nodes.iter().zip([&nodes.left, &nodes.right]) {
            let mut config = PLAN.config(name, network.pki_dir()).unwrap();
            configure(name, &mut config);
            let namespace: &NetNs = network.node(name).unwrap();
            threads.spawn(move || namespace.run(|| run(node.serve(config))).unwrap());
        }
        // Ends the threads also where `work` panics.
        let _end = Ended([&nodes.left, &nodes.right]);
        run(async {
            for node in [&nodes.left, &nodes.right] {
                let counters = &node.process.counters;
                eventually("the switch is known", || {
                    counters.workers_steering.read() > 0
                })
                .await;
            }
        });
        network.client.run(|| work(&nodes)).unwrap();
    });
}

struct Ended<'n>([&'n Node; 2]);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        for node in self.0 {
            node.end();
        }
    }
}

/// Serves one client: each line is a command, answered by one line.
pub async fn answer(mut client: Connection, node: Handle) {
    let (own, other) = match node.name() {
        "left" => ("left", "right"),
        _ => ("right", "left"),
    };
    let mut was_moved = !client.context().is_empty();
    loop {
        while !client.buffered().contains(&b'\n') {
            if !client.fill().await.is_ok_and(|bytes| bytes > 0) {
                return client.close().await;
            }
        }
        let lines = String::from_utf8(client.buffered().to_vec()).unwrap();
        let line = lines.lines().next().unwrap();
        let command = line.split(' ').next().unwrap();
        if command == "bounce" || (command == "move" && !was_moved) {
            let context = format!("moved by {own}");
            match node.export(client, other, context.as_bytes()).await {
                Exported::Kept { connection, reason } => {
                    client = connection;
                    client.consume(line.len() + 1);
                    say(&mut client, &format!("{own} kept it: {reason:?}")).await;
                    continue;
                }
                Exported::Moved => return,
                Exported::Lost | Exported::Unknown => panic!("{own} has lost a connection"),
            }
        }
        was_moved = false;
        client.consume(line.len() + 1);
        match command {
            "pass" => match node.pass_over(client, other).await {
                Exported::Moved => return,
                _ => panic!("{own} does not pass a connection over"),
            },
            "bulk" => {
                client.write_all(&BULK).await.unwrap();
                return client.close().await;
            }
            _ => {
                let context = String::from_utf8(client.context().to_vec()).unwrap();
                let said = format!("{own}, {context}, origin {}", client.origin());
                say(&mut client, &said).await;
            }
        }
    }
}

async fn say(client: &mut Connection, line: &str) {
    client
        .write_all(format!("{line}\n").as_bytes())
        .await
        .unwrap();
}

/// A client with one connection.
pub struct Client {
    stream: TcpStream,
    answers: BufReader<TcpStream>,
}

impl Client {
    pub fn connect() -> Self {
        Self::connect_to(PLAN.service().into())
    }

    pub fn connect_to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        let limit = Some(Duration::from_secs(20));
        stream.set_read_timeout(limit).unwrap();
        let answers = BufReader::new(stream.try_clone().unwrap());
        Self { stream, answers }
    }

    /// Sends commands, all at once.
    pub fn send(&mut self, commands: &str) {
        self.stream.write_all(commands.as_bytes()).unwrap();
    }

    /// The next answer.
    pub fn answer(&mut self) -> String {
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }

    pub fn ask(&mut self, command: &str) -> String {
        self.send(&format!("{command}\n"));
        self.answer()
    }

    /// All that comes until the end of the stream.
    pub fn rest(mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        self.answers.read_to_end(&mut rest).unwrap();
        rest
    }
}

/// Waits until `is_so`, for a bounded time.
pub async fn eventually(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..1000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not within 5 s: {what}");
}
