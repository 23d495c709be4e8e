//! Answers that wait for their client's connection.

use std::io;

use prism_config::seconds;
use prism_http::ResponseHead;
use prism_proto::relay::{ANSWER_FIELD, ANSWER_PARKED, HAND_OVER};
use prism_proxy::{Answer, Fault, Forward};
use prism_service::{Exchange, NodeRequests, Served, send};

use super::{Attempt, finish_head};
use crate::error::Error;
use crate::park::{Lease, Parked};
use crate::private::Sharing;

impl<N: NodeRequests, X: Exchange> Attempt<'_, N, X> {
    /// Answers a request whose answer waits here. Returns nothing if the answer is gone, and the
    /// request may be carried out again.
    pub(super) async fn answer_parked(&mut self) -> io::Result<Option<Served<Error>>> {
        match self.node.shared.parking.take(self.request.id) {
            Some(parked) => self.pass_parked(parked).await.map(Some),
            // It was carried out.
            None if !self.request.head.method().is_safe() => {
                self.refuse(&Error::Lost).await.map(Some)
            }
            None => Ok(None),
        }
    }

    /// Lets an answer wait for the client's connection, and asks the relaying node for that.
    pub(super) async fn park(
        &mut self,
        lease: Lease,
        answer: Answer,
        offers_login: bool,
    ) -> io::Result<Served<Error>> {
        let parked = Parked::new(lease, answer, offers_login, &self.request.meaning.pool)?;
        self.node.shared.parking.park(self.request.id, parked);
        let asks = ResponseHead::new(HAND_OVER).with(ANSWER_FIELD, ANSWER_PARKED);
        let asks = asks.map_err(io::Error::other)?;
        send(self.exchange, asks, &[]).await?;
        Ok(Served::Answered)
    }

    /// Passes an answer that has waited for its connection.
    async fn pass_parked(&mut self, parked: Parked) -> io::Result<Served<Error>> {
        let offers_login = parked.offers_login;
        let (mut answer, mut lease) = parked.resume()?;
        self.exchange.record_mut().server = Some(lease.under_way.address().address);
        finish_head(self.node, self.request, &lease.under_way, &mut answer);
        if offers_login && !self.sharing.is_private() {
            self.sharing = Sharing::Client;
        }
        let timeout = seconds(self.request.meaning.pool.settings.answer_timeout_s);
        let mut forward = Forward::begun(self.exchange, &mut lease.server, Some(timeout));
        match forward.pass(answer).await {
            Ok(passed) => {
                self.give_back(lease, passed);
                Ok(Served::Answered)
            }
            Err(Fault::Connection(error)) => Err(error),
            Err(Fault::NoAnswer(..) | Fault::Body(_)) => self.refuse(&Error::Malformed).await,
        }
    }
}
