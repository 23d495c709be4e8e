//! A node's counters of requests. Connections and hand-offs are counted in
//! `prism-handoff`.

use prism_handoff::Count;

macro_rules! counters {
    ($($name:ident: $doc:literal,)*) => {
        /// Counters of one node's requests.
        #[derive(Debug, Default)]
        pub struct RequestCounters {
            $(#[doc = $doc] pub $name: Count,)*
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
    requests: "Request heads read from clients here.",
    served_direct: "Requests answered from this node's store, directly to the client.",
    served_relayed: "Requests answered from this node's store, through another node.",
    relayed: "Requests relayed to another node.",
    asked_in_vain: "Requests relayed in the hope of a short answer, which was too long.",
    malformed: "Requests refused for their form.",
    unauthenticated: "Requests refused for a wrong or missing signature.",
    failed: "Requests that ended with an answer of 500 or above.",
    prepared: "Changes prepared for other nodes, the primaries of their keys.",
    bytes_out: "Object bytes sent directly to clients.",
    bytes_in: "Object bytes received directly from clients.",
}
