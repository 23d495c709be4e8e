//! Servers that an operator adds to an upstream, or removes again, while nodes run: the command at
//! a frontend, the message to each backend, and what a backend does with it.
//!
//! Not here: the file of the added servers (`added.rs`).

use std::io;
use std::net::SocketAddr;

use prism_http::ResponseHead;
use prism_service::{Exchange, send};
use serde::{Deserialize, Serialize};

use crate::Shared;
use crate::added::MAX_ADDED_SERVERS;
use crate::assign::Place;
use crate::parcel::at_all;
use crate::sources::{Source, Sources};

/// The path of an amendment to another node.
pub(crate) const PATH: &str = "/upstreams/servers";
/// Longest amendment: the name of an upstream has the bounds of its conditions.
const MAX_BYTES: u64 = 64 << 10;
/// Most names of upstreams that an error lists.
const MAX_NAMED: usize = 12;

/// The way in which an amendment changes an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AmendmentKind {
    /// The upstream gets it.
    Add,
    /// The upstream loses it.
    Remove,
}

/// A server that an upstream of a backend gets or loses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Amendment {
    upstream: String,
    server: SocketAddr,
    change: AmendmentKind,
}

/// The effect of an amendment at a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AmendmentOutcome {
    /// The upstream has the server now.
    Added,
    /// The upstream had it before.
    Present,
    /// The server is no added one any more.
    Removed,
    /// The upstream did not have it.
    Absent,
}

/// The outcome of an amendment at one backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AmendedServer {
    /// The server.
    pub place: Place,
    /// The effect.
    pub outcome: AmendmentOutcome,
    /// Another source that names the server, or the one that named it before.
    pub source: Option<Source>,
}

/// The answer of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answer {
    outcome: AmendmentOutcome,
    /// Another source that names the server, or the one that named it before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<Source>,
}

impl Shared {
    /// Adds a server to the upstream of this name, or removes an added one. `target` is
    /// `BACKEND/ADDRESS`, or an address for all backends of the upstream.
    ///
    /// # Errors
    /// For the operator: there is no such upstream or backend, or a backend does not act by it. It
    /// says which ones do.
    pub async fn amend(
        &self,
        upstream: &str,
        target: &str,
        change: AmendmentKind,
    ) -> Result<Vec<AmendedServer>, String> {
        let (backends, server) = self.meant_by(upstream, target)?;
        let amended = backends.into_iter().map(async |backend| {
            let amendment = Amendment {
                upstream: upstream.to_owned(),
                server,
                change,
            };
            let answer = self.amend_at(&backend, &amendment).await;
            let Answer { outcome, source } =
                answer.map_err(|fault| format!("{backend}: {fault}"))?;
            let place = Place { backend, server };
            Ok(AmendedServer {
                place,
                outcome,
                source,
            })
        });
        let amended = at_all(amended.collect()).await?;
        let is_absent = |one: &AmendedServer| one.outcome == AmendmentOutcome::Absent;
        if amended.iter().all(is_absent) {
            return Err(format!("{upstream} has no server {target}"));
        }
        Ok(amended)
    }

    /// The backends and the server that `target` means for an upstream.
    fn meant_by(&self, upstream: &str, target: &str) -> Result<(Vec<String>, SocketAddr), String> {
        let Some(pool) = self.pool_named(upstream) else {
            let names = self.upstream_names().into_iter().take(MAX_NAMED);
            let names = names.collect::<Vec<_>>().join(", ");
            return Err(format!(
                "no upstream is called {upstream:?}; there are: {names}"
            ));
        };
        let all = pool.backends.iter().map(|backend| backend.name.clone());
        let mut backends: Vec<String> = all.collect();
        let address = match target.split_once('/') {
            None => target,
            Some((backend, address)) => {
                if !backends.iter().any(|known| known == backend) {
                    let known = backends.join(", ");
                    return Err(format!(
                        "{backend:?} is no backend of {upstream}; there are: {known}"
                    ));
                }
                backends = vec![backend.to_owned()];
                address
            }
        };
        let server = address.parse().map_err(|_| {
            format!("{address:?} is not an address with a port; write it as in 127.0.0.1:9000")
        })?;
        Ok((backends, server))
    }

