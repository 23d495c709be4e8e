//! The cluster's private certificate authorities, which say who is a node.
//!
//! Nodes speak mutual TLS 1.3 only. A node is known by the one configured name that its certificate
//! is valid for. [`init`], [`issue`], [`new_authority`] and [`drop_authority`] make the files;
//! an [`Identity`] is what a node uses of them. [`https_client`] is for servers outside the cluster.
//! Not here: TLS with clients, and the protocols that nodes speak over TLS.
#![forbid(unsafe_code)]

mod authority;
mod bundle;
mod certificate;
mod client;
mod error;
mod files;
mod identity;
mod names;
#[cfg(test)]
mod pki_tests;
mod term;

pub use authority::{Founding, Issuing, found, init, issue, new_authority};
pub use bundle::drop_authority;
pub use certificate::{Certificate, date, now_s};
pub use client::https_client;
pub use error::PkiError;
pub use identity::{Identity, LoadCounts, LoadedIdentity};
pub use names::{node_name, peer_name};
pub use term::{Dated, Term};
