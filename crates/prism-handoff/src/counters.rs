//! Counters of connections and hand-offs.

prism_common::counters! {
    /// Counters of connections and hand-offs of one process.
    Counters;
    accepted: counter "connections_accepted", "Client connections accepted here.";
    connections_open: gauge "connections_open", "Client connections open here now.";
    imported: counter "handoffs" {role: "target", outcome: "moved", reason: ""}, "Connections that arrived by hand-off.";
    passed_on: counter "handoffs" {role: "transit", outcome: "moved", reason: ""}, "Hand-offs that arrived and were passed on to another node.";
    imports_refused: counter "handoffs" {role: "target", outcome: "refused", reason: ""}, "Hand-offs that arrived and were refused.";
    exports_started: counter "handoffs_started", "Hand-offs begun here.";
    exports_moved: counter "handoffs" {role: "source", outcome: "moved", reason: ""}, "Hand-offs that the target took.";
    exports_kept: counter "handoffs_kept", "Hand-offs after which the connection stayed here.";
    kept_switch_silent: counter "handoffs" {role: "source", outcome: "kept", reason: "switch_silent"}, "Kept because the switch was out of reach.";
    kept_switch_refused: counter "handoffs" {role: "source", outcome: "kept", reason: "switch_refused"}, "Kept because the switch refused a command.";
    kept_save_failed: counter "handoffs" {role: "source", outcome: "kept", reason: "save_failed"}, "Kept because the kernel did not save the socket.";
    kept_target_refused: counter "handoffs" {role: "source", outcome: "kept", reason: "target_refused"}, "Kept because the target refused.";
    kept_target_silent: counter "handoffs" {role: "source", outcome: "kept", reason: "target_silent"}, "Kept because the target was out of reach.";
    kept_moved_too_often: counter "handoffs" {role: "source", outcome: "kept", reason: "moved_too_often"}, "Kept because it had moved too often since its client's last answer.";
    exports_lost: counter "handoffs" {role: "source", outcome: "lost", reason: ""}, "Connections that ended in a hand-off because no host could own them.";
    exports_unknown: counter "handoffs" {role: "source", outcome: "unknown", reason: ""}, "Connections that left; whether the target has them is unknown.";
    frames_malformed: counter "frames_malformed", "Frames from nodes that could not be decoded.";
    verdicts_unexpected: counter "verdicts_unexpected", "Verdicts that no hand-off waited for.";
    peers_refused: counter "peers_refused", "Connections to the node port that were not from a node of this cluster.";
    identity_loads: counter "identity_loads", "Times that the node's certificate and the authorities were loaded again.";
    identity_loads_failed: counter "identity_loads_failed", "Times that they could not be used, and the former ones stayed.";
    peers_suspected: counter "peers_suspected", "Times that a peer became suspect.";
    flows_owned: gauge "flows_owned", "Flows that this node announces if the switch loses its table.";
    flows_not_held: counter "flows_not_held", "Flows that this node cannot announce, because it owns too many.";
    flows_announced: counter "flows_announced", "Flows announced to a switch that had begun a term.";
    flows_elsewhere: counter "flows_elsewhere", "Announced flows that another host had: they were moving, or are lost here.";
    flows_copied: counter "flows_copied", "States of flows that were sent to the standby of a pair of switches.";
    flows_uncopied: gauge "flows_uncopied", "Flows of this node that the standby is not known to have.";
    flows_released: counter "flows_released", "Flows released at the switch after their sockets were destroyed.";
    releases_failed: counter "releases_failed", "Releases that the switch did not confirm (it ages the entry out).";
    releases_waiting: gauge "releases_waiting", "Releases that wait for the switch, or for other releases.";
    flows_closing: gauge "flows_closing", "Flows whose socket is closed and not yet destroyed.";
    connections_over_limit: counter "connections_over_limit", "Accepted connections dropped because the limit was reached.";
    unauthenticated_open: gauge "connections_unauthenticated", "Connections on which no request has been admitted yet.";
    unauthenticated_evicted: counter "connections_unauthenticated_evicted", "Unauthenticated connections closed to make room for others.";
    guests_evicted: counter "connections_idle_evicted", "Idle connections of unknown callers closed to make room for others.";
    address_over_limit: counter "connections_over_address_limit", "Connections dropped: too many unauthenticated ones of their address.";
    proxy_headers_refused: counter "proxy_headers_refused", "Connections of trusted proxies that did not begin with a header of the PROXY protocol.";
    tls_handshakes: counter "tls_handshakes", "TLS sessions begun here.";
    tls_resumed: counter "tls_handshakes_resumed", "TLS sessions that a ticket has resumed.";
    tls_failed: counter "tls_handshakes_failed", "TLS handshakes that failed.";
    tls_kernel_begun: counter "tls_kernel_sockets", "Sockets for which the kernel got the key of a TLS session.";
    tls_kernel_bodies: counter "tls_kernel_bodies", "Bodies whose TLS records the kernel made.";
    tls_kernel_left: counter "tls_kernel_sockets_replaced", "Sockets that were replaced because the kernel's key had to change.";
    sockets_renewed: counter "sockets_renewed", "Imported sockets built anew because nothing of their first bytes was acknowledged in time.";
    freezer_renewed: counter "freezer_repairs", "Times that the freezer was found not to work, and was repaired.";
    workers_steering: gauge "workers_steering", "Workers that know the switch's clock, and can hand off.";
    workers_leased: gauge "workers_leased", "Workers that hold a lease at the switch's agent.";
    placement_differs: gauge "placement_differs", "1 if most nodes have another configuration, by the switch's agent.";
    control_commands: counter "control_commands", "Commands to the switch.";
    control_retransmissions: counter "control_retransmissions", "Datagrams to the switch that were sent again.";
    control_unanswered: counter "control_commands_unanswered", "Commands that the switch did not answer in time.";
    control_refused: counter "control_datagrams_refused", "Datagrams from the switch's address that were no authentic answer.";
}
