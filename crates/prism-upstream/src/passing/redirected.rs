//! The end of a request whose answer is an internal redirect.

use std::io;

use prism_config::seconds;
use prism_http::ResponseHead;
use prism_proxy::DroppedBody;
use prism_service::{Exchange, MAX_SKIP_BYTES, NodeRequests, Served};

use super::{Attempt, idle_time};
use crate::error::Error;
use crate::park::Lease;

impl<N: NodeRequests, X: Exchange> Attempt<'_, N, X> {
    /// Keeps the connection of an answer whose body nobody gets. The client does not wait for the
    /// rest of it.
    pub(super) async fn drop_body(&mut self, mut lease: Lease, mut body: DroppedBody) {
        if let Some(passed) = body.read_past(&mut lease.server) {
            return self.give_back(lease, passed);
        }
        if self.sharing.is_private() {
            let passed = body.read_to_end(&mut lease.server).await;
            return self.give_back(lease, passed);
        }
        let settings = &self.request.meaning.pool.settings;
        if settings.proxy_protocol {
            return;
        }
        let idle = self.node.idle_at(lease.under_way.address().address);
        let ours = seconds(settings.idle_timeout_s);
        let max = settings.idle_connections.into();
        tokio::task::spawn_local(async move {
            let passed = body.read_to_end(&mut lease.server).await;
            if passed.is_reusable {
                idle.keep(lease.server, idle_time(ours, passed.idle_for), max);
            }
        });
    }

    /// Has the node with the client's connection follow a server's answer. The connection is then
    /// at the end of the request.
    pub(super) async fn redirect(
        &mut self,
        answer: Box<ResponseHead>,
    ) -> io::Result<Served<Error>> {
        let left_bytes = self.exchange.left_bytes();
        if left_bytes.is_some_and(|left| left <= MAX_SKIP_BYTES) {
            self.exchange.invite().await?;
        }
        self.exchange.skip_body().await;
        if !self.exchange.is_done() {
            return self.refuse(&Error::BodyTooLong).await;
        }
        Ok(Served::Redirected(answer))
    }
}
