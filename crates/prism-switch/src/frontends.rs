//! Which frontends get new connections: those that hold a lease and have not said that
//! they take no more (docs/protocol.md, 1.7).
//!
//! A frontend that dies or leaves is removed from the lists within a second, and added again
//! with its next lease. If no frontend of a service holds a lease, all of them stay: the
//! leases themselves may be broken. An agent that has just started waits for the nodes to
//! reconnect, and leaves the lists as they are.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use libbpf_rs::Result;

use crate::config::ServiceConfig;
use crate::leases::Alive;
use crate::skel::SwitchMaps;
use crate::tables::{self, Lists};

/// How long an agent that has started waits for leases. A node that has lost one asks
/// again each second at least.
const SETTLING: Duration = Duration::from_secs(2);
/// How long the connections of a list that has changed are found by it: by then their
/// frontends have claimed them (`prism_proto::claim`), which takes 100 ms and some round trips.
const CHANGING: Duration = Duration::from_secs(2);

/// The frontends of a switch's services.
#[derive(Debug)]
pub(crate) struct Frontends {
    started: Instant,
    services: Vec<Service>,
}

#[derive(Debug)]
struct Service {
    config: ServiceConfig,
    /// As written.
    now: Vec<IpAddr>,
    changed: Option<Instant>,
}

impl Frontends {
    /// The frontends of `services`, whose maps list those of `now`.
    pub(crate) fn new(services: &[ServiceConfig], now: &[ServiceConfig], started: Instant) -> Self {
        let service = |config: &ServiceConfig| {
            let now = now.iter().find(|now| now.addr == config.addr);
            Service {
                config: config.clone(),
                now: now.unwrap_or(config).frontends.clone(),
                changed: None,
            }
        };
        Self {
            started,
            services: services.iter().map(service).collect(),
        }
    }

    /// These are the services from now on; as they are to be written.
    pub(crate) fn replace(&mut self, services: &[ServiceConfig]) -> Vec<ServiceConfig> {
        let listed: Vec<_> = services
            .iter()
            .map(|config| {
                let before = self.services.iter().find(|s| s.config.addr == config.addr);
                let mut listed = config.clone();
                if let Some(before) = before {
                    // New ones come with their lease.
                    listed.frontends.retain(|ip| before.now.contains(ip));
                }
                if listed.frontends.is_empty() {
                    listed.frontends.clone_from(&config.frontends);
                }
                listed
            })
            .collect();
        *self = Self::new(services, &listed, self.started);
        listed
    }

    /// Brings the lists up to date at `now`.
    pub(crate) fn update(
        &mut self,
        maps: &SwitchMaps<'_>,
        alive: &Alive,
        now: Instant,
    ) -> Result<()> {
        if now.saturating_duration_since(self.started) < SETTLING {
            return Ok(());
        }
        for service in &mut self.services {
            let Some(lists) = service.change(alive, now) else {
                continue;
            };
            tables::write_frontends(maps, &service.config, &lists)?;
            tracing::info!(service = %service.config.addr, frontends = ?lists.now,
                "new connections go to other frontends");
            service.now = lists.now;
            service.changed = Some(now);
        }
        Ok(())
    }
}

impl Service {
    /// The lists to write, if they change.
    fn change(&self, alive: &Alive, now: Instant) -> Option<Lists> {
        let all = &self.config.frontends;
        let mut wanted: Vec<IpAddr> = all
            .iter()
            .copied()
            .filter(|ip| alive.taking.contains(ip))
            .collect();
        if wanted.is_empty() {
            wanted.clone_from(all);
        }
        if wanted == self.now {
            return None;
        }
        // The connections of one change are found by one former list. Only what is
        // lost does not wait.
        let is_changing = self
            .changed
            .is_some_and(|at| now.saturating_duration_since(at) < CHANGING);
        if is_changing {
            wanted.retain(|ip| self.now.contains(ip));
            if wanted.is_empty() || wanted == self.now {
                return None;
            }
        }
        let former = self
            .now
            .iter()
            .copied()
            .filter(|ip| alive.nodes.contains(ip));
        Some(Lists {
            now: wanted,
            former: former.collect(),
            former_for: CHANGING,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
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
        Service {
            now: config.frontends.clone(),
            config,
            changed: None,
        }
    }

    fn change(
        service: &Service,
        taking: &[u8],
        alive: &[u8],
        at: Instant,
    ) -> Option<[Vec<IpAddr>; 2]> {
        let [taking, nodes] = [taking, alive].map(|last| ips(last).into_iter().collect());
        let lists = service.change(&Alive { nodes, taking }, at)?;
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
}
