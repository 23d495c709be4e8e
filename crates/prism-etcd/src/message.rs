//! The messages in JSON, as etcd's gateway writes them. Bytes are in Base64, 64-bit numbers
//! are strings, and zero or empty fields may be missing.

use data_encoding::BASE64;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::Error;

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The whole key, prefix included.
    pub key: String,
    /// Its value.
    pub value: Vec<u8>,
    /// The revision of the key's last change.
    pub mod_revision: u64,
}

/// Bytes, in Base64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl From<&str> for Bytes {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = BASE64.decode(text.as_bytes());
        bytes.map(Self).map_err(D::Error::custom)
    }
}

/// A 64-bit number, as a string. Some of etcd's are signed; none of them is negative here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Number(pub(crate) u64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Text(String),
            Number(u64),
        }
        match Form::deserialize(deserializer)? {
            Form::Number(number) => Ok(Self(number)),
            Form::Text(text) => text.parse().map(Self).map_err(D::Error::custom),
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct RangeRequest {
    pub(crate) key: Bytes,
    pub(crate) range_end: Bytes,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Header {
    pub(crate) revision: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct KeyValue {
    pub(crate) key: Bytes,
    pub(crate) value: Bytes,
    pub(crate) mod_revision: Number,
}

impl KeyValue {
    /// `None` for a key that is not UTF-8, which Prism has not written.
    pub(crate) fn into_entry(self) -> Option<Entry> {
        Some(Entry {
            key: String::from_utf8(self.key.0).ok()?,
            value: self.value.0,
            mod_revision: self.mod_revision.0,
        })
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RangeResponse {
    pub(crate) header: Header,
    pub(crate) kvs: Vec<KeyValue>,
}

#[derive(Debug, Serialize)]
pub(crate) struct TxnRequest {
    pub(crate) compare: Vec<Compare>,
    pub(crate) success: Vec<RequestOp>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Compare {
    pub(crate) key: Bytes,
    pub(crate) result: &'static str,
    pub(crate) target: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) create_revision: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mod_revision: Option<Number>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RequestOp {
    RequestPut {
        key: Bytes,
        value: Bytes,
        lease: Number,
    },
    RequestDeleteRange {
        key: Bytes,
    },
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TxnResponse {
    pub(crate) header: Header,
    pub(crate) succeeded: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct GrantRequest {
    #[serde(rename = "TTL")]
    pub(crate) ttl: Number,
}

#[derive(Debug, Serialize)]
pub(crate) struct LeaseRequest {
    #[serde(rename = "ID")]
    pub(crate) id: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LeaseResponse {
    #[serde(rename = "ID")]
    pub(crate) id: Number,
    /// Seconds; zero or absent if the lease does not exist.
    #[serde(rename = "TTL")]
    pub(crate) ttl: Number,
}

#[derive(Debug, Serialize)]
pub(crate) struct WatchRequest {
    pub(crate) create_request: WatchCreate,
}

#[derive(Debug, Serialize)]
pub(crate) struct WatchCreate {
    pub(crate) key: Bytes,
    pub(crate) range_end: Bytes,
    pub(crate) start_revision: Number,
}

/// One line of a streamed answer.
#[derive(Debug, Deserialize)]
pub(crate) struct Line<T> {
    pub(crate) result: Option<T>,
    pub(crate) error: Option<serde_json::Value>,
}

impl<T> Line<T> {
    /// The message of the line.
    pub(crate) fn into_result(self) -> Result<T, Error> {
        match (self.result, self.error) {
            (Some(result), None) => Ok(result),
            (_, Some(error)) => Err(Error::Ended(message_of(&error))),
            (None, None) => Err(Error::malformed("a line says nothing")),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WatchResponse {
    pub(crate) header: Header,
    pub(crate) canceled: bool,
    pub(crate) cancel_reason: String,
    pub(crate) compact_revision: Number,
    pub(crate) events: Vec<WatchEvent>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WatchEvent {
    /// `DELETE` for a deletion, otherwise a new value.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) kv: KeyValue,
}

/// etcd's message of a failure, in either form that it may have.
pub(crate) fn message_of(error: &serde_json::Value) -> String {
    let texts = [error.get("message"), error.get("error"), Some(error)];
    let mut texts = texts.into_iter().flatten();
    let text = texts.find_map(serde_json::Value::as_str);
    text.map_or_else(|| error.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code")]
    use super::*;

    #[test]
    fn a_change_is_written_as_etcd_reads_it() {
        let request = TxnRequest {
            compare: vec![Compare {
                key: "a".into(),
                result: "EQUAL",
                target: "CREATE",
                create_revision: Some(Number(0)),
                mod_revision: None,
            }],
            success: vec![RequestOp::RequestPut {
                key: "a".into(),
                value: "b".into(),
                lease: Number(7),
            }],
        };
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(
            text,
            r#"{"compare":[{"key":"YQ==","result":"EQUAL","target":"CREATE","create_revision":"0"}],"success":[{"request_put":{"key":"YQ==","value":"Yg==","lease":"7"}}]}"#
        );
    }

    #[test]
    fn what_an_answer_leaves_out_is_zero() {
        let read: RangeResponse = serde_json::from_str(
            r#"{"header":{"cluster_id":"14841639068965178418","revision":"12"},"kvs":[{"key":"YQ==","create_revision":"2","mod_revision":"9","version":"3"}],"count":"1"}"#,
        )
        .unwrap();
        assert_eq!(read.header.revision, Number(12));
        let entry = read.kvs.into_iter().next().unwrap().into_entry().unwrap();
        assert_eq!((entry.key.as_str(), entry.value.len()), ("a", 0));
        assert_eq!(entry.mod_revision, 9);
        let gone: LeaseResponse = serde_json::from_str(r#"{"ID":"5"}"#).unwrap();
        assert_eq!((gone.id, gone.ttl), (Number(5), Number(0)));
        assert!(serde_json::from_str::<Number>("\"-1\"").is_err());
    }

    #[test]
    fn a_line_is_a_message_or_an_error() {
        let line = r#"{"result":{"header":{"revision":"3"},"events":[{"type":"DELETE","kv":{"key":"YQ=="}}]}}"#;
        let line: Line<WatchResponse> = serde_json::from_str(line).unwrap();
        let message = line.into_result().unwrap();
        assert_eq!(message.events[0].kind, "DELETE");
        let line = r#"{"error":{"grpc_code":14,"http_code":503,"message":"no leader","http_status":"Service Unavailable"}}"#;
        let line: Line<WatchResponse> = serde_json::from_str(line).unwrap();
        let error = line.into_result().unwrap_err().to_string();
        assert!(error.contains("no leader"), "{error}");
    }
}
