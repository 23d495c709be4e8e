//! A client's connection: which node answers its next command, and the answer.

use std::io;
use std::time::Duration;

use prism_handoff::{Connection, Exported, RelayStream};

use crate::node::{Node, Role};
use crate::resp::{self, Command, Rest};
use crate::store::Value;
use crate::wire::{self, next_command, take_value};

/// A client may say nothing for this time.
const IDLE: Duration = Duration::from_secs(3600);
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
    Value(Value),
}

/// Serves one client until it leaves or its connection moves.
pub(crate) async fn serve_client(node: &Node, mut client: Connection) {
    client.caller_is_known();
    client.set_io_timeout(IDLE);
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
    let command = match resp::command(client.buffered()) {
        Ok(command) => command,
        Err(malformed) => {
            resp::add_line(answers, b'-', &format!("ERR {}", malformed.0));
            client.write_all(answers).await?;
            client.close().await;
            return Ok(None);
        }
    };
    let asked = command.and_then(|command| asked(client.buffered(), command));
    let Some(asked) = asked else {
        flush(&mut client, answers).await?;
        if client.fill().await? == 0 {
            client.close().await;
            return Ok(None);
        }
        return Ok(Some(client));
    };
    if asked.name == "QUIT" {
        resp::add_line(answers, b'+', "OK");
        client.write_all(answers).await?;
        client.close().await;
        return Ok(None);
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
    let (name, arguments) = take(&mut client, asked).await?;
    match route {
        Route::Relay(peer) => {
            flush(&mut client, answers).await?;
            relay(node, &peer, &name, &arguments, answers).await;
        }
        Route::Here | Route::Move(_) => {
            for part in answer(node, &name, arguments).await {
                match part {
                    Part::Text(text) => answers.extend_from_slice(&text),
                    Part::Value(value) => {
                        client.write_more(answers).await?;
                        answers.clear();
                        client.write_more(&value).await?;
                    }
                }
            }
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
    }
    Ok(())
}

/// The command, if enough of it has arrived to answer it.
fn asked(input: &[u8], command: Command) -> Option<Asked> {
    let mut arguments = wire::arguments(input, &command.arguments);
    let (missing, bytes) = match command.rest {
        Rest::Complete(bytes) => (None, bytes),
        Rest::Last { start, bytes } if bytes >= wire::TAKEN_IN_PARTS_BYTES => {
            (Some((start, bytes)), 0)
        }
        Rest::Last { .. } | Rest::Missing => return None,
    };
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
async fn take(client: &mut Connection, asked: Asked) -> io::Result<(String, Vec<Vec<u8>>)> {
    let mut arguments = asked.arguments;
    match asked.missing {
        Some((start, bytes)) => {
            client.consume(start);
            arguments.push(take_value(client, bytes).await?);
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
    let mut text = Vec::new();
    match (name, arguments.as_slice()) {
        ("GET", [key]) => return values(node, std::slice::from_ref(key), false),
        ("MGET", [_, ..]) => return values(node, &arguments, true),
        ("SET", [key, value]) => set(node, key, value, &mut text).await,
        ("DEL", [_, ..]) => delete(node, &arguments, &mut text).await,
        ("PING", []) => resp::add_line(&mut text, b'+', "PONG"),
        ("PING", [said]) => resp::add_value(&mut text, Some(said)),
        ("INFO", _) => resp::add_value(&mut text, Some(info(node).as_bytes())),
        ("", _) => {}
        _ => {
            let error = "ERR unknown command or wrong number of arguments";
            resp::add_line(&mut text, b'-', error);
        }
    }
    vec![Part::Text(text)]
}

fn values(node: &Node, keys: &[Vec<u8>], are_many: bool) -> Vec<Part> {
    let (store, mut parts, mut text) = (node.store.borrow(), Vec::new(), Vec::new());
    if are_many {
        resp::add_line(&mut text, b'*', &keys.len().to_string());
    }
    for key in keys {
        match store.get(key) {
            Some(value) if value.len() >= LARGE_BYTES => {
                resp::add_line(&mut text, b'$', &value.len().to_string());
                parts.push(Part::Text(std::mem::take(&mut text)));
                parts.push(Part::Value(value.clone()));
                text.extend_from_slice(b"\r\n");
            }
            found => resp::add_value(&mut text, found.map(|value| &value[..])),
        }
    }
    parts.push(Part::Text(text));
    parts
}

async fn set(node: &Node, key: &[u8], value: &[u8], text: &mut Vec<u8>) {
    let Role::Primary(primary) = &node.role else {
        return resp::add_line(text, b'-', "ERR not the primary");
    };
    if !node.store.borrow().has_room(key, value.len()) {
        return resp::add_line(text, b'-', "OOM the values take too much memory");
    }
    node.store.borrow_mut().set(key, value.into());
    primary.commit(&[b"SET", key, value]).await;
    resp::add_line(text, b'+', "OK");
}

async fn delete(node: &Node, keys: &[Vec<u8>], text: &mut Vec<u8>) {
    let Role::Primary(primary) = &node.role else {
        return resp::add_line(text, b'-', "ERR not the primary");
    };
    let count = {
        let mut store = node.store.borrow_mut();
        keys.iter().filter(|key| store.delete(key)).count()
    };
    let mut write: Vec<&[u8]> = vec![b"DEL"];
    write.extend(keys.iter().map(Vec::as_slice));
    primary.commit(&write).await;
    resp::add_line(text, b':', &count.to_string());
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
async fn relay(node: &Node, peer: &str, name: &str, arguments: &[Vec<u8>], answers: &mut Vec<u8>) {
    let mut command: Vec<&[u8]> = vec![name.as_bytes()];
    command.extend(arguments.iter().map(Vec::as_slice));
    match ask(node, peer, &resp::encode(&command)).await {
        Ok(answer) => answers.extend_from_slice(&answer),
        Err(error) => {
            let error = format!("TRYAGAIN {peer} does not answer: {error}");
            resp::add_line(answers, b'-', &error.replace(['\r', '\n'], " "));
        }
    }
}

async fn ask(node: &Node, peer: &str, command: &[u8]) -> io::Result<Vec<u8>> {
    loop {
        let relay = node.handle.relay(peer).await;
        let (mut stream, was_used) = relay.map_err(io::Error::other)?;
        stream.write(command).await?;
        stream.flush().await?;
        match next_command(&mut stream).await? {
            Some(mut answer) => {
                node.handle.keep_relay(peer, stream);
                return answer.pop().ok_or_else(|| wire::malformed("an answer"));
            }
            // An orderly end: the peer had closed it, and has not read the command.
            None if was_used => {}
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Answers another node: a replica that follows, or relays.
pub(crate) async fn serve_node(node: &Node, mut stream: RelayStream, peer: &str) {
    stream.set_io_timeout(IDLE);
    while let Ok(Some(mut arguments)) = next_command(&mut stream).await {
        if arguments.is_empty() {
            return;
        }
        let name = String::from_utf8_lossy(&arguments.remove(0)).into_owned();
        if let (Role::Primary(primary), "FOLLOW") = (&node.role, name.as_str()) {
            return primary.lead(node, stream, peer).await;
        }
        let mut text = Vec::new();
        for part in answer(node, &name, arguments).await {
            match part {
                Part::Text(part) => text.extend_from_slice(&part),
                Part::Value(value) => text.extend_from_slice(&value),
            }
        }
        let answered = async {
            stream.write(&resp::encode(&[&text])).await?;
            stream.flush().await
        };
        if answered.await.is_err() {
            return;
        }
    }
}
