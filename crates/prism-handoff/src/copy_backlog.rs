//! The flows of a worker that the standby of a pair of switches does not have yet, as
//! `prism_proto::copy` keeps them for each host of the pair.
//!
//! Not here: the way to the hosts (`copies`).

use std::cell::{Cell, RefCell};

use prism_proto::control::FlowKey;
use prism_proto::copy::Copier;
use prism_proto::registry::Registry;
use tokio::sync::Notify;

use crate::counters::Counters;

/// The copies that are to be made of one worker's flows.
#[derive(Debug, Default)]
pub(crate) struct CopyBacklog {
    /// For each host of the pair.
    pub(crate) hosts: Vec<HostBacklog>,
    /// The part of this worker in the gauge.
    lag: Cell<u64>,
}

/// The copies that are to be made for one host.
#[derive(Debug, Default)]
pub(crate) struct HostBacklog {
    pub(crate) copier: RefCell<Copier>,
    pub(crate) changed: Notify,
}

impl CopyBacklog {
    pub(crate) fn new(hosts: usize) -> Self {
        let hosts = std::iter::repeat_with(HostBacklog::default).take(hosts);
        Self {
            hosts: hosts.collect(),
            lag: Cell::new(0),
        }
    }

    /// The registry has a new state of `flow`.
    pub(crate) fn touch(&self, flow: FlowKey) {
        self.each(|copier| copier.touch(flow));
    }

    /// The flow has ended, and was released at `epoch`.
    pub(crate) fn release(&self, flow: FlowKey, epoch: u64) {
        self.each(|copier| copier.release(flow, epoch));
    }

    fn each(&self, change: impl Fn(&mut Copier)) {
        for host in &self.hosts {
            let mut copier = host.copier.borrow_mut();
            if copier.has_standby() {
                change(&mut copier);
                host.changed.notify_one();
            }
        }
    }

    /// Counts the flows of `registry` that the standby lacks; without one, all.
    pub(crate) fn count_lag(&self, registry: &Registry, counters: &Counters) {
        let hosts = self.hosts.iter();
        let lag = hosts.map(|host| host.copier.borrow().lag(registry)).min();
        let lag = lag.unwrap_or(0) as u64;
        let former = self.lag.replace(lag);
        let gauge = &counters.flows_uncopied;
        gauge.add(lag.saturating_sub(former));
        gauge.sub(former.saturating_sub(lag));
    }
}
