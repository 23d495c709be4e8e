//! The servers of a service with upstreams, in the views of `prism ctl`, and what an operator has to
//! know of them. The page for a browser has the same rules (`observe/page/servers.js`).

use std::collections::BTreeSet;
use std::path::Path;

use super::observed::{LastFault, Server, State};
use super::reach::ask;
use super::table::{Paint, Tone, age, count, number, printable, table, text, toned};

/// The remedies, which are those of the page.
const REMEDY_OF_SERVER: &str = "Look at the server there, and at its log.";
const REMEDY_OF_UPSTREAM: &str =
    "Its requests are answered 502 to 504. Start a server, or give one back (prism ctl server up).";

impl Server {
    pub(super) fn is_unhealthy(&self) -> bool {
        self.state == "unhealthy"
    }

    /// Whether requests are likely to be answered: an unknown server may be well.
    fn is_usable(&self) -> bool {
        self.gets_requests && !self.is_unhealthy()
    }

    /// The reason why it is unhealthy.
    pub(super) fn reason(&self) -> &str {
        let fault = self.last_fault.as_ref();
        fault.map_or("it fails", |fault| &fault.reason)
    }
}

/// A server, and what its backend knows of it.
pub(crate) struct JudgedServer {
    /// Its address and its upstream.
    pub(crate) name: String,
    /// `healthy`, `unhealthy` or `unknown`.
    pub(crate) state: String,
    /// The reason why it is unhealthy.
    pub(crate) reason: String,
}

/// The servers of `backend` as its process at the admin socket `socket` judges them; `None` if none
/// answers there.
pub(crate) fn judged_servers(socket: &Path, backend: &str) -> Option<Vec<JudgedServer>> {
    let (state, _): (State, _) = ask(socket, "state").ok()?;
    let own = state.servers?.into_iter();
    let own = own.filter(|server| server.backend == backend);
    let judged = own.map(|server| JudgedServer {
        name: printable(&format!(
            "{} (upstream {})",
            server.address, server.upstream
        )),
        reason: printable(server.reason()),
        state: server.state,
    });
    Some(judged.collect())
}

/// Whether every server of every upstream is out. A service without upstreams has none.
pub(super) fn are_all_out(state: &State) -> bool {
    let servers = state.servers.as_deref().unwrap_or_default();
    !servers.is_empty() && !servers.iter().any(|server| server.gets_requests)
}

/// The upstreams without a server that is likely to answer.
pub(super) fn upstreams_down(servers: &[Server]) -> Vec<&str> {
    let mut names = BTreeSet::new();
    let all = servers.iter().map(|server| server.upstream.as_str());
    let mut down: Vec<&str> = all.filter(|name| names.insert(*name)).collect();
    down.retain(|name| {
        let mut own = servers.iter().filter(|one| one.upstream == *name);
        !own.any(Server::is_usable)
    });
    down
}

