//! Counters of one process, over all its workers.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one process. Each only grows, except the gauges.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Count,)*
        }

        impl Counters {
            /// Every counter by name, and restarts of the process's tasks
            /// ([`crate::supervise`]).
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![
                    $((stringify!($name), self.$name.read()),)*
                    ("tasks_restarted", crate::supervise::restarts()),
                ]
            }
        }
    };
}

counters! {
    /// Client connections accepted here.
    accepted,
    /// Client connections open here now (gauge).
    connections_open,
    /// Connections that arrived by hand-off.
    imported,
    /// Hand-offs that arrived and were passed on to another node.
    passed_on,
    /// Hand-offs that arrived and were refused.
    imports_refused,
    /// Hand-offs begun here.
    exports_started,
    /// Hand-offs that the target took.
    exports_moved,
    /// Hand-offs after which the connection stayed here.
    exports_kept,
    /// Kept because the switch was out of reach.
    kept_switch_silent,
    /// Kept because the switch refused a command.
    kept_switch_refused,
    /// Kept because the kernel did not save the socket.
    kept_save_failed,
    /// Kept because the target refused.
    kept_target_refused,
    /// Kept because the target was out of reach.
    kept_target_silent,
    /// Kept because the connection had moved too often since its client's last answer.
    kept_moved_too_often,
    /// Connections that ended in a hand-off because no host could own them.
    exports_lost,
    /// Connections that left here in a hand-off whose outcome is unknown. The target may have them.
    exports_unknown,
    /// Frames from nodes that could not be decoded.
    frames_malformed,
    /// Verdicts that no hand-off waited for.
    verdicts_unexpected,
    /// Connections to the node port that were not from a node of this cluster.
    peers_refused,
    /// Times that a peer became suspect.
    peers_suspected,
    /// Flows released at the switch after their sockets were destroyed.
    flows_released,
    /// Releases that the switch did not confirm (it ages the entry out).
    releases_failed,
    /// Releases that wait for the switch, or for other releases (gauge).
    releases_waiting,
    /// Flows whose socket is closed and not yet destroyed (gauge).
    flows_closing,
    /// Accepted connections dropped because the limit was reached.
    connections_over_limit,
    /// Connections on which no request has been admitted yet (gauge).
    unauthenticated_open,
    /// Unauthenticated connections that were closed to make room for others.
    unauthenticated_evicted,
    /// Connections dropped because their address had too many unauthenticated ones.
    address_over_limit,
    /// TLS sessions begun here.
    tls_handshakes,
    /// TLS sessions that a ticket has resumed.
    tls_resumed,
    /// TLS handshakes that failed.
    tls_failed,
    /// Sockets for which the kernel got the key of a TLS session.
    tls_kernel_begun,
    /// Bodies whose TLS records the kernel made.
    tls_kernel_bodies,
    /// Sockets that were replaced because the kernel's key had to change.
    tls_kernel_left,
    /// Times that the freezer was found not to work, and was repaired.
    freezer_renewed,
    /// Workers that know the switch's clock, and can hand off (gauge).
    workers_steering,
    /// Workers that hold a lease at the switch's agent (gauge).
    workers_leased,
    /// The switch's agent has said that most nodes place objects differently (gauge: 1).
    placement_differs,
    /// Commands to the switch.
    control_commands,
    /// Datagrams to the switch that were sent again.
    control_retransmissions,
    /// Commands that the switch did not answer in time.
    control_unanswered,
    /// Datagrams from the switch's address that were no authentic answer.
    control_refused,
}

/// One counter.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// A counter at 0.
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds one.
    pub fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Subtracts one, from a gauge.
    pub fn sub_one(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Sets a gauge, and returns its old value.
    pub(crate) fn replace(&self, value: u64) -> u64 {
        self.0.swap(value, Ordering::Relaxed)
    }

    /// The value now.
    pub fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
