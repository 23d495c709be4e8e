//! The parameters of one kind of simulated run.

use prism_proto::export::SETTLE_DEADLINE_NS;
use prism_proto::fence::Fence;
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
    /// The arbiter resets a client whose connection another frontend may have accepted. Host mode.
    UnclaimedReset,
    /// A SYN goes by the list of frontends, also if another frontend has just accepted one.
    SynForgetsFrontend,
    /// Connections go by the list of frontends for as long as they are at one.
    NobodyClaims,
    /// A change of the list of frontends is one for connections that are open, too.
    ListChangesAtOnce,
    /// An announcement outranks what the table has.
    AnnouncementsWin,
    /// A term is settled when it begins.
    SettlesAtOnce,
    /// A young switch decides.
    YoungDecides,
    /// A copy counts as announced.
    CopiesCount,
    /// A standby decides.
    StandbyDecides,
    /// A switch takes a term from one node.
    OneNodeIsBelieved,
    /// A node takes answers of former terms.
    OldAnswersCount,
    /// A young switch sends packets of unknown flows to frontends, and resets pass.
    NoDropWhileYoung,
    /// In a young term any packet after a SYN is one of a new connection.
    AnyPacketOpens,
    /// A frontend does not announce connections that it has not claimed.
    UnclaimedWait,
    /// A target's socket acknowledges before the arbiter has answered. Host mode, as all below.
    TargetIsHeard,
    /// A target without an answer goes live.
    TargetIsLiveUnanswered,
    /// A target that has given up leaves its flow at the arbiter.
    RemainsStay,
    /// A source goes live when its target has refused, as with a switch.
    RefusedIsEnough,
    /// A source without a verdict takes the flow back in a later term.
    DoubtOutlivesTerm,
    /// A source sends while its target works.
    FrozenSends,
    /// A host without the socket resets a client whose packets it gets.
    StrangersReset,
    /// An arbiter does not wait for the node on the host of the one before.
    AbsentAtOnce,
    /// A frontend that is not the arbiter gives packets to a socket that says nothing.
    MuteSocketsTake,
}

/// Rates are probabilities from 0 to 1; times are nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) fence: Fence,
    pub(crate) seeds: u64,
    pub(crate) hosts: usize,
    pub(crate) clients: usize,
    /// A control datagram is lost; doubled; delayed: each at this rate.
    pub(crate) control_faults: f64,
    pub(crate) max_delay_ns: u64,
    /// Losses of the switch and outages begin no earlier.
    pub(crate) peace_ns: u64,
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
    /// They also meet connections whose flow has only the tombstone of an earlier one.
    pub(crate) forges_after_release: bool,
    /// The number of times that a frontend leaves the list for new connections and comes back.
    pub(crate) list_changes: usize,
    /// Host mode: clients are spread over the frontends, which all accept. A change of the list
    /// sends connections to another frontend.
    pub(crate) is_spread: bool,
    /// Clients pause for up to this long before a request.
    pub(crate) max_pause_ns: u64,
    pub(crate) max_flows: usize,
    /// The number of times that the switch loses its table, or another takes over. With 0 the
    /// switch has no terms.
    pub(crate) losses: usize,
    /// A command triggers a loss at this rate.
    pub(crate) strikes: f64,
    /// The number of times that the key of one more node tells a term that no switch has made.
    pub(crate) term_lies: usize,
    /// A second switch, with copies of confirmed flows.
    pub(crate) has_standby: bool,
    /// The channels of the hosts lead through the switch, and break with it.
    pub(crate) breaks_channels: bool,
    /// A new term begins this long after a loss at most.
    pub(crate) max_boot_ns: u64,
    /// The clocks of switches differ by this much, and jump by it.
    pub(crate) max_clock_jump_ns: u64,
    pub(crate) mutation: Mutation,
}

