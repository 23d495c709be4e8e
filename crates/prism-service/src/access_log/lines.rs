//! Lines of the access log, in JSON or in the combined format of Apache and nginx.
//!
//! Signatures and tokens of presigned URLs are left out: whoever reads a log must not be able
//! to use them. The processor pays for a line of each request, so that the names of fields are
//! copied and only texts are escaped, by `serde_json`.

use std::borrow::Cow;
use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, UNIX_EPOCH};

use percent_encoding::percent_decode_str;
use serde::Serialize;
use time::OffsetDateTime;
use time::macros::format_description;

use super::waiting::{Facts, Texts};
use super::{AccessLogForm, request_id_digits, time_text};

/// Makes lines.
#[derive(Debug, Default)]
pub(super) struct LineMaker {
    form: AccessLogForm,
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

    /// Makes the next lines in this form.
    pub(super) fn set_form(&mut self, form: AccessLogForm) {
        self.form = form;
    }

    /// Adds the line of a request.
    pub(super) fn add(&mut self, facts: &Facts, texts: &Texts<'_>) {
        match self.form {
            AccessLogForm::Json => self.add_json(facts, texts),
            AccessLogForm::Combined => self.add_combined(facts, texts),
        }
    }

    fn add_combined(&mut self, facts: &Facts, texts: &Texts<'_>) {
        // Writing to memory does not fail.
        let _ = write!(self.bytes, "{} - ", facts.client.ip().to_canonical());
        self.escaped(texts.access_key.unwrap_or("-"));
        let ended = UNIX_EPOCH + Duration::from_millis(facts.ended_ms);
        let form =
            format_description!("[day]/[month repr:short]/[year]:[hour]:[minute]:[second] +0000");
        let ended = OffsetDateTime::from(ended).format(form).unwrap_or_default();
        let _ = write!(self.bytes, " [{ended}] \"");
        match texts.method.filter(|method| !method.is_empty()) {
            None => self.plain("-"),
            Some(method) => {
                self.escaped(method);
                self.plain(" ");
                self.escaped(&without_secrets(texts.target.unwrap_or_default()));
                let _ = write!(self.bytes, " HTTP/{}", facts.http_version);
            }
        }
        let _ = write!(self.bytes, "\" {} {} \"", facts.status, facts.bytes_out);
        self.escaped(&without_secrets(texts.referer.unwrap_or("-")));
        self.plain("\" \"");
        self.escaped(texts.user_agent.unwrap_or("-"));
        self.plain("\"\n");
    }

    /// As nginx escapes a value.
    fn escaped(&mut self, text: &str) {
        for byte in text.bytes() {
            match byte {
                b'"' | b'\\' | ..b' ' | 0x7f.. => {
                    let _ = write!(self.bytes, "\\x{byte:02X}");
                }
                byte => self.bytes.push(byte),
            }
        }
    }

