//! The lists of frontends that get new connections. A frontend is listed if it has a lease,
//! takes new clients, and places objects as most nodes do (docs/protocol.md, 1.7).
//!
//! A frontend that dies leaves the lists within a second. One that leaves in order does so
//! within 2 s of the last change. Both return with their lease. If no frontend of a service
//! takes new clients, the leaving ones are listed. If none has a lease, all are listed, because
//! the leases themselves may be broken.
//!
//! An agent that has just started, or whose switch has just taken over, waits a second for the
//! nodes to reconnect. Until then it removes only frontends whose lease it has seen end, and keeps
//! those that it has not heard of.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use libbpf_rs::Result;
use prism_proto::lease::NewClients;

use crate::config::ServiceConfig;
use crate::leases::{Alive, SETTLING};
use crate::skel::SwitchMaps;
use crate::tables::{self, Lists};

/// The time for which connections are still found by the list before a change. By then their
/// frontends have claimed them (`prism_proto::claim`), which takes 100 ms and some round trips.
const CHANGING: Duration = Duration::from_secs(2);

/// The time in which the frontends come back to an agent that has started. They dial five times a
/// second. A living one that needs longer gets no new connections until it is back.
const RETURNING: Duration = Duration::from_secs(1);

/// The frontends of a switch's services.
#[derive(Debug)]
pub(crate) struct Frontends {
    started: Instant,
    services: Vec<Service>,
}

#[derive(Debug)]
struct Service {
    config: ServiceConfig,
    /// The lists as written.
    now: Vec<IpAddr>,
    former: Vec<IpAddr>,
    changed: Option<Instant>,
}

impl Frontends {
    /// The frontends of `services`. The maps list the frontends of `now`.
    pub(crate) fn new(services: &[ServiceConfig], now: &[ServiceConfig], started: Instant) -> Self {
        let service = |config: &ServiceConfig| {
            let now = now.iter().find(|now| now.addr == config.addr);
            Service::new(config, &now.unwrap_or(config).frontends)
        };
        Self {
            started,
            services: services.iter().map(service).collect(),
        }
    }

    /// Replaces the services. Returns them with the frontends to write.
    pub(crate) fn replace(&mut self, services: &[ServiceConfig]) -> Vec<ServiceConfig> {
        let replace = |config: &ServiceConfig| {
            let before = self.services.iter().find(|s| s.config.addr == config.addr);
            let mut service = Service::new(config, &config.frontends);
            if let Some(before) = before {
                // New frontends are listed with their lease.
                service.now.retain(|ip| before.now.contains(ip));
                service.former.clone_from(&before.former);
                service.changed = before.changed;
            }
            if service.now.is_empty() {
                service.now.clone_from(&config.frontends);
            }
            service
        };
        self.services = services.iter().map(replace).collect();
        let listed = self.services.iter().map(|service| ServiceConfig {
            frontends: service.now.clone(),
            ..service.config.clone()
        });
        listed.collect()
    }

    /// Brings the lists up to date at `now`.
    pub(crate) fn update(
        &mut self,
        maps: &SwitchMaps<'_>,
        alive: &Alive,
        now: Instant,
    ) -> Result<()> {
        let age = now.saturating_duration_since(self.started);
        for service in &mut self.services {
            let Some(lists) = service.change(alive, age, now) else {
                continue;
            };
            tables::write_frontends(maps, &service.config, &lists, CHANGING)?;
            tracing::info!(service = %service.config.addr, frontends = ?lists.now,
                "new connections go to other frontends");
            (service.now, service.former) = (lists.now, lists.former);
            service.changed = Some(now);
        }
        Ok(())
    }

    /// Keeps frontends without a lease until the nodes have reconnected, as after a start.
    pub(crate) fn wait_for_leases(&mut self, now: Instant) {
        self.started = now;
    }

    /// The term settles at `now`: connections that were opened while it was young are found by
    /// their records, and others by the list before a change, until their frontends have claimed
    /// them.
    pub(crate) fn settle(&mut self, maps: &SwitchMaps<'_>, now: Instant) -> Result<()> {
        for service in &mut self.services {
            if !service.is_changing(now) {
                service.former.clone_from(&service.now);
            }
            let lists = Lists {
                now: service.now.clone(),
                former: service.former.clone(),
            };
            tables::write_frontends(maps, &service.config, &lists, CHANGING)?;
            service.changed = Some(now);
        }
        Ok(())
    }

