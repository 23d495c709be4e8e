//! The leases of a bad way: the relay's TCP side. Bytes wait while the switch is out of reach, as
//! segments would.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{ImpairedPath, MAX_SENDERS, POLL};

/// The longest time until the switch takes a connection.
const CONNECT: Duration = Duration::from_secs(2);

/// Relays connections to the switch until the relay ends.
pub(super) fn run(shared: &Arc<ImpairedPath>, listener: &TcpListener) {
    let mut threads = Vec::new();
    while !shared.stop.load(Ordering::Relaxed) {
        threads.retain(|thread: &std::thread::JoinHandle<()>| !thread.is_finished());
        if shared.is_blackhole.load(Ordering::Relaxed) || threads.len() >= MAX_SENDERS {
            std::thread::sleep(POLL);
            continue;
        }
        match listener.accept() {
            // A connection that cannot be passed on is closed; the node tries again.
            Ok((node, _)) => threads.extend(relay(shared, node).into_iter().flatten()),
            Err(_) => std::thread::sleep(POLL),
        }
    }
    for thread in threads {
        let _ = thread.join();
    }
}

/// Relays one connection, with a thread for each direction.
fn relay(
    shared: &Arc<ImpairedPath>,
    node: TcpStream,
) -> io::Result<[std::thread::JoinHandle<()>; 2]> {
    let switch = TcpStream::connect_timeout(&shared.switch, CONNECT)?;
    for stream in [&node, &switch] {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(POLL))?;
    }
    let start = |from: TcpStream, to: TcpStream| {
        let shared = shared.clone();
        std::thread::Builder::new()
            .name("impair-lease".into())
            .spawn(move || pass(&shared, from, to))
    };
    Ok([
        start(node.try_clone()?, switch.try_clone()?)?,
        start(switch, node)?,
    ])
}

/// Passes bytes on until one end is over, then ends both.
fn pass(shared: &ImpairedPath, mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 1_024];
    while !shared.stop.load(Ordering::Relaxed) {
        if shared.is_blackhole.load(Ordering::Relaxed) {
            std::thread::sleep(POLL);
            continue;
        }
        let passed = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => to.write_all(buffer.get(..len).unwrap_or_default()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                continue;
            }
            Err(error) => Err(error),
        };
        if passed.is_err() {
            break;
        }
    }
    for stream in [&from, &to] {
        // The other direction may have ended it.
        let _ = stream.shutdown(Shutdown::Both);
    }
}
