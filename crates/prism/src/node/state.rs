//! The state of a cluster, as the page for a browser shows it: the figures of all nodes, which
//! nodes ask each other for, and those of the switch. The names of its fields may change.

use std::time::{SystemTime, UNIX_EPOCH};

use prism_config::Config;
use prism_core::NodeFigures;
use prism_figures::{
    CertificateEnd, DurationTally, EtcdState, MovedConnection, NodeState, PeerTally, RelayTally,
    RequestTally, StepTally, with_alerts,
};
use prism_handoff::trace::{BUCKETS_NS, Part};
use prism_membership::Host;
use prism_process::fetch;
use serde_json::{Map, Value, json};

use super::certificates::ends;
use super::pages::not_ready;
use super::server::Server;

/// The state of the cluster of a node.
pub(super) async fn state(server: &Server) -> Value {
    let (node, config) = (&server.core, server.core.config.now());
    let (figures, cluster, switch) = tokio::join!(node.figures(), node.survey(), switch(&config));
    let directory = node.cluster.directory.borrow().clone();
    let mut nodes = figures.unwrap_or_default();
    let servers = server.service.servers_of(&mut nodes);
    let nodes = nodes.into_iter().map(|known| {
        let host = directory.iter().find(|(name, _)| *name == known.name);
        described(known, host.map(|(_, host)| host))
    });
    with_alerts(json!({
        "kind": if server.is_alone() { "serve" } else { "node" },
        "name": node.name,
        "version": env!("PRISM_VERSION"),
        "time_ms": as_ms(SystemTime::now()),
        "service": server.service.kind(),
        "store_urls": store_urls(&config),
        "servers": servers,
        "nodes": nodes.collect::<Vec<_>>(),
        "cluster": cluster,
        "switch": switch,
    }))
}

/// The URLs at which S3 clients reach the service, for the page; none without an object store, and
/// none if only internal redirects or some requests reach it. A page's policy has no form for an
/// IPv6 address; `service.urls` can have a name.
pub(super) fn store_urls(config: &Config) -> Vec<String> {
    let service = &config.service;
    let objects = service.objects.as_ref();
    let is_internal = objects.is_some_and(|objects| objects.internal);
    if is_internal || !service.keeps_objects() {
        return Vec::new();
    }
    if !service.urls.is_empty() {
        return service.urls.clone();
    }
    let hosts = objects.map_or(&[][..], |objects| &objects.hosts);
    if objects.is_some_and(|objects| !objects.conditions().are_none()) && hosts.is_empty() {
        return Vec::new();
    }
    let redirects = service.tls.as_ref().is_some_and(|tls| tls.redirect_http);
    let plain = service.address.iter().filter(|_| !redirects);
    let plain = plain.map(|address| ("http", address, 80));
    let tls = config.tls_address().unwrap_or_default();
    let tls = tls.iter().map(|address| ("https", address, 443));
    let all = plain.chain(tls).filter(|(_, address, _)| address.is_ipv4());
    let urls = all.flat_map(|(scheme, address, default_port)| {
        let port = match address.port() {
            port if port == default_port => String::new(),
            port => format!(":{port}"),
        };
        let by_address = hosts.is_empty().then(|| address.ip().to_string());
        let by_name = hosts.iter().filter(|host| is_name(host)).cloned();
        let names = by_address.into_iter().chain(by_name);
        names.map(move |name| format!("{scheme}://{name}{port}"))
    });
    urls.collect()
}

/// Whether a pattern of hosts stands for one name.
fn is_name(host: &str) -> bool {
    !host.starts_with('~') && !host.contains('*')
}

/// A node with the figures that it sent.
fn described(known: NodeFigures, host: Option<&Host>) -> Value {
    let (mut fields, error) = match known.figures {
        Ok(Value::Object(fields)) => (fields, None),
        Ok(_) => (Map::new(), Some("another version of Prism".to_owned())),
        Err(error) => (Map::new(), Some(error)),
    };
    fields.insert("name".into(), known.name.into());
    fields.insert("error".into(), error.into());
    fields.insert("roles".into(), json!(host.map(|host| &host.roles)));
    fields.insert(
        "address".into(),
        json!(host.map(|host| host.address.to_string())),
    );
    Value::Object(fields)
}

/// The figures of the switch, if its agent's admin address is in reach of other hosts.
async fn switch(config: &Config) -> Value {
    let address = config.switch_pages().into_iter().next();
    let Some(address) = address.filter(|address| !address.ip().is_loopback()) else {
        return Value::Null;
    };
    match fetch(address, "/state").await {
        Ok(mut state) => state.get_mut("switch").map(Value::take).unwrap_or_default(),
        Err(error) => json!({ "error": format!("{address}: {error}") }),
    }
}

