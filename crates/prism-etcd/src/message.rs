//! The messages in JSON, as etcd's gateway writes them. Bytes are in Base64, 64-bit numbers
//! are strings, and zero or empty fields may be missing.

use data_encoding::BASE64;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use crate::error::{Error, message_of};

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEntry {
    /// The whole key, prefix included.
    pub key: String,
    /// Its value.
    pub value: Vec<u8>,
    /// The revision of the key's last change.
    pub mod_revision: u64,
}

/// The database of one member of etcd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Database {
    /// The revision of etcd.
    pub revision: u64,
    /// The size of the file, which shrinks by defragmentation only.
    pub size_bytes: u64,
    /// The part of it that has data.
    pub in_use_bytes: u64,
    /// The size from which on etcd takes no change. etcd before 3.6 does not tell it; then its
    /// default.
    pub quota_bytes: u64,
    /// Whether etcd takes no change because it has met its quota.
    pub is_full: bool,
}

/// etcd's default of `--quota-backend-bytes`.
const DEFAULT_QUOTA_BYTES: u64 = 2 << 30;

/// A lease that etcd has granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseId(pub(crate) u64);

/// A condition of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The key does not exist.
    Absent(String),
    /// The key's last change has this revision.
    At(String, u64),
}

impl Condition {
    /// The key is as it was found: with this revision, or absent.
    #[must_use]
    pub fn unchanged(key: String, revision: Option<u64>) -> Self {
        match revision {
            Some(revision) => Self::At(key, revision),
            None => Self::Absent(key),
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        let (key, target, field, number) = match self {
            Self::Absent(key) => (key, "CREATE", "create_revision", 0),
            Self::At(key, revision) => (key, "MOD", "mod_revision", *revision),
        };
        let key = BASE64.encode(key.as_bytes());
        json!({ "key": key, "result": "EQUAL", "target": target, field: number.to_string() })
    }
}

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A key gets a value.
    Put {
        /// The key.
        key: String,
        /// Its new value.
        value: Vec<u8>,
        /// The lease whose end deletes the key.
        lease: Option<LeaseId>,
    },
    /// A key is deleted.
    Delete(String),
}

impl Change {
    /// A key gets a value, without a lease.
    #[must_use]
    pub fn put(key: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        Self::Put {
            key: key.into(),
            value: value.into(),
            lease: None,
        }
    }

    /// The same change, whose key is deleted at the end of a lease. A deletion stays as it is.
    #[must_use]
    pub fn under(self, lease: LeaseId) -> Self {
        match self {
            Self::Put { key, value, .. } => Self::Put {
                key,
                value,
                lease: Some(lease),
            },
            deletion => deletion,
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::Put { key, value, lease } => json!({ "request_put": {
                "key": BASE64.encode(key.as_bytes()),
                "value": BASE64.encode(value),
                "lease": lease.map_or(0, |lease| lease.0).to_string(),
            }}),
            Self::Delete(key) => {
                json!({ "request_delete_range": { "key": BASE64.encode(key.as_bytes()) } })
            }
        }
    }
}

/// The range of all keys that begin with `prefix`.
pub(crate) fn range(prefix: &str) -> Map<String, Value> {
    let mut end = prefix.as_bytes().to_vec();
    // A byte of UTF-8 is never 0xff.
    match end.last_mut() {
        Some(last) => *last = last.saturating_add(1),
        // etcd takes a zero byte for the end of all keys.
        None => end.push(0),
    }
    let bounds = [("key", prefix.as_bytes()), ("range_end", &end)];
    let fields = bounds.map(|(name, key)| (name.to_owned(), BASE64.encode(key).into()));
    fields.into_iter().collect()
}

/// The range of the key of all that begin with `prefix` that has changed last, without its value.
pub(crate) fn last_changed(prefix: &str) -> Map<String, Value> {
    let mut request = range(prefix);
    let fields = [
        ("limit", json!("1")),
        ("sort_target", json!("MOD")),
        ("sort_order", json!("DESCEND")),
        ("keys_only", json!(true)),
    ];
    request.extend(fields.map(|(name, value)| (name.to_owned(), value)));
    request
}

