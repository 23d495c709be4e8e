//! A watch: the changes of keys as they happen, on its own connection.

use prism_http::BodyReader;
use serde_json::json;

use crate::connection::MemberConnection;
use crate::error::Error;
use crate::message::{KeyEntry, StreamLine, WatchResponse, range};

/// Longest message in bytes. It may have all changes of one call.
const MAX_LINE_BYTES: usize = 32 << 20;

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The key has a new value.
    Put(KeyEntry),
    /// The key was deleted.
    Delete {
        /// The key.
        key: String,
    },
}

/// Changes in their order. All changes of one transaction are in one update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// The revision up to which the watch has reported everything.
    pub revision: u64,
    /// The changes, in their order.
    pub events: Vec<Event>,
}

/// A watch. After a failure it has ended: read all keys, and watch from that revision.
pub struct Watch {
    connection: MemberConnection,
    body: BodyReader,
    /// Bytes that are not parsed yet.
    text: Vec<u8>,
    /// The length of the part of `text` that has no end of a line.
    seen: usize,
}

impl Watch {
    pub(crate) async fn begin(
        mut connection: MemberConnection,
        prefix: &str,
        revision: u64,
    ) -> Result<Self, Error> {
        let endpoint = connection.endpoint().clone();
        let broken = |error| Error::unreachable(&endpoint, error);
        let mut request = range(prefix);
        request.insert("start_revision".into(), revision.to_string().into());
        let request = json!({ "create_request": request }).to_string();
        let head = connection
            .ask("/v3/watch", &request)
            .await
            .map_err(broken)?;
        if head.status() != 200 {
            let text = connection.read_all(&head, MAX_LINE_BYTES).await;
            let (text, _) = text.map_err(broken)?;
            return Err(Error::refused(head.status(), &text));
        }
        // The answer ends only with the connection.
        let framing = MemberConnection::framing(&head).map_err(broken)?;
        let body = BodyReader::new(framing, u64::MAX);
        Ok(Self {
            connection,
            body,
            text: Vec::new(),
            seen: 0,
        })
    }

    /// Waits for the next changes. It is cancel safe. After an error the watch has ended.
    pub async fn next(&mut self) -> Result<Update, Error> {
        loop {
            while let Some(line) = self.take_line() {
                let line =
                    serde_json::from_slice::<StreamLine<_>>(&line).map_err(Error::malformed)?;
                if let Some(update) = understand(line.into_result()?)? {
                    return Ok(update);
                }
            }
            if self.body.is_done() {
                return Err(Error::Ended("the answer is over".into()));
            }
            if self.text.len() > MAX_LINE_BYTES {
                return Err(Error::malformed("a line without an end"));
            }
            let reading = self.connection.read_some(&mut self.body, &mut self.text);
            reading.await.map_err(|error| self.broken(error))?;
        }
    }

    fn take_line(&mut self) -> Option<Vec<u8>> {
        let new = self.text.get(self.seen..).unwrap_or_default();
        let Some(end) = new.iter().position(|byte| *byte == b'\n') else {
            self.seen = self.text.len();
            return None;
        };
        let line = self.text.drain(..=self.seen + end).collect();
        self.seen = 0;
        Some(line)
    }

    fn broken(&self, source: std::io::Error) -> Error {
        Error::unreachable(self.connection.endpoint(), source)
    }
}

/// Reads a message; `None` if it only reports the beginning of the watch.
fn understand(message: WatchResponse) -> Result<Option<Update>, Error> {
    if message.compact_revision.0 > 0 {
        return Err(Error::Compacted(message.compact_revision.0));
    }
    if message.canceled {
        return Err(Error::Ended(message.cancel_reason));
    }
    if message.events.is_empty() {
        return Ok(None);
    }
    let events = message.events.into_iter().filter_map(|event| {
        let gone = event.kind == "DELETE";
        let entry = event.kv.into_entry()?;
        Some(if gone {
            Event::Delete { key: entry.key }
        } else {
            Event::Put(entry)
        })
    });
    Ok(Some(Update {
        revision: message.header.revision.0,
        events: events.collect(),
    }))
}