    fn add_json(&mut self, facts: &Facts, texts: &Texts<'_>) {
        self.begin(facts.ended_ms);
        self.plain(r#"","request_id":""#);
        self.bytes.extend_from_slice(&request_id_digits(facts.id));
        if let Some(id) = facts.trace_id {
            // Writing to memory does not fail.
            let _ = write!(
                self.bytes,
                r#"","trace_id":"{:032x}"#,
                u128::from_be_bytes(id)
            );
        }
        self.plain("\"");
        self.text(r#","proxy_request_id":"#, texts.proxy_request_id);
        self.plain(r#","client":""#);
        self.address(facts.client);
        self.plain(r#"","operation":""#);
        self.plain(facts.operation);
        self.plain("\"");
        let target = texts.target.filter(|target| !target.is_empty());
        if let Some(target) = target {
            self.text(r#","method":"#, texts.method);
            let query = target
                .split_once('?')
                .map(|(_, query)| without_secrets(query));
            self.text(r#","query":"#, query.as_deref());
        }
        self.text(r#","host":"#, texts.host);
        self.text(r#","user_agent":"#, texts.user_agent);
        let referer = texts.referer.map(without_secrets);
        self.text(r#","referer":"#, referer.as_deref());
        self.text(r#","access_key":"#, texts.access_key);
        self.text(r#","bucket":"#, texts.bucket);
        self.text(r#","key":"#, texts.key);
        self.text(r#","version":"#, texts.version);
        self.value(r#","status":"#, facts.status);
        self.text(r#","error":"#, facts.error);
        self.text(r#","ended_by":"#, facts.ended_by.map(|side| side.word()));
        self.text(r#","upstream":"#, texts.upstream);
        if let Some(server) = facts.server {
            self.plain(r#","server":""#);
            self.address(server);
            self.plain("\"");
        }
        if facts.retries > 0 {
            self.value(r#","retries":"#, facts.retries);
        }
        if facts.redirects > 0 {
            self.value(r#","redirects":"#, facts.redirects);
        }
        self.value(r#","bytes_in":"#, facts.bytes_in);
        self.value(r#","bytes_out":"#, facts.bytes_out);
        if let Some(first_byte_us) = facts.first_byte_us {
            self.value(r#","first_byte_us":"#, first_byte_us);
        }
        self.value(r#","total_us":"#, facts.total_us);
        self.text(r#","frontend":"#, texts.frontend);
        self.text(r#","backend":"#, texts.backend);
        self.plain(r#","path":""#);
        self.plain(facts.path);
        self.value(r#"","hand_offs":"#, facts.hand_offs);
        self.value(r#","tls":"#, facts.is_tls);
        self.plain("}\n");
    }

    /// Begins a line with its time, whose second is mostly that of the line before it.
    fn begin(&mut self, ended_ms: u64) {
        let now = ended_ms / 1_000;
        let millis = ended_ms % 1_000;
        let (second, text) = &mut self.second;
        if *second != now || text.is_empty() {
            *second = now;
            *text = time_text(UNIX_EPOCH + Duration::from_secs(now));
            text.pop();
        }
        let _ = write!(self.bytes, r#"{{"time":"{text}.{millis:03}Z"#);
    }

    fn plain(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn text(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.value(name, text);
        }
    }

    fn value(&mut self, name: &str, value: impl Serialize) {
        self.plain(name);
        let _ = serde_json::to_writer(&mut self.bytes, &value);
    }

    fn address(&mut self, address: SocketAddr) {
        let SocketAddr::V4(address) = address else {
            let _ = write!(self.bytes, "{address}");
            return;
        };
        // The library's way takes a third of the time of a line.
        let [a, b, c, d] = address.ip().octets();
        for (before, octet) in [("", a), (".", b), (".", c), (".", d)] {
            self.value(before, octet);
        }
        self.value(":", address.port());
    }
}

/// A query, or a target or URL with one, without what gives access.
fn without_secrets(query: &str) -> Cow<'_, str> {
    let mut parts = query.split(['?', '&']);
    if !parts.any(|part| name_of_secret(part).is_some()) {
        return query.into();
    }
    let mut shown = String::with_capacity(query.len());
    for part in query.split_inclusive(['?', '&']) {
        match name_of_secret(part) {
            Some(name) => {
                shown.push_str(name);
                shown.push_str("=-");
                shown.extend(part.ends_with('&').then_some('&'));
            }
            None => shown.push_str(part),
        }
    }
    shown.into()
}

/// The name of a parameter that gives access, as it stands in a query. Any byte of it may be
/// percent-encoded.
fn name_of_secret(part: &str) -> Option<&str> {
    let (name, _) = part.split_once('=')?;
    let decoded = percent_decode_str(name).decode_utf8_lossy();
    let secrets = ["Signature", "X-Amz-Signature", "X-Amz-Security-Token"];
    secrets.contains(&&*decoded).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_log::tests::request;
    use crate::access_log::waiting::Batch;

    #[test]
    fn a_line_is_json_with_escaped_texts_and_only_the_known_facts() {
        let mut maker = LineMaker::default();
        let mut line = |key, access_key, version, after: Duration| {
            maker.clear();
            let mut batch = Batch::default();
            batch.add(&request(key, access_key, version), UNIX_EPOCH + after);
            batch.drain(|facts, texts| maker.add(facts, texts));
            String::from_utf8_lossy(maker.lines()).into_owned()
        };
        assert_eq!(
            line("\"é\"\n", Some("AK"), None, Duration::ZERO),
            concat!(
                r#"{"time":"1970-01-01T00:00:00.000Z","request_id":"00000000000012AB","#,
                r#""trace_id":"01010101010101010101010101010101","client":"192.0.2.1:4000","#,
                r#""operation":"GetObject","method":"GET","query":"a=\"&X-Amz-Signature=-","#,
                r#""host":"h:80","user_agent":"curl/8","access_key":"AK","bucket":"photos","#,
                r#""key":"\"é\"\n","status":404,"error":"NoSuchKey","ended_by":"client","#,
                r#""upstream":"/","server":"127.0.0.1:9000","retries":2,"redirects":1,"bytes_in":0,"#,
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

    #[test]
    fn a_line_of_the_combined_format_cannot_be_forged() {
        let mut maker = LineMaker::default();
        maker.set_form(AccessLogForm::Combined);
        let mut request = request("k", Some("AK"), None);
        let mut lines = String::new();
        for user_agent in ["a \"b\\\u{7f}é", ""] {
            request.head.user_agent = Some(user_agent).filter(|text| !text.is_empty());
            let mut batch = Batch::default();
            batch.add(&request, UNIX_EPOCH + Duration::from_secs(1_782_000_000));
            maker.clear();
            batch.drain(|facts, texts| maker.add(facts, texts));
            lines += &String::from_utf8_lossy(maker.lines());
        }
        let start = "192.0.2.1 - AK [21/Jun/2026:00:00:00 +0000] \
                     \"GET /photos/k?a=\\x22&X-Amz-Signature=- HTTP/1.1\" 404 7 \"-\" ";
        let expected = format!("{start}\"a \\x22b\\x5C\\x7F\\xC3\\xA9\"\n{start}\"-\"\n");
        assert_eq!(lines, expected);
    }

    #[test]
    fn what_gives_access_is_left_out() {
        for (query, shown) in [
            ("a=1&b", "a=1&b"),
            ("X-Amz-Signature=abc", "X-Amz-Signature=-"),
            (
                "/k?X-Amz-Security-Token=t&X-Amz-Date=d&X-Amz-Signature=s&x=y",
                "/k?X-Amz-Security-Token=-&X-Amz-Date=d&X-Amz-Signature=-&x=y",
            ),
            ("/k?Signature=s&Expires=1", "/k?Signature=-&Expires=1"),
            ("NoSignature=s", "NoSignature=s"),
            ("X-Amz-%53ignature=s&a=%53", "X-Amz-%53ignature=-&a=%53"),
            (
                "https://h/k?X-Amz-Signature=s",
                "https://h/k?X-Amz-Signature=-",
            ),
        ] {
            assert_eq!(without_secrets(query), shown);
        }
    }
}
