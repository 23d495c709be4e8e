//! What one process counts, over all its workers.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one node; each only grows, except the gauges that say so.
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
    /// Connections that came by hand-off.
    imported,
    /// Hand-offs that came and were passed on to the node they were meant for.
    passed_on,
    /// Hand-offs that came and were refused.
    imports_refused,
    /// Hand-offs begun here.
    exports_started,
    /// Hand-offs that the target took.
    exports_moved,
    /// Hand-offs rolled back: the connection stayed.
    exports_kept,
    /// Of those: the switch was out of reach.
    kept_switch_silent,
    /// Of those: the switch refused the command.
    kept_switch_refused,
    /// Of those: the kernel did not save the socket.
    kept_save_failed,
    /// Of those: the target refused.
    kept_target_refused,
    /// Of those: the target was out of reach.
    kept_target_silent,
    /// Kept because the connection had moved too often since its client's last answer.
    kept_moved_too_often,
    /// Connections given up because no host could own them any more.
    exports_lost,
    /// Connections given up here because nobody could say who has them. The target may,
    /// or it had.
    exports_unknown,
    /// Frames from nodes that made no sense.
    frames_malformed,
    /// Verdicts nobody waited for.
    verdicts_unexpected,
    /// Connections to the node port that were not from a node of this cluster.
    peers_refused,
    /// Times that a peer was found not to answer.
    peers_suspected,
    /// Flows released at the switch after their socket was gone.
    flows_released,
    /// Releases that the switch did not confirm (it ages the entry out).
    releases_failed,
    /// Releases that wait for the switch to answer, or for others to end (gauge).
    releases_waiting,
    /// Flows whose socket is closed and not yet gone (gauge).
    flows_closing,
    /// Accepted connections dropped because the limit was reached.
    connections_over_limit,
    /// Connections on which no request was let in yet (gauge).
    unauthenticated_open,
    /// Unauthenticated connections that were closed to make room for others.
    unauthenticated_evicted,
    /// Connections dropped because their address has too many unauthenticated ones.
    address_over_limit,
    /// TLS sessions begun here.
    tls_handshakes,
    /// Of those: resumed by a ticket.
    tls_resumed,
    /// Handshakes that came to nothing.
    tls_failed,
    /// Sockets whose TLS records the kernel was given to make.
    tls_kernel_begun,
    /// Bodies whose TLS records the kernel made.
    tls_kernel_bodies,
    /// Sockets built again in place, because the kernel had a key that had to change.
    tls_kernel_left,
    /// Times that frozen sockets would have spoken, found out and repaired.
    freezer_renewed,
    /// Workers that know the switch's clock, and so can hand off (gauge).
    workers_steering,
    /// Workers that hold a lease at the switch's agent (gauge).
    workers_leased,
    /// The switch's agent has said that most nodes place objects differently (gauge: 1).
    placement_differs,
    /// Commands to the switch.
    control_commands,
    /// Of their datagrams, those sent again.
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

    /// One more.
    pub fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// `n` more.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// One less, of a gauge.
    pub fn sub_one(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Sets a gauge; its value before.
    pub(crate) fn replace(&self, value: u64) -> u64 {
        self.0.swap(value, Ordering::Relaxed)
    }

    /// The value now.
    pub fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
