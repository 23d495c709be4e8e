//! Reports of backends to all nodes: each node asks the backends, some times a second, whether
//! their servers are up and how many requests are under way there.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use prism_handoff::supervise::keep;
use prism_http::{RequestHead, ResponseHead};
use prism_service::{Exchange, NodeRequests, Peers, join_all, parse_own_head, send};

use crate::Shared;
use crate::assign::{self, send_always};
use crate::checks::check_always;
use crate::pool::Report;
use crate::service::{Upstreams, own_request};

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
    ) -> io::Result<()> {
        if head.path() == assign::PATH {
            return self.shared.answer_assignment(exchange, peer).await;
        }
        if head.path() != PATH {
            return self.others.serve_node(exchange, head, peer).await;
        }
        exchange.skip_body().await;
        let pools = self.shared.pools();
        let reports: Vec<Report> = pools.iter().map(|pool| pool.report()).collect();
        let text = serde_json::to_vec(&reports)?;
        send(exchange, ResponseHead::new(200), &text).await
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
    async fn ask(&self, name: &str) -> Option<Vec<Report>> {
        let head = parse_own_head(QUESTION).ok()?;
        let asked = self
            .peers
            .ask(name, &own_request(&head), &[], MAX_REPORT_BYTES)
            .await;
        let (answer, text) = asked.ok()?;
        let reports = serde_json::from_slice(&text).ok();
        reports.filter(|_| answer.status() == 200)
    }

    fn learn(&self, name: &str, reports: Option<&[Report]>) {
        let pools = self.shared.pools();
        if reports.is_some_and(|reports| reports.len() != pools.len()) {
            // One of the two nodes has reloaded its configuration, and the other one not yet.
            return;
        }
        for (place, pool) in pools.iter().enumerate() {
            let report = reports.and_then(|reports| reports.get(place).copied());
            if let Some(backend) = pool.backends.iter().find(|backend| backend.name == name) {
                backend.learn(report);
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
