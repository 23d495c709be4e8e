//! Aging: what idle, long blocked and released flows leave behind, and the flows
//! of owners that have died, whose clients are reset.
//!
//! Nothing waits for the agent. Without it flows go on, and the table fills up
//! until commands are answered `FULL` and their senders relay.
//!
//! Races are settled by the program `collect` (`bpf/collect.h`): an order holds
//! for a flow as it was seen, or not at all.

use std::io::{self, Read};
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libbpf_rs::{ErrorKind, Iter, Link, MapCore, MapFlags, MapHandle, ProgramInput};

use prism_proto::control::FlowKey;

use crate::config::{ServiceConfig, SwitchConfig};
use crate::error::{AgentError, LoadError};
use crate::frontends::Frontends;
use crate::layout::{FLOW_KEY_BYTES, MAX_ORDERS, ORDER_BYTES, ORDERS_AT, array_at, read_flow_key};
use crate::leases::{Change, Leases};
use crate::load::Switch;
use crate::reset::Resetter;
use crate::runs;
use crate::skel::types;
use crate::tables;

/// Most orders of one step, beside the walk itself: 1 to 2 µs each, 200 ms in all.
const MAX_STEP_ORDERS: usize = 131_072;
/// Time between the starts of two steps.
const PERIOD: Duration = Duration::from_secs(1);
/// Longest time in which news of runs, or the order to stop, goes unnoticed between two steps.
const SLICE: Duration = Duration::from_millis(50);
/// One part in this many of a CPU may go into steps. A walk over 1,000,000 flows
/// takes some 250 ms.
const MAX_SHARE: u32 = 20;

/// What a step did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aged {
    /// Flows that became tombstones, those below included.
    pub expired: u32,
    /// Of those: nobody could own them any more, and the client was told.
    pub reset: u32,
    /// Tombstones deleted.
    pub collected: u32,
}

/// Ages the flows of a switch.
pub struct Agent<'a> {
    switch: &'a Switch,
    flows: Option<Walk>,
    leases: Option<(Arc<Leases>, Frontends)>,
    resetter: Resetter,
}

type Order = [u8; ORDER_BYTES];

impl<'a> Agent<'a> {
    /// An agent of `switch`. One at a time is enough; more do no harm.
    pub fn new(switch: &'a Switch) -> Self {
        Self {
            switch,
            flows: None,
            leases: None,
            resetter: Resetter::default(),
        }
    }

    /// The same, which learns from `leases` whose owners have ended, and which frontends
    /// of the services get new connections.
    ///
    /// # Errors
    /// See [`AgentError`].
    pub fn with_leases(
        mut self,
        leases: Arc<Leases>,
        services: &[ServiceConfig],
    ) -> Result<Self, AgentError> {
        let listed = tables::with_present_frontends(&self.switch.skel.maps, services)
            .map_err(kernel("read the frontends"))?;
        let frontends = Frontends::new(services, &listed, Instant::now());
        self.leases = Some((leases, frontends));
        Ok(self)
    }

