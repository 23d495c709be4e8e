//! The figures of a server as operators see them: every view of a node takes them from here.
//!
//! Not here: the judgement (`health.rs`).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use prism_config::Upstream;
use prism_figures::{ServerFault, ServerState as ServerFigures};

use crate::health::{Fault, Reason, Verdict};
use crate::sources::Source;

/// The knowledge that a backend has of a server, unless an operator has taken it down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// Its last check was good, or it has answered.
    Healthy,
    /// It is ejected, or it fails and is not ejected because too few others would be left.
    Unhealthy,
    /// No request and no check has reached it yet.
    Unknown,
    /// By [`Duty::Drain`](crate::Duty::Drain).
    Draining,
    /// By [`Duty::Down`](crate::Duty::Down).
    Down,
}

impl ServerState {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Healthy,
        Self::Unhealthy,
        Self::Unknown,
        Self::Draining,
        Self::Down,
    ];

    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Unhealthy => "unhealthy",
            Self::Unknown => "unknown",
            Self::Draining => "draining",
            Self::Down => "down",
        }
    }
}

/// The figures of a server that nothing is known of.
pub(crate) fn unknown(
    upstream: &str,
    address: SocketAddr,
    source: Option<Source>,
) -> ServerFigures {
    ServerFigures {
        upstream: upstream.to_owned(),
        address: address.to_string(),
        source: source.map(|source| source.word().to_owned()),
        state: ServerState::Unknown.word().to_owned(),
        ..ServerFigures::default()
    }
}

/// The same figures with what the server's health says.
pub(crate) fn judged(figures: ServerFigures, verdict: &Verdict, now: Instant) -> ServerFigures {
    let last_fault = |fault: Fault| ServerFault {
        reason: fault.reason.to_string(),
        by: if fault.is_by_check {
            "check"
        } else {
            "request"
        }
        .to_owned(),
        ago_s: now.saturating_duration_since(fault.at).as_secs(),
    };
    ServerFigures {
        state: verdict.state.word().to_owned(),
        gets_requests: verdict.gets_requests,
        last_fault: verdict.fault.map(last_fault),
        ..figures
    }
}

/// Requests that a server failed, by their reason.
#[derive(Debug, Default)]
pub(crate) struct Errors([AtomicU64; Reason::OF_REQUESTS.len()]);

impl Errors {
    pub(crate) fn add(&self, reason: Reason) {
        let places = Reason::OF_REQUESTS.iter().zip(&self.0);
        for (_, count) in places.filter(|(counted, _)| **counted == reason) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The number of each reason, also if there is none of it.
    pub(crate) fn counts(&self) -> BTreeMap<String, u64> {
        let all = Reason::OF_REQUESTS.iter().zip(&self.0);
        all.map(|(reason, count)| (reason.word().to_owned(), count.load(Ordering::Relaxed)))
            .collect()
    }
}

/// The names of upstreams: their own, or else the requests that each gets, such as
/// `www.example.com/api/`. No two are equal.
pub(crate) fn names<'u>(upstreams: impl Iterator<Item = &'u Upstream>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for upstream in upstreams {
        let name = upstream.name.clone();
        let name = name.unwrap_or_else(|| requests_of(upstream));
        let numbered = (2..).map(|number| format!("{name} ({number})"));
        let mut candidates = std::iter::once(name.clone()).chain(numbered);
        names.extend(candidates.find(|one| !names.contains(one)));
    }
    names
}

fn requests_of(upstream: &Upstream) -> String {
    let paths = if upstream.paths.is_empty() {
        "/".to_owned()
    } else {
        upstream.paths.join(",")
    };
    let place = format!("{}{paths}", upstream.hosts.join(","));
    let parts = [
        upstream.methods.join(","),
        place,
        upstream.headers.join(", "),
    ];
    let parts = parts.iter().filter(|part| !part.is_empty());
    let parts: Vec<&str> = parts.map(String::as_str).collect();
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_named_by_its_requests() {
        let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect();
        let all = [
            Upstream {
                paths: texts(&["/static/", "/img/"]),
                ..Upstream::default()
            },
            Upstream {
                name: Some("app".into()),
                paths: texts(&["/app/"]),
                ..Upstream::default()
            },
            Upstream {
                hosts: texts(&["www.example.com"]),
                methods: texts(&["GET", "HEAD"]),
                headers: texts(&["X-Beta: yes"]),
                ..Upstream::default()
            },
            Upstream::default(),
            Upstream::default(),
        ];
        let expected = [
            "/static/,/img/",
            "app",
            "GET,HEAD www.example.com/ X-Beta: yes",
            "/",
            "/ (2)",
        ];
        assert_eq!(names(all.iter()), expected);
    }

    #[test]
    fn each_error_counts_once_and_all_reasons_are_named() {
        let errors = Errors::default();
        for reason in Reason::OF_REQUESTS {
            errors.add(reason);
        }
        // A status that only a check calls bad.
        errors.add(Reason::Status(404));
        let counts = errors.counts();
        assert!(counts.values().all(|count| *count == 1), "{counts:?}");
        assert_eq!(counts.len(), Reason::OF_REQUESTS.len());
    }
}
