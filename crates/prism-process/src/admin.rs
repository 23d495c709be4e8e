//! Questions to a process at its admin socket.

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Timeout of a node's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The answer of the node with this admin socket: the wanted fields, and the whole document.
///
/// # Errors
/// The node does not answer, or refuses.
pub fn ask<T: DeserializeOwned>(socket: &Path, question: &str) -> anyhow::Result<(T, Value)> {
    let talk = || -> anyhow::Result<Value> {
        let mut stream = UnixStream::connect(socket).map_err(absent)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        writeln!(stream, "{question}")?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| line.trim().to_owned())
    };
    let name = socket.display();
    let document = talk().with_context(|| format!("the node at {name} does not answer"))?;
    match serde_json::from_value(document.clone()) {
        Ok(answer) => Ok((answer, document)),
        Err(error) => Err(refusal(&document, error).context(format!("the node at {name}"))),
    }
}

/// A text from another process, without characters that move a terminal's cursor.
#[must_use]
pub fn printable(text: &str) -> String {
    let shown = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    shown.collect()
}

/// The reason that a node gives in place of the wanted fields.
fn refusal(document: &Value, error: serde_json::Error) -> anyhow::Error {
    match document.get("error").and_then(Value::as_str) {
        Some(unknown) if unknown.starts_with("unknown command") => {
            anyhow!("its process is older than this program; restart it")
        }
        Some(refused) => anyhow!("{refused}"),
        None => anyhow::Error::new(error).context(format!("answers {document}")),
    }
}

/// Adds the remedy to an error of connecting.
fn absent(error: io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => anyhow!(
            "{error}; start it, or run this on its host (prism serve: with --socket DIR/serve.sock)"
        ),
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde::de::Error;
    use serde_json::json;

    use super::*;

    fn refused(document: &Value) -> String {
        let error = serde_json::Error::missing_field("pid");
        format!("{:#}", refusal(document, error))
    }

    #[test]
    fn a_nodes_reason_is_shown_and_an_older_process_is_named() {
        let reason = refused(&json!({"error": "cannot start a successor: No such file"}));
        assert_eq!(reason, "cannot start a successor: No such file");
        // As 0.2.0 answers.
        let older =
            refused(&json!({"error": "unknown command \"start-successor\"; try: counters"}));
        assert_eq!(older, "its process is older than this program; restart it");
        assert!(refused(&json!({"process": 1})).contains("missing field `pid`"));
    }
}
