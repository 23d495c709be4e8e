//! The figures of a server as operators see them: every view of a node takes them from here.
//!
//! Not here: the judgement (`health.rs`).

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prism_config::Upstream;

use crate::health::{Fault, Reason, Verdict};

/// A server of an upstream, as the backend that judges it sees it.
#[derive(Clone, Debug)]
pub struct ServerFigures {
    /// The name of the upstream: the requests that it gets, such as `/static/`.
    pub upstream: String,
    /// The server's address.
    pub address: SocketAddr,
    /// The backend's knowledge of it.
    pub state: ServerState,
    /// Whether it gets requests of all clients while other servers of the upstream do.
    pub gets_requests: bool,
    /// Requests under way.
    pub under_way: u32,
    /// How often it was ejected.
    pub ejections: u64,
    /// Requests that it failed, by the word for the reason.
    pub errors: Vec<(&'static str, u64)>,
    /// The failure that last made it unhealthy.
    pub last_fault: Option<LastFault>,
}

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

/// The failure that made a server unhealthy.
#[derive(Clone, Debug)]
pub struct LastFault {
    /// The failure in words, such as `connection refused`.
    pub reason: String,
    /// Whether a check has found it; else a request.
    pub is_by_check: bool,
    /// The time since.
    pub ago: Duration,
}

impl ServerFigures {
    /// The figures of a server that nothing is known of.
    pub(crate) fn unknown(upstream: &str, address: SocketAddr) -> Self {
        Self {
            upstream: upstream.to_owned(),
            address,
            state: ServerState::Unknown,
            gets_requests: false,
            under_way: 0,
            ejections: 0,
            errors: Vec::new(),
            last_fault: None,
        }
    }

    /// The same with what its health says.
    pub(crate) fn judged(self, verdict: &Verdict, now: Instant) -> Self {
        let last_fault = |fault: Fault| LastFault {
            reason: fault.reason.to_string(),
            is_by_check: fault.is_by_check,
            ago: now.saturating_duration_since(fault.at),
        };
        Self {
            state: verdict.state,
            gets_requests: verdict.gets_requests,
            last_fault: verdict.fault.map(last_fault),
            ..self
        }
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
    pub(crate) fn counts(&self) -> Vec<(&'static str, u64)> {
        let all = Reason::OF_REQUESTS.iter().zip(&self.0);
        all.map(|(reason, count)| (reason.word(), count.load(Ordering::Relaxed)))
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
        assert!(counts.iter().all(|(_, count)| *count == 1), "{counts:?}");
        let mut words: Vec<&str> = counts.iter().map(|(word, _)| *word).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), Reason::OF_REQUESTS.len());
    }
}
