//! Hands live TCP connections from host to host: accept, read, export to a peer, import,
//! answer. The client sees one ordinary connection. The API follows that of "Prism: Proxies
//! without the Pain" (NSDI 2021, Figure 7).
//!
//! Each worker thread of a process binds an [`Endpoint`]. It yields [`Connection`]s, which a
//! client has opened here or another node has handed over. [`Handle::export`] hands one to
//! another node, with the bytes that were read and not consumed, and with a context for the
//! application there. A connection that cannot move comes back, and works as before.
//!
//! # Example
//! A node greets one client. It knows no switch, so the connection stays:
//!
//! ```
//! use std::io::{Read, Write};
//! use std::net::{Ipv4Addr, TcpListener, TcpStream};
//! use std::sync::Arc;
//!
//! use prism_handoff::pki::{self, Identity};
//! use prism_handoff::{Endpoint, EndpointConfig, Exported, Incoming, Kept, Peer, Process};
//!
//! # fn free_port() -> std::io::Result<u16> {
//! #     Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
//! # }
//! # fn main() -> anyhow::Result<()> {
//! let dir = tempfile::tempdir()?;
//! pki::init(dir.path(), &["left".into(), "right".into()])?;
//! let peer = |name: &str, host| Peer { name: name.into(), addresses: vec![[127, 0, 0,
//! host].into()] }; let nodes = [peer("left", 1), peer("right", 2)]; let service =
//! (Ipv4Addr::LOCALHOST, free_port()?).into(); let identity = Identity::of_node(dir.path(),
//! "left")?; let mut config = EndpointConfig::new("left", &nodes, &[service], identity).expect("a
//! node"); config.listen = true; config.peer_port = free_port()?;
//!
//! let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! tokio::task::LocalSet::new().block_on(&runtime, async {
//!     let mut endpoint = Endpoint::bind(config, Arc::new(Process::default())).await?;
//!     let mut client = TcpStream::connect(service)?;
//!     client.write_all(b"anna\n")?;
//!     let Some(Incoming::Client(mut connection)) = endpoint.next().await else {
//!         anyhow::bail!("no client");
//!     };
//!     connection.fill().await?;
//!     // "anna" would be read by the other node.
//!     let exported = endpoint.handle().export(connection, "right", b"context").await;
//!     let Exported::Kept { mut connection, reason: Kept::SwitchSilent } = exported else {
//!         anyhow::bail!("not kept");
//!     };
//!     let name = connection.buffered().to_vec();
//!     connection.consume(name.len());
//!     connection.write_all(&[b"hello ", &name[..]].concat()).await?;
//!     let mut answer = [0; 11];
//!     client.read_exact(&mut answer)?;
//!     assert_eq!(&answer, b"hello anna\n");
//!     Ok(())
//! })
//! # }
//! ```
//!
//! `tools/kv` is a whole program. `prism-handoff-c` has the same interface for C.
//!
//! # Interface
//! | task | items |
//! |---|---|
//! | begin | [`EndpointConfig`], [`Peer`], [`SwitchAddress`], [`Endpoint::bind`] |
//! | accept, import | [`Endpoint::next`]; [`Connection::context`] is empty for an accepted client |
//! | read | [`Connection::fill`], [`Connection::buffered`], [`Connection::consume`] |
//! | write | [`Connection::write_all`], [`Connection::write_more`], [`Connection::send_file`] |
//! | export | [`Handle::export`], which ends as [`Exported`] |
//! | relay | [`Handle::relay`], [`RelayStream`], [`RelayStep`], [`Incoming::Relay`] |
//! | end | [`Connection::close`], [`Handle::leave`], [`Handle::stop`] |
//!
//! The modules have what fewer programs need. Items that the documentation leaves out serve
//! the programs of this workspace, and may change.
//!
//! # Limits
//! - Linux 6.1 or later. Hand-offs need `CAP_NET_ADMIN`. A node that freezes sockets
//!   also needs `CAP_BPF` and control groups of version 2; otherwise the switch blocks flows.
//! - The packets of all connections pass a switch (`prism-switch`), to which every node
//!   speaks. Without a switch no connection moves.
//! - A connection moves in the states ESTABLISHED and CLOSE-WAIT, with at most 8 MiB in each
//!   queue, 512 KiB of unread input and 4 KiB of context.
//! - An endpoint and its connections belong to one thread and run within a
//!   [`LocalSet`](tokio::task::LocalSet).
//! - A connection counts as a newcomer for at most 30 s ([`NewcomerLimits`]); the application
//!   ends that by [`Connection::caller_is_known`].
//! - Clients speak plain TCP, or TLS by `prism-tls` ([`TlsService`]).
//!
//! Not here: HTTP, objects, placement, and the switch itself.
#![forbid(unsafe_code)]

