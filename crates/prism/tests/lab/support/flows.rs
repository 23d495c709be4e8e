//! The switch's table of flows, as tests see it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use prism_proto::control::{FlowKey, FlowState, Owner};
use prism_switch::{SwitchView, ViewError};

use super::{Cluster, eventually};

/// How long flows may take to go after their clients.
const FLOWS_GONE: Duration = Duration::from_secs(5);
/// How long a take-over by another agent may take.
const ACTIVE_IN: Duration = Duration::from_secs(10);

/// A flow, without the fields that its packets change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    pub flow: FlowKey,
    pub state: FlowState,
    pub epoch: u64,
    pub owner: Owner,
}

impl Cluster {
    /// The switch's tables and counters. In host mode no agent is active while another one takes
    /// over.
    pub fn view(&self) -> SwitchView {
        let mut active = None;
        eventually("a switch is active", ACTIVE_IN, || {
            active = self.lab.active_pin_dir();
            active.is_some()
        });
        SwitchView::open(&active.unwrap()).unwrap()
    }

    /// The same. The tables of a switch of another release cannot be read.
    pub fn try_view(&self) -> Result<SwitchView, ViewError> {
        let active = self.lab.active_pin_dir();
        SwitchView::open(&active.unwrap())
    }

    /// All flows, without tombstones.
    pub fn flows(&self) -> Vec<Known> {
        self.flows_in(&self.view())
    }

    /// All flows of the standby of a pair.
    pub fn flows_of_standby(&self) -> Vec<Known> {
        let active = self.lab.active_switch();
        let standby = self.lab.switches().find(|switch| Some(*switch) != active);
        let view = SwitchView::open(&self.lab.pin_dir(standby.unwrap()));
        self.flows_in(&view.unwrap())
    }

    fn flows_in(&self, view: &SwitchView) -> Vec<Known> {
        let records = view.flows().unwrap().map(Result::unwrap);
        let live = records.filter(|record| record.state != FlowState::Absent);
        let mut flows: Vec<Known> = live
            .map(|record| Known {
                flow: record.flow,
                state: record.state,
                epoch: record.epoch,
                owner: record.owner,
            })
            .collect();
        flows.sort_by_key(|known| known.flow.client);
        flows
    }

    /// The client ports of all flows.
    pub fn flow_ports(&self) -> Vec<u16> {
        let flows = self.flows().into_iter();
        flows.map(|known| known.flow.client.port()).collect()
    }

    /// The flow of one client.
    pub fn flow_of(&self, client: SocketAddr) -> Option<Known> {
        let mut flows = self.flows().into_iter();
        flows.find(|known| known.flow.client == client)
    }

    /// A counter of the switch.
    pub fn switch_count(&self, name: &str) -> u64 {
        let counters = self.view().counters().unwrap();
        let found = counters.iter().find(|counter| counter.name == name);
        found.map(|counter| counter.value).unwrap()
    }

    /// The switch forgets every flow whose client has closed.
    pub fn assert_no_flows(&self) {
        self.assert_flows(&[]);
    }

    /// The same, but for these ports: a connection that the server closed first
    /// keeps its flow until it leaves TIME_WAIT, a minute later.
    pub fn assert_flows(&self, lasting: &[u16]) {
        let left = self.flows_left(lasting);
        assert!(
            left.is_empty(),
            "flows of ports {left:?} are left at the switch"
        );
    }

    /// The ports of flows that last longer than the switch takes to forget them, without
    /// `lasting` ones.
    pub(super) fn flows_left(&self, lasting: &[u16]) -> Vec<u16> {
        let deadline = Instant::now() + FLOWS_GONE;
        loop {
            let mut left = self.flow_ports();
            left.retain(|port| !lasting.contains(port) && !self.left.contains(port));
            if left.is_empty() || Instant::now() > deadline {
                return left;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