    async fn amend_at(&self, backend: &str, amendment: &Amendment) -> Result<Answer, String> {
        if backend == self.name {
            return self.accept_amendment(amendment);
        }
        let text = self.send_to(backend, PATH, amendment).await?;
        serde_json::from_slice(&text).map_err(|error| format!("its answer is malformed: {error}"))
    }

    /// Acts by an amendment to this node.
    pub(crate) fn accept_amendment(&self, amendment: &Amendment) -> Result<Answer, String> {
        self.change_sources(|sources| {
            let answer = sources.amend(amendment);
            let is_new = answer.as_ref().is_ok_and(|answer| {
                use AmendmentOutcome::{Added, Removed};
                matches!(answer.outcome, Added | Removed)
            });
            (answer, is_new)
        })
    }

    /// Answers a node that sends an amendment.
    pub(crate) async fn answer_amendment(
        &self,
        exchange: &mut impl Exchange,
        peer: &str,
    ) -> io::Result<()> {
        exchange.limit_body(MAX_BYTES);
        let text = exchange.read_to_end(MAX_BYTES).await;
        let text = text.map_err(|_| io::ErrorKind::InvalidData)?;
        let (status, answer) = match serde_json::from_slice::<Amendment>(&text) {
            Err(error) => (400, error.to_string()),
            Ok(_) if !self.is_frontend(peer) => (403, format!("{peer} is no frontend")),
            Ok(amendment) => match self.accept_amendment(&amendment) {
                Ok(answer) => {
                    tracing::info!(peer, ?amendment, ?answer, "an operator changes servers");
                    (200, serde_json::to_string(&answer)?)
                }
                Err(fault) => (409, fault),
            },
        };
        send(exchange, ResponseHead::new(status), answer.as_bytes()).await
    }
}

impl Sources {
    /// Acts by an amendment. The file of added servers has it before anybody acts by it.
    fn amend(&mut self, amendment: &Amendment) -> Result<Answer, String> {
        let Amendment {
            upstream,
            server,
            change,
        } = amendment;
        // Another process of this node may have written the file during a take-over.
        let written = |error: io::Error| format!("its file of added servers: {error}");
        self.added.refresh().map_err(written)?;
        let Some(servers) = self.servers_here(upstream) else {
            return Err(format!(
                "it has no upstream {upstream:?}; its configuration differs from this node's"
            ));
        };
        let known = servers.iter().find(|known| known.address == *server);
        let source = known.and_then(|known| known.source);
        let is_added = self.added.has(upstream, *server);
        let answer = |outcome, source| Ok(Answer { outcome, source });
        match (change, source) {
            (AmendmentKind::Add, Some(_)) => answer(AmendmentOutcome::Present, source),
            (AmendmentKind::Add, None) => {
                self.check_addition(*server)?;
                self.added.add(upstream, *server).map_err(written)?;
                answer(AmendmentOutcome::Added, None)
            }
            (AmendmentKind::Remove, _) if is_added => {
                self.added.remove(upstream, *server).map_err(written)?;
                let other = source.filter(|source| *source != Source::Added);
                answer(AmendmentOutcome::Removed, other)
            }
            (AmendmentKind::Remove, Some(Source::File)) => Err(format!(
                "servers_file names {server}: remove its line, or take the server out by `prism \
                 ctl server down`"
            )),
            (AmendmentKind::Remove, Some(_)) => Err(format!(
                "the configuration names {server}: remove it there and reload, or take the server \
                 out by `prism ctl server down`"
            )),
            (AmendmentKind::Remove, None) => answer(AmendmentOutcome::Absent, None),
        }
    }

    fn check_addition(&self, server: SocketAddr) -> Result<(), String> {
        if let Some((fault, fix)) = self.config.server_fault(server) {
            return Err(format!("{fault}; {fix}"));
        }
        if self.added.count() >= MAX_ADDED_SERVERS {
            let file = self.added.path().display();
            return Err(format!(
                "it has {MAX_ADDED_SERVERS} added servers, which is the most; remove some: {file} \
                 lists them"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "amendment_tests.rs"]
mod tests;
