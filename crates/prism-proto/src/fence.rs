//! The means by which a host without a right to a flow is kept from sending on it: a fence.
//!
//! With a switch, the answers to a client pass the arbiter, which drops those of a wrong owner. In
//! host mode they do not. The rule there is the hosts' own:
//!
//! - A socket that was built from a hand-off sends nothing before its host has the arbiter's answer
//!   that it owns the flow.
//! - A source silences its socket before it saves it. Once it has sent the state, it sends nothing
//!   before it has the arbiter's answer that it still owns the flow.
//! - That answer counts only if the arbiter has known the flow since before the state was sent, or
//!   if the target has refused. A successor that was filled without the target's word would not
//!   know that the target owns the flow.
//!
//! While the arbiter is silent, both stay mute until it or its successor answers. After the
//! deadlines of [`crate::export`] the connection is given up.

use crate::export::{ASK_DEADLINE_NS, MAX_SETTLE_ROUNDS, SETTLE_DEADLINE_NS, VERDICT_DEADLINE_NS};
use crate::import::DEAF_NS;

/// The means that silences a wrong owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fence {
    /// The switch: each packet of an owner passes it.
    #[default]
    Switch,
    /// Each host: its sockets stay mute until the arbiter has answered.
    Host,
}

/// The time for which a source whose target has refused asks for the flow, mute.
pub const MUTE_DEADLINE_NS: u64 = (MAX_SETTLE_ROUNDS - 1) * SETTLE_DEADLINE_NS;

// The target's deaf socket takes the client's packets for as long as its source may wait.
const _: () = assert!(
    VERDICT_DEADLINE_NS + SETTLE_DEADLINE_NS + ASK_DEADLINE_NS + MUTE_DEADLINE_NS <= DEAF_NS
);
