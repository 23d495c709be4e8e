//! The figures of a cluster, typed once: the document of its state, the alerts and the health that
//! follow from it, and the page that shows it in a browser.
//!
//! Not here: where the figures come from (nodes and the switch's agent), and metrics.
#![forbid(unsafe_code)]

mod alerts;
mod assets;
mod health;
mod servers;
mod state;

pub use alerts::{Alert, Level, OTHER_STORE, alerts, with_alerts};
pub use assets::asset;
pub use health::ClusterHealth;
pub use state::{
    BackendState, CertificateEnd, ClusterState, DurationTally, EtcdState, LeasedNode,
    MovedConnection, NodeState, OwnedFlows, PacketTally, PeerTally, RelayTally, RequestTally,
    SecretInUse, ServerFault, ServerState, ServiceKeys, State, StepTally, StoreState, SwitchState,
};
