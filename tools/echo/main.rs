//! An echo server on two nodes. Each line of a client is answered by the process that did
//! not answer the line before: the connection moves between two processes in two network
//! namespaces, and the client notices nothing.
//!
//! ```text
//! cargo build --release -p prism-handoff --example echo
//! sudo target/release/examples/echo
//! ```
//!
//! The program starts itself once for each node, sends four lines as a client, and then
//! waits for Enter, so that other clients (`nc`) can be tried. The namespaces have no names
//! and end with the program.

mod network;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use network::{NODES, Network, SERVICE};
use prism_handoff::{Connection, Endpoint, Exported, Handle, Incoming, Process};
use prism_netns::NetNs;
use tokio::task::LocalSet;

/// The longest line that is answered.
const MAX_LINE_BYTES: usize = 4096;

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => demonstrate(),
        ["node", name, pki_dir] => {
            // The parent keeps this pipe open for as long as it lives.
            std::thread::spawn(|| {
                let _ = std::io::stdin().read_to_end(&mut Vec::new());
                std::process::exit(0);
            });
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            LocalSet::new().block_on(&runtime, serve(name, Path::new(pki_dir)))
        }
        _ => anyhow::bail!("usage: echo (without arguments, as root)"),
    }
}

/// Serves clients as the node `name`.
async fn serve(name: &str, pki_dir: &Path) -> anyhow::Result<()> {
    let process = Arc::new(Process::default());
    let mut endpoint = Endpoint::bind(network::config(name, pki_dir)?, process.clone()).await?;
    network::knows_switch(&process).await;
    println!("{name} is ready");
    while let Some(incoming) = endpoint.next().await {
        if let Incoming::Client(client) = incoming {
            let node = endpoint.handle();
            tokio::task::spawn_local(async move {
                if let Err(error) = echo(client, &node).await {
                    eprintln!("{}: {error}", node.name());
                }
            });
        }
    }
    Ok(())
}

/// Answers one line of two, and hands the connection over for the other.
async fn echo(mut client: Connection, node: &Handle) -> anyhow::Result<()> {
    let other = NODES.iter().find(|(name, _)| *name != node.name());
    let (other, _) = other.context("there is no other node")?;
    // The other node hands over a connection with a line for this one.
    let mut is_my_turn = client.context() == b"your turn";
    loop {
        let Some(line) = read_line(&mut client).await? else {
            client.close().await;
            return Ok(());
        };
        if !is_my_turn {
            // The line is not consumed, so it moves with the connection.
            match node.export(client, other, b"your turn").await {
                Exported::Kept { connection, reason } => {
                    eprintln!("{} keeps a connection: {reason:?}", node.name());
                    client = connection;
                }
                Exported::Moved => return Ok(()),
                Exported::Lost | Exported::Unknown => anyhow::bail!("a connection is lost"),
            }
        }
        client.consume(line.len());
        let answer = format!("{} (process {}): ", node.name(), std::process::id());
        client
            .write_all(&[answer.as_bytes(), &line].concat())
            .await?;
        is_my_turn = false;
    }
}

/// The next line with its end, which stays in the buffer; `None` at the end of the stream.
async fn read_line(client: &mut Connection) -> anyhow::Result<Option<Vec<u8>>> {
    loop {
        let buffered = client.buffered();
        if let Some(end) = buffered.iter().position(|byte| *byte == b'\n') {
            return Ok(buffered.get(..=end).map(<[u8]>::to_vec));
        }
        anyhow::ensure!(buffered.len() < MAX_LINE_BYTES, "a line is too long");
        if client.fill().await? == 0 {
            return Ok(None);
        }
    }
}

fn demonstrate() -> anyhow::Result<()> {
    let network = Network::new("prism-echo").context("cannot build the network (as root?)")?;
    let _nodes = NODES
        .map(|(name, _)| Node::start(&network, name))
        .into_iter()
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut client = network.client.run(|| TcpStream::connect(SERVICE))??;
    println!("the client is {}", client.local_addr()?);
    client.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut answers = BufReader::new(client.try_clone()?);
    for line in ["one", "two", "three", "four"] {
        writeln!(client, "{line}")?;
        let mut answer = String::new();
        answers.read_line(&mut answer)?;
        print!("{line} -> {answer}");
    }
    let namespace = network::path(&network.client);
    let (address, port) = (SERVICE.ip(), SERVICE.port());
    println!("try: sudo nsenter --net={namespace} nc {address} {port}");
    println!("Enter ends the program");
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}

/// The process of a node, which ends when this is dropped.
struct Node(Child);

impl Node {
    fn start(network: &Network, name: &str) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["node", name]).arg(network.pki_dir());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let namespace: &NetNs = network.node(name)?;
        let mut node = Self(namespace.run(|| command.spawn())??);
        let mut ready = String::new();
        let said = node.0.stdout.take().context("a node has no output")?;
        BufReader::new(said).read_line(&mut ready)?;
        anyhow::ensure!(!ready.is_empty(), "{name} does not start");
        print!("{ready}");
        Ok(node)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
