//! The cases: the acts of a client and of the server, and the view that each of them then has.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use prism_http::Method;

use super::Way;
use crate::support::client::Client;

/// A server that hears nothing for this long takes its client to be there.
pub const SILENCE: Duration = Duration::from_millis(1500);
/// The time that a server needs for an answer.
const WORK: Duration = Duration::from_millis(300);
/// Fields of a peer's own, and the bytes of each. HAProxy keeps 1 KiB of 16 for itself.
const FIELDS: usize = 90;
const FIELD_BYTES: usize = 160;
/// More than any of them takes for a head.
const TOO_MUCH: usize = 64 << 10;

pub struct Case {
    pub name: &'static str,
    /// The other proxies that do what Prism does.
    pub like: &'static [Way],
    /// Prism's own. A tunnel is never relayed.
    pub prism: &'static [Way],
    /// Returns what the client sees.
    pub client: fn(Client, &str) -> String,
    /// Answers the request with this head, and returns what the server sees.
    pub server: fn(&mut TcpStream, &str) -> io::Result<String>,
}

const BOTH: &[Way] = &[Way::Haproxy, Way::Nginx];
const ALL: &[Way] = &[Way::Moved, Way::Here, Way::Relayed];
const MOVED: &[Way] = &[Way::Moved, Way::Here];