    /// As [`Switch::update_tables`]; new connections still go to living frontends only.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn update_tables(&mut self, config: &SwitchConfig) -> Result<(), LoadError> {
        let mut tables = config.clone();
        if let Some((_, frontends)) = &mut self.leases {
            tables.services = frontends.replace(&config.services);
        }
        self.switch.update_tables(&tables)
    }

    /// Steps until `stop` is set: once a second, and less often where the table
    /// is so large that steps would take more than a twentieth of a CPU.
    ///
    /// # Errors
    /// See [`AgentError`]. It can be run again.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<(), AgentError> {
        while !stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            let aged = self.step(start)?;
            if aged != Aged::default() {
                tracing::debug!(?aged, "aged flows");
            }
            let until = start + PERIOD.max(start.elapsed() * MAX_SHARE);
            while Instant::now() < until && !stop.load(Ordering::Relaxed) {
                if self.note_changes(Instant::now())? {
                    break;
                }
                match &self.leases {
                    Some((leases, _)) => leases.wait_for_news(SLICE),
                    None => std::thread::sleep(SLICE),
                }
            }
        }
        Ok(())
    }

    /// Tells the programs which runs have ended, or live after all, and who gets new
    /// connections. True: a run has changed.
    fn note_changes(&mut self, now: Instant) -> Result<bool, AgentError> {
        let Some((leases, frontends)) = &mut self.leases else {
            return Ok(false);
        };
        let changes = leases.take_changes(now);
        for change in &changes {
            runs::note(&self.switch.skel.maps, change).map_err(kernel("note a run"))?;
            if let Change::Ended { node, run, end } = change {
                tracing::info!(%node, run = run.0, ?end, "a run of a node has ended");
            }
        }
        let alive = leases.alive();
        frontends
            .update(&self.switch.skel.maps, &alive, now)
            .map_err(kernel("change the frontends"))?;
        leases.answer_all(&alive, |node, since| {
            frontends.new_clients_of(node, &alive, now.saturating_duration_since(since))
        });
        Ok(!changes.is_empty())
    }

    /// One bounded step at `now`: ends what is idle, deletes what was ended long
    /// ago, and goes on next time where it stopped.
    ///
    /// # Errors
    /// See [`AgentError`]. It can be repeated.
    pub fn step(&mut self, now: Instant) -> Result<Aged, AgentError> {
        let mut aged = Aged::default();
        self.note_changes(now)?;
        let due = take(&mut self.flows, &self.switch.due_flows, MAX_STEP_ORDERS)?;
        let mut doomed = Vec::new();
        for orders in due.chunks(MAX_ORDERS) {
            for order in self.collect(orders)? {
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

    /// Has orders carried out; gives those that were, with their answers.
    fn collect(&self, orders: &[Order]) -> Result<Vec<Order>, AgentError> {
        let mut buffer = vec![0; ORDERS_AT];
        buffer.extend(orders.iter().flatten());
        let mut out = vec![0; buffer.len()];
        let input = ProgramInput {
            data_in: Some(&buffer),
            data_out: Some(&mut out),
            ..Default::default()
        };
        let program = &self.switch.skel.progs.collect;
        program
            .test_run(input)
            .map_err(kernel("carry out orders"))?;
        let answers = out.split_off(ORDERS_AT);
        let at = offset_of!(types::order, done);
        let answers = answers.chunks_exact(ORDER_BYTES);
        let done = answers.filter(|order| array_at::<1>(order, at) == [1]);
        Ok(done.map(|order| array_at(order, 0)).collect())
    }

    /// Deletes doomed entries, once nobody can be using them.
    fn delete(&self, doomed: &[[u8; FLOW_KEY_BYTES]]) -> Result<u32, AgentError> {
        if doomed.is_empty() {
            return Ok(0);
        }
        self.wait_for_programs()?;
        let mut deleted = 0;
        for key in doomed {
            match self.switch.skel.maps.flows.delete(key) {
                Ok(()) => deleted += 1,
                // Another agent was faster.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(kernel("delete a flow")(e)),
            }
        }
        Ok(deleted)
    }

    /// Returns when every program that is running now has ended: the kernel
    /// waits for that when user space changes a map of maps.
    fn wait_for_programs(&self) -> Result<(), AgentError> {
        let maps = &self.switch.skel.maps;
        let inner = MapHandle::try_from(&maps.grace_inner).map_err(kernel("wait for programs"))?;
        let fd = inner.as_fd().as_raw_fd().to_ne_bytes();
        maps.grace
            .update(&0u32.to_ne_bytes(), &fd, MapFlags::ANY)
            .map_err(kernel("wait for programs"))
    }
}

fn kernel(what: &'static str) -> impl Fn(libbpf_rs::Error) -> AgentError {
    move |source| AgentError::Kernel { what, source }
}

fn kind(order: &Order) -> types::order_kind {
    let [kind] = array_at::<1>(order, offset_of!(types::order, kind));
    types::order_kind(kind.into())
}

fn key(order: &Order) -> [u8; FLOW_KEY_BYTES] {
    array_at(order, offset_of!(types::order, key))
}

fn flow(order: &Order) -> FlowKey {
    read_flow_key(&key(order))
}

/// What the client of a flow expects next, where that is known.
fn next_seq(order: &Order) -> Option<u32> {
    let word = |at| u32::from_ne_bytes(array_at(order, at));
    let known = word(offset_of!(types::order, has_next_seq)) != 0;
    known.then(|| word(offset_of!(types::order, next_seq)))
}

/// A walk over a map, as a stream of orders.
struct Walk(io::BufReader<Iter>);

impl Walk {
    fn start(link: &Link) -> Result<Self, AgentError> {
        let iter = Iter::new(link).map_err(kernel("start a walk"))?;
        Ok(Self(io::BufReader::with_capacity(64 * ORDER_BYTES, iter)))
    }

    /// The next order; `None` at the end.
    fn next(&mut self) -> Result<Option<Order>, AgentError> {
        let mut order = [0; ORDER_BYTES];
        match self.0.read_exact(&mut order) {
            Ok(()) => Ok(Some(order)),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(e) => Err(AgentError::Walk(e)),
        }
    }
}

/// Goes on with a walk, or starts one; at most `limit` orders.
fn take(walk: &mut Option<Walk>, link: &Link, limit: usize) -> Result<Vec<Order>, AgentError> {
    let mut current = match walk.take() {
        Some(walk) => walk,
        None => Walk::start(link)?,
    };
    let mut orders = Vec::new();
    while orders.len() < limit {
        match current.next()? {
            Some(order) => orders.push(order),
            None => return Ok(orders),
        }
    }
    *walk = Some(current);
    Ok(orders)
}