// The modules are layers, and each uses only those below it. From the top:
//
// | layer | modules |
// |---|---|
// | a worker | `endpoint`, which starts its tasks; `leaving`, `passing` |
// | its operations | `handle`, `import` |
// | a connection's use | `closing`, `duplex`, `splicing`, `reading`, `writing`, `by_kernel` |
// | its hand-off | `export`, `permits` |
// | other nodes | `peers`, `channel`, `relay_stream`, `node_tls` |
// | a connection | `connection`, `connection_state` |
// | the parts of a worker | `worker` |
// | the switch | `lease`, `copies`, `announcements`, `claims`, `closed_sockets`, `settling` |
// | commands to it | `control` |
// | the flows of a worker | `flows`, `copy_backlog` |
// | the state of a process | `process` and its tables, `config` |

mod announcements;
mod blanks;
mod buffers;
mod by_kernel;
mod channel;
mod claims;
mod client_intake;
mod client_limits;
mod client_tls;
mod closed_sockets;
mod closing;
mod config;
mod connection;
mod connection_state;
mod control;
mod copies;
mod copy_backlog;
#[doc(hidden)]
pub mod cost;
mod counters;
mod deferred;
mod dial;
mod duplex;
mod endpoint;
mod export;
mod first_flight;
mod flows;
mod frozen;
mod given_up;
mod guests;
mod handle;
mod held_flows;
mod identity;
mod import;
mod incoming;
mod input;
mod kernel_tx;
mod lease;
mod leavers;
mod leaving;
mod lifecycle;
mod listeners;
mod moves;
mod newcomers;
mod node_tls;
mod outages;
mod parking;
mod passes;
mod passing;
mod peer_shares;
mod peers;
mod permits;
mod poll;
mod process;
mod proxied;
mod reading;
mod records;
mod relay_stream;
mod settling;
mod signing;
mod silence;
mod splicing;
mod stream;
mod switch_check;
pub mod trace;
mod wait_timer;
mod worker;
mod writing;

pub use client_limits::{ClientBounds, ClientLimits};
pub use config::{EndpointConfig, Peer, TlsService, Transit};
pub use connection::Connection;
pub use connection_state::Companion;
pub use duplex::Moved;
pub use endpoint::Endpoint;
pub use export::Exported;
pub use handle::Handle;
pub use incoming::Incoming;
pub use newcomers::NewcomerLimits;
pub use peers::PeerError;
pub use prism_proto::export::{Kept, Method};
pub use prism_proto::node::Refusal;
pub use process::Process;
pub use relay_stream::{RelayStep, RelayStream};
pub use signing::{SigningKey, SwitchAddress};
pub use splicing::MAX_PIPES;

#[doc(hidden)]
pub use prism_common::{counters, followed, supervise, unguessable};
#[doc(inline)]
pub use prism_pki as pki;

/// Counters, moves and the health of peers.
pub mod observe {
    pub use prism_common::counter::{Count, Figure, tasks_restarted};
    pub use prism_proto::health::Health;

    pub use crate::counters::Counters;
    pub use crate::moves::{Move, Moves};
}

/// One process of a node replaces another one, and takes its listeners and connections.
pub mod succession {
    pub use crate::listeners::Listeners;
    pub use crate::parking::{AdoptError, Parked, Parking};
}

/// The parts of a [`TlsService`].
pub mod tls {
    pub use prism_sys::tcp::ktls::Offered;
    pub use prism_tls::accept::ServerConfig;
}

/// A check whether the switch answers, and the local ports that it needs.
pub mod switch {
    pub use crate::blanks::LOCAL_PORTS;
    pub use crate::switch_check::SwitchCheckError;
}
