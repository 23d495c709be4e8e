//! Aging: the agent removes idle, long blocked and released flows, and flows of owners that
//! have died. It resets the clients of the latter.
//!
//! Nothing waits for the agent. Without it flows go on, and the table fills up; then commands
//! are answered with `FULL`, and their senders relay.
//!
//! The program `collect` (`bpf/collect.h`) settles races: it carries an order out only if the
//! flow is still as the agent saw it.

use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};

use prism_proto::control::FlowKey;

use crate::census::LastCensus;
use crate::config::{ServiceConfig, SwitchConfig};
use crate::error::{KernelError, LoadError, kernel};
use crate::frontends::Frontends;
use crate::layout::{FLOW_KEY_BYTES, MAX_ORDERS, array_at, read_flow_key};
use crate::leases::{Change, Leases};
use crate::load::Switch;
use crate::reset::Resetter;
use crate::runs;
use crate::skel::types;
use crate::tables;
use crate::walk::{Order, Walks, carry_out, kind};

/// Time between the starts of two steps.
const PERIOD: Duration = Duration::from_secs(1);
/// Longest time for which news of runs, or the order to stop, goes unnoticed between steps.
const SLICE: Duration = Duration::from_millis(50);
/// Steps take at most one part in this many of a CPU. A walk over 1,000,000 flows takes some
/// 250 ms.
const MAX_SHARE: u32 = 20;

/// The result of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aged {
    /// Flows that became tombstones.
    pub expired: u32,
    /// The expired flows without possible owner, whose clients were reset.
    pub reset: u32,
    /// Tombstones that were deleted.
    pub collected: u32,
}

/// Ages the flows of a switch.
pub struct Agent<'a> {
    switch: &'a Switch,
    walks: Walks<'a>,
    leases: Arc<Leases>,
    frontends: Frontends,
    resetter: Resetter,
}

impl<'a> Agent<'a> {
    /// An agent of `switch`. One is enough; more do no harm. It learns from `leases` which
    /// owners have ended, and which frontends of the services get new connections.
    ///
    /// # Errors
    /// [`KernelError`] if the present frontends cannot be read.
    pub fn new(
        switch: &'a Switch,
        leases: Arc<Leases>,
        services: &[ServiceConfig],
    ) -> Result<Self, KernelError> {
        let listed = tables::with_present_frontends(&switch.skel.maps, services)
            .map_err(kernel("read the frontends"))?;
        Ok(Self {
            switch,
            walks: Walks::new(switch),
            leases,
            frontends: Frontends::new(services, &listed, Instant::now()),
            resetter: Resetter::default(),
        })
    }

    /// The place for the numbers of flows, which each of this agent's walks renews.
    #[must_use]
    pub fn census(&self) -> Arc<LastCensus> {
        self.walks.census.clone()
    }

    /// As [`Switch::update_tables`], but new connections still go to living frontends only.
    pub fn update_tables(&mut self, config: &SwitchConfig) -> Result<(), LoadError> {
        let mut tables = config.clone();
        tables.services = self.frontends.replace(&config.services);
        self.switch.update_tables(&tables)
    }

    /// Takes a step each second until `stop` is set. It takes fewer if the table is so large
    /// that steps would need more than a twentieth of a CPU. It calls `stepped` after each.
    ///
    /// # Errors
    /// [`KernelError`]. The agent can be run again.
    pub fn run(&mut self, stop: &AtomicBool, mut stepped: impl FnMut()) -> Result<(), KernelError> {
        while !stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            let aged = self.step(start)?;
            stepped();
            if aged != Aged::default() {
                tracing::debug!(?aged, "aged flows");
            }
            let until = start + PERIOD.max(start.elapsed() * MAX_SHARE);
            while Instant::now() < until && !stop.load(Ordering::Relaxed) {
                if self.note_changes(Instant::now())? {
                    break;
                }
                self.leases.wait_for_news(SLICE);
            }
        }
        Ok(())
    }

    /// Tells the programs which runs have ended or returned, and which frontends get new
    /// connections. Returns whether a run has changed.
    fn note_changes(&mut self, now: Instant) -> Result<bool, KernelError> {
        let maps = &self.switch.skel.maps;
        let changes = self.leases.take_changes(now);
        for change in &changes {
            runs::note(maps, change).map_err(kernel("note a run"))?;
            if let Change::Ended { node, run, end } = change {
                tracing::info!(%node, run = run.0, ?end, "a run of a node has ended");
            }
        }
        let alive = self.leases.alive();
        self.frontends
            .update(maps, &alive, now)
            .map_err(kernel("change the frontends"))?;
        self.leases.answer_all(&alive, |node, since| {
            let since = now.saturating_duration_since(since);
            self.frontends.new_clients_of(node, &alive, since)
        });
        Ok(!changes.is_empty())
    }

    /// Takes one bounded step at `now`: ends idle flows, and deletes old tombstones. The next
    /// step continues where this one stopped.
    ///
    /// # Errors
    /// [`KernelError`]. The step can be repeated.
    pub fn step(&mut self, now: Instant) -> Result<Aged, KernelError> {
        let mut aged = Aged::default();
        self.note_changes(now)?;
        let due = self.walks.next_orders()?;
        let mut doomed = Vec::new();
        for orders in due.chunks(MAX_ORDERS) {
            for order in carry_out(self.switch, orders)? {
                match kind(&order) {
                    types::order_kind::ORDER_EXPIRE => aged.expired += 1,
                    types::order_kind::ORDER_RESET => {
                        aged.expired += 1;
                        aged.reset += 1;
                        self.resetter.reset(&flow(&order), next_seq(&order));
                    }
                    types::order_kind::ORDER_DOOM => doomed.push(key(&order)),
                    _ => {}
                }
            }
        }
        aged.collected = self.delete(&doomed)?;
        Ok(aged)
    }

    /// Deletes doomed entries as soon as no program can be using them.
    fn delete(&self, doomed: &[[u8; FLOW_KEY_BYTES]]) -> Result<u32, KernelError> {
        if doomed.is_empty() {
            return Ok(0);
        }
        self.wait_for_programs()?;
        let mut deleted = 0;
        for key in doomed {
            match self.switch.skel.maps.flows.delete(key) {
                Ok(()) => deleted += 1,
                // Another agent has deleted it.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(kernel("delete a flow")(e)),
            }
        }
        Ok(deleted)
    }

    /// Waits until every program that is running now has ended, as the kernel does when user
    /// space changes a map of maps.
    fn wait_for_programs(&self) -> Result<(), KernelError> {
        let maps = &self.switch.skel.maps;
        let inner = MapHandle::try_from(&maps.grace_inner).map_err(kernel("wait for programs"))?;
        let fd = inner.as_fd().as_raw_fd().to_ne_bytes();
        let replaced = maps.grace.update(&[0; 4], &fd, MapFlags::ANY);
        replaced.map_err(kernel("wait for programs"))
    }
}

fn key(order: &Order) -> [u8; FLOW_KEY_BYTES] {
    array_at(order, offset_of!(types::order, key))
}

fn flow(order: &Order) -> FlowKey {
    read_flow_key(&key(order))
}

/// The sequence number that the client of a flow expects next, if it is known.
fn next_seq(order: &Order) -> Option<u32> {
    let word = |at| u32::from_ne_bytes(array_at(order, at));
    let known = word(offset_of!(types::order, has_next_seq)) != 0;
    known.then(|| word(offset_of!(types::order, next_seq)))
}
