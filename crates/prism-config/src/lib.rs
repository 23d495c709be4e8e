//! The configuration file of a Prism cluster.
//!
//! Every host of a cluster reads the same TOML file. A process picks its own part by the
//! name of its node. [`ConfigFile`] is that file as a plain struct. [`ConfigFile::load`] reads
//! and checks it. It reports *all* faults, each with its line, the field, the fault, and how to
//! fix it. [`ConfigFile::parts`] are the [`Config`]s of its services.
//!
//! This crate only reads files. It opens no socket, and reads no environment variable.
#![forbid(unsafe_code)]

#[macro_use]
mod section;

mod acme;
mod addresses;
mod auth;
mod bounds;
mod change;
mod change_shown;
mod check;
mod check_addresses;
mod check_limit;
mod check_redirects;
mod check_request;
mod check_rule;
mod check_services;
mod check_upstream;
mod cluster;
mod control_keys;
mod etcd;
mod explain;
mod limit;
mod load;
mod model;
mod names;
mod networks;
mod parts;
mod patterns;
mod position;
mod problem;
mod redirects;
mod relay;
mod rule;
mod running;
mod secrets;
mod servers_file;
mod service;
mod switch;
mod tls;
mod trace;
mod upstream;
mod warnings;

pub use acme::Acme;
pub use addresses::{ControlAddrs, HostAddrs, MAX_SERVICE_ADDRESSES, ServiceAddrs, family};
pub use auth::ForwardAuth;
pub use bounds::{Limits, Store, seconds};
pub use change::{Change, ConfigReader, Effect, ServiceTable};
pub use cluster::Cluster;
pub use control_keys::{ControlSecret, MAX_SECRETS, NodeKey, with_name, write_private};
pub use etcd::Etcd;
pub use limit::{LimitBy, LimitRate, RequestLimit};
pub use load::ConfigError;
pub use model::{
    AccessLogFormat, Admin, Anonymous, Config, ConfigFile, Durability, Log, LogFormat, Node, Peers,
    Role, S3,
};
pub use names::{UnknownName, admin_sockets};
pub use networks::Networks;
pub use position::FilePosition;
pub use problem::Problem;
pub use redirects::{ObjectRoutes, Redirects, STORE};
pub use relay::RelayUpTo;
pub use rule::{MAX_RULES, Rule};
pub use running::{Running, RunningOfThread};
pub use secrets::{Credential, CredentialFile, SecretBytes, SecretError};
pub use servers_file::{MAX_LISTED_SERVERS, ServerList, ServersFileError};
pub use service::{
    CongestionWindow, HandOffMethod, HandOffMode, MAX_SERVICES, Service, ServiceLimits, Services,
};
pub use switch::{HookMode, Switch, SwitchHost};
pub use tls::{Certificate, KernelTls, Tls, TlsSuite, TlsVersion};
pub use trace::Trace;
pub use upstream::{Balance, HashOf, HealthCheck, MAX_UPSTREAMS, Upstream, Upstreams};
