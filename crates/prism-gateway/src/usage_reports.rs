//! Reports of the use of limits between nodes: each node sends its own to all others, some times in
//! a second, if there is something to tell.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use prism_common::supervise::keep;
use prism_http::ResponseHead;
use prism_proto::usage::{MAX_REPORT_BYTES, UsageReport};
use prism_service::{Exchange, PeerRequest, Service, join_all, parse_own_head, send};

use crate::gateway::Gateway;

/// The path of a report.
pub(crate) const PATH: &str = "/usage";
/// Time between two reports, and the share of it for each other node of a large cluster.
const EVERY: Duration = Duration::from_millis(200);
const EVERY_PER_NODE: Duration = Duration::from_millis(2);
/// Longest wait for a node that gets a report. A lost report is not repeated: the node counts what
/// was admitted here once less.
const TIMEOUT: Duration = Duration::from_secs(1);
/// For how long a request counts at a node after it has moved to another one, whose next report
/// tells of it.
pub(crate) const COUNTED_AFTER_MOVE: Duration = Duration::from_millis(400);

impl<S: Service> Gateway<S> {
    /// Spawns the task that reports for this process, if no other thread has it.
    pub(crate) fn keep_reports(self: &Rc<Self>) {
        if self.shared.limits.is_first() {
            let gateway = self.clone();
            keep("reports of limits", async move || {
                gateway.report_always().await;
            });
        }
    }

    async fn report_always(&self) {
        loop {
            let others = (self.shared.neighbours)();
            let count = u32::try_from(others.len()).unwrap_or(u32::MAX);
            tokio::time::sleep(EVERY.max(EVERY_PER_NODE.saturating_mul(count))).await;
            if self.config().service.limit.is_empty() {
                continue;
            }
            let Some(report) = self.shared.limits.usage.report() else {
                continue;
            };
            let body = report.encode();
            let told = others.iter().map(async |node| {
                let telling = tokio::time::timeout(TIMEOUT, self.tell(&node.name, &body));
                if !matches!(telling.await, Ok(Ok(200))) {
                    tracing::debug!(peer = node.name, "a node did not take a report of limits");
                }
            });
            join_all(told.collect()).await;
        }
    }

    /// Sends a report to a node. Returns the status of its answer.
    async fn tell(&self, peer: &str, body: &[u8]) -> anyhow::Result<u16> {
        let head = format!(
            "POST {PATH} HTTP/1.1\r\nHost: prism\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let head = parse_own_head(head.as_bytes())?;
        let request = PeerRequest::for_node(&head);
        let (answer, _) = self.peers.ask(peer, &request, body, 0).await?;
        Ok(answer.status())
    }

    /// Answers a node that reports.
    pub(crate) async fn take_report(
        &self,
        exchange: &mut impl Exchange,
        peer: &str,
    ) -> io::Result<()> {
        let bytes = exchange.read_to_end(MAX_REPORT_BYTES as u64).await;
        let bytes = bytes.map_err(|_| io::ErrorKind::InvalidData)?;
        let status = match UsageReport::decode(&bytes) {
            Ok(report) => {
                let limits = &self.shared.limits;
                limits.usage.learn(peer, &report, limits.now_ns());
                200
            }
            Err(error) => {
                tracing::warn!(peer, %error, "a node's report of limits is malformed");
                400
            }
        };
        send(exchange, ResponseHead::new(status), &[]).await
    }
}
