//! Reports of backends to all nodes: each node asks the backends, some times a second, whether
//! their servers are up and how many requests are under way there.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use prism_handoff::supervise::keep;
use prism_http::{RequestHead, ResponseHead};
use prism_proto::facts::Facts;
use prism_service::{Exchange, NodeRequests, PeerRequest, Peers, join_all, parse_own_head, send};
use serde::{Deserialize, Serialize};

use crate::Shared;
use crate::amendment;
use crate::assign;
use crate::backend::Report;
use crate::checks::check_always;
use crate::parcel::send_always;
use crate::pool::Pool;
use crate::service::Upstreams;
use crate::shared::Pools;
use crate::sources::{PlacedServer, ReportedServers, Source};

/// The path of the question.
const PATH: &str = "/upstreams";
const QUESTION: &[u8] =
    b"POST /upstreams?servers HTTP/1.1\r\nHost: prism\r\nContent-Length: 0\r\n\r\n";
/// The query of a node that wants the servers too. The former release asks without it, and takes no
/// longer report than [`MAX_SHORT_REPORT_BYTES`].
const WITH_SERVERS: &str = "servers";
/// Time between two questions to a backend, and the share of it for each backend of a large
/// cluster: no backend gets more than some thousand questions a second.
const EVERY: Duration = Duration::from_millis(500);
const EVERY_PER_BACKEND: Duration = Duration::from_millis(5);
/// Longest wait for a report.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest report without servers: 64 upstreams.
const MAX_SHORT_REPORT_BYTES: usize = 16 << 10;
/// Longest report: as much, and some 1,000 servers with IPv6 addresses, in all upstreams that have
/// servers which the configuration does not name. Beyond it a report has no servers.
const MAX_REPORT_BYTES: usize = 64 << 10;

impl<N: NodeRequests> NodeRequests for Upstreams<N> {
    const HEADER_BYTES: u64 = N::HEADER_BYTES;

    async fn serve_node(
        &self,
        exchange: &mut impl Exchange,
        head: &RequestHead,
        peer: &str,
        facts: &Facts,
    ) -> io::Result<()> {
        if head.path() == assign::PATH {
            return self.shared.answer_assignment(exchange, peer).await;
        }
        if head.path() == amendment::PATH {
            return self.shared.answer_amendment(exchange, peer).await;
        }
        if head.path() != PATH {
            return self.others.serve_node(exchange, head, peer, facts).await;
        }
        exchange.skip_body().await;
        let has_servers = head.query() == Some(WITH_SERVERS);
        let text = report_text(&self.shared.pools(), has_servers)?;
        send(exchange, ResponseHead::new(200), &text).await
    }
}

/// The text of this node's reports, within the bound of the node that asks.
fn report_text(pools: &Pools, has_servers: bool) -> io::Result<Vec<u8>> {
    if has_servers {
        let text = serde_json::to_vec(&reports_of(pools, |pool| pool.name.clone(), true))?;
        if text.len() <= MAX_REPORT_BYTES {
            return Ok(text);
        }
    }
    let text = serde_json::to_vec(&reports_of(pools, |pool| pool.name.clone(), false))?;
    if text.len() <= MAX_SHORT_REPORT_BYTES {
        return Ok(text);
    }
    // Very long names; the order has to do.
    Ok(serde_json::to_vec(&reports_of(
        pools,
        |_| String::new(),
        false,
    ))?)
}

/// The state of an upstream at one backend, with the upstream's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct NamedReport {
    /// Empty from the former release, whose reports are in the order of its configuration.
    #[serde(default)]
    upstream: String,
    #[serde(flatten)]
    report: Report,
    /// Its servers at this backend, unless they are those of the configuration. The former release
    /// does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    servers: Option<Vec<SocketAddr>>,
}

/// This node's reports.
fn reports_of(
    pools: &Pools,
    name: impl Fn(&Pool) -> String,
    has_servers: bool,
) -> Vec<NamedReport> {
    let report = |pool: &Arc<Pool>| NamedReport {
        upstream: name(pool),
        report: pool.report(),
        servers: further_servers(pool).filter(|_| has_servers),
    };
    pools.iter().map(report).collect()
}

