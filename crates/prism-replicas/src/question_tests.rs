//! The messages in docs/protocol.md are what this crate reads and writes.
#![allow(clippy::unwrap_used, clippy::panic)]

use prism_core::NodeQuestion;
use prism_store::{Handed, Prepare};
use serde::de::DeserializeOwned;
use serde_json::Value;

use prism_s3::list::Item;

use super::*;

#[path = "../../prism-handoff/tests/it/document.rs"]
#[allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    reason = "a test module of another crate, of which this test uses a part"
)]
mod document;

/// Reads a message as a `T`, which has to write the same again.
fn check<T: Serialize + DeserializeOwned>(message: &str) {
    let read: T = serde_json::from_str(message).unwrap();
    let documented: Value = serde_json::from_str(message).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), documented);
}

#[test]
fn every_message_of_the_document_is_read_and_written_as_it_is_there() {
    let examples = document::examples(include_str!("../../../docs/protocol.md"));
    let messages = examples.iter().filter(|e| e.block.starts_with('{'));
    let mut names = Vec::new();
    for example in messages {
        match example.name.as_str() {
            "question" => check::<NodeQuestion<Question>>(&example.block),
            "reply" => check::<Reply>(&example.block),
            "prepare" => check::<Prepare>(&example.block),
            "handed" => check::<Handed>(&example.block),
            name => panic!("the example {name} has no check"),
        }
        names.push(&example.name);
    }
    assert_eq!(names, ["question", "reply", "prepare", "handed"]);
}

#[test]
fn lines_of_listings_may_lack_the_checksum_as_those_of_the_former_release_do() {
    let key = r#""len":1,"etag":"e","created_ms":2"#;
    let version = r#""id":"null","is_latest":true,"created_ms":2,"object":["e",1]"#;
    let checksum = r#","checksum":["CRC64NVME","FULL_OBJECT"]"#;
    for rest in ["", checksum] {
        check::<Item>(&format!(r#"{{"Key":{{{key}{rest}}}}}"#));
        check::<Item>(&format!(r#"{{"Version":{{{version}{rest}}}}}"#));
    }
}
