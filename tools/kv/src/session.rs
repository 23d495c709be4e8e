//! A client's connection: which node answers its next command, and the answer.

use std::io;
use std::time::Duration;

use prism_handoff::{Connection, Exported, PeerError, RelayStream};
use tokio::time::timeout;

use crate::budget::Share;
use crate::node::{Node, Role};
use crate::resp::{self, Command, Limits, MAX_VALUE_BYTES, Rest};
use crate::store::Value;
use crate::wire::{self, Stream, next_command, take_value};

/// A client may say nothing between two commands for this time, and a node on a relay stream.
const IDLE: Duration = Duration::from_secs(3600);
/// A large value has this time to arrive. A client that sends nothing of the rest of a command, or
/// takes nothing of an answer, is given up after it.
const IN_COMMAND: Duration = Duration::from_secs(60);
/// Values of this size are sent from where they are. Smaller ones are copied into one write
/// with other answers.
const LARGE_BYTES: usize = 16 << 10;
/// Answers are sent before they are larger.
const MAX_ANSWERS_BYTES: usize = 64 << 10;

/// A command, whose value may not have arrived.
struct Asked {
    name: String,
    /// The arguments behind the name.
    arguments: Vec<Vec<u8>>,
    /// The place and the size of a value that is missing.
    missing: Option<(usize, usize)>,
    /// The bytes of the command, if it is complete.
    bytes: usize,
}

/// The node that answers.
enum Route {
    Here,
    /// The connection moves there.
    Move(String),
    /// The node answers through this one.
    Relay(String),
}

/// A part of an answer.
enum Part {
    Text(Vec<u8>),
    /// A value, or that of no key.
    Value(Option<Value>),
}

impl Part {
    fn error(text: &str) -> Self {
        Self::line(b'-', text)
    }

    fn line(kind: u8, text: &str) -> Self {
        let mut line = Vec::new();
        resp::add_line(&mut line, kind, text);
        Self::Text(line)
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Value(value) => resp::value_bytes(value.as_deref()),
        }
    }
}

/// Serves one client until it leaves or its connection moves.
pub(crate) async fn serve_client(node: &Node, mut client: Connection) {
    let mut answers = Vec::new();
    loop {
        match step(node, client, &mut answers).await {
            Ok(Some(same)) => client = same,
            Ok(None) => return,
            // The client is gone, or speaks something else.
            Err(_) => return,
        }
    }
}

/// Answers one command, or waits for more of it. Gives the connection back if it goes on.
async fn step(
    node: &Node,
    mut client: Connection,
    answers: &mut Vec<u8>,
) -> io::Result<Option<Connection>> {
    let command = match resp::command(client.buffered(), Limits::CLIENT) {
        Ok(command) => command,
        Err(malformed) => {
            resp::add_line(answers, b'-', &format!("ERR {}", malformed.0));
            return end(client, answers).await;
        }
    };
    let asked = command.and_then(|command| asked(client.buffered(), command));
    let Some(asked) = asked else {
        flush(&mut client, answers).await?;
        client.release_buffer();
        let is_idle = client.buffered().is_empty();
        client.set_io_timeout(if is_idle { IDLE } else { IN_COMMAND });
        if client.fill().await? == 0 {
            return end(client, answers).await;
        }
        return Ok(Some(client));
    };
    client.caller_is_known();
    client.set_io_timeout(IN_COMMAND);
    if asked.name == "QUIT" {
        resp::add_line(answers, b'+', "OK");
        return end(client, answers).await;
    }
    let mut route = route(node, &asked);
    if let Route::Move(peer) = &route {
        flush(&mut client, answers).await?;
        match node.handle.export(client, peer, b"").await {
            Exported::Kept { connection, .. } => client = connection,
            Exported::Moved | Exported::Lost | Exported::Unknown => return Ok(None),
        }
        route = without_moving(node);
    }
    let mut held = node.arriving.share();
    let (name, arguments) = match take(&mut client, asked, &mut held).await {
        Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {
            resp::add_line(answers, b'-', "OOM too many values arrive at once");
            return end(client, answers).await;
        }
        taken => taken?,
    };
    match route {
        Route::Relay(peer) => {
            flush(&mut client, answers).await?;
            *answers = relay(node, &peer, &name, &arguments, &mut held).await;
        }
        Route::Here | Route::Move(_) => {
            let parts = answer(node, &name, arguments).await;
            send(&mut client, parts, answers).await?;
        }
    }
    if answers.len() > MAX_ANSWERS_BYTES {
        flush(&mut client, answers).await?;
    }
    Ok(Some(client))
}

async fn flush(client: &mut Connection, answers: &mut Vec<u8>) -> io::Result<()> {
    if !answers.is_empty() {
        client.write_all(answers).await?;
        answers.clear();
        // A large answer leaves no large buffer.
        answers.shrink_to(MAX_ANSWERS_BYTES);
    }
    Ok(())
}

