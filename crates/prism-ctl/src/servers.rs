//! The table of servers of a service with upstreams, in the views of `prism ctl`.

use prism_figures::{ServerFault, ServerState, State};

use crate::table::{Paint, Tone, age, count, number, table, text, toned};

/// The table of servers; empty without upstreams.
pub(crate) fn shown(state: &State, paint: Paint) -> String {
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
            text(address(server)),
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

/// The address, and the place that names it if that is not the configuration.
fn address(server: &ServerState) -> String {
    let source = server.source.as_deref();
    match source.filter(|source| *source != "configuration") {
        Some(source) => format!("{} ({source})", server.address),
        None => server.address.clone(),
    }
}

fn fault(fault: &ServerFault) -> String {
    let ServerFault { reason, by, ago_s } = fault;
    format!("{reason} ({by}), {} ago", age(*ago_s))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use serde_json::json;

    use super::*;

    #[test]
    fn a_server_has_a_row_with_its_errors_and_its_last_fault() {
        let state = json!({
            "name": "fe0",
            "time_ms": 0,
            "servers": [{
                "upstream": "/a",
                "address": "127.0.0.1:9000",
                "backend": "be0",
                "state": "unhealthy",
                "errors": {"refused": 2, "status_503": 1},
                "last_fault": {"reason": "connection refused", "by": "request", "ago_s": 61},
            }, {
                "upstream": "/a",
                "address": "127.0.0.1:9001",
                "source": "file",
            }, {
                "upstream": "/a",
                "address": "127.0.0.1:9002",
                "source": "configuration",
            }],
            "nodes": [],
        });
        let state: State = serde_json::from_value(state).unwrap();
        let shown = shown(&state, Paint::of_stdout());
        for part in [
            "UPSTREAM",
            "unhealthy",
            " 3 ",
            "connection refused (request), 1 min 1 s ago",
            "127.0.0.1:9001 (file) ",
            "127.0.0.1:9002 ",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }
}
