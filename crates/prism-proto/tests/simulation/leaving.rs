//! Hosts that stop in order: they refuse connections, hand over those that they have, and end when
//! none is left. Clients notice nothing, without exception.

use crate::app::Plan;
use crate::frontends::is_frontend;
use crate::host::{Host, Role, Work};
use crate::scenario::{MS, Mutation};
use crate::world::World;

/// The interval of looks whether a host may stop; it also offers its connections again.
const LOOK_NS: u64 = 50 * MS;
/// The time limit of a stop: all deadlines have passed, and the sockets of given-up connections are
/// closed.
const STOPPED_IN_NS: u64 = 200_000 * MS;

/// A host that leaves.
#[derive(Clone, Debug)]
pub(crate) struct Leaving {
    since: u64,
    /// The connections that it had at the start.
    first: Vec<u64>,
}

impl World {
    /// A host that is no frontend begins to leave; the clients of a frontend are all its own.
    pub(crate) fn leave(&mut self) {
        let host = self.any_host();
        if is_frontend(host) || self.hosts[host].leaving.is_some() {
            return;
        }
        self.log(|| format!("host {host} leaves"));
        let first = self.hosts[host].connections.keys().copied().collect();
        let since = self.now;
        self.hosts[host].leaving = Some(Leaving { since, first });
        self.works(host, 0, Work::Leave);
    }

    /// Whether a host takes no connection any more.
    pub(crate) fn refuses_all(&self, host: usize) -> bool {
        let is_broken = self.scenario.mutation == Mutation::LeaverTakes;
        self.hosts[host].leaving.is_some() && !is_broken
    }

    /// Hands over connections that wait for a request, and stops when none is left.
    pub(crate) fn go_on_leaving(&mut self, host: usize) {
        let Some(leaving) = self.hosts[host].leaving.clone() else {
            return;
        };
        let connections = &self.hosts[host].connections;
        let is_over = match self.scenario.mutation {
            Mutation::LeaverTakes => !leaving.first.iter().any(|id| connections.contains_key(id)),
            _ => connections.is_empty(),
        };
        if is_over {
            return self.stop(host);
        }
        if self.now - leaving.since > STOPPED_IN_NS {
            return self.fail(format!("I5: host {host} does not come to its end"));
        }
        let waits = connections.iter().filter(|(_, c)| {
            // A connection that was never steered has no epoch yet.
            matches!(c.role, Role::Serving) && c.live && c.output.is_empty() && c.epoch > 0
        });
        let waiting: Vec<u64> = waits.map(|(id, _)| *id).collect();
        for id in waiting {
            let successors: Vec<usize> = (0..self.hosts.len())
                .filter(|peer| *peer != host && self.hosts[*peer].leaving.is_none())
                .collect();
            let to = successors[self.rng.usize(0..successors.len())];
            *self.stats.outcomes.entry("passed over".into()).or_default() += 1;
            self.start_export(host, id, to, Plan::Decide);
        }
        self.works(host, LOOK_NS, Work::Leave);
    }

    /// The process ends, and another begins.
    fn stop(&mut self, host: usize) {
        self.log(|| format!("host {host} stops"));
        self.lease_breaks(host);
        *self.stats.outcomes.entry("stopped".into()).or_default() += 1;
        self.begin_again(host);
    }

    /// Starts a new process without the state of the one before.
    pub(crate) fn begin_again(&mut self, host: usize) {
        let boot = self.hosts[host].boot + 1;
        let mut rng = self.rng.fork();
        self.hosts[host] = Host::new(&self.scenario, &mut rng);
        self.hosts[host].boot = boot;
        for peer in 0..self.hosts.len() {
            self.break_channel(host, peer);
            let generation = self.channels.get(&Self::channel(host, peer));
            let generation = generation.copied().unwrap_or(0);
            self.hosts[host].channels.insert(peer, generation);
        }
        self.boot(host);
        self.works(host, 0, Work::Lease);
    }
}
