//! Faults that strike at a random moment: broken channels and crashed hosts.

use crate::app::Incarnation;
use crate::host::Role;
use crate::scenario::MS;
use crate::world::{Event, World};

impl World {
    pub(crate) fn any_host(&mut self) -> usize {
        let count = self.hosts.len();
        self.rng.usize(0..count)
    }

    pub(crate) fn channel(a: usize, b: usize) -> (usize, usize) {
        (a.min(b), a.max(b))
    }

    /// Breaks a channel: frames under way are lost, and each end notices in its own time.
    pub(crate) fn break_channel(&mut self, a: usize, b: usize) {
        if a == b {
            return;
        }
        self.log(|| format!("channel {a}-{b} breaks"));
        let generation = self.channels.entry(Self::channel(a, b)).or_default();
        *generation += 1;
        let generation = *generation;
        for (host, peer) in [(a, b), (b, a)] {
            let late = self.rng.u8(0..4) == 0;
            let limit = if late { 4000 * MS } else { MS };
            let delay = self.rng.u64(0..limit);
            self.after(
                delay,
                Event::ChannelGone {
                    host,
                    peer,
                    generation,
                },
            );
        }
    }

    pub(crate) fn break_all_channels(&mut self) {
        for a in 0..self.hosts.len() {
            for b in 0..a {
                self.break_channel(a, b);
            }
        }
    }

    pub(crate) fn crash(&mut self) {
        let host = self.any_host();
        self.log(|| format!("host {host} crashes"));
        let lost = self.hosts[host].irreplaceable();
        self.excused.extend(lost);
        let unheard = self.unheard_refusals(host);
        self.excused.extend(unheard);
        self.lease_breaks(host);
        self.begin_again(host);
    }

    /// Connections that a host has given up, and whose sources have not heard so. If the host dies
    /// now, nobody can tell its source that it may go on: the switch may have the flow as the dead
    /// host's.
    fn unheard_refusals(&self, host: usize) -> Vec<Incarnation> {
        let all = || self.hosts.iter().flat_map(|h| h.connections.values());
        let is_awaited =
            |id: u64| all().any(|c| matches!(&c.role, Role::Exporting(e) if e.is_hand_off(id)));
        let here = self.hosts[host].connections.values();
        let unheard = here.filter(|c| match &c.role {
            Role::Deaf { hand_off, .. } => is_awaited(*hand_off),
            _ => false,
        });
        unheard.map(|c| c.of).collect()
    }
}
