//! OpenSSL as the client: `libssl` in a Python process, one at a time.

use std::cell::RefCell;
use std::io::{BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;

use crate::peer::{Act, Peer, Reply};

/// The process, which ends with its last handle.
#[derive(Clone)]
pub(crate) struct Process(Rc<RefCell<Pipes>>);

struct Pipes {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Drop for Pipes {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

impl Process {
    pub(crate) fn start() -> Self {
        let script = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/sequences/openssl_peer.py"
        );
        let mut child = Command::new("python3")
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is installed");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self(Rc::new(RefCell::new(Pipes {
            child,
            input,
            output,
        })))
    }

    /// A new connection, which replaces the one before.
    pub(crate) fn connect(&self, suite: &str) -> Box<dyn Peer> {
        self.ask(b'N', openssl_name(suite).as_bytes());
        Box::new(OpensslPeer(self.clone()))
    }

    fn ask(&self, command: u8, payload: &[u8]) -> Reply {
        let pipes = &mut *self.0.borrow_mut();
        let input = pipes.input.as_mut().unwrap();
        let mut frame = vec![command];
        frame.extend_from_slice(&(payload.len() as u32).to_be_bytes());
        frame.extend_from_slice(payload);
        input.write_all(&frame).unwrap();
        let mut head = [0; 9];
        pipes
            .output
            .read_exact(&mut head)
            .expect("OpenSSL met no error");
        let [closed, a, b, c, d, e, f, g, h] = head;
        let mut wire = vec![0; u32::from_be_bytes([a, b, c, d]) as usize];
        let mut plain = vec![0; u32::from_be_bytes([e, f, g, h]) as usize];
        pipes.output.read_exact(&mut wire).unwrap();
        pipes.output.read_exact(&mut plain).unwrap();
        Reply {
            wire,
            plain,
            closed: closed != 0,
        }
    }
}

struct OpensslPeer(Process);

impl Peer for OpensslPeer {
    fn act(&mut self, act: Act<'_>) -> Reply {
        match act {
            Act::Receive(wire) => self.0.ask(b'R', wire),
            Act::Send(data) => self.0.ask(b'S', data),
            Act::KeyUpdate { ask } => self.0.ask(b'K', &[u8::from(ask)]),
            Act::Close => self.0.ask(b'C', &[]),
        }
    }
}

/// OpenSSL has IANA's names for TLS 1.3 only.
fn openssl_name(suite: &str) -> String {
    if !suite.contains("_WITH_") {
        return suite.to_owned();
    }
    let name = suite.trim_start_matches("TLS_").replace("_WITH_", "-");
    let name = name.replace("AES_", "AES").replace('_', "-");
    name.trim_end_matches("-SHA256").to_owned()
        + if suite.contains("AES_128") {
            "-SHA256"
        } else {
            ""
        }
}
