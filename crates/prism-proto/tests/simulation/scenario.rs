//! The parameters of one kind of simulated run.

use prism_proto::export::SETTLE_DEADLINE_NS;
use prism_proto::steering::MAX_SILENT_RETRY_NS;

/// Milliseconds, in nanoseconds.
pub(crate) const MS: u64 = 1_000_000;

/// A rule that is broken on purpose, so that the checks have to find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    None,
    /// The switch applies commands of any epoch.
    SwitchIgnoresEpochs,
    /// The target owns the flow one epoch above the agreed one.
    TargetOutranksSource,
    /// The source goes live without asking the switch, when it hears nothing.
    SourceDoesNotAsk,
    /// The target closes its socket when it gives up.
    TargetClosesAtOnce,
    /// The target gives up what it has acknowledged to the client.
    TargetForgetsWhatItHeard,
    /// A flow whose tombstone is gone takes commands of any epoch.
    TombstonesAreForgotten,
    /// A SYN ends a flow, also a forged one.
    SynEndsFlow,
    /// A host that is about to stop takes connections that it does not wait for.
    LeaverTakes,
    /// Connections go by the list of frontends for as long as they are at one.
    NobodyClaims,
    /// A change of the list of frontends is one for connections that are open, too.
    ListChangesAtOnce,
}

/// Rates are probabilities from 0 to 1; times are nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) seeds: u64,
    pub(crate) hosts: usize,
    pub(crate) clients: usize,
    /// A control datagram is lost; doubled; delayed: each at this rate.
    pub(crate) control_faults: f64,
    pub(crate) max_delay_ns: u64,
    /// The switch is out of each host's reach once, for this long.
    pub(crate) min_outage_ns: u64,
    pub(crate) max_outage_ns: u64,
    /// Packets between client and switch are lost at this rate.
    pub(crate) data_loss: f64,
    pub(crate) channel_breaks: usize,
    pub(crate) crashes: usize,
    /// The number of times that hosts stop in order and come back.
    pub(crate) leaves: usize,
    /// Targets refuse, and restoring and saving fail, each at this rate.
    pub(crate) refusals: f64,
    /// Clients open new connections on the addresses of unfinished ones.
    pub(crate) aborts: bool,
    /// The number of forged SYNs for each client.
    pub(crate) forged_syns: usize,
    /// The number of times that a frontend leaves the list for new connections and comes back.
    pub(crate) list_changes: usize,
    /// Clients pause for up to this long before a request.
    pub(crate) max_pause_ns: u64,
    pub(crate) max_flows: usize,
    pub(crate) mutation: Mutation,
}

impl Scenario {
    /// Nothing goes wrong.
    pub(crate) const CALM: Self = Self {
        name: "calm",
        seeds: 500,
        hosts: 4,
        clients: 3,
        control_faults: 0.0,
        max_delay_ns: 5 * MS,
        min_outage_ns: 0,
        max_outage_ns: 0,
        data_loss: 0.0,
        channel_breaks: 0,
        crashes: 0,
        leaves: 0,
        refusals: 0.0,
        aborts: false,
        forged_syns: 0,
        list_changes: 0,
        max_pause_ns: 0,
        max_flows: 1000,
        mutation: Mutation::None,
    };
    /// A network with loss.
    pub(crate) const LOSSY: Self = Self {
        name: "lossy",
        seeds: 2000,
        control_faults: 0.02,
        data_loss: 0.02,
        refusals: 0.05,
        channel_breaks: 2,
        aborts: true,
        forged_syns: 3,
        ..Self::CALM
    };
    /// A fifth of all control datagrams is lost, doubled, late.
    pub(crate) const STORMY: Self = Self {
        name: "stormy",
        control_faults: 0.2,
        max_delay_ns: 60 * MS,
        data_loss: 0.1,
        refusals: 0.1,
        channel_breaks: 4,
        ..Self::LOSSY
    };
    /// The switch is out of reach for seconds, less than the settle deadline.
    pub(crate) const OUTAGES: Self = Self {
        name: "outages",
        max_outage_ns: 6000 * MS,
        ..Self::LOSSY
    };
    /// The switch is out of reach so long that tombstones go meanwhile; but it is back
    /// before the last time that a target tries to make its socket the owner.
    pub(crate) const ISOLATED: Self = Self {
        name: "isolated",
        min_outage_ns: 5500 * MS,
        max_outage_ns: SETTLE_DEADLINE_NS - MAX_SILENT_RETRY_NS - 100 * MS,
        channel_breaks: 12,
        ..Self::OUTAGES
    };
    /// Frontends come and go, and connections stay for seconds.
    pub(crate) const FRONTENDS: Self = Self {
        name: "frontends",
        list_changes: 5,
        max_pause_ns: 1500 * MS,
        ..Self::LOSSY
    };
    /// Outages together with all else, but crashes.
    pub(crate) const WORST: Self = Self {
        name: "worst",
        max_outage_ns: 5000 * MS,
        ..Self::STORMY
    };
    /// Hosts lose all they have at any moment.
    pub(crate) const CRASHES: Self = Self {
        name: "crashes",
        crashes: 3,
        control_faults: 0.1,
        ..Self::LOSSY
    };
    /// Hosts stop in order.
    pub(crate) const LEAVES: Self = Self {
        name: "leaves",
        leaves: 4,
        ..Self::LOSSY
    };
    /// The switch has room for one flow, and there are three.
    pub(crate) const FULL_TABLE: Self = Self {
        name: "full table",
        max_flows: 1,
        control_faults: 0.1,
        max_delay_ns: 60 * MS,
        ..Self::LOSSY
    };
    /// Answers take longer than the first retransmissions.
    pub(crate) const FAR_SWITCH: Self = Self {
        name: "far switch",
        seeds: 500,
        control_faults: 1.0 / 3.0,
        max_delay_ns: 400 * MS,
        ..Self::LOSSY
    };
}
