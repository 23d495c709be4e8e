//! The interfaces that lead to nodes: commands and requests for leases are taken from these only.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use prism_membership::Directory;
use prism_switch::interface_index;
use serde::Deserialize;

use crate::shared::Shared;

/// The interval of looks at the routes.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The numbers of interfaces; `None` if they are not known, and commands are taken from all.
pub(crate) type Interfaces = Option<BTreeSet<u32>>;

/// The interface by which each address was reached last. An address without a route keeps its own,
/// because a link that returns must not wait for a look.
#[derive(Default)]
pub(crate) struct Ways {
    known: BTreeMap<IpAddr, u32>,
    has_failed: bool,
}

/// A route, as `ip` shows it.
#[derive(Deserialize)]
struct Route {
    dst: IpAddr,
    dev: String,
}

impl Ways {
    /// The interfaces that lead to the nodes at present.
    pub(crate) fn look(&mut self, directories: &[Directory]) -> Interfaces {
        let hosts = directories.iter().flat_map(Directory::iter);
        let nodes: BTreeSet<IpAddr> = hosts.flat_map(|(_, host)| host.address.iter()).collect();
        self.known.retain(|node, _| nodes.contains(node));
        match routes(&nodes) {
            Ok(routes) => self.note(&routes),
            Err(error) if !std::mem::replace(&mut self.has_failed, true) => {
                tracing::warn!(%error, "cannot look up the routes to nodes with `ip` (iproute2)");
            }
            Err(_) => {}
        }
        let found: BTreeSet<u32> = self.known.values().copied().collect();
        (!found.is_empty()).then_some(found)
    }

    fn note(&mut self, routes: &[Route]) {
        self.has_failed = false;
        for route in routes {
            // An interface may have gone since.
            if let Ok(index) = interface_index(&route.dev)
                && let Ok(index) = u32::try_from(index)
            {
                self.known.insert(route.dst, index);
            }
        }
    }
}

/// The routes to these addresses, of those that have one.
fn routes(to: &BTreeSet<IpAddr>) -> io::Result<Vec<Route>> {
    let mut questions = String::new();
    for address in to {
        // Writing to a String cannot fail.
        let _ = writeln!(questions, "route get {address}");
    }
    let mut ip = Command::new("ip")
        .args(["-j", "-N", "-force", "-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    // `ip` answers each question before it reads the next one, so the pipe may fill up.
    let asked = ip
        .stdin
        .take()
        .map(|mut stdin| std::thread::spawn(move || stdin.write_all(questions.as_bytes())));
    let output = ip.wait_with_output()?;
    // `ip` may have ended before it has read all.
    let _ = asked.map(std::thread::JoinHandle::join);
    let answers = serde_json::Deserializer::from_slice(&output.stdout);
    let answers = answers.into_iter::<Vec<Route>>();
    Ok(answers.filter_map(Result::ok).flatten().collect())
}

/// Makes the agent pause when other interfaces lead to nodes. Never returns.
pub(crate) async fn follow(mut ways: Ways, shared: &Shared) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let directories = shared.nodes();
        let look = move || {
            let now = ways.look(&directories);
            (ways, now)
        };
        // It waits for another program, and leases do not wait for that.
        let Ok((looked, now)) = tokio::task::spawn_blocking(look).await else {
            return std::future::pending().await;
        };
        ways = looked;
        let is_new = shared.interfaces.send_if_modified(|before| {
            let is_new = *before != now;
            *before = now;
            is_new
        });
        if is_new {
            shared.pauses.pause.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_address_without_a_route_keeps_its_interface() {
        let to = ["127.0.0.1", "::1"].map(|address| address.parse().unwrap());
        let found = routes(&BTreeSet::from(to)).unwrap();
        let local = found.iter().find(|route| route.dst == to[0]).unwrap();
        assert_eq!(local.dev, "lo");
        let mut ways = Ways::default();
        ways.note(&found);
        let before = ways.known.clone();
        assert_eq!(before.get(&to[0]), Some(&1));
        ways.note(&[]);
        assert_eq!(ways.known, before);
        assert_eq!(ways.look(&[]), None, "no node");
    }
}
