//! Requests that are answered before the service sees them: challenges, those that are sent to
//! HTTPS, and those that a rule is for.

use std::io;
use std::net::IpAddr;

use prism_config::Config;
use prism_handoff::Connection;
use prism_http::{RequestHead, ResponseHead};
use prism_service::{Exchange, Fault, Remote, Service, send};

use crate::challenge::answer_challenge;
use crate::gateway::Gateway;
use crate::rules::{Rules, url_host};
use crate::session::End;

impl<S: Service> Gateway<S> {
    /// Whether [`Self::answer_before_service`] may have an answer.
    pub(crate) fn answers_before_service(&self, client: &Connection, is_new: bool) -> bool {
        let config = self.config();
        is_new && !config.service.rule.is_empty()
            || !client.is_tls() && (self.shared.challenges.is_some() || redirects(&config))
    }

    /// Answers a request that is not for the service: an authority's challenge, one over plain HTTP
    /// that is sent to HTTPS, or one that a rule is for. `is_new`: no other node has looked for a
    /// rule.
    pub(crate) async fn answer_before_service(
        &self,
        client: &mut Connection,
        head: &RequestHead,
        id: u64,
        head_bytes: usize,
        remote: &Remote,
        is_new: bool,
    ) -> Option<End> {
        if !client.is_tls() {
            let challenge = self.challenge(head, false);
            if challenge.is_some() || redirects(&self.config()) {
                let answering = self.answer_plain(client, head, id, head_bytes, challenge);
                return Some(answering.await);
            }
        }
        let policy = self.policy().filter(|_| is_new)?;
        let answering = self.answer_by_rule(client, &policy.rules, head, id, head_bytes, remote);
        let end = answering.await?;
        self.shared.counters.requests.add_one();
        Some(end)
    }

    /// Answers an authority's `challenge`, or sends the client to HTTPS.
    async fn answer_plain(
        &self,
        client: &mut Connection,
        head: &RequestHead,
        id: u64,
        head_bytes: usize,
        challenge: Option<(u16, Vec<u8>)>,
    ) -> End {
        let service = client.service().ip();
        let mut exchange = self.exchange(client, head, id, head_bytes);
        // The connection ends anyway.
        let _ = match challenge {
            Some(answer) => answer_challenge(&mut exchange, answer).await,
            None => self.redirect(&mut exchange, head, service).await,
        };
        self.end(exchange)
    }

    /// Answers a request by the first rule that is for it; `None` if none is.
    async fn answer_by_rule(
        &self,
        client: &mut Connection,
        rules: &Rules,
        head: &RequestHead,
        id: u64,
        head_bytes: usize,
        remote: &Remote,
    ) -> Option<End> {
        let Ok(answer) = rules.answer(head, id, remote) else {
            self.shared.counters.malformed.add_one();
            let error = self.service.error_for(Fault::AmbiguousPath, None);
            let refusing = self.refuse_request(client, head, id, head_bytes, &error, false);
            return Some(refusing.await);
        };
        let answer = answer?;
        let is_newcomer = client.is_newcomer();
        let mut exchange = self.exchange(client, head, id, head_bytes);
        exchange.add_fields(self.service.extra_fields(head).await);
        if answer.send(&mut exchange, is_newcomer).await.is_err() {
            exchange.close_after();
        }
        Some(self.end(exchange))
    }

    /// Sends a client that speaks HTTP to the same resource over HTTPS. 308 keeps
    /// method and body (RFC 9110, section 15.4.9).
    async fn redirect(
        &self,
        exchange: &mut impl Exchange,
        head: &RequestHead,
        service: IpAddr,
    ) -> io::Result<()> {
        let config = self.config();
        let https = config.service.tls.as_ref().map(|tls| tls.port);
        let host = head.host_name().map(str::to_owned);
        let host = host.unwrap_or_else(|| url_host(service));
        let port = match https {
            None | Some(443) => String::new(),
            Some(port) => format!(":{port}"),
        };
        let query = head.query().map(|query| format!("?{query}"));
        let query = query.unwrap_or_default();
        let location = format!("https://{host}{port}{}{query}", head.path());
        exchange.add_fields(self.service.extra_fields(head).await);
        exchange.close_after();
        let answer = ResponseHead::new(308).with("Location", location);
        send(exchange, answer.map_err(io::Error::other)?, &[]).await
    }
}

/// Whether plain HTTP is redirected to HTTPS.
fn redirects(config: &Config) -> bool {
    let tls = config.service.tls.as_ref();
    tls.is_some_and(|tls| tls.redirect_http)
}
