//! `[trace]` as a struct, and its checks.

use serde::{Deserialize, Serialize};

use crate::problem::Problems;

/// The rate at which every request begins a trace.
const ALL_PER_MILLION: u64 = 1_000_000;

section! {
    /// `[trace]`
    pub struct Trace;
    /// Default "": spans are not sent. The URL to which nodes send spans by OTLP over HTTP, as in
    /// `http://127.0.0.1:4318/v1/traces`. It needs a program that was built with the feature
    /// `otlp`.
    pub otlp: String,
    /// Default 0. The number of requests that begin a trace, of a million without a
    /// `traceparent`. Each costs a node some microseconds.
    pub sample_per_million: u32,
}

impl Trace {
    /// Whether nodes send spans.
    pub fn is_sent(&self) -> bool {
        !self.otlp.is_empty()
    }

    pub(crate) fn check(&self, found: &mut Problems) {
        let field = "trace.otlp";
        if self.is_sent() {
            let (url, text) = (&self.otlp, "http://127.0.0.1:4318/v1/traces");
            let fault = format!("{url:?} is not the URL of a collector");
            let fix = format!("use a URL such as \"{text}\", without https");
            found.check(is_url(url), field, fault, &fix);
        }
        let field = "trace.sample_per_million";
        let samples = self.sample_per_million;
        found.range(field, samples, 0..=ALL_PER_MILLION);
        let goes_somewhere = samples == 0 || self.is_sent();
        let fault = "traces begin and are sent nowhere";
        let fix = "name a collector in trace.otlp, or remove this";
        found.check(goes_somewhere, field, fault, fix);
    }
}

/// Whether `text` is `http`, a host with or without a port, and a path.
fn is_url(text: &str) -> bool {
    let Some((authority, _)) = text
        .strip_prefix("http://")
        .and_then(|rest| rest.split_once('/'))
    else {
        return false;
    };
    let port = authority.rsplit_once(':').map(|(_, port)| port);
    let is_port = port.is_none_or(|port| port.ends_with(']') || port.parse::<u16>().is_ok());
    let is_allowed = |c: char| c.is_ascii_graphic() && c != '@';
    !authority.is_empty() && is_port && text.chars().all(is_allowed)
}