/// Sends the last answers, and ends the connection.
async fn end(mut client: Connection, answers: &mut Vec<u8>) -> io::Result<Option<Connection>> {
    flush(&mut client, answers).await?;
    client.close().await;
    Ok(None)
}

/// Adds the parts of an answer to `unsent`, and sends what is too much for it. Something of the
/// answer is left.
async fn send(stream: &mut impl Stream, parts: Vec<Part>, unsent: &mut Vec<u8>) -> io::Result<()> {
    for part in parts {
        if unsent.len() > MAX_ANSWERS_BYTES {
            stream.send(unsent).await?;
            unsent.clear();
        }
        match part {
            Part::Text(text) => unsent.extend_from_slice(&text),
            Part::Value(Some(value)) if value.len() >= LARGE_BYTES => {
                resp::add_line(unsent, b'$', &value.len().to_string());
                stream.send(unsent).await?;
                unsent.clear();
                stream.send(&value).await?;
                unsent.extend_from_slice(b"\r\n");
            }
            Part::Value(value) => resp::add_value(unsent, value.as_deref()),
        }
    }
    Ok(())
}

/// The command, if enough of it has arrived to answer it.
fn asked(input: &[u8], command: Command) -> Option<Asked> {
    let (missing, bytes) = match command.rest {
        Rest::Complete(bytes) => (None, bytes),
        Rest::Last { start, bytes } if bytes >= wire::TAKEN_IN_PARTS_BYTES => {
            (Some((start, bytes)), 0)
        }
        Rest::Last { .. } | Rest::Missing => return None,
    };
    let mut arguments = wire::arguments(input, &command.arguments);
    let name = match arguments.is_empty() {
        true => String::new(),
        false => String::from_utf8_lossy(&arguments.remove(0)).to_ascii_uppercase(),
    };
    Some(Asked {
        name,
        arguments,
        missing,
        bytes,
    })
}

/// Takes the command off the connection, with what was missing.
async fn take(
    client: &mut Connection,
    asked: Asked,
    held: &mut Share,
) -> io::Result<(String, Vec<Vec<u8>>)> {
    let mut arguments = asked.arguments;
    match asked.missing {
        Some((start, bytes)) => {
            client.consume(start);
            let taking = timeout(IN_COMMAND, take_value(client, bytes, held));
            arguments.push(taking.await??);
        }
        None => client.consume(asked.bytes),
    }
    Ok((asked.name, arguments))
}

fn route(node: &Node, asked: &Asked) -> Route {
    let is_large = |bytes: usize| bytes >= node.config.move_from_bytes;
    let reads = matches!(asked.name.as_str(), "GET" | "MGET");
    match &node.role {
        Role::Primary(primary) => {
            let turn = node.turn.get();
            let may_move = reads && node.config.switch.is_some();
            if may_move
                && is_large(value_bytes(node, &asked.arguments))
                && let Some(replica) = primary.replica(turn)
            {
                node.turn.set(turn.wrapping_add(1));
                return Route::Move(replica);
            }
            Route::Here
        }
        Role::Replica(replica) => {
            let to_primary = replica.primary.clone();
            match asked.name.as_str() {
                "GET" | "MGET" if replica.has_lease() => Route::Here,
                "GET" | "MGET" => Route::Move(to_primary),
                "SET" | "DEL" => {
                    let in_arguments = asked.arguments.last().map_or(0, Vec::len);
                    let bytes = asked.missing.map_or(in_arguments, |(_, bytes)| bytes);
                    match is_large(bytes) {
                        true => Route::Move(to_primary),
                        false => Route::Relay(to_primary),
                    }
                }
                _ => Route::Here,
            }
        }
    }
}

/// The node that answers a command whose connection could not move.
fn without_moving(node: &Node) -> Route {
    match &node.role {
        Role::Primary(_) => Route::Here,
        Role::Replica(replica) => Route::Relay(replica.primary.clone()),
    }
}

fn value_bytes(node: &Node, keys: &[Vec<u8>]) -> usize {
    let store = node.store.borrow();
    let values = keys.iter().filter_map(|key| store.get(key));
    values.map(|value| value.len()).sum()
}

async fn answer(node: &Node, name: &str, arguments: Vec<Vec<u8>>) -> Vec<Part> {
    let part = match (name, arguments.as_slice()) {
        ("GET", [_]) => return values(node, &arguments).collect(),
        ("MGET", [_, ..]) if value_bytes(node, &arguments) > MAX_VALUE_BYTES => {
            Part::error("ERR the values take more than 64 MiB")
        }
        ("MGET", [_, ..]) => {
            let count = Part::line(b'*', &arguments.len().to_string());
            return [count]
                .into_iter()
                .chain(values(node, &arguments))
                .collect();
        }
        ("SET", [key, value]) => set(node, key, value).await,
        ("DEL", [_, ..]) => delete(node, &arguments).await,
        ("PING", []) => Part::line(b'+', "PONG"),
        ("PING", [said]) => Part::Value(Some(said.as_slice().into())),
        ("INFO", _) => Part::Value(Some(info(node).as_bytes().into())),
        ("", _) => return Vec::new(),
        _ => Part::error("ERR unknown command or wrong number of arguments"),
    };
    vec![part]
}

