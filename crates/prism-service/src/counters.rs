//! A node's counters of requests. Connections and hand-offs are counted in
//! `prism-handoff`.

prism_handoff::counters! {
    /// Counters of one node's requests.
    RequestCounters;
    requests: counter "request_heads", "Request heads read from clients here.";
    served_direct: counter "requests_served_direct", "Requests that this node has answered itself, directly to the client.";
    served_relayed: counter "requests_served_relayed", "Requests that this node has answered itself, through another node.";
    relayed: counter "requests_relayed", "Requests relayed to another node.";
    asked_in_vain: counter "requests_relayed_in_vain", "Requests relayed in the hope of a short answer, which was too long.";
    malformed: counter "requests_malformed", "Requests refused for their form.";
    unauthenticated: counter "requests_unauthenticated", "Requests refused for a wrong or missing signature.";
    failed: counter "requests_failed", "Requests that ended with an answer of 500 or above.";
    redirects: counter "redirects_followed", "Answers of servers that were internal redirects, and that this node has followed.";
    redirected_bytes: counter "redirects_sent_bytes", "Bytes of the bodies of answers that redirects have led to, which no redirecting server has sent.";
    prepared: counter "changes_prepared", "Changes prepared for other nodes, the primaries of their keys.";
    bytes_out: counter "object_sent_bytes", "Object bytes sent directly to clients.";
    bytes_in: counter "object_received_bytes", "Object bytes received directly from clients.";
}
