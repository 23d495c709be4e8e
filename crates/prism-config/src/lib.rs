//! The one configuration file of a Prism cluster.
//!
//! Every machine of a cluster reads the same TOML file; a process picks its
//! own part by the name of its node. [`Config`] is that file as a plain
//! struct; [`Config::load`] reads and checks it and reports *every* fault it
//! finds, each with the field, what is wrong, and how to mend it.
//!
//! This crate reads files and nothing else: it opens no socket, looks at no
//! environment variable, and does not know what the values are used for.
#![forbid(unsafe_code)]

mod check;
mod cluster;
mod etcd;
mod load;
mod model;
mod relay;
mod secrets;
mod tls;

pub use cluster::Cluster;
pub use etcd::{Endpoint, Etcd, InvalidEndpoint};
pub use load::{ConfigError, Problem};
pub use model::{
    Admin, Anonymous, Config, CongestionWindow, Durability, HandOffMethod, HandOffMode, HookMode,
    Limits, Log, LogFormat, Node, Peers, Role, S3, Service, Store, Switch,
};
pub use relay::{InvalidRelayUpTo, RelayUpTo};
pub use secrets::{ControlKey, Credential, SecretError, TicketSecret};
pub use tls::{Certificate, KernelTls, Tls, TlsSuite, TlsVersion};
