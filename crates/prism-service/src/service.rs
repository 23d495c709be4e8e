//! What a service implements.

use std::io;

use prism_http::{BodyError, Exchange, HeadError, Headers, Limits, RequestHead};
use prism_proto::verified::Verified;

use crate::{Io, Request};

/// Which nodes answer a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// This node.
    Here,
    /// The first of these nodes, to the client itself; or through this one, the
    /// first that is in reach.
    HandOff(Vec<String>),
    /// The first of these nodes that is in reach, through this one.
    Relay(Vec<String>),
}

/// Why the connection refuses a request. The service says it in its own words.
#[derive(Debug)]
pub enum Fault {
    /// The head is malformed.
    Head(HeadError),
    /// The body is malformed.
    Body(BodyError),
    /// The rest of the head did not come in time.
    TimedOut,
    /// The nodes that were asked say that others answer this.
    Elsewhere,
    /// No node that answers this is in reach.
    OutOfReach,
    /// This node's configuration places requests differently from most nodes'.
    Differs,
}

/// What a GET reads, for the forecast of its answer's length.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'r> {
    /// What it belongs to: a new object is taken to be like others of its group.
    pub group: &'r str,
    /// Its name in the group.
    pub name: &'r str,
}

/// A service of which several nodes answer requests.
///
/// Every node that holds a client's connection asks it the same questions in the same order:
/// understand, admit, begin, route; then the gateway hands the connection off, relays the
/// request, or has the service serve it.
pub trait Service: 'static {
    /// What the service understands of a request.
    type Meaning;
    /// Why it refuses one.
    type Error: std::fmt::Display;
    /// Held while a request that changes something is placed and answered.
    type Change<'s>;

    /// Longest description, in bytes, that may precede the body of another node's own request.
    const NODE_HEADER_BYTES: u64;

    /// Limits of requests.
    fn limits(&self) -> &Limits;

    /// Who is calling, what is wanted, and whether that is allowed. `verified`: another node
    /// has verified the caller. May put another head in the place of `head`.
    ///
    /// # Errors
    /// Where the request makes no sense or is forbidden.
    fn understand(
        &self,
        head: &mut RequestHead,
        verified: Option<Verified>,
    ) -> Result<Self::Meaning, Self::Error>;

    /// Whether a client's request may be answered: what takes other nodes to find out.
    async fn admit(&self, request: &mut Request<Self::Meaning>) -> Result<(), Self::Error>;

    /// Before a request is routed: a change waits here while the cluster takes a step.
    async fn begin(&self, meaning: &Self::Meaning) -> Option<Self::Change<'_>>;

    /// Which nodes answer a request. The one place where that is decided.
    fn route(&self, meaning: &Self::Meaning) -> Route;

    /// Whether this node must not answer a request that another one has relayed to it.
    fn is_elsewhere(&self, meaning: &Self::Meaning) -> bool;

    /// Whether the client's connection may stay here behind the answer.
    fn may_stay(&self, meaning: &Self::Meaning) -> bool;

    /// The number of the cluster's present state, by which [`Self::route`] decides.
    fn epoch(&self) -> u64;

    /// Waits for a state after `epoch`. `was_sent_elsewhere`: another node has one already.
    async fn has_moved_on(&self, epoch: u64, was_sent_elsewhere: bool) -> bool;

    /// What was verified, for the node that answers the request.
    fn vouch(&self, meaning: &Self::Meaning) -> Verified;

    /// What a request reads, where its answer may be short.
    fn subject<'m>(&self, meaning: &'m Self::Meaning) -> Option<Subject<'m>>;

    /// Answers a request here. Says whether the connection lives on.
    ///
    /// # Errors
    /// Those of the connection.
    async fn serve(
        &self,
        io: &mut impl Io,
        request: &Request<Self::Meaning>,
        exchange: &Exchange<'_>,
    ) -> io::Result<bool>;

    /// Answers another node's own request that changes or asks something.
    ///
    /// # Errors
    /// Those of the connection.
    async fn serve_node(
        &self,
        io: &mut impl Io,
        head: &RequestHead,
        peer: &str,
        exchange: &Exchange<'_>,
    ) -> io::Result<bool>;

    /// Header fields of every answer to a request, errors included.
    async fn extra_fields(&self, head: &RequestHead) -> Option<Headers>;

    /// The error that stands for a fault of the connection or of other nodes.
    fn error_for(&self, fault: Fault) -> Self::Error;

    /// The status code of an error, and whether it is this system's own fault.
    fn status_of(&self, error: &Self::Error) -> (u16, bool);

    /// Sends an error about the resource `path`. Says whether the connection lives on.
    ///
    /// # Errors
    /// Those of the connection.
    async fn send_error(
        &self,
        io: &mut impl Io,
        exchange: &Exchange<'_>,
        error: &Self::Error,
        path: &str,
    ) -> io::Result<bool>;
}
