//! Counters of one process, over all its workers.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($name:ident: $doc:literal,)*) => {
        /// Counters of one process. Each only grows, except the gauges.
        #[derive(Debug, Default)]
        pub struct Counters {
            $(#[doc = $doc] pub $name: Count,)*
        }

        impl Counters {
            /// Every counter by name, and restarts of the process's tasks
            /// ([`crate::supervise`]).
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![
                    $((stringify!($name), self.$name.read()),)*
                    ("tasks_restarted", TASKS_RESTARTED.read()),
                ]
            }
        }
    };
}

counters! {
    accepted: "Client connections accepted here.",
    connections_open: "Client connections open here now (gauge).",
    imported: "Connections that arrived by hand-off.",
    passed_on: "Hand-offs that arrived and were passed on to another node.",
    imports_refused: "Hand-offs that arrived and were refused.",
    exports_started: "Hand-offs begun here.",
    exports_moved: "Hand-offs that the target took.",
    exports_kept: "Hand-offs after which the connection stayed here.",
    kept_switch_silent: "Kept because the switch was out of reach.",
    kept_switch_refused: "Kept because the switch refused a command.",
    kept_save_failed: "Kept because the kernel did not save the socket.",
    kept_target_refused: "Kept because the target refused.",
    kept_target_silent: "Kept because the target was out of reach.",
    kept_moved_too_often: "Kept because it had moved too often since its client's last answer.",
    exports_lost: "Connections that ended in a hand-off because no host could own them.",
    exports_unknown: "Connections that left; whether the target has them is unknown.",
    frames_malformed: "Frames from nodes that could not be decoded.",
    verdicts_unexpected: "Verdicts that no hand-off waited for.",
    peers_refused: "Connections to the node port that were not from a node of this cluster.",
    peers_suspected: "Times that a peer became suspect.",
    flows_released: "Flows released at the switch after their sockets were destroyed.",
    releases_failed: "Releases that the switch did not confirm (it ages the entry out).",
    releases_waiting: "Releases that wait for the switch, or for other releases (gauge).",
    flows_closing: "Flows whose socket is closed and not yet destroyed (gauge).",
    connections_over_limit: "Accepted connections dropped because the limit was reached.",
    unauthenticated_open: "Connections on which no request has been admitted yet (gauge).",
    unauthenticated_evicted: "Unauthenticated connections closed to make room for others.",
    address_over_limit: "Connections dropped: too many unauthenticated ones of their address.",
    tls_handshakes: "TLS sessions begun here.",
    tls_resumed: "TLS sessions that a ticket has resumed.",
    tls_failed: "TLS handshakes that failed.",
    tls_kernel_begun: "Sockets for which the kernel got the key of a TLS session.",
    tls_kernel_bodies: "Bodies whose TLS records the kernel made.",
    tls_kernel_left: "Sockets that were replaced because the kernel's key had to change.",
    freezer_renewed: "Times that the freezer was found not to work, and was repaired.",
    workers_steering: "Workers that know the switch's clock, and can hand off (gauge).",
    workers_leased: "Workers that hold a lease at the switch's agent (gauge).",
    placement_differs: "1 if most nodes place objects differently, by the switch's agent (gauge).",
    control_commands: "Commands to the switch.",
    control_retransmissions: "Datagrams to the switch that were sent again.",
    control_unanswered: "Commands that the switch did not answer in time.",
    control_refused: "Datagrams from the switch's address that were no authentic answer.",
}

/// Restarts of all tasks of the process; some tasks belong to no worker.
pub(crate) static TASKS_RESTARTED: Count = Count(AtomicU64::new(0));

/// One counter.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
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
