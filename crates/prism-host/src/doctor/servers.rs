//! Findings about the servers behind a backend, as its running process judges them. Before the
//! first start they get a connection from here.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use prism_config::{Config, Node, Upstream};
use prism_figures::{ServerState, State};
use prism_process::{ask, printable};

use super::finding::{Finding, Subject};

const SUBJECT: Subject = Subject("servers");
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The findings for the service of `config`.
pub(super) fn examine(config: &Config, node: &Node) -> Vec<Finding> {
    if upstreams_at(config, node).next().is_none() {
        return Vec::new();
    }
    match judged_servers(config, node) {
        Some(servers) => servers.iter().map(judged).collect(),
        None => {
            let addresses = addresses(config, node);
            addresses.into_iter().map(connected).collect()
        }
    }
}

/// The upstreams that `node` reaches.
fn upstreams_at<'c>(config: &'c Config, node: &'c Node) -> impl Iterator<Item = &'c Upstream> {
    let upstreams = config.service.upstream.iter().flat_map(|all| all.iter());
    upstreams.filter(|upstream| node.is_backend() && upstream.is_at(&node.name))
}

/// The servers of a backend as its running process judges them; `None` if none answers.
fn judged_servers(config: &Config, node: &Node) -> Option<Vec<ServerState>> {
    let socket = config.admin_socket(&node.name);
    let (state, _): (State, _) = ask(&socket, "state").ok()?;
    let mut servers = state.servers?;
    servers.retain(|server| server.backend == node.name);
    Some(servers)
}

/// The addresses of the servers behind `node`, each once.
fn addresses(config: &Config, node: &Node) -> Vec<SocketAddr> {
    let addresses = upstreams_at(config, node).flat_map(|upstream| {
        let file = upstream.servers_file.as_ref();
        let list = file.and_then(|file| config.read_servers(file).ok());
        let listed: Vec<SocketAddr> = list.iter().flat_map(|list| list.at(&node.name)).collect();
        upstream.configured_at(node).iter().chain(listed)
    });
    let mut all: Vec<SocketAddr> = addresses.collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn judged(server: &ServerState) -> Finding {
    let name = format!("{} (upstream {})", server.address, server.upstream);
    let name = printable(&name);
    match server.state.as_str() {
        "healthy" => SUBJECT.good(format!("{name} is healthy")),
        "unhealthy" => SUBJECT.missing(
            format!("{name} is unhealthy: {}", printable(server.reason())),
            "start it, and look at its log; see docs/upstreams.md",
        ),
        state @ ("draining" | "down") => SUBJECT.advice(
            format!("{name} is {state} by `prism ctl server`"),
            "give it its requests back with `prism ctl server up`",
        ),
        state => {
            let found = format!("{name} is {}: nothing has reached it", printable(state));
            SUBJECT.unknown(found, "")
        }
    }
}

fn connected(address: SocketAddr) -> Finding {
    match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
        Ok(_) => SUBJECT.good(format!("{address} takes connections")),
        Err(error) => SUBJECT.advice(
            format!("{address} takes no connection: {error}"),
            "start it before clients come: their requests are answered 502",
        ),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use std::net::TcpListener;

    use prism_config::Role;
    use prism_figures::ServerFault;

    use super::*;
    use crate::doctor::finding::State as FindingState;

    #[test]
    fn before_the_first_start_each_server_of_the_backend_gets_a_connection() {
        let open = TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap();
        let [open_at, closed_at] = [&open, &closed].map(|one| one.local_addr().unwrap());
        drop(closed);
        let upstream = |backends: &[&str], addresses: &[SocketAddr]| Upstream {
            backends: backends.iter().map(|name| (*name).to_owned()).collect(),
            address: addresses.iter().copied().collect(),
            ..Upstream::default()
        };
        let mut config: Config = Config::default();
        config.service.upstream = Some(
            vec![
                upstream(&["be0"], &[open_at, closed_at]),
                upstream(&["be1"], &[([127, 0, 0, 1], 9).into()]),
                upstream(&[], &[open_at]),
            ]
            .into(),
        );
        let mut node = Node {
            name: "be0".into(),
            roles: vec![Role::Backend],
            ..Node::default()
        };
        config.admin.socket_dir = "/nonexistent".into();
        let found = examine(&config, &node);
        let states: Vec<FindingState> = found.iter().map(|finding| finding.state).collect();
        let count = |state| states.iter().filter(|found| **found == state).count();
        assert_eq!(
            (count(FindingState::Good), count(FindingState::Advice)),
            (1, 1),
            "{found:?}"
        );
        node.roles = vec![Role::Frontend];
        assert!(examine(&config, &node).is_empty());
    }

    #[test]
    fn an_unhealthy_server_is_missing_with_its_reason() {
        let state = |word: &str| {
            judged(&ServerState {
                upstream: "/".into(),
                address: "127.0.0.1:9000".into(),
                state: word.into(),
                last_fault: Some(ServerFault {
                    reason: "status 503".into(),
                    by: "check".into(),
                    ago_s: 1,
                }),
                ..ServerState::default()
            })
        };
        assert_eq!(state("healthy").state, FindingState::Good);
        assert_eq!(state("unknown").state, FindingState::Unknown);
        for word in ["draining", "down"] {
            let by_operator = state(word);
            assert_eq!(by_operator.state, FindingState::Advice);
            assert!(by_operator.found.contains(&format!("is {word} by")));
        }
        let bad = state("unhealthy");
        assert_eq!(bad.state, FindingState::Missing);
        assert!(
            bad.found.contains("127.0.0.1:9000 (upstream /)") && bad.found.contains("status 503")
        );
    }
}