/// The servers of an upstream at this node, if the configuration does not name all of them.
fn further_servers(pool: &Pool) -> Option<Vec<SocketAddr>> {
    let mut servers = pool.servers_here().iter();
    let is_further = |one: &PlacedServer| one.source != Some(Source::Configuration);
    let all = servers.clone().map(|one| one.address);
    servers.any(is_further).then(|| all.collect())
}

/// The report about the upstream `pool`, which is at `position` of `count`.
fn report_of<'r>(
    pool: &Pool,
    position: usize,
    count: usize,
    reports: &'r [NamedReport],
) -> Option<&'r NamedReport> {
    let mut all = reports.iter();
    match all.clone().all(|one| one.upstream.is_empty()) {
        true if reports.len() == count => reports.get(position),
        true => None,
        false => all.find(|one| one.upstream == pool.name),
    }
}

/// Spawns the tasks of the process, if no other thread has them.
pub fn keep_tasks(shared: &Arc<Shared>, peers: &Rc<Peers>) {
    let Some(mut parcels) = shared.take_parcels() else {
        return;
    };
    let asking = Asking {
        shared: shared.clone(),
        peers: peers.clone(),
    };
    keep("reports of upstreams", async move || {
        asking.ask_always().await
    });
    let peers = peers.clone();
    keep("commands for servers", async move || {
        send_always(&mut parcels, &peers).await;
    });
    let shared = shared.clone();
    keep("checks of upstreams", async move || {
        check_always(&shared).await
    });
}

/// Asks the other backends.
struct Asking {
    shared: Arc<Shared>,
    peers: Rc<Peers>,
}

impl Asking {
    async fn ask_always(&self) {
        loop {
            let names = self.others();
            let pause =
                EVERY_PER_BACKEND.saturating_mul(u32::try_from(names.len()).unwrap_or(u32::MAX));
            let asked = names.iter().map(async |name| {
                let report = tokio::time::timeout(ANSWER_TIMEOUT, self.ask(name)).await;
                self.learn(name, report.ok().flatten().as_deref());
            });
            join_all(asked.collect()).await;
            self.learn_own();
            tokio::time::sleep(EVERY.max(pause)).await;
        }
    }

    /// The other backends of all upstreams.
    fn others(&self) -> Vec<String> {
        let pools = self.shared.pools();
        let backends = pools.iter().flat_map(|pool| &pool.backends);
        let mut names: Vec<String> = backends.map(|backend| backend.name.clone()).collect();
        names.sort_unstable();
        names.dedup();
        names.retain(|name| *name != self.shared.name);
        names
    }

    /// The reports of a backend, one for each upstream; `None` if it does not answer.
    async fn ask(&self, name: &str) -> Option<Vec<NamedReport>> {
        let head = parse_own_head(QUESTION).ok()?;
        let asked = self
            .peers
            .ask(name, &PeerRequest::for_node(&head), &[], MAX_REPORT_BYTES)
            .await;
        let (answer, text) = asked.ok()?;
        let reports = serde_json::from_slice(&text).ok();
        reports.filter(|_| answer.status() == 200)
    }

    fn learn(&self, name: &str, reports: Option<&[NamedReport]>) {
        let pools = self.shared.pools();
        let mut servers = ReportedServers::new();
        for (position, pool) in pools.iter().enumerate() {
            let Some(backend) = pool.backends.iter().find(|backend| backend.name == name) else {
                continue;
            };
            match reports {
                None => backend.learn(None),
                // A node whose configuration has no such upstream yet, or any more, says nothing.
                Some(reports) => {
                    if let Some(named) = report_of(pool, position, pools.len(), reports) {
                        backend.learn(Some(named.report));
                        servers.insert(pool.name.clone(), named.servers.clone());
                    }
                }
            }
        }
        // The servers of a backend that does not answer stay.
        if reports.is_some() {
            self.shared.learn_servers(name, servers);
        }
    }