    /// The answer to the node with these addresses, which said `since` ago that it takes no more
    /// clients, and of which no run takes any. `None` while lists that are about to change still
    /// send it clients.
    pub(crate) fn new_clients_of(
        &self,
        node: &[IpAddr],
        alive: &Alive,
        since: Duration,
    ) -> Option<NewClients> {
        let lists = |service: &&Service| node.iter().any(|ip| service.now.contains(ip));
        let mut listing = self.services.iter().filter(lists);
        let mut has_nobody_else = false;
        let waits = listing.any(|service| {
            has_nobody_else = true;
            !service.has_nobody_else(alive, since)
        });
        match (waits, has_nobody_else) {
            (true, _) => None,
            (false, true) => Some(NewClients::HaveNobodyElse),
            (false, false) => Some(NewClients::GoElsewhere),
        }
    }
}

impl Service {
    fn new(config: &ServiceConfig, now: &[IpAddr]) -> Self {
        Self {
            config: config.clone(),
            now: now.to_vec(),
            former: Vec::new(),
            changed: None,
        }
    }

    /// The frontends of the configuration that are in `set`.
    fn frontends_in(&self, set: &HashSet<IpAddr>) -> Vec<IpAddr> {
        let all = self.config.frontends.iter().copied();
        all.filter(|ip| set.contains(ip)).collect()
    }

    /// The frontends that should get new clients.
    fn wanted(&self, alive: &Alive) -> Vec<IpAddr> {
        let lists = [&alive.taking, &alive.nodes].map(|set| self.frontends_in(set));
        let found = lists.into_iter().find(|list| !list.is_empty());
        found.unwrap_or_else(|| self.config.frontends.clone())
    }

    /// The lists to write, if they change. The agent, or its term, has this `age`.
    fn change(&self, alive: &Alive, age: Duration, now: Instant) -> Option<Lists> {
        let mut living = self.now.clone();
        if age < RETURNING {
            living.retain(|ip| !alive.lost.contains(ip))
        } else {
            living.retain(|ip| alive.nodes.contains(ip))
        }
        // There is one former list, so a further change waits. Dead frontends are removed at
        // once: no connection is lost with them.
        let waits = age < SETTLING || self.is_changing(now);
        if waits && living == self.now {
            return None;
        }
        let wanted = if waits && !living.is_empty() {
            living.clone()
        } else {
            self.wanted(alive)
        };
        (wanted != self.now).then_some(Lists {
            now: wanted,
            former: living,
        })
    }

    /// Whether the former list counts.
    fn is_changing(&self, now: Instant) -> bool {
        self.changed
            .is_some_and(|at| now.saturating_duration_since(at) < CHANGING)
    }

