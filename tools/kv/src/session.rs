//! A client's connection: the node that answers its next command, and the answer.

use std::io;
use std::time::Duration;

use prism_handoff::{Connection, Exported, PeerError, RelayStream};

use crate::KvNode;
use crate::resp::{self, MAX_COMMAND_BYTES, MAX_NODE_BYTES};
use crate::values::StampedValue;

/// A client may say nothing between two commands for this time, and a node on a relay stream.
const IDLE: Duration = Duration::from_secs(3600);
/// A client that takes nothing of an answer, or sends nothing of the rest of a command, is given
/// up after this time.
const IN_COMMAND: Duration = Duration::from_secs(60);
/// Answers are sent before they are larger.
const MAX_ANSWERS_BYTES: usize = 64 << 10;

/// The node that answers.
enum Route<'n> {
    Here,
    /// The connection moves there.
    Move(&'n str),
    /// The primary answers through this one.
    Relay,
}

/// Serves one client until it leaves or its connection moves.
pub(crate) async fn serve_client(node: &KvNode, mut client: Connection) {
    let mut answers = Vec::new();
    // With an error the client is gone, or speaks something else.
    while let Ok(Some(same)) = step(node, client, &mut answers).await {
        client = same;
    }
}

/// Answers one command, or waits for more of it. Gives the connection back if it goes on.
async fn step(
    node: &KvNode,
    mut client: Connection,
    answers: &mut Vec<u8>,
) -> io::Result<Option<Connection>> {
    let (command, bytes) = match resp::command(client.buffered(), MAX_COMMAND_BYTES) {
        Ok(Some(command)) => command,
        Ok(None) => {
            send(&mut client, answers).await?;
            client.release_buffer();
            let is_idle = client.buffered().is_empty();
            client.set_io_timeout(if is_idle { IDLE } else { IN_COMMAND });
            if client.fill().await? == 0 {
                return end(client, answers).await;
            }
            return Ok(Some(client));
        }
        Err(malformed) => {
            answers.extend(resp::error(&format!("ERR {malformed}")));
            return end(client, answers).await;
        }
    };
    client.caller_is_known();
    client.set_io_timeout(IN_COMMAND);
    let mut route = route(node, &command, bytes);
    if let Route::Move(peer) = route {
        send(&mut client, answers).await?;
        match node.handle.export(client, peer, b"").await {
            Exported::Kept { connection, .. } => client = connection,
            Exported::Moved | Exported::Lost | Exported::Unknown => return Ok(None),
        }
        route = if node.config.is_primary() {
            Route::Here
        } else {
            Route::Relay
        };
    }
    client.consume(bytes);
    answers.extend(match route {
        Route::Relay => relay(node, &command).await,
        Route::Here | Route::Move(_) => answer(node, &command).await,
    });
    if answers.len() > MAX_ANSWERS_BYTES {
        send(&mut client, answers).await?;
    }
    Ok(Some(client))
}

async fn send(client: &mut Connection, answers: &mut Vec<u8>) -> io::Result<()> {
    client.write_all(answers).await?;
    answers.clear();
    // A large answer leaves no large buffer.
    answers.shrink_to(MAX_ANSWERS_BYTES);
    Ok(())
}

/// Sends the last answers, and ends the connection.
async fn end(mut client: Connection, answers: &mut Vec<u8>) -> io::Result<Option<Connection>> {
    send(&mut client, answers).await?;
    client.close().await;
    Ok(None)
}

fn name(command: &[Vec<u8>]) -> String {
    let name = command.first().map(Vec::as_slice).unwrap_or_default();
    String::from_utf8_lossy(name).to_ascii_uppercase()
}

fn route<'n>(node: &'n KvNode, command: &[Vec<u8>], bytes: usize) -> Route<'n> {
    let config = &node.config;
    match name(command).as_str() {
        "GET" if config.is_primary() => {
            let key = command.get(1).map(Vec::as_slice).unwrap_or_default();
            let stamped = node.values.borrow().get(key);
            let is_large = stamped.is_some_and(|s| s.value.len() >= config.move_from_bytes);
            let turn = node.turn.get();
            match config.replica(turn).filter(|_| is_large) {
                Some(replica) => {
                    node.turn.set(turn.wrapping_add(1));
                    Route::Move(replica)
                }
                None => Route::Here,
            }
        }
        "SET" | "DEL" if config.is_primary() => Route::Here,
        "SET" | "DEL" if bytes < config.move_from_bytes => Route::Relay,
        "SET" | "DEL" => Route::Move(config.primary()),
        _ => Route::Here,
    }
}