fn values(node: &Node, keys: &[Vec<u8>]) -> impl Iterator<Item = Part> {
    let store = node.store.borrow();
    keys.iter()
        .map(move |key| Part::Value(store.get(key).cloned()))
}

async fn set(node: &Node, key: &[u8], value: &[u8]) -> Part {
    let Role::Primary(primary) = &node.role else {
        return Part::error("ERR not the primary");
    };
    if !node.store.borrow().has_room(key, value.len()) {
        return Part::error("OOM the values take too much memory");
    }
    node.store.borrow_mut().set(key, value.into());
    primary.commit(&[b"SET", key, value]).await;
    Part::line(b'+', "OK")
}

async fn delete(node: &Node, keys: &[Vec<u8>]) -> Part {
    let Role::Primary(primary) = &node.role else {
        return Part::error("ERR not the primary");
    };
    let count = {
        let mut store = node.store.borrow_mut();
        keys.iter().filter(|key| store.delete(key)).count()
    };
    let mut write: Vec<&[u8]> = vec![b"DEL"];
    write.extend(keys.iter().map(Vec::as_slice));
    primary.commit(&write).await;
    Part::line(b':', &count.to_string())
}

fn info(node: &Node) -> String {
    let counters = &node.process.counters;
    let role = match &node.role {
        Role::Primary(primary) => format!("role:primary\r\nleases:{}", primary.leases()),
        Role::Replica(replica) => format!("role:replica\r\nlease:{}", replica.has_lease()),
    };
    format!(
        "node:{}\r\n{role}\r\nimported:{}\r\nmoved:{}\r\n",
        node.config.name,
        counters.imported.read(),
        counters.exports_moved.read(),
    )
}

/// Has `peer` answer a command.
async fn relay(
    node: &Node,
    peer: &str,
    name: &str,
    arguments: &[Vec<u8>],
    held: &mut Share,
) -> Vec<u8> {
    let mut command: Vec<&[u8]> = vec![name.as_bytes()];
    command.extend(arguments.iter().map(Vec::as_slice));
    let error = match ask(node, peer, &resp::encode(&command), held).await {
        Ok(Ok(answer)) => return answer,
        // Clients repeat a command after TRYAGAIN.
        Ok(Err(error)) if matches!(name, "SET" | "DEL") => {
            format!("ERR the outcome is unknown, {peer} does not answer: {error}")
        }
        Ok(Err(error)) => format!("TRYAGAIN {peer} does not answer: {error}"),
        Err(unsent) => format!("TRYAGAIN {unsent}"),
    };
    let mut answer = Vec::new();
    resp::add_line(&mut answer, b'-', &error.replace(['\r', '\n'], " "));
    answer
}

/// The answer of `peer` to a command, or why it is not known.
///
/// # Errors
/// If `peer` was not reached, so that nothing was sent.
async fn ask(
    node: &Node,
    peer: &str,
    command: &[u8],
    held: &mut Share,
) -> Result<io::Result<Vec<u8>>, PeerError> {
    loop {
        let (mut stream, was_used) = node.handle.relay(peer).await?;
        let asking = async {
            stream.write(command).await?;
            stream.flush().await?;
            next_command(&mut stream, held).await
        };
        let answer = match asking.await {
            Ok(Some(mut answer)) => {
                node.handle.keep_relay(peer, stream);
                answer.pop().ok_or_else(|| wire::malformed("an answer"))
            }
            // An orderly end: the peer had closed it, and has not read the command.
            Ok(None) if was_used => continue,
            Ok(None) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => Err(error),
        };
        return Ok(answer);
    }
}

/// Answers another node: a replica that follows, or relays.
pub(crate) async fn serve_node(node: &Node, mut stream: RelayStream, peer: &str) {
    stream.set_io_timeout(IDLE);
    loop {
        let mut arguments = match next_command(&mut stream, &mut Share::alone()).await {
            Ok(Some(arguments)) if !arguments.is_empty() => arguments,
            Err(error) if error.kind() == io::ErrorKind::TimedOut && stream.is_clean() => {
                // The peer learns that a command that it sends now is not read.
                return stream.close().await;
            }
            _ => return,
        };
        let name = String::from_utf8_lossy(&arguments.remove(0)).into_owned();
        if let (Role::Primary(primary), "FOLLOW") = (&node.role, name.as_str()) {
            return primary.lead(node, stream, peer).await;
        }
        let parts = answer(node, &name, arguments).await;
        let bytes: usize = parts.iter().map(Part::bytes).sum();
        let mut unsent = format!("*1\r\n${bytes}\r\n").into_bytes();
        let answered = async {
            send(&mut stream, parts, &mut unsent).await?;
            unsent.extend_from_slice(b"\r\n");
            stream.write(&unsent).await?;
            stream.flush().await
        };
        if answered.await.is_err() {
            return;
        }
    }
}
