//! Reports of backends to all nodes: each node asks the backends, some times a second, whether
//! their servers are up and how many requests are under way there.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use prism_handoff::supervise::keep;
use prism_http::{RequestHead, ResponseHead};
use prism_proto::facts::Facts;
use prism_service::{Exchange, NodeRequests, PeerRequest, Peers, join_all, parse_own_head, send};
use serde::{Deserialize, Serialize};

use crate::Shared;
use crate::assign::{self, send_always};
use crate::checks::check_always;
use crate::pool::{Pool, Report};
use crate::service::Upstreams;
use crate::shared::Pools;

/// The path of the question.
const PATH: &str = "/upstreams";
const QUESTION: &[u8] = b"POST /upstreams HTTP/1.1\r\nHost: prism\r\nContent-Length: 0\r\n\r\n";
/// Time between two questions to a backend, and the share of it for each backend of a large
/// cluster: no backend gets more than some thousand questions a second.
const EVERY: Duration = Duration::from_millis(500);
const EVERY_PER_BACKEND: Duration = Duration::from_millis(5);
/// Longest wait for a report.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest report: 64 upstreams.
const MAX_REPORT_BYTES: usize = 16 << 10;

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
        if head.path() != PATH {
            return self.others.serve_node(exchange, head, peer, facts).await;
        }
        exchange.skip_body().await;
        let pools = self.shared.pools();
        let mut text = serde_json::to_vec(&reports_of(&pools, |pool| pool.name.clone()))?;
        if text.len() > MAX_REPORT_BYTES {
            // Very long names; the order has to do.
            text = serde_json::to_vec(&reports_of(&pools, |_| String::new()))?;
        }
        send(exchange, ResponseHead::new(200), &text).await
    }
}

/// The state of an upstream at one backend, with the upstream's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct NamedReport {
    /// Empty from the former release, whose reports are in the order of its configuration.
    #[serde(default)]
    upstream: String,
    #[serde(flatten)]
    report: Report,
}

/// This node's reports.
fn reports_of(pools: &Pools, name: impl Fn(&Pool) -> String) -> Vec<NamedReport> {
    let report = |pool: &Arc<Pool>| NamedReport {
        upstream: name(pool),
        report: pool.report(),
    };
    pools.iter().map(report).collect()
}

/// The report about the upstream `pool`, which is at `position` of `count`.
fn report_of(
    pool: &Pool,
    position: usize,
    count: usize,
    reports: &[NamedReport],
) -> Option<Report> {
    let mut all = reports.iter();
    let found = match all.clone().all(|one| one.upstream.is_empty()) {
        true if reports.len() == count => reports.get(position),
        true => None,
        false => all.find(|one| one.upstream == pool.name),
    };
    found.map(|one| one.report)
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
    keep("duties of servers", async move || {
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
        for (position, pool) in pools.iter().enumerate() {
            let Some(backend) = pool.backends.iter().find(|backend| backend.name == name) else {
                continue;
            };
            match reports {
                None => backend.learn(None),
                // A node whose configuration has no such upstream yet, or any more, says nothing.
                Some(reports) => {
                    if let Some(report) = report_of(pool, position, pools.len(), reports) {
                        backend.learn(Some(report));
                    }
                }
            }
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
    use prism_config::{Config, Upstream};

    use super::*;

    #[test]
    fn reports_go_by_name_and_those_of_the_former_release_by_their_order() {
        let config = Config::default();
        let pool = |name: &str| Pool::new(name.into(), &Upstream::default(), &config, "be0");
        let of = |name: &str, text: &str, position| {
            let reports: Vec<NamedReport> = serde_json::from_str(text).unwrap();
            let found = report_of(&pool(name), position, 2, &reports);
            found.map(|report| report.under_way)
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
}
