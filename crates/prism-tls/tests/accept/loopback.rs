//! A small HTTPS server on loopback, made of the acceptor and the record layer. It answers each
//! request with a line about the session and the request's body, and HTTP in the clear with 400.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use prism_tls::accept::ServerConfig;

use crate::support::{Acceptor, Established, Served, Step, version_of};

/// Longest silence of a client of a test.
const SILENCE: Duration = Duration::from_secs(10);

pub struct Loopback {
    address: SocketAddr,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Loopback {
    pub fn start(config: ServerConfig) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = stopped.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let config = config.clone();
                std::thread::spawn(move || serve(stream.unwrap(), &config));
            }
        });
        Self {
            address,
            stopped,
            thread: Some(thread),
        }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(mut stream: TcpStream, config: &ServerConfig) {
    stream.set_read_timeout(Some(SILENCE)).unwrap();
    if let Some(established) = accept(&mut stream, config) {
        let about = format!(
            "version={:?} suite={} resumed={} alpn={}\n",
            version_of(&established),
            established.cipher_suite,
            established.resumed,
            String::from_utf8_lossy(established.alpn.as_deref().unwrap_or(b"-")),
        );
        let _ = answer(&mut stream, Served::new(established), &about);
    }
}

fn accept(stream: &mut TcpStream, config: &ServerConfig) -> Option<Established> {
    let mut acceptor = Acceptor::new(config);
    let mut buffer = [0; 4_096];
    loop {
        let bytes = stream.read(&mut buffer).ok().filter(|&bytes| bytes > 0)?;
        match acceptor.receive(&buffer[..bytes]) {
            Step::Wait {
                acceptor: next,
                output,
            } => {
                acceptor = next;
                stream.write_all(&output).ok()?;
            }
            Step::Established(established) => {
                stream.write_all(&established.output).ok()?;
                return Some(established);
            }
            Step::Failed(failure) => {
                stream.write_all(&failure.output).ok()?;
                return None;
            }
            Step::NotTls { is_http } => {
                assert!(is_http);
                let answer =
                    "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                stream.write_all(answer.as_bytes()).ok()?;
                return None;
            }
        }
    }
}

fn answer(stream: &mut TcpStream, mut served: Served, about: &str) -> std::io::Result<()> {
    let mut plain = served.open(&[]);
    let mut buffer = vec![0; 64 << 10];
    loop {
        while let Some(request) = take_request(&mut plain) {
            let body = [about.as_bytes(), &request.body].concat();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.write_all(&served.seal(&[head.into_bytes(), body].concat()))?;
            if request.is_last {
                stream.write_all(&served.close())?;
                return stream.shutdown(std::net::Shutdown::Write);
            }
        }
        let bytes = stream.read(&mut buffer)?;
        if bytes == 0 {
            return Ok(());
        }
        plain.extend(served.open(&buffer[..bytes]));
    }
}

struct Request {
    body: Vec<u8>,
    is_last: bool,
}

fn take_request(plain: &mut Vec<u8>) -> Option<Request> {
    let head_bytes = plain.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&plain[..head_bytes]).to_ascii_lowercase();
    let value = |name: &str| {
        let line = head.lines().find(|line| line.starts_with(name))?;
        Some(line[name.len()..].trim().to_owned())
    };
    let length = value("content-length:").map_or(0, |text| text.parse().unwrap());
    if plain.len() < head_bytes + length {
        return None;
    }
    let body = plain[head_bytes..head_bytes + length].to_vec();
    plain.drain(..head_bytes + length);
    let is_last = value("connection:").is_some_and(|text| text == "close");
    Some(Request { body, is_last })
}