    /// Whether no frontend takes new clients, or is about to. A frontend without a lease may be
    /// starting; it has [`SETTLING`] to ask for one.
    fn has_nobody_else(&self, alive: &Alive, since: Duration) -> bool {
        let mut all = self.config.frontends.iter();
        let is_absent = |ip| !alive.nodes.contains(ip);
        self.frontends_in(&alive.taking).is_empty() && (since >= SETTLING || !all.any(is_absent))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    const ALL: [u8; 3] = [1, 2, 3];

    fn ips(last: &[u8]) -> Vec<IpAddr> {
        last.iter().map(|n| IpAddr::from([10, 0, 0, *n])).collect()
    }

    fn service() -> Service {
        let config = ServiceConfig {
            addr: "198.51.100.1:80".parse().unwrap(),
            tenant: 1,
            frontends: ips(&ALL),
        };
        Service::new(&config, &config.frontends)
    }

    fn change(
        service: &Service,
        taking: &[u8],
        alive: &[u8],
        at: Instant,
    ) -> Option<[Vec<IpAddr>; 2]> {
        let lists = service.change(&known(taking, alive, &[]), SETTLING, at)?;
        Some([lists.now, lists.former])
    }

    fn known(taking: &[u8], nodes: &[u8], lost: &[u8]) -> Alive {
        let [taking, nodes, lost] =
            [taking, nodes, lost].map(|last| ips(last).into_iter().collect());
        Alive {
            nodes,
            taking,
            lost,
        }
    }

    /// The new lists of an agent that has just started.
    fn first_change(service: &Service, nodes: &[u8], lost: &[u8]) -> Option<[Vec<IpAddr>; 2]> {
        change_at(service, Duration::ZERO, nodes, lost)
    }

    fn change_at(
        service: &Service,
        age: Duration,
        nodes: &[u8],
        lost: &[u8],
    ) -> Option<[Vec<IpAddr>; 2]> {
        let alive = known(nodes, nodes, lost);
        let lists = service.change(&alive, age, Instant::now())?;
        Some([lists.now, lists.former])
    }

    #[test]
    fn who_has_no_lease_gets_no_new_connection_unless_nobody_has() {
        let (service, now) = (service(), Instant::now());
        assert_eq!(change(&service, &ALL, &ALL, now), None);
        assert_eq!(change(&service, &[], &[], now), None);
        let died = change(&service, &[1, 3], &[1, 3], now);
        assert_eq!(died, Some([ips(&[1, 3]), ips(&[1, 3])]));
        let leaves = change(&service, &[1, 3], &ALL, now);
        assert_eq!(leaves, Some([ips(&[1, 3]), ips(&ALL)]));
    }

    #[test]
    fn a_frontend_that_leaves_is_answered_when_the_lists_are_without_it() {
        let now = Instant::now();
        let mut frontends = Frontends {
            started: now,
            services: vec![service()],
        };
        let answer = |frontends: &Frontends, taking: &[u8], nodes: &[u8], since| {
            frontends.new_clients_of(&ips(&[2]), &known(taking, nodes, &[]), since)
        };
        let (elsewhere, nobody) = (NewClients::GoElsewhere, NewClients::HaveNobodyElse);
        let at_once = Duration::ZERO;
        // The list still has the node. Others take clients, or leave too, or may be starting.
        assert_eq!(answer(&frontends, &[1], &ALL, SETTLING), None);
        assert_eq!(answer(&frontends, &[], &ALL, at_once), Some(nobody));
        assert_eq!(answer(&frontends, &[], &[1, 2], at_once), None);
        assert_eq!(answer(&frontends, &[], &[1, 2], SETTLING), Some(nobody));
        let mut second = service();
        second.now = ips(&[1, 3]);
        frontends.services.push(second);
        assert_eq!(answer(&frontends, &[1, 3], &ALL, SETTLING), None);
        frontends.services[0].now = ips(&[1, 3]);
        assert_eq!(answer(&frontends, &[1, 3], &ALL, at_once), Some(elsewhere));
    }

    #[test]
    fn who_leaves_waits_for_the_change_before_and_keeps_its_place_where_others_are_dead() {
        let now = Instant::now();
        let mut service = service();
        service.changed = Some(now);
        assert_eq!(change(&service, &[1, 3], &ALL, now), None);
        let later = change(&service, &[1, 3], &ALL, now + CHANGING);
        assert_eq!(later, Some([ips(&[1, 3]), ips(&ALL)]));
        service.now = ips(&[2]);
        assert_eq!(change(&service, &[], &[2], now + CHANGING), None);
        // The only listed frontend has died: a living one takes its place at once.
        assert_eq!(change(&service, &[1], &[1], now), Some([ips(&[1]), vec![]]));
    }

    #[test]
    fn who_comes_back_waits_for_the_change_before_and_who_dies_does_not() {
        let now = Instant::now();
        let mut service = service();
        (service.now, service.changed) = (ips(&[1, 2]), Some(now));
        assert_eq!(change(&service, &ALL, &ALL, now), None);
        let died = change(&service, &[1, 3], &[1, 3], now);
        assert_eq!(died, Some([ips(&[1]), ips(&[1])]));
        let later = change(&service, &ALL, &ALL, now + CHANGING);
        assert_eq!(later, Some([ips(&ALL), ips(&[1, 2])]));
    }

    #[test]
    fn an_agent_that_has_just_started_removes_who_lost_its_lease_and_keeps_who_had_none_yet() {
        let mut service = service();
        assert_eq!(first_change(&service, &[], &[]), None);
        assert_eq!(first_change(&service, &[2], &[]), None);
        let died = first_change(&service, &[2], &[1]);
        assert_eq!(died, Some([ips(&[2, 3]), ips(&[2, 3])]));
        // A frontend that has not reconnected yet is better than one that is dead.
        let died = first_change(&service, &[], &[1, 2]);
        assert_eq!(died, Some([ips(&[3]), ips(&[3])]));
        assert_eq!(first_change(&service, &[], &ALL), None, "nobody is left");
        // One that was not listed takes the place of the only one that was.
        service.now = ips(&[2]);
        assert_eq!(first_change(&service, &[1], &[]), None);
        let died = first_change(&service, &[1], &[2]);
        assert_eq!(died, Some([ips(&[1]), vec![]]));
    }

    #[test]
    fn a_frontend_that_died_before_the_agent_started_is_removed_while_another_change_is_pending() {
        let now = Instant::now();
        let mut service = service();
        let [died, _] = first_change(&service, &[2], &[1]).unwrap();
        (service.now, service.changed) = (died, Some(now));
        assert_eq!(service.now, ips(&[2, 3]), "3 may be reconnecting");
        assert!(service.is_changing(now));
        let returned = change_at(&service, RETURNING, &[2], &[1]);
        assert_eq!(returned, Some([ips(&[2]), ips(&[2])]));
    }
}
