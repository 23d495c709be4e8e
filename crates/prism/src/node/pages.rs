//! The pages that a node shows its administrator over HTTP.
//!
//! | path | page |
//! |---|---|
//! | `/metrics` | the figures of the node, for Prometheus |
//! | `/-/healthy` | 200 while the process runs |
//! | `/-/ready` | 200 while the node may serve, else 503 with the reason |
//! | `/counters` | the node's counters as JSON |
//! | `/debug/connections` | the connections that are open here, as JSON |
//! | `/` | the page for a browser, which shows `/state` as it changes |
//! | `/state` | the figures of all nodes and of the switch, as JSON (`state.rs`) |

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use prism_figures::asset;
use prism_process::pages::{Page, Pages};
use prism_process::{Latest, render};
use prism_service::{Stage, request_id_text};
use serde_json::json;

use super::admin;
use super::metrics::metrics;
use super::server::Server;
use super::state::{state, store_urls};

/// Connections of each of the 16 parts of their list that a page shows.
const MOST_CONNECTIONS_OF_PART: usize = 64;

/// The pages of a node.
pub(super) fn pages(server: &Arc<Server>) -> Arc<Pages> {
    let server = server.clone();
    let latest = Arc::new(Latest::default());
    Arc::new(move |path| {
        let server = server.clone();
        let latest = latest.clone();
        let path = path.to_owned();
        Box::pin(async move {
            match path.as_str() {
                "/state" => Some(latest.page(state(&server)).await),
                path => page(&server, path),
            }
        })
    })
}

fn page(server: &Server, path: &str) -> Option<Page> {
    Some(match path {
        "/metrics" => render(metrics(server)),
        "/-/healthy" => Page::text(200, "healthy\n"),
        "/-/ready" => match not_ready(server) {
            None => Page::text(200, "ready\n"),
            Some(reason) => Page::text(503, format!("{reason}\n")),
        },
        "/counters" => Page::json(&admin::counters(server)),
        "/debug/connections" => Page::json(&connections(server)),
        path => return asset(path, &store_urls(&server.core.config.now())),
    })
}

/// Why the node may not serve, if that is so.
pub(super) fn not_ready(server: &Server) -> Option<&'static str> {
    let node = &server.core;
    if !server.accepts.load(Ordering::Relaxed) {
        return Some("starting");
    }
    if node.orders.now().stage != Stage::Serving {
        return Some("leaving");
    }
    if node.process.places_differently() {
        return Some("most nodes have another configuration");
    }
    if let Some(reason) = server.service.not_ready() {
        return Some(reason);
    }
    node.cluster.has_doubtful_users().then_some(
        "etcd does not answer: requests with keys are refused, because keys may be deleted",
    )
}

/// The connections that are open here, those that came first before the others.
fn connections(server: &Server) -> serde_json::Value {
    let (open, oldest) = server.gateway.connections.oldest(MOST_CONNECTIONS_OF_PART);
    let shown = oldest.iter().map(|seen| {
        json!({
            "client": seen.client,
            "frontend": seen.frontend,
            "hand_offs": seen.hand_offs,
            "tls": seen.is_tls,
            "age_ms": as_ms(seen.arrived.elapsed()),
            "requests": seen.requests,
            "under_way": seen.under_way.map(|request| json!({
                "request_id": request_id_text(request.request_id),
                "operation": request.operation,
                "age_ms": as_ms(request.begun.elapsed()),
            })),
        })
    });
    let shown: Vec<_> = shown.collect();
    json!({ "node": server.core.name, "open": open, "shown": shown.len(), "connections": shown })
}

fn as_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
