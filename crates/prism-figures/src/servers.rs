//! The judgement of servers and upstreams by their figures.

use std::collections::BTreeSet;

use crate::state::{ServerState, State};

impl ServerState {
    /// Whether its backend has found it unhealthy.
    pub fn is_unhealthy(&self) -> bool {
        self.state == "unhealthy"
    }

    /// Whether requests are likely to be answered: an unknown server may be well.
    fn is_usable(&self) -> bool {
        self.gets_requests && !self.is_unhealthy()
    }

    /// The reason why it is unhealthy.
    pub fn reason(&self) -> &str {
        let fault = self.last_fault.as_ref();
        fault.map_or("it fails", |fault| &fault.reason)
    }
}

/// Whether any server gets requests. A service without upstreams has no server.
pub(crate) fn any_gets_requests(state: &State) -> bool {
    let servers = state.servers.as_deref().unwrap_or_default();
    servers.iter().any(|server| server.gets_requests)
}

/// Whether every server of every upstream is out.
pub(crate) fn are_all_out(state: &State) -> bool {
    let servers = state.servers.as_deref().unwrap_or_default();
    !servers.is_empty() && !any_gets_requests(state)
}

/// The upstreams without a server that is likely to answer.
pub(crate) fn upstreams_down(servers: &[ServerState]) -> Vec<&str> {
    let mut names = BTreeSet::new();
    let all = servers.iter().map(|server| server.upstream.as_str());
    let mut down: Vec<&str> = all.filter(|name| names.insert(*name)).collect();
    down.retain(|name| {
        let mut own = servers.iter().filter(|one| one.upstream == *name);
        !own.any(ServerState::is_usable)
    });
    down
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use serde_json::json;

    use super::*;
    use crate::alerts::{Level, alerts};

    /// A server by its upstream, state, and whether it gets requests.
    fn server((upstream, state, gets_requests): (&str, &str, bool)) -> ServerState {
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
            service: Some("upstream".into()),
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
        let found = alerts(&state);
        let found: Vec<_> = found
            .iter()
            .map(|found| (found.level, &*found.text))
            .collect();
        let expected = "127.0.0.1:9000 at be0 is unhealthy (upstream /a): connection refused";
        assert_eq!(found, [(Level::Warning, expected)]);
    }
}
