//! The eBPF programs, loaded into the kernel: packet in, verdict and packet out.
//!
//! Each group is compiled for both families of addresses. Tests name hosts by four numbers,
//! which are an IPv4 address or the end of an IPv6 one (`common/ipv4.rs`, `common/ipv6.rs`).
#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::duplicate_mod,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test code, compiled for two families"
)]

#[path = "."]
mod ipv4 {
    #[path = "common/mod.rs"]
    pub mod common;
    #[path = "common/ipv4.rs"]
    pub mod family;
}

#[path = "."]
mod ipv6 {
    #[path = "common/mod.rs"]
    pub mod common;
    #[path = "common/ipv6.rs"]
    pub mod family;
}

macro_rules! for_both_families {
    ($($group:ident: $file:literal,)*) => {$(
        #[path = "."]
        mod $group {
            #[path = "."]
            mod ipv4 {
                use crate::ipv4::common;
                #[path = $file]
                mod tests;
            }
            #[path = "."]
            mod ipv6 {
                use crate::ipv6::common;
                #[path = $file]
                mod tests;
            }
        }
    )*};
}

for_both_families! {
    agent_terms: "agent_terms.rs",
    aging: "aging.rs",
    checksums: "checksums.rs",
    closing: "closing.rs",
    contained: "contained.rs",
    control: "control.rs",
    copies: "copies.rs",
    differential: "differential.rs",
    frames: "frames.rs",
    frontends: "frontends.rs",
    host_mode: "host_mode.rs",
    icmp: "icmp.rs",
    network: "network.rs",
    one_key: "one_key.rs",
    steering: "steering.rs",
    syn: "syn.rs",
    tables: "tables.rs",
    terms: "terms.rs",
    tunnels: "tunnels.rs",
    young: "young.rs",
}

#[path = "."]
mod extensions {
    #[path = "."]
    mod ipv6 {
        use crate::ipv6::common;
        #[path = "extensions.rs"]
        mod tests;
    }
}
