//! `tools/echo`: a server in C, as two processes in two network namespaces, and its clients.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use prism_nodes::{CONTROL, KEY, Network, Plan, is_root};

use crate::program::compile;

const PLAN: Plan = Plan {
    nodes: &["left", "right"],
    port: 7,
};

/// A process that ends with its standard input, or is killed.
struct Running(Child);

impl Running {
    /// Waits for its end, and returns what it wrote to the standard error.
    fn end(mut self) -> String {
        drop(self.0.stdin.take());
        let mut errors = String::new();
        if let Some(mut stderr) = self.0.stderr.take() {
            stderr.read_to_string(&mut errors).unwrap();
        }
        let status = self.0.wait().unwrap();
        assert!(status.success(), "{status}: {errors}");
        errors
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(network: &Network, program: &Path, name: &str) -> Result<Running> {
    let mut command = Command::new(program);
    command.arg(name).arg(network.pki_dir());
    command.arg(PLAN.service().to_string());
    command.arg(CONTROL.to_string());
    command.arg(std::str::from_utf8(&KEY)?);
    for (name, address) in PLAN.addresses() {
        command.args([name, &address.to_string()]);
    }
    let pipes = [Stdio::piped(), Stdio::piped(), Stdio::piped()];
    let [stdin, stdout, stderr] = pipes;
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    let mut node = Running(network.node(name)?.run(|| command.spawn())??);
    let mut ready = String::new();
    let said = node.0.stdout.take().context("a node has no output")?;
    BufReader::new(said).read_line(&mut ready)?;
    if ready != format!("{name} is ready\n") {
        return Err(anyhow::anyhow!("{name} does not start: {}", node.end()));
    }
    Ok(node)
}

/// Lines of tcpdump about the segments with SYN or RST that the client gets.
fn capture(network: &Network) -> Result<Running> {
    let mut command = Command::new("tcpdump");
    command.args(["-i", "eth0", "-n", "-l", "--immediate-mode"]);
    command.arg("dst host 192.0.2.1 and tcp[tcpflags] & (tcp-syn|tcp-rst) != 0");
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut tcpdump = Running(network.client.run(|| command.spawn())??);
    let mut messages = BufReader::new(tcpdump.0.stderr.take().context("no messages")?);
    let mut message = String::new();
    while !message.starts_with("listening on") {
        message.clear();
        ensure!(messages.read_line(&mut message)? > 0, "tcpdump ends");
    }
    Ok(tcpdump)
}

/// Waits for each answer before it sends the next line.
fn ask(client: &TcpStream, answers: &mut impl BufRead, line: &str) -> Result<String> {
    writeln!(&mut &*client, "{line}")?;
    let mut answer = String::new();
    answers.read_line(&mut answer)?;
    Ok(answer.trim_end().to_owned())
}

/// The answers that an unmodified client gets for `lines`, which it sends at once.
fn netcat(network: &Network, lines: &str) -> Result<String> {
    let script = format!(
        "import socket
c = socket.create_connection(('{}', {}), timeout=20)
c.sendall({lines:?}.encode())
c.shutdown(socket.SHUT_WR)
print(b''.join(iter(lambda: c.recv(65536), b'')).decode(), end='')",
        PLAN.service().ip(),
        PLAN.port
    );
    let mut python = Command::new("python3");
    let python = python.args(["-c", &script]);
    let output = network.client.run(|| python.output())??;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{errors}");
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn a_server_in_c_hands_connections_to_and_fro() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = compile(&dir, "../../tools/echo/echo.c").unwrap();
    let pin_dir = format!("prism-echo-{}", std::process::id());
    let network = Network::new(&PLAN, &pin_dir).unwrap();
    let nodes = PLAN
        .nodes
        .iter()
        .map(|name| start(&network, &program, name));
    let nodes: Vec<Running> = nodes.collect::<Result<_>>().unwrap();
    let mut tcpdump = capture(&network).unwrap();

    let client = network.client.run(|| TcpStream::connect(PLAN.service()));
    let client = client.unwrap().unwrap();
    client
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let mut answers = BufReader::new(client.try_clone().unwrap());
    for (line, answer) in [
        ("one", "right: one"),
        ("two", "left: two"),
        ("ask", "right and left"),
        ("three", "left: three"),
        ("ask", "right and left"),
        ("ask", "left and right"),
        ("four", "right: four"),
    ] {
        assert_eq!(ask(&client, &mut answers, line).unwrap(), answer, "{line}");
    }
    let longest = "x".repeat(4095);
    let answer = ask(&client, &mut answers, &longest).unwrap();
    assert_eq!(answer, format!("left: {longest}"));
    // More would fill the buffers while no timeout runs, so the server closes.
    (&client).write_all(&[b'x'; 5000]).unwrap();
    assert_eq!(answers.read(&mut [0]).unwrap(), 0);
    drop((client, answers));
    let lines: String = (0..40).map(|n| format!("line {n}\n")).collect();
    let expected: String = (0..40)
        .map(|n| format!("{}: line {n}\n", ["right", "left"][n % 2]))
        .collect();
    assert_eq!(netcat(&network, &lines).unwrap(), expected);

    // The nodes see the clients' ends. The sanitizer looks for lost memory at their own.
    std::thread::sleep(Duration::from_millis(200));
    for node in nodes {
        let errors = node.end();
        assert_eq!(errors, "");
    }
    let mut segments = String::new();
    let _ = tcpdump.0.kill();
    let mut captured = tcpdump.0.stdout.take().unwrap();
    captured.read_to_string(&mut segments).unwrap();
    assert_eq!(segments.matches("Flags [S.]").count(), 2, "{segments}");
    assert!(!segments.contains("Flags [R"), "{segments}");
}