/// Bytes, in Base64.
#[derive(Debug, Default)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

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

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(D::Error::custom)
    }
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
    pub(crate) fn into_entry(self) -> Option<KeyEntry> {
        Some(KeyEntry {
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
    /// The number of keys in the range, also if fewer are in the answer.
    pub(crate) count: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StatusResponse {
    pub(crate) header: Header,
    #[serde(rename = "dbSize")]
    pub(crate) size: Number,
    #[serde(rename = "dbSizeInUse")]
    pub(crate) size_in_use: Number,
    /// Since etcd 3.6.
    #[serde(rename = "dbSizeQuota")]
    pub(crate) size_quota: Number,
    /// The alarms of the cluster are among them.
    pub(crate) errors: Vec<String>,
}

impl StatusResponse {
    pub(crate) fn into_database(self) -> Database {
        let quota_bytes = match self.size_quota.0 {
            0 => DEFAULT_QUOTA_BYTES,
            quota => quota,
        };
        Database {
            revision: self.header.revision.0,
            size_bytes: self.size.0,
            in_use_bytes: self.size_in_use.0,
            quota_bytes,
            is_full: self.errors.iter().any(|error| error.contains("NOSPACE")),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TxnResponse {
    pub(crate) succeeded: bool,
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

/// One line of a streamed answer.
#[derive(Debug, Deserialize)]
pub(crate) struct StreamLine<T> {
    pub(crate) result: Option<T>,
    pub(crate) error: Option<serde_json::Value>,
}

impl<T> StreamLine<T> {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code")]
    use super::*;

    #[test]
    fn a_change_is_written_as_etcd_reads_it() {
        let written = Condition::Absent("a".into()).to_json();
        let expected = r#"{"key":"YQ==","result":"EQUAL","target":"CREATE","create_revision":"0"}"#;
        assert_eq!(written, serde_json::from_str::<Value>(expected).unwrap());
        let put = Change::Put {
            key: "a".into(),
            value: b"b".to_vec(),
            lease: Some(LeaseId(7)),
        };
        let expected = r#"{"request_put":{"key":"YQ==","value":"Yg==","lease":"7"}}"#;
        let expected: Value = serde_json::from_str(expected).unwrap();
        assert_eq!(put.to_json(), expected);
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
        let status = r#"{"header":{"revision":"7"},"version":"3.4.23","dbSize":"20480"}"#;
        let status: StatusResponse = serde_json::from_str(status).unwrap();
        let expected = Database {
            revision: 7,
            size_bytes: 20_480,
            quota_bytes: DEFAULT_QUOTA_BYTES,
            ..Database::default()
        };
        assert_eq!(status.into_database(), expected);
        let gone: LeaseResponse = serde_json::from_str(r#"{"ID":"5"}"#).unwrap();
        assert_eq!((gone.id, gone.ttl), (Number(5), Number(0)));
        assert!(serde_json::from_str::<Number>("\"-1\"").is_err());
    }

    #[test]
    fn a_line_is_a_message_or_an_error() {
        let line = r#"{"result":{"header":{"revision":"3"},"events":[{"type":"DELETE","kv":{"key":"YQ=="}}]}}"#;
        let line: StreamLine<WatchResponse> = serde_json::from_str(line).unwrap();
        let message = line.into_result().unwrap();
        assert_eq!(message.events[0].kind, "DELETE");
        let line = r#"{"error":{"grpc_code":14,"http_code":503,"message":"no leader","http_status":"Service Unavailable"}}"#;
        let line: StreamLine<WatchResponse> = serde_json::from_str(line).unwrap();
        let error = line.into_result().unwrap_err().to_string();
        assert!(error.contains("no leader"), "{error}");
    }
}
