//! OpenSSL's own server, which hands out tickets that allow early data.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use crate::support::FIXTURE;

/// The line by which a client ends the server.
pub const LAST_LINE: &str = "last line\n";

/// A server for one client.
pub struct Server {
    child: Child,
    ender: Option<JoinHandle<()>>,
    pub address: SocketAddr,
}

impl Server {
    pub fn start() -> Self {
        // The port was free just now, and nobody else asks for ports on loopback.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let mut child = Command::new("openssl")
            .args(["s_server", "-naccept", "1", "-accept"])
            .arg(address.to_string())
            .arg("-cert")
            .arg(&FIXTURE.ecdsa.certificate)
            .arg("-key")
            .arg(&FIXTURE.ecdsa.key)
            .args(["-tls1_3", "-early_data", "-max_early_data", "16384"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let printed = BufReader::new(child.stdout.take().unwrap());
        let mut lines = printed.lines().map_while(Result::ok);
        let is_ready = lines.any(|line| line.starts_with("ACCEPT"));
        let mut stdin = child.stdin.take().unwrap();
        let ender = std::thread::spawn(move || {
            // The server has sent the tickets before it reads this.
            if lines.any(|line| line.contains(LAST_LINE.trim())) {
                let _ = stdin.write_all(b"Q\n");
            }
        });
        let ender = Some(ender);
        assert!(is_ready, "s_server did not start");
        Self {
            child,
            ender,
            address,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(ender) = self.ender.take() {
            let _ = ender.join();
        }
    }
}
