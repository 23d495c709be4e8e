//! An operator's way to the duty of a server: from any frontend, or at its own backend. Which
//! servers a name means, and what nodes tell each other of it.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use prism_http::ResponseHead;
use prism_service::{Exchange, send};
use serde::{Deserialize, Serialize};

use crate::Shared;
use crate::duty::Duty;
use crate::parcel::at_all;
use crate::pool::Pool;

/// The path of an assignment to another node.
pub(crate) const PATH: &str = "/upstreams/duty";
/// Longest assignment: all servers of a backend.
const MAX_BYTES: u64 = 64 << 10;
/// Most names that an error lists.
const MAX_LISTED: usize = 12;

/// Servers of one backend, and their new duty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Assignment {
    servers: Vec<SocketAddr>,
    duty: Duty,
}

/// A server at a backend.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The backend.
    pub backend: String,
    /// The server's address, as the backend reaches it.
    pub server: SocketAddr,
}

impl Shared {
    /// Gives the servers that `name` means this duty, at their backends. `name` is a backend's, or
    /// `BACKEND/ADDRESS`, or the address of a server. Returns the servers.
    ///
    /// # Errors
    /// For the operator: no server has this name, or a backend does not act by it. It says which
    /// ones do.
    pub async fn assign(&self, name: &str, duty: Duty) -> Result<Vec<Place>, String> {
        let all = places(&self.pools());
        let meant = meant(&all, name)?;
        let mut by_backend = BTreeMap::<&str, Vec<SocketAddr>>::new();
        for place in &meant {
            by_backend
                .entry(&place.backend)
                .or_default()
                .push(place.server);
        }
        let assigned = by_backend.into_iter().map(async |(backend, servers)| {
            let assignment = Assignment { servers, duty };
            let outcome = if backend == self.name {
                self.accept(&assignment)
            } else {
                self.send_to(backend, PATH, &assignment).await.map(drop)
            };
            outcome.map_err(|fault| format!("{backend}: {fault}"))
        });
        at_all(assigned.collect()).await?;
        Ok(meant)
    }

    /// Acts by an assignment to this node.
    fn accept(&self, assignment: &Assignment) -> Result<(), String> {
        let pools = self.pools();
        let has = |server: &SocketAddr| {
            let mut own = pools.iter().flat_map(|pool| &pool.addresses);
            own.any(|known| known.address == *server)
        };
        if let Some(server) = assignment.servers.iter().find(|server| !has(server)) {
            return Err(format!(
                "it has no server {server}; its configuration differs from this node's"
            ));
        }
        let set = self.set_duties(&assignment.servers, assignment.duty);
        set.map_err(|error| format!("its file of duties cannot be written: {error}"))
    }

    /// Answers a node that sends an assignment.
    pub(crate) async fn answer_assignment(
        &self,
        exchange: &mut impl Exchange,
        peer: &str,
    ) -> io::Result<()> {
        exchange.limit_body(MAX_BYTES);
        let text = exchange.read_to_end(MAX_BYTES).await;
        let text = text.map_err(|_| io::ErrorKind::InvalidData)?;
        let (status, fault) = match serde_json::from_slice::<Assignment>(&text) {
            Err(error) => (400, error.to_string()),
            Ok(_) if !self.is_frontend(peer) => (403, format!("{peer} is no frontend")),
            Ok(assignment) => match self.accept(&assignment) {
                Ok(()) => {
                    let Assignment { servers, duty } = assignment;
                    tracing::info!(
                        peer,
                        ?servers,
                        duty = duty.word(),
                        "servers have a new duty"
                    );
                    (200, String::new())
                }
                Err(fault) => (409, fault),
            },
        };
        send(exchange, ResponseHead::new(status), fault.as_bytes()).await
    }
}

/// The servers of all backends.
fn places(pools: &[Arc<Pool>]) -> Vec<Place> {
    let backends = pools.iter().flat_map(|pool| &pool.backends);
    let places = backends.flat_map(|backend| {
        let servers = backend.servers.iter();
        servers.map(|server| Place {
            backend: backend.name.clone(),
            server: server.address,
        })
    });
    let mut places: Vec<Place> = places.collect();
    places.sort_unstable();
    places.dedup();
    places
}

/// The servers that `name` means.
fn meant(all: &[Place], name: &str) -> Result<Vec<Place>, String> {
    let (backend, address) = match name.split_once('/') {
        Some((backend, address)) => (Some(backend), address),
        None => (None, name),
    };
    let server = address.parse::<SocketAddr>().ok();
    let fits = |place: &&Place| match (backend, server) {
        (Some(backend), Some(server)) => place.backend == backend && place.server == server,
        (Some(_), None) => false,
        (None, Some(server)) => place.server == server,
        (None, None) => place.backend == name,
    };
    let meant: Vec<Place> = all.iter().filter(fits).cloned().collect();
    let is_of_many = meant.windows(2).any(|pair| pair.first() != pair.last());
    if meant.is_empty() {
        return Err(format!(
            "no server is called {name:?}; use a backend's name for all of its servers, or {}",
            listed(all)
        ));
    }
    if is_of_many && server.is_some_and(|server| server.ip().is_loopback()) {
        return Err(format!(
            "{name} is another server at each backend; use {}",
            listed(&meant)
        ));
    }
    Ok(meant)
}

fn listed(places: &[Place]) -> String {
    let mut names: Vec<String> = places
        .iter()
        .take(MAX_LISTED)
        .map(|Place { backend, server }| format!("{backend}/{server}"))
        .collect();
    if places.len() > MAX_LISTED {
        names.push("...".into());
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> Place {
        let (backend, server) = text.split_once('/').unwrap_or_default();
        Place {
            backend: backend.into(),
            server: server.parse().unwrap_or(([0, 0, 0, 0], 0).into()),
        }
    }

    #[test]
    fn a_name_means_the_servers_of_a_backend_or_one_or_one_that_several_reach() {
        let all = [
            "be0/10.0.0.9:80",
            "be0/127.0.0.1:1",
            "be1/10.0.0.9:80",
            "be1/127.0.0.1:1",
            "be1/[::1]:2",
        ]
        .map(place);
        for (name, expected) in [
            ("be0", &[0, 1][..]),
            ("be1/127.0.0.1:1", &[3]),
            ("10.0.0.9:80", &[0, 2]),
            ("be0/10.0.0.9:80", &[0]),
            ("[::1]:2", &[4]),
        ] {
            let expected: Vec<&Place> = expected.iter().filter_map(|n| all.get(*n)).collect();
            let found = meant(&all, name);
            let found: Vec<&Place> = found.iter().flatten().collect();
            assert_eq!(found, expected, "{name}");
        }
        for (name, part) in [
            ("127.0.0.1:1", "use be0/127.0.0.1:1, be1/127.0.0.1:1"),
            ("be2", "no server is called \"be2\""),
            ("be0/", "no server is called"),
            ("be0/127.0.0.1", "be0/10.0.0.9:80"),
            ("be0/[::1]:2", "no server is called"),
            ("/10.0.0.9:80", "no server is called"),
            ("", "no server is called"),
        ] {
            let error = meant(&all, name).err().unwrap_or_default();
            assert!(error.contains(part), "{name}: {error}");
        }
    }
}
