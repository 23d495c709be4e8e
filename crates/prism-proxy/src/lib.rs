//! The proxy engine: a request goes on to a connection, and its answer comes back.
//!
//! Both directions pass at the same time. The connection may lead to a server, or to another node
//! that answers the request; [`ServerStream`] is all that the engine knows of it.
//!
//! | question | file |
//! |---|---|
//! | how is a request sent, and the head of its answer read? | `forward.rs` |
//! | how does the answer go on to the client? | `answer.rs`; after an upgrade: `tunnel.rs` |
//! | which bytes may move now? | `pump.rs` |
//! | what does a relaying node hear of a slow server? | `at_work.rs` |
//!
//! Not here: the choice of a connection, and what follows a failure (`prism-upstream` for servers,
//! `prism-gateway` for other nodes).
#![forbid(unsafe_code)]
#![expect(async_fn_in_trait, reason = "all of it runs on one thread")]

mod answer;
mod at_work;
mod connection;
mod forward;
mod pump;
mod tunnel;

pub use answer::{Answer, DroppedBody, Passed};
pub use at_work::AtWork;
pub use connection::ServerStream;
pub use forward::{AnswerHead, Failure, Fault, Forward, Outgoing};
pub use prism_handoff::RelayStep as Step;
pub use tunnel::{SWITCHING, wanted_protocol};