    fn learn_own(&self) {
        for pool in self.shared.pools().iter() {
            let mut backends = pool.backends.iter();
            if let Some(own) = backends.find(|backend| backend.name == self.shared.name) {
                own.learn(Some(pool.report()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prism_config::Upstream;

    use super::*;
    use crate::sources::BackendServers;

    #[test]
    fn reports_go_by_name_and_those_of_the_former_release_by_their_order() {
        let settings = Upstream::default();
        let pool = |name: &str| Pool::new(name.into(), &settings, Vec::new(), "be0", None);
        let of = |name: &str, text: &str, position| {
            let reports: Vec<NamedReport> = serde_json::from_str(text).unwrap();
            let found = report_of(&pool(name), position, 2, &reports);
            found.map(|named| named.report.under_way)
        };
        let named = r#"[{"upstream":"/new","is_up":true,"drains":false,"under_way":7},
            {"upstream":"/","is_up":true,"drains":false,"under_way":8}]"#;
        // The nodes' configurations differ for a while.
        assert_eq!(of("/", named, 0), Some(8));
        assert_eq!(of("/new", named, 1), Some(7));
        assert_eq!(of("/old", named, 0), None);
        let former = r#"[{"is_up":true,"under_way":7},{"is_up":true,"under_way":8}]"#;
        assert_eq!(of("/", former, 0), Some(7));
        assert_eq!(of("/", former, 1), Some(8));
        assert_eq!(of("/", r#"[{"is_up":true,"under_way":7}]"#, 0), None);
    }

    /// Upstreams at be0, each with this many servers that operators have added.
    fn pools(names: &[&str], count: usize) -> Pools {
        let servers = |n: usize| PlacedServer {
            address: SocketAddr::from(([10, 1, (n / 256) as u8, (n % 256) as u8], 65_000)),
            source: Some(Source::Added),
            is_only: false,
        };
        let pool = |name: &&str| {
            let placed = BackendServers {
                backend: "be0".into(),
                servers: (0..count).map(servers).collect(),
            };
            let settings = Upstream::default();
            let pool = Pool::new((*name).into(), &settings, vec![placed], "be0", None);
            Arc::new(pool)
        };
        names.iter().map(pool).collect()
    }

    fn reported(pools: &Pools, has_servers: bool) -> Vec<NamedReport> {
        let text = report_text(pools, has_servers).unwrap();
        serde_json::from_slice(&text).unwrap()
    }

    #[test]
    fn a_report_has_servers_that_the_configuration_does_not_name_for_those_who_ask() {
        let some = pools(&["app"], 2);
        let servers = reported(&some, true).remove(0).servers;
        assert_eq!(servers.map(|all| all.len()), Some(2));
        // The former release asks so, and takes 16 KiB.
        assert_eq!(reported(&some, false).remove(0).servers, None);
        assert_eq!(reported(&pools(&["app"], 0), true).remove(0).servers, None);
        let text = r#"{"upstream":"app","is_up":true,"drains":false,"under_way":0,"later":1}"#;
        let report: NamedReport = serde_json::from_str(text).unwrap();
        assert!(report.report.is_up && report.servers.is_none());
    }

    #[test]
    fn a_report_with_too_many_servers_leaves_them_out() {
        let one = ["app"];
        let many = ["a", "b", "c", "d", "e", "f", "g", "h"];
        // All that one file and operators can name.
        let most = reported(&pools(&one, 528), true);
        assert_eq!(most.iter().flat_map(|one| &one.servers).count(), 1);
        let too_many = pools(&many, 528);
        assert!(report_text(&too_many, true).unwrap().len() <= MAX_SHORT_REPORT_BYTES);
        let too_many = reported(&too_many, true);
        assert!(too_many.iter().all(|one| one.servers.is_none()));
        assert!(too_many.iter().all(|one| !one.upstream.is_empty()));
    }
}
