//! A node's counters of requests. Connections and hand-offs are counted in
//! `prism-handoff`.

use prism_handoff::Count;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one node's requests.
        #[derive(Debug, Default)]
        pub struct RequestCounters {
            $($(#[$doc])* pub $name: Count,)*
        }

        impl RequestCounters {
            /// Every counter by name.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.read()),)*]
            }
        }
    };
}

counters! {
    /// Request heads read from clients here.
    requests,
    /// Requests answered from this node's store, directly to the client.
    served_direct,
    /// Requests answered from this node's store, through another node.
    served_relayed,
    /// Requests relayed to another node.
    relayed,
    /// Requests relayed in the hope of a short answer, which was too long.
    asked_in_vain,
    /// Requests refused for their form.
    malformed,
    /// Requests refused for a wrong or missing signature.
    unauthenticated,
    /// Requests that ended with an answer of 500 or above.
    failed,
    /// Changes prepared for other nodes, the primaries of their keys.
    prepared,
    /// Object bytes sent directly to clients.
    bytes_out,
    /// Object bytes received directly from clients.
    bytes_in,
}
