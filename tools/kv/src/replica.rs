//! A replica: it follows the primary, and knows how long its lease lasts.

use std::cell::Cell;
use std::io;
use std::time::{Duration, Instant};

use prism_handoff::RelayStream;

use crate::budget::Share;
use crate::node::{Node, Role};
use crate::resp;
use crate::wire;

/// A replica may read for this time after it has sent the acknowledgement that was answered.
pub(crate) const LEASE: Duration = Duration::from_secs(1);
/// The interval of acknowledgements without writes.
const RENEWAL: Duration = Duration::from_millis(200);
/// The time between two tries to follow.
const PAUSE: Duration = Duration::from_millis(200);

pub(crate) struct Replica {
    pub(crate) primary: String,
    begun: Instant,
    leased_until: Cell<Option<Instant>>,
}

impl Replica {
    pub(crate) fn new(primary: String) -> Self {
        Self {
            primary,
            begun: Instant::now(),
            leased_until: Cell::new(None),
        }
    }

    /// Whether the values here have every answered write.
    pub(crate) fn has_lease(&self) -> bool {
        let until = self.leased_until.get();
        until.is_some_and(|until| Instant::now() < until)
    }

    /// The time since the start in milliseconds.
    fn stamp_ms(&self) -> u128 {
        self.begun.elapsed().as_millis()
    }
}

/// Follows the primary for as long as the process lives.
pub(crate) async fn follow(node: &Node) {
    let Role::Replica(replica) = &node.role else {
        return;
    };
    loop {
        if let Err(error) = follow_once(node, replica).await {
            eprintln!(
                "{} does not follow {}: {error}",
                node.config.name, replica.primary
            );
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn follow_once(node: &Node, replica: &Replica) -> io::Result<()> {
    let stream = node.handle.fresh_relay(&replica.primary).await;
    let mut stream = stream.map_err(io::Error::other)?;
    stream.write(&resp::encode(&[b"FOLLOW"])).await?;
    stream.flush().await?;
    // Its values are about to be older than what other replicas have.
    replica.leased_until.set(None);
    node.store.borrow_mut().clear();
    let mut last = copied(node, &mut stream).await?;
    let (mut is_due, mut renewal) = (true, tokio::time::Instant::now());
    loop {
        if is_due {
            acknowledge(replica, &mut stream, last).await?;
            (is_due, renewal) = (false, tokio::time::Instant::now() + RENEWAL);
        }
        let before = last;
        while let Some(arguments) = wire::begun_command(&mut stream, &mut Share::alone()).await? {
            last = apply(node, replica, last, arguments)?;
        }
        if last != before {
            // One acknowledgement is for all that has arrived.
            is_due = true;
            continue;
        }
        match tokio::time::timeout_at(renewal, stream.fill()).await {
            Ok(Ok(0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(filled) => _ = filled?,
            Err(_) => is_due = true,
        }
    }
}

/// Takes all values, and returns the number of the last write in them.
async fn copied(node: &Node, stream: &mut RelayStream) -> io::Result<u64> {
    while let Some(command) = wire::next_command(stream, &mut Share::alone()).await? {
        match command.as_slice() {
            [copy, key, value] if copy == b"COPY" => {
                let value = value.as_slice().into();
                node.store.borrow_mut().set(key, value);
            }
            [copied, number] if copied == b"COPIED" => return wire::integer(number),
            _ => return Err(wire::malformed("a copy")),
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

async fn acknowledge(replica: &Replica, stream: &mut RelayStream, last: u64) -> io::Result<()> {
    let [last, stamp] = [last.to_string(), replica.stamp_ms().to_string()];
    let acknowledgement = resp::encode(&[last.as_bytes(), stamp.as_bytes()]);
    stream.write(&acknowledgement).await?;
    stream.flush().await
}

/// Applies a write or notes a lease, and returns the number of the last write.
fn apply(node: &Node, replica: &Replica, last: u64, arguments: Vec<Vec<u8>>) -> io::Result<u64> {
    match arguments.as_slice() {
        [lease, stamp] if lease == b"LEASE" => {
            let sent = replica.begun + Duration::from_millis(wire::integer(stamp)?);
            replica.leased_until.set(Some(sent + LEASE));
            return Ok(last);
        }
        [_, set, key, value] if set == b"SET" => {
            let value = value.as_slice().into();
            node.store.borrow_mut().set(key, value);
        }
        [_, delete, keys @ ..] if delete == b"DEL" => {
            let mut store = node.store.borrow_mut();
            for key in keys {
                store.delete(key);
            }
        }
        _ => return Err(wire::malformed("a write")),
    }
    let number = arguments.first().map(|number| wire::integer(number));
    match number {
        Some(Ok(number)) if number == last + 1 => Ok(number),
        _ => Err(wire::malformed("the number of a write")),
    }
}
