//! The end of a hand-off at its source.

use prism_proto::control::{FlowState, Ops, Status};
use prism_proto::export::{
    ASK_DEADLINE_NS, BLOCK_DEADLINE_NS, CLAIM_DEADLINE_NS, Kept, Outcome, SETTLE_DEADLINE_NS,
    VERDICT_DEADLINE_NS,
};
use prism_proto::fence::Fence;
use prism_proto::steering::{Command, CommandOutcome};

use crate::app::Plan;
use crate::frontends::is_frontend;
use crate::host::{Role, Waiter, owner_record};
use crate::scenario::MS;
use crate::world::World;

/// I5: one retry of the block, then the verdict, the reclaiming, the asking, the
/// reclaiming of what was given up; and the time that local work takes.
const EXPORT_BOUND_NS: u64 = 2 * BLOCK_DEADLINE_NS
    + VERDICT_DEADLINE_NS
    + SETTLE_DEADLINE_NS
    + ASK_DEADLINE_NS
    + CLAIM_DEADLINE_NS
    + 10 * MS;

impl World {
    pub(crate) fn finish_export(&mut self, host: usize, id: u64, outcome: Outcome) {
        let Some(started) = self.exporting(host, id).map(|e| e.started) else {
            return;
        };
        let took = self.now - started;
        self.log(|| format!("connection {id} of host {host}: {outcome:?}"));
        self.stats.longest_hand_off_ns = self.stats.longest_hand_off_ns.max(took);
        if took > EXPORT_BOUND_NS + self.scenario.young_ns() {
            return self.fail(format!("I5: a hand-off took {took} ns"));
        }
        let name = match outcome {
            Outcome::Moved => "moved".into(),
            Outcome::Lost => "lost".into(),
            Outcome::Unknown => "unknown".into(),
            Outcome::Kept { reason, .. } | Outcome::Untouched { reason } => {
                format!("kept: {reason:?}")
            }
        };
        *self.stats.outcomes.entry(name).or_default() += 1;
        match outcome {
            Outcome::Moved => self.forget(host, id),
            Outcome::Lost => self.lose(host, id),
            Outcome::Unknown => {
                self.excuse_doubt(host, id);
                match self.scenario.fence {
                    Fence::Switch => self.lose(host, id),
                    Fence::Host => self.give_back(host, id),
                }
            }
            Outcome::Untouched { .. } => self.stay(host, id),
            Outcome::Kept {
                epoch,
                settled,
                reason,
            } => {
                let refused = matches!(reason, Kept::SwitchRefused(_));
                self.keep(host, id, epoch, settled, settled && !refused);
            }
        }
    }

    /// Host mode gives up a connection whose verdict was lost together with the arbiter's table, if
    /// the target does not say that it has refused: it may send. The same applies if the arbiter is
    /// out of reach until the deadline.
    fn excuse_doubt(&mut self, host: usize, id: u64) {
        let term = self.hosts[host].steering.term();
        let sent_in = self.exporting(host, id).and_then(|e| e.sent_in());
        let is_later = sent_in.is_some_and(|sent_in| sent_in < term);
        let is_cut_off = self.scenario.max_outage_ns > SETTLE_DEADLINE_NS;
        if self.scenario.fence == Fence::Host && (is_later || is_cut_off) {
            let of = self.hosts[host].connections.get(&id).map(|c| c.of);
            self.excused.extend(of);
        }
    }

    pub(crate) fn forget(&mut self, host: usize, id: u64) {
        self.unregister(host, id);
        self.hosts[host].connections.remove(&id);
    }

    /// A connection may be lost only to a newer one, or to a crash.
    pub(crate) fn lose(&mut self, host: usize, id: u64) {
        self.check_lost(host, id);
        self.forget(host, id);
    }

    /// Ends a connection whose owner is unknown. If the arbiter has the flow as this host's, no
    /// refusal of the client's next SYN would end it.
    fn give_back(&mut self, host: usize, id: u64) {
        self.check_lost(host, id);
        self.close(host, id);
    }

    fn check_lost(&mut self, host: usize, id: u64) {
        let Some(c) = self.hosts[host].connections.get(&id) else {
            return;
        };
        let elsewhere = self
            .hosts
            .iter()
            .flat_map(|h| &h.connections)
            .any(|(other, o)| *other != id && o.of == c.of && !matches!(o.role, Role::Deaf { .. }));
        let over = self.clients[c.of.client].is_over(c.of);
        if !(c.killed || over || elsewhere || self.excused.contains(&c.of)) {
            self.fail(format!("I5: {:?} is lost", c.of));
        }
    }

    fn stay(&mut self, host: usize, id: u64) {
        if let Some(c) = self.hosts[host].connections.get(&id) {
            self.keep(host, id, c.epoch, true, c.steered);
        }
    }

    fn keep(&mut self, host: usize, id: u64, epoch: u64, settled: bool, steered: bool) {
        let Some(c) = self.hosts[host].connections.get_mut(&id) else {
            return;
        };
        let has_sent = matches!(&c.role, Role::Exporting(e) if e.sent_in().is_some());
        c.role = Role::Serving;
        (c.epoch, c.steered) = (epoch, c.steered || steered);
        let flow = c.flow;
        if has_sent {
            self.check_right(host, &flow, epoch);
        }
        let Some(c) = self.hosts[host].connections.get_mut(&id) else {
            return;
        };
        if c.socket.is_none() {
            return self.close(host, id);
        }
        (c.live, c.plan, c.settling) = (true, Plan::Serve, !settled);
        if !settled {
            self.hold_unconfirmed(host, id);
            self.settle(host, id);
        } else if is_frontend(host) {
            self.will_claim(host, id);
        }
        self.pump(host, id);
    }

    /// Repeats the command for the flow until the switch has answered.
    fn settle(&mut self, host: usize, id: u64) {
        let Some(c) = self.hosts[host].connections.get(&id) else {
            return;
        };
        let (epoch, flow, owner) = (c.epoch, c.flow, owner_record(host));
        let ops = Ops::OWN.and(Ops::UNBLOCK);
        let command = Command {
            ops,
            epoch,
            flow,
            owner,
        };
        self.steer(host, command, BLOCK_DEADLINE_NS, Waiter::Settle(id, epoch));
    }

    /// Ends the repetition, unless a later hand-off has ended it.
    pub(crate) fn settled(&mut self, host: usize, id: u64, epoch: u64, outcome: CommandOutcome) {
        let Some(c) = self.hosts[host].connections.get_mut(&id) else {
            return;
        };
        if !matches!(c.role, Role::Serving) || c.epoch != epoch {
            return;
        }
        match outcome {
            CommandOutcome::Unanswered => self.settle(host, id),
            CommandOutcome::Answered(answer) => {
                let stale = answer.status == Status::Stale;
                let is_ahead = answer.status == Status::Ahead;
                if (stale || is_ahead) && !c.steered && answer.owner == owner_record(host) {
                    c.epoch = answer.epoch + 1;
                    return self.settle(host, id);
                }
                if stale && (c.steered || answer.state != FlowState::Absent) {
                    return self.lose(host, id);
                }
                c.settling = false;
                (c.epoch, c.steered) = (
                    answer.epoch.max(c.epoch),
                    c.steered || answer.status == Status::Ok,
                );
                self.pump(host, id);
            }
        }
    }
}