pub const CASES: [Case; 17] = [
    Case {
        name: "a client that resets its connection ends the work of the server",
        like: &[Way::Nginx],
        prism: ALL,
        client: |mut client, path| {
            client.send(&get(path));
            std::thread::sleep(WORK);
            client.reset();
            String::new()
        },
        server: |stream, _| Ok(next(stream)),
    },
    Case {
        name: "a client that ends its half gets its answer",
        like: &[Way::Haproxy],
        prism: ALL,
        client: |mut client, path| {
            client.send(&get(path));
            client.half_close();
            seen(&mut client)
        },
        server: |stream, _| {
            std::thread::sleep(WORK);
            write(stream, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        },
    },
    Case {
        name: "requests sent at once are answered in turn",
        like: BOTH,
        prism: ALL,
        client: |mut client, path| {
            client.send(&[get(path), get(path), get(path)].concat());
            [(); 3].map(|()| seen(&mut client)).concat()
        },
        server: |stream, _| write(stream, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
    },
    Case {
        name: "interim answers arrive",
        like: &[Way::Haproxy],
        prism: ALL,
        client: ask,
        server: |stream, _| {
            let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n";
            write(stream, "HTTP/1.1 102 Processing\r\n\r\n")?;
            write(stream, hints)?;
            std::thread::sleep(WORK);
            write(stream, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        },
    },
    Case {
        name: "a reason arrives",
        like: BOTH,
        prism: ALL,
        client: ask,
        server: |stream, _| {
            write(
                stream,
                "HTTP/1.1 200 Very fine\r\nContent-Length: 0\r\n\r\n",
            )
        },
    },
    Case {
        name: "the protocols of a 426 arrive",
        like: &[Way::Haproxy],
        prism: ALL,
        client: ask,
        server: |stream, _| {
            let fields = "Connection: Upgrade\r\nUpgrade: foo/2\r\nContent-Length: 0\r\n";
            write(
                stream,
                &format!("HTTP/1.1 426 Upgrade Required\r\n{fields}\r\n"),
            )
        },
    },
    Case {
        name: "lines of an answer may end with LF alone",
        like: BOTH,
        prism: ALL,
        client: ask,
        server: |stream, _| write(stream, "HTTP/1.1 200 OK\nContent-Length: 2\n\nok"),
    },
    Case {
        name: "an answer that ends with its connection is whole",
        like: BOTH,
        prism: ALL,
        client: ask,
        server: |stream, _| {
            write(stream, "HTTP/1.1 200 OK\r\n\r\nsome")?;
            std::thread::sleep(WORK);
            write(stream, " text")?;
            end(stream)
        },
    },
    Case {
        name: "an answer that ends with its connection is not whole after a reset",
        like: &[Way::Nginx],
        prism: ALL,
        client: ask,
        server: |stream, _| {
            write(stream, "HTTP/1.1 200 OK\r\n\r\nsome")?;
            std::thread::sleep(WORK);
            reset(stream)
        },
    },
    Case {
        name: "an answer that breaks off is not whole",
        like: BOTH,
        prism: ALL,
        client: ask,
        server: |stream, _| {
            write(stream, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nsome")?;
            std::thread::sleep(WORK);
            end(stream)
        },
    },
    Case {
        name: "a tunnel carries both directions, and the ends of each",
        like: BOTH,
        prism: MOVED,
        client: |mut client, path| {
            client.send(&upgrade(path));
            let head = client.head();
            client.send(b"ping");
            let echo = client.take(4);
            client.half_close();
            let text = String::from_utf8_lossy(&echo).into_owned();
            format!("{} {text} {}", head.status(), rest(&mut client))
        },
        server: |stream, _| {
            write(stream, SWITCHING)?;
            let mut ping = [0; 4];
            stream.read_exact(&mut ping)?;
            stream.write_all(&ping)?;
            let after = next(stream);
            end(stream)?;
            Ok(after)
        },
    },
    Case {
        name: "a server that resets a tunnel resets the client's connection",
        like: &[],
        prism: MOVED,
        client: |mut client, path| {
            client.send(&upgrade(path));
            let head = client.head();
            format!("{} {}", head.status(), rest(&mut client))
        },
        server: |stream, _| {
            write(stream, SWITCHING)?;
            std::thread::sleep(WORK);
            reset(stream)
        },
    },
    Case {
        name: "a POST whose server ends without an answer is not repeated",
        like: BOTH,
        prism: ALL,
        client: |mut client, path| {
            let head = format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok");
            client.send(head.as_bytes());
            client.head().status().to_string()
        },
        server: |stream, _| {
            stream.read_exact(&mut [0; 2])?;
            end(stream)
        },
    },
    Case {
        name: "large heads pass",
        like: BOTH,
        prism: ALL,
        client: |mut client, path| {
            let head = format!("GET {path} HTTP/1.1\r\nHost: h\r\n{}\r\n", fields());
            client.send(head.as_bytes());
            seen(&mut client)
        },
        server: |stream, head| {
            let fields = fields();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n{fields}\r\nok");
            stream.write_all(answer.as_bytes())?;
            let head = head.to_ascii_lowercase();
            Ok(head.matches("x-own-").count().to_string())
        },
    },
    Case {
        name: "requests with too large heads are the client's fault",
        like: BOTH,
        prism: ALL,
        client: |mut client, path| {
            let line = "x".repeat(TOO_MUCH);
            let head = format!("GET {path} HTTP/1.1\r\nHost: h\r\nX-Own: {line}\r\n\r\n");
            // The connection may end before it has taken all.
            let _ = client.try_send(head.as_bytes());
            match client.try_head() {
                Ok(head) => format!("{}xx", head.status() / 100),
                Err(error) => kind(&error),
            }
        },
        server: |_, _| Ok("asked".into()),
    },
    Case {
        name: "answers with too large heads are the server's fault",
        like: BOTH,
        prism: ALL,
        client: |mut client, path| {
            client.send(&get(path));
            client.head().status().to_string()
        },
        server: |stream, _| {
            let line = "x".repeat(TOO_MUCH);
            let head = format!("HTTP/1.1 200 OK\r\nX-Own: {line}\r\nContent-Length: 0\r\n\r\n");
            // The connection may end before it has taken all.
            let _ = stream.write_all(head.as_bytes());
            Ok("asked".into())
        },
    },
    Case {
        name: "a server may answer before it has read the body",
        like: &[Way::Haproxy],
        prism: ALL,
        client: |mut client, path| {
            let head = format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nsome");
            client.send(head.as_bytes());
            let Ok(head) = client.try_head() else {
                return "no answer".into();
            };
            client.send(b" text");
            let mut body = Vec::new();
            client.body(&head, &Method::POST, |piece| body.extend_from_slice(piece));
            format!("{} {}", head.status(), String::from_utf8_lossy(&body))
        },
        server: |stream, _| {
            write(stream, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")?;
            let mut body = [0; 9];
            stream.read_exact(&mut body)?;
            write(stream, "ok")?;
            Ok(String::from_utf8_lossy(&body).into_owned())
        },
    },
];

const SWITCHING: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: foo\r\n\r\n";

pub fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").into_bytes()
}

fn upgrade(path: &str) -> Vec<u8> {
    let fields = "Connection: Upgrade\r\nUpgrade: foo\r\n";
    format!("GET {path} HTTP/1.1\r\nHost: h\r\n{fields}\r\n").into_bytes()
}

/// Header fields of a peer.
fn fields() -> String {
    let value = "v".repeat(FIELD_BYTES - "X-Own-00: \r\n".len());
    (10..10 + FIELDS)
        .map(|n| format!("X-Own-{n}: {value}\r\n"))
        .collect()
}

fn ask(mut client: Client, path: &str) -> String {
    client.send(&get(path));
    seen(&mut client)
}

pub fn kind(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionReset => "reset".into(),
        ErrorKind::UnexpectedEof => "ended".into(),
        _ => format!("broken: {error}"),
    }
}

/// A client's view of an answer, without what a proxy adds.
fn seen(client: &mut Client) -> String {
    let mut text = String::new();
    loop {
        let (head, line) = match client.try_head_line() {
            Ok(head) => head,
            Err(error) => return text + &kind(&error),
        };
        text += &line;
        for name in ["Link", "Upgrade"] {
            if let Some(value) = head.headers().get_str(name) {
                text += &format!(", {name}: {value}");
            }
        }
        let own = head.headers().iter();
        let own = own.filter(|(name, _)| name.to_ascii_lowercase().starts_with("x-own-"));
        text += &format!(", {} of its own\n", own.count());
        if head.status() < 200 {
            continue;
        }
        let mut body = Vec::new();
        let read = client.try_body(&head, &Method::GET, |piece| body.extend_from_slice(piece));
        return match read {
            Ok(()) => text + &String::from_utf8_lossy(&body) + ", whole\n",
            Err(_) => text + "cut\n",
        };
    }
}

/// How a connection ends, and what comes before.
fn rest(client: &mut Client) -> String {
    match client.take_some() {
        Ok(bytes) if bytes.is_empty() => "ended".into(),
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => kind(&error),
    }
}

/// The next thing that a server reads.
fn next(stream: &mut TcpStream) -> String {
    stream.set_read_timeout(Some(SILENCE)).unwrap();
    match stream.read(&mut [0; 64]) {
        Ok(0) => "the end".into(),
        Ok(_) => "bytes".into(),
        Err(error) if error.kind() == ErrorKind::WouldBlock => "nothing".into(),
        // A proxy may end a connection in either way.
        Err(_) => "the end".into(),
    }
}

pub fn write(stream: &mut TcpStream, text: &str) -> io::Result<String> {
    stream.write_all(text.as_bytes())?;
    Ok("asked".into())
}

fn end(stream: &TcpStream) -> io::Result<String> {
    stream.shutdown(std::net::Shutdown::Both)?;
    Ok("asked".into())
}

fn reset(stream: &TcpStream) -> io::Result<String> {
    socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO))?;
    Ok("asked".into())
}