/// The figures of this node. The node that asks knows its name, its roles and its address.
pub(super) fn figures(server: &Server) -> Value {
    let node = &server.core;
    let counters = &node.process.counters;
    let totals = server.requests.totals();
    let requests = totals.answers.iter().map(|(kind, tally)| RequestTally {
        operation: kind.operation.to_string(),
        code: kind.code,
        path: kind.path.to_string(),
        count: tally.count,
        received_bytes: tally.received_bytes,
        sent_bytes: tally.sent_bytes,
    });
    let durations = totals.durations.iter();
    let durations = durations.map(|(operation, durations)| DurationTally {
        operation: operation.to_string(),
        count: durations.count,
        sum_s: durations.sum_s,
    });
    let relayed = totals.relayed.iter().map(|(node, tally)| RelayTally {
        node: node.to_string(),
        count: tally.count,
        bytes: tally.sent_bytes,
    });
    let certificates = ends(server).into_iter();
    let certificates = certificates.map(|(file, expires_s)| CertificateEnd {
        file: file.to_string_lossy().into_owned(),
        expires_s,
    });
    let log = &server.requests.log;
    let dropped = log.is_on().then(|| log.dropped_lines());
    json!(NodeState {
        name: String::new(),
        error: None,
        roles: None,
        address: None,
        version: env!("PRISM_VERSION").to_owned(),
        time_ms: as_ms(SystemTime::now()),
        uptime_s: server.started.elapsed().as_secs(),
        not_ready: not_ready(server).map(str::to_owned),
        connections: counters.connections_open.read(),
        accepted: counters.accepted.read(),
        flows_uncopied: counters.flows_uncopied.read(),
        requests: requests.collect(),
        request_durations: durations.collect(),
        relayed: relayed.collect(),
        redirects: node.counters.redirects.read(),
        redirected_bytes: node.counters.redirected_bytes.read(),
        above_limits: server.gateway.above_limits(),
        handed_off: handed_off(server),
        moves: moves(server),
        steps: steps(server),
        store: server.service.store_state(),
        certificates: certificates.collect(),
        access_log_dropped_lines: dropped.unwrap_or_default(),
        suspects: suspects(server),
        servers: server.service.servers(),
        etcd: node.cluster.database().map(|database| EtcdState {
            size_bytes: database.size_bytes,
            in_use_bytes: database.in_use_bytes,
            quota_bytes: database.quota_bytes,
            is_full: database.is_full,
        }),
    })
}

fn handed_off(server: &Server) -> Vec<PeerTally> {
    let moved = server.core.process.moves.by_peer().into_iter();
    moved
        .map(|(node, count)| PeerTally { node, count })
        .collect()
}

fn moves(server: &Server) -> Vec<MovedConnection> {
    let last = server.core.process.moves.last().into_iter();
    let described = last.map(|moved| MovedConnection {
        n: moved.number,
        at_ms: as_ms(moved.at),
        client: moved.client.to_string(),
        to: moved.to,
    });
    described.collect()
}

fn steps(server: &Server) -> Vec<StepTally> {
    let trace = &server.core.process.trace;
    let of_part = |part: Part| {
        let steps = part.durations().iter().zip(trace.durations(part));
        steps.map(move |(step, duration)| {
            let bounds_s = BUCKETS_NS.iter().map(|ns| *ns as f64 / 1e9);
            let buckets = bounds_s.zip(duration.buckets());
            StepTally {
                role: part.name().to_owned(),
                step: step.to_string(),
                count: duration.count(),
                sum_s: duration.sum_ns() as f64 / 1e9,
                buckets: buckets.collect(),
            }
        })
    };
    Part::ALL.into_iter().flat_map(of_part).collect()
}

/// The backends that leave this node's handshakes unanswered.
fn suspects(server: &Server) -> Vec<String> {
    let view = server.core.view.now();
    let health = server.core.process.health.lock();
    let names = view.backends().map(|name| name.as_str());
    let suspects = names.filter(|name| health.is_suspect(name));
    suspects.map(str::to_owned).collect()
}

fn as_ms(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use prism_config::{ObjectRoutes, Upstream};

    use super::*;

    #[test]
    fn the_page_offers_a_store_only_if_clients_reach_it() {
        let mut config: Config = Config::default();
        config.service.urls = vec!["https://s3.example.com".into()];
        assert_eq!(store_urls(&config), config.service.urls);
        config.service.upstream = Some(vec![Upstream::default()].into());
        assert!(store_urls(&config).is_empty());
        config.service.objects = Some(ObjectRoutes::default());
        assert_eq!(store_urls(&config), config.service.urls);
        config.service.objects = Some(ObjectRoutes {
            internal: true,
            ..ObjectRoutes::default()
        });
        assert!(store_urls(&config).is_empty());
    }

    #[test]
    fn a_store_with_conditions_has_urls_by_its_hosts() {
        let mut config: Config = Config::default();
        config.service.address = std::net::SocketAddr::from(([192, 0, 2, 1], 8_080)).into();
        config.service.upstream = Some(vec![Upstream::default()].into());
        let mut with = |hosts: &[&str], paths: &[&str]| {
            let owned = |all: &[&str]| all.iter().map(|&one| one.to_owned()).collect();
            config.service.objects = Some(ObjectRoutes {
                hosts: owned(hosts),
                paths: owned(paths),
                ..ObjectRoutes::default()
            });
            store_urls(&config)
        };
        assert_eq!(with(&[], &[]), ["http://192.0.2.1:8080"]);
        let names = with(&["s3.example.com", "*.s3.example.com", "~^s3"], &[]);
        assert_eq!(names, ["http://s3.example.com:8080"]);
        assert!(with(&[], &["/media/"]).is_empty());
    }
}