/// An alert: its text and its remedy.
type Text = (String, &'static str);

/// The critical alerts of servers, and the warnings.
pub(super) fn alerts(servers: &[Server]) -> (Vec<Text>, Vec<Text>) {
    let down = upstreams_down(servers).into_iter().map(|name| {
        let text = format!("The upstream {name} has no healthy server");
        (text, REMEDY_OF_UPSTREAM)
    });
    let unhealthy = servers.iter().filter(|server| server.is_unhealthy());
    let unhealthy = unhealthy.map(|server| {
        let (address, backend, upstream) = (&server.address, &server.backend, &server.upstream);
        let reason = server.reason();
        let text = format!("{address} at {backend} is unhealthy (upstream {upstream}): {reason}");
        (text, REMEDY_OF_SERVER)
    });
    (down.collect(), unhealthy.collect())
}

/// The table of servers; empty without upstreams.
pub(super) fn shown(state: &State, paint: Paint) -> String {
    let Some(servers) = &state.servers else {
        return String::new();
    };
    let rows = servers.iter().map(|server| {
        let tone = match server.state.as_str() {
            "healthy" => Tone::Good,
            "unhealthy" => Tone::Critical,
            _ => Tone::Warning,
        };
        let errors = server.errors.values().copied().fold(0, u64::saturating_add);
        [
            text(&server.upstream),
            text(&server.address),
            text(&server.backend),
            toned(&server.state, tone),
            number(count(server.under_way)),
            number(count(errors)),
            text(server.last_fault.as_ref().map_or_else(|| "-".into(), fault)),
        ]
    });
    let header = [
        "UPSTREAM",
        "SERVER",
        "BACKEND",
        "STATE",
        "UNDER WAY",
        "ERRORS",
        "LAST FAULT",
    ];
    table(paint, header, &rows.collect::<Vec<_>>())
}

fn fault(fault: &LastFault) -> String {
    let LastFault { reason, by, ago_s } = fault;
    format!("{reason} ({by}), {} ago", age(*ago_s))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use serde_json::json;

    use super::*;

    /// A server by its upstream, state, and whether it gets requests.
    fn server((upstream, state, gets_requests): (&str, &str, bool)) -> Server {
        serde_json::from_value(json!({
            "upstream": upstream,
            "address": "127.0.0.1:9000",
            "backend": "be0",
            "state": state,
            "gets_requests": gets_requests,
            "under_way": 1,
            "errors": {"refused": 2, "status_503": 1},
            "ejections": 1,
            "last_fault": {"reason": "connection refused", "by": "request", "ago_s": 61},
        }))
        .unwrap()
    }

    fn state(servers: &[(&str, &str, bool)]) -> State {
        State {
            name: "fe0".into(),
            time_ms: 0,
            servers: Some(servers.iter().copied().map(server).collect()),
            nodes: Vec::new(),
            cluster: None,
            switch: None,
        }
    }

    #[test]
    fn a_service_is_down_only_if_no_server_of_any_upstream_is_in() {
        let (out, is_in) = (("/a", "unhealthy", false), ("/a", "healthy", true));
        let failing = ("/b", "unhealthy", true);
        for (servers, all_out, down) in [
            (&[is_in, out][..], false, &[][..]),
            (&[out, ("/b", "healthy", true)], false, &["/a"]),
            (&[out, ("/b", "unknown", true)], false, &["/a"]),
            // It is tried, because no other one is left.
            (&[out, failing], false, &["/a", "/b"]),
            (&[out, ("/b", "unhealthy", false)], true, &["/a", "/b"]),
            // The second backend does not answer.
            (&[out, ("/a", "unknown", false)], true, &["/a"]),
        ] {
            let state = state(servers);
            assert_eq!(are_all_out(&state), all_out, "{servers:?}");
            let found = upstreams_down(state.servers.as_deref().unwrap());
            assert_eq!(found, down, "{servers:?}");
        }
        assert!(!are_all_out(&state(&[])));
    }

    #[test]
    fn an_unhealthy_server_is_named_with_its_reason() {
        let state = state(&[("/a", "unhealthy", false), ("/a", "healthy", true)]);
        let (critical, warnings) = alerts(state.servers.as_deref().unwrap());
        assert!(critical.is_empty());
        let texts: Vec<&str> = warnings.iter().map(|(text, _)| text.as_str()).collect();
        let expected = "127.0.0.1:9000 at be0 is unhealthy (upstream /a): connection refused";
        assert_eq!(texts, [expected]);
        let shown = shown(&state, Paint::of_stdout());
        for part in [
            "UPSTREAM",
            "unhealthy",
            " 3 ",
            "connection refused (request), 1 min 1 s ago",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }

    #[test]
    fn the_texts_are_those_of_the_page() {
        let page = include_str!("../observe/page/servers.js");
        for text in [
            REMEDY_OF_SERVER,
            REMEDY_OF_UPSTREAM,
            "The upstream ${name} has no healthy server",
            "${address} at ${backend} is unhealthy (upstream ${upstream}): ${reason}",
        ] {
            assert!(page.contains(text), "{text}");
        }
    }
}
