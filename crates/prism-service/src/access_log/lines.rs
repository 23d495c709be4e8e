//! Lines of the access log, in JSON.
//!
//! The processor pays for a line of each request, so that the names of fields are copied and only
//! texts are escaped, by `serde_json`.

use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{request_id_text, time_text};
use crate::observe::Answered;

/// Makes lines.
#[derive(Debug, Default)]
pub(super) struct LineMaker {
    bytes: Vec<u8>,
    /// The last written second, in seconds since 1970, and its text without the `Z`.
    second: (u64, String),
}

impl LineMaker {
    /// The lines.
    pub(super) fn lines(&self) -> &[u8] {
        &self.bytes
    }

    /// Forgets the lines.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Adds the line of a request.
    pub(super) fn add(&mut self, answered: &Answered<'_>, ended: SystemTime) {
        let about = &answered.about;
        self.begin(ended);
        self.text("request_id", &request_id_text(answered.id));
        if let Some(id) = answered.trace_id {
            self.text("trace_id", &format!("{:032x}", u128::from_be_bytes(id)));
        }
        self.address("client", answered.client);
        self.text("operation", about.operation);
        self.text_if_any("access_key", about.access_key);
        self.text_if_any("bucket", about.bucket);
        self.text_if_any("key", about.key);
        self.text_if_any("version", about.version);
        self.number("status", answered.status.into());
        self.text_if_any("error", answered.error);
        self.number("bytes_in", answered.bytes_in);
        self.number("bytes_out", answered.bytes_out);
        if let Some(first_byte) = answered.first_byte {
            self.number("first_byte_us", as_us(first_byte));
        }
        self.number("total_us", as_us(answered.total));
        self.text("frontend", answered.frontend);
        self.text("backend", answered.backend);
        self.text("path", answered.path());
        self.number("hand_offs", answered.hand_offs.into());
        self.name("tls");
        let is_tls: &[u8] = if answered.is_tls { b"true" } else { b"false" };
        self.bytes.extend_from_slice(is_tls);
        self.bytes.extend_from_slice(b"}\n");
    }

    /// Begins a line with its time, whose second is mostly that of the line before it.
    fn begin(&mut self, ended: SystemTime) {
        let since = ended.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (second, text) = &mut self.second;
        if *second != since.as_secs() || text.is_empty() {
            *second = since.as_secs();
            *text = time_text(UNIX_EPOCH + Duration::from_secs(*second));
            text.pop();
        }
        let millis = since.subsec_millis();
        // Writing to memory does not fail.
        let _ = write!(self.bytes, r#"{{"time":"{text}.{millis:03}Z""#);
    }

    fn name(&mut self, name: &str) {
        self.bytes.extend_from_slice(b",\"");
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(b"\":");
    }

    fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        let _ = serde_json::to_writer(&mut self.bytes, text);
    }

    fn text_if_any(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.text(name, text);
        }
    }

    fn number(&mut self, name: &str, number: u64) {
        self.name(name);
        let _ = serde_json::to_writer(&mut self.bytes, &number);
    }

    fn address(&mut self, name: &str, address: SocketAddr) {
        self.name(name);
        let _ = write!(self.bytes, "\"{address}\"");
    }
}

fn as_us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_log::tests::request;

    #[test]
    fn a_line_is_json_with_escaped_texts_and_only_the_known_facts() {
        let mut maker = LineMaker::default();
        let mut line = |key, access_key, version, after: Duration| {
            maker.clear();
            maker.add(&request(key, access_key, version), UNIX_EPOCH + after);
            String::from_utf8_lossy(maker.lines()).into_owned()
        };
        assert_eq!(
            line("\"é\"\n", Some("AK"), None, Duration::ZERO),
            concat!(
                r#"{"time":"1970-01-01T00:00:00.000Z","request_id":"00000000000012AB","#,
                r#""trace_id":"01010101010101010101010101010101","client":"192.0.2.1:4000","#,
                r#""operation":"GetObject","access_key":"AK","bucket":"photos","#,
                r#""key":"\"é\"\n","status":404,"error":"NoSuchKey","bytes_in":0,"#,
                r#""bytes_out":7,"total_us":9,"frontend":"fe0","backend":"be0","#,
                r#""path":"direct","hand_offs":1,"tls":true}"#,
                "\n"
            )
        );
        let next = line("b", None, Some("v1"), Duration::from_millis(1_950));
        let next: serde_json::Value = serde_json::from_str(&next).unwrap_or_default();
        let text = |name| next.get(name).and_then(serde_json::Value::as_str);
        assert_eq!(text("time"), Some("1970-01-01T00:00:01.950Z"));
        assert_eq!(text("version"), Some("v1"));
        assert_eq!(text("access_key"), None);
    }
}