impl Scenario {
    /// Nothing goes wrong.
    pub(crate) const CALM: Self = Self {
        name: "calm",
        fence: Fence::Switch,
        seeds: 500,
        hosts: 4,
        clients: 3,
        control_faults: 0.0,
        max_delay_ns: 5 * MS,
        peace_ns: 0,
        min_outage_ns: 0,
        max_outage_ns: 0,
        data_loss: 0.0,
        channel_breaks: 0,
        crashes: 0,
        leaves: 0,
        refusals: 0.0,
        aborts: false,
        forged_syns: 0,
        forges_after_release: false,
        list_changes: 0,
        is_spread: false,
        max_pause_ns: 0,
        max_flows: 1000,
        losses: 0,
        strikes: 0.0,
        term_lies: 0,
        has_standby: false,
        breaks_channels: false,
        max_boot_ns: 0,
        max_clock_jump_ns: 0,
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
    /// SYNs are forged all the time, also while a frontend accepts the client's next connection.
    pub(crate) const FORGERIES: Self = Self {
        name: "forgeries",
        forged_syns: 60,
        forges_after_release: true,
        ..Self::STORMY
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
    /// The switch reboots, at any moment and in the middle of any step.
    pub(crate) const REBOOTS: Self = Self {
        name: "reboots",
        losses: 2,
        strikes: 0.03,
        max_boot_ns: 1500 * MS,
        max_pause_ns: 100 * MS,
        ..Self::LOSSY
    };
    /// Another switch takes over, and both may decide for a moment.
    pub(crate) const TAKEOVERS: Self = Self {
        name: "takeovers",
        losses: 3,
        has_standby: true,
        max_boot_ns: 100 * MS,
        ..Self::REBOOTS
    };
    /// The same with clocks that are hours apart and jump. Clients close what they opened: the
    /// epoch of a connection that reuses the ports of a silent one is a time by the switch's clock.
    pub(crate) const CLOCKS: Self = Self {
        name: "clocks",
        aborts: false,
        max_clock_jump_ns: 3_600_000 * MS,
        ..Self::TAKEOVERS
    };
    /// Hosts are out of the switch's reach meanwhile.
    pub(crate) const LOST_REACH: Self = Self {
        name: "lost reach",
        max_outage_ns: 5000 * MS,
        ..Self::TAKEOVERS
    };
    /// The key of one node tells terms that no switch has made, at any moment.
    pub(crate) const LIES: Self = Self {
        name: "lies",
        term_lies: 12,
        ..Self::TAKEOVERS
    };
    /// Hosts die meanwhile.
    pub(crate) const YOUNG_DEATHS: Self = Self {
        name: "young deaths",
        crashes: 4,
        ..Self::TAKEOVERS
    };
    /// The switch fails in the middle of most steps and breaks channels, its answers are late, and
    /// some hosts hear of nothing for seconds.
    pub(crate) const STRIKES: Self = Self {
        name: "strikes",
        losses: 5,
        strikes: 0.3,
        max_boot_ns: 20 * MS,
        control_faults: 0.3,
        max_delay_ns: 100 * MS,
        max_outage_ns: 4000 * MS,
        breaks_channels: true,
        ..Self::REBOOTS
    };
    /// Host mode: as [`Self::WORST`], and answers do not pass the arbiter.
    pub(crate) const HOST_WORST: Self = Self {
        name: "host mode, worst",
        fence: Fence::Host,
        ..Self::WORST
    };
    /// Host mode: hosts die meanwhile, also sources whose targets have given up.
    pub(crate) const HOST_CRASHES: Self = Self {
        name: "host mode, crashes",
        crashes: 4,
        ..Self::HOST_WORST
    };
    /// Host mode: a frontend with the service's address dies, and another one takes over with a
    /// table of copies.
    pub(crate) const HOST_TAKEOVERS: Self = Self {
        name: "host mode, takeovers",
        fence: Fence::Host,
        crashes: 2,
        ..Self::TAKEOVERS
    };
    /// Host mode: the arbiter fails in the middle of steps, without copies. Hosts are out of its
    /// successor's reach for longer than a term is young, but not out of reach of clients.
    pub(crate) const HOST_ISOLATED: Self = Self {
        name: "host mode, isolated",
        fence: Fence::Host,
        losses: 1,
        strikes: 0.3,
        breaks_channels: true,
        peace_ns: 1500 * MS,
        max_pause_ns: 1000 * MS,
        min_outage_ns: 11_000 * MS,
        max_outage_ns: 16_000 * MS,
        ..Self::REBOOTS
    };
    /// Host mode: all frontends accept, connections' packets change to another one, and another
    /// arbiter takes over. Clients close what they opened: a frontend that does not know the flow
    /// of a silent connection opens another one on its ports.
    pub(crate) const HOST_SPREAD: Self = Self {
        name: "host mode, spread",
        fence: Fence::Host,
        is_spread: true,
        aborts: false,
        list_changes: 5,
        max_pause_ns: 1500 * MS,
        ..Self::TAKEOVERS
    };
    /// Frontends come and go meanwhile, so that few connections are at the frontend of their hash.
    /// Clients close what they opened: a frontend that opens a connection on the ports of a silent
    /// one announces it only when the handshake is over.
    pub(crate) const YOUNG_LISTS: Self = Self {
        name: "young lists",
        losses: 6,
        list_changes: 4,
        aborts: false,
        max_pause_ns: 1500 * MS,
        ..Self::TAKEOVERS
    };
}
