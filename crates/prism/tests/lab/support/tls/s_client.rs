//! `openssl s_client` as a person drives it: requests and commands on its standard input,
//! answers on its standard output.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use prism_http::{Limits, Method, ResponseHead};

use super::Version;
use super::programs::{Choice, path_of, suite_name};
use crate::support::Cluster;
use crate::support::objects::Object;

/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time in which it reads a command. Other bytes written in the same moment would make it
/// data.
const COMMAND: Duration = Duration::from_millis(60);

/// Unread pieces of output. They are few, so that s_client stops receiving when the test does.
const QUEUE: usize = 2;

/// A running `openssl s_client`.
pub struct SClient {
    child: Child,
    stdin: Option<ChildStdin>,
    pieces: Receiver<Vec<u8>>,
    unread: Vec<u8>,
    messages: PathBuf,
    _directory: tempfile::TempDir,
}

impl SClient {
    pub fn connect(cluster: &Cluster, choice: Choice, options: &[&str]) -> Self {
        let Choice { version, aead, .. } = choice;
        let directory = tempfile::tempdir().unwrap();
        let messages = directory.path().join("messages");
        let mut openssl = cluster.lab.command("client", "openssl").unwrap();
        // With notes its output would mix with data; commands stay on.
        openssl.args(["s_client", "-quiet", "-no_ign_eof"]);
        openssl
            .args(["-verify_return_error", "-msg", "-msgfile"])
            .arg(&messages);
        openssl.arg("-CAfile").arg(cluster.lab.ca_file().unwrap());
        let service = cluster.https_service_of(choice.family);
        openssl.args(["-connect", &service.to_string()]);
        let suite = suite_name(version, aead, true);
        match version {
            Version::Tls12 => openssl.args(["-tls1_2", "-cipher", suite]),
            Version::Tls13 => openssl.args(["-tls1_3", "-ciphersuites", suite]),
        };
        openssl.args(options);
        let mut child = openssl
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        let (sender, pieces) = sync_channel(QUEUE);
        std::thread::spawn(move || pass_on(stdout, &sender));
        Self {
            stdin: child.stdin.take(),
            pieces,
            child,
            unread: Vec::new(),
            messages,
            _directory: directory,
        }
    }

    /// `k`: new keys for what the client sends; `K`: for both directions.
    pub fn command(&mut self, letter: char) {
        std::thread::sleep(COMMAND);
        self.write(format!("{letter}\n").as_bytes());
        std::thread::sleep(COMMAND);
    }

    pub fn send_get(&mut self, object: &Object) {
        let head = format!("GET {} HTTP/1.1\r\nHost: s3\r\n\r\n", path_of(object));
        self.write(head.as_bytes());
    }

    /// Fetches an object and checks every byte.
    pub fn get(&mut self, object: &Object) {
        self.send_get(object);
        let len = self.head();
        assert_eq!(len, object.len, "{}", object.key);
        self.body(object, 0, len);
    }

    /// The head of the next answer. Returns the length of the body.
    pub fn head(&mut self) -> u64 {
        loop {
            if let Some((head, len)) = ResponseHead::parse(&self.unread, &Limits::DEFAULT).unwrap()
            {
                self.unread.drain(..len);
                assert_eq!(head.status(), 200);
                assert!(head.framing(&Method::GET).is_ok());
                return head
                    .headers()
                    .get_str("content-length")
                    .unwrap()
                    .parse()
                    .unwrap();
            }
            self.fill();
        }
    }

    /// Reads `count` bytes of an object from `offset` on and checks them.
    pub fn body(&mut self, object: &Object, mut offset: u64, count: u64) {
        let end = offset + count;
        while offset < end {
            if self.unread.is_empty() {
                self.fill();
            }
            let now = self
                .unread
                .len()
                .min(usize::try_from(end - offset).unwrap());
            object.check(offset, &self.unread[..now]);
            self.unread.drain(..now);
            offset += now as u64;
        }
    }

    /// Ends it in order, and returns the TLS messages that it saw, a line each.
    pub fn finish(mut self) -> Vec<String> {
        drop(self.stdin.take());
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "s_client does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        let text = std::fs::read_to_string(&self.messages).unwrap();
        let messages = text.lines().filter(|line| line.starts_with(['<', '>']));
        let messages: Vec<String> = messages.map(str::to_owned).collect();
        for alert in messages.iter().filter(|line| line.contains("Alert")) {
            assert!(alert.contains("close_notify"), "{alert}");
        }
        messages
    }

    fn write(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(bytes).unwrap();
        stdin.flush().unwrap();
    }

    fn fill(&mut self) {
        let piece = self.pieces.recv_timeout(PATIENCE);
        let piece = piece.unwrap_or_else(|error| panic!("{error}: {}", self.last_messages()));
        self.unread.extend(piece);
    }

    fn last_messages(&self) -> String {
        let text = std::fs::read_to_string(&self.messages).unwrap_or_default();
        let lines: Vec<&str> = text.lines().filter(|l| l.starts_with(['<', '>'])).collect();
        lines[lines.len().saturating_sub(8)..].join("\n")
    }
}

/// Passes on the output of s_client.
fn pass_on(mut stdout: ChildStdout, sender: &SyncSender<Vec<u8>>) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(n @ 1..) = stdout.read(&mut buffer) {
        if sender.send(buffer[..n].to_vec()).is_err() {
            return;
        }
    }
}

impl Drop for SClient {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