async fn answer(node: &KvNode, command: &[Vec<u8>]) -> Vec<u8> {
    let arguments = command.get(1..).unwrap_or_default();
    match (name(command).as_str(), arguments) {
        ("GET", [key]) => match read(node, key).await {
            Ok(stamped) => resp::value(stamped.as_ref().map(|stamped| &stamped.value[..])),
            Err(error) => resp::error(&format!("TRYAGAIN {error}")),
        },
        ("SET", [key, value]) if node.config.is_primary() => {
            if node.values.borrow_mut().write(key, value) {
                resp::line('+', "OK")
            } else {
                resp::error("OOM there are too many keys")
            }
        }
        ("DEL", [_, ..]) if node.config.is_primary() => {
            let mut values = node.values.borrow_mut();
            let count = arguments.iter().filter(|key| values.delete(key)).count();
            resp::line(':', &count.to_string())
        }
        ("PING", []) => resp::line('+', "PONG"),
        ("INFO", _) => {
            let moved = node.process.counters.exports_moved.read();
            let info = format!("node:{}\r\nmoved:{moved}\r\n", node.config.name);
            resp::value(Some(info.as_bytes()))
        }
        ("", _) => Vec::new(),
        _ => resp::error("ERR unknown command or wrong number of arguments"),
    }
}

/// The last value of a key. A replica asks the primary whether that is its copy.
async fn read(node: &KvNode, key: &[u8]) -> io::Result<Option<StampedValue>> {
    let copy = node.values.borrow().get(key);
    if node.config.is_primary() {
        return Ok(copy);
    }
    let stamp = copy.as_ref().map(|copy| copy.stamp.to_string());
    let stamp = stamp.unwrap_or_default();
    let command = resp::encode(&[b"FRESH", key, stamp.as_bytes()]);
    let answer = ask(node, &command).await.map_err(io::Error::other)??;
    let parts = resp::command(&answer, MAX_NODE_BYTES)?.map(|(parts, _)| parts);
    match parts.unwrap_or_default().as_slice() {
        [same] if same == b"SAME" => Ok(copy),
        [none] if none == b"NONE" => {
            node.values.borrow_mut().delete(key);
            Ok(None)
        }
        [stamp, value] => {
            let stamped = StampedValue {
                stamp: resp::integer(stamp)?,
                value: value.as_slice().into(),
            };
            node.values.borrow_mut().copy(key, stamped.clone());
            Ok(Some(stamped))
        }
        _ => Err(resp::malformed("an answer about a value is malformed")),
    }
}

/// Answers a replica whose copy of a value has this stamp.
fn freshness(node: &KvNode, key: &[u8], stamp: &[u8]) -> Vec<u8> {
    match node.values.borrow().get(key) {
        None => resp::encode(&[b"NONE"]),
        Some(last) => match last.stamp.to_string() {
            text if text.as_bytes() == stamp => resp::encode(&[b"SAME"]),
            text => resp::encode(&[text.as_bytes(), &last.value]),
        },
    }
}

/// Has the primary answer a command.
async fn relay(node: &KvNode, command: &[Vec<u8>]) -> Vec<u8> {
    match ask(node, &resp::encode(command)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => resp::error(&format!("ERR the outcome is unknown: {error}")),
        // Clients repeat a command after TRYAGAIN.
        Err(unsent) => resp::error(&format!("TRYAGAIN {unsent}")),
    }
}

/// The primary's answer to a command, or why it is not known.
///
/// # Errors
/// If the primary was not reached, so that nothing was sent.
async fn ask(node: &KvNode, command: &[u8]) -> Result<io::Result<Vec<u8>>, PeerError> {
    let peer = node.config.primary();
    loop {
        let mut stream = node.handle.relay(peer).await?;
        let asking = async {
            stream.write(command).await?;
            stream.flush().await?;
            next_command(&mut stream).await
        };
        let answer = match asking.await {
            Ok(Some(mut answer)) => {
                node.handle.keep_relay(peer, stream);
                answer
                    .pop()
                    .ok_or_else(|| resp::malformed("an empty answer"))
            }
            // An orderly end: the peer had closed it, and has not read the command.
            Ok(None) if stream.was_used() => continue,
            Ok(None) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => Err(error),
        };
        return Ok(answer);
    }
}

/// Answers a replica.
pub(crate) async fn serve_node(node: &KvNode, mut stream: RelayStream) {
    stream.set_io_timeout(IDLE);
    loop {
        let command = match next_command(&mut stream).await {
            Ok(Some(command)) => command,
            Err(error) if error.kind() == io::ErrorKind::TimedOut && stream.is_clean() => {
                // The replica learns that a command that it sends now is not read.
                return stream.close().await;
            }
            _ => return,
        };
        let answer = match command.as_slice() {
            [fresh, key, stamp] if fresh == b"FRESH" => freshness(node, key, stamp),
            _ => answer(node, &command).await,
        };
        let answer = resp::encode(&[answer]);
        if stream.write(&answer).await.is_err() || stream.flush().await.is_err() {
            return;
        }
    }
}

/// Takes the next command or answer of a node; `None` at the end of the stream.
async fn next_command(stream: &mut RelayStream) -> io::Result<Option<Vec<Vec<u8>>>> {
    loop {
        if let Some((command, bytes)) = resp::command(stream.buffered(), MAX_NODE_BYTES)? {
            stream.consume(bytes);
            return Ok(Some(command));
        }
        if stream.fill().await? == 0 {
            return Ok(None);
        }
    }
}
