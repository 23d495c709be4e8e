//! The interface that a service implements.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use prism_http::{BodyError, HeadError, Headers, Limits, RequestHead, ResponseHead};
use prism_proto::facts::{ClientFacts, Facts};

use crate::{About, Exchange, Redirected, RequestMut, RequestRef};

/// Which nodes answer a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// This node.
    Here,
    /// The first of these nodes answers the client directly, or the first in reach through this
    /// node.
    HandOff(Vec<String>),
    /// The first of these nodes that is in reach answers, through this node.
    Relay(Vec<String>),
}

/// The reason why the gateway refuses a request. The service turns it into its own error.
#[derive(Debug)]
pub enum Fault {
    /// The head is malformed.
    Head(HeadError),
    /// The body is malformed.
    Body(BodyError),
    /// The rest of the head did not arrive in time.
    TimedOut,
    /// The asked nodes have sent the request back.
    Elsewhere,
    /// No node that may answer is in reach.
    OutOfReach,
    /// This node's configuration places requests differently from most nodes'.
    Differs,
    /// The path can be read in two ways, and a rule of the configuration is for some paths only.
    AmbiguousPath,
    /// Servers' answers redirect the request again and again.
    RedirectLoop,
    /// The request is above a limit of the configuration. It may be admitted after this time in
    /// seconds.
    TooMany(u32),
}

/// The object that a GET reads, for the forecast of its answer's length.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'r> {
    /// The group of the object. A new object is expected to be like others of its group.
    pub group: &'r str,
    /// Its name in the group.
    pub name: &'r str,
    /// Whether the node that answers the request likely answers the connection's next ones too.
    pub is_settling: bool,
}

/// The outcome of a request that was to be answered here.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Served<E> {
    /// Its answer has ended.
    Answered,
    /// Nothing of it was carried out or read, and no byte of an answer was sent. Another node may
    /// answer it; if there is none, the client gets this error.
    Elsewhere(E),
    /// It was carried out, its body was read, and no byte of an answer was sent. The client gets
    /// the resource that this answer of a server names.
    Redirected(Box<ResponseHead>),
}

/// Answers the requests that other nodes send on their own behalf.
pub trait NodeRequests: 'static {
    /// Longest description, in bytes, before the body of such a request.
    const HEADER_BYTES: u64;

    /// Answers a request of the node `peer`, which has sent these facts with it.
    async fn serve_node(
        &self,
        exchange: &mut impl Exchange,
        head: &RequestHead,
        peer: &str,
        facts: &Facts,
    ) -> io::Result<()>;
}

impl<T: NodeRequests> NodeRequests for Rc<T> {
    const HEADER_BYTES: u64 = T::HEADER_BYTES;

    async fn serve_node(
        &self,
        exchange: &mut impl Exchange,
        head: &RequestHead,
        peer: &str,
        facts: &Facts,
    ) -> io::Result<()> {
        T::serve_node(self, exchange, head, peer, facts).await
    }
}

/// The client's connection that a request came on.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    /// The client's address.
    pub address: SocketAddr,
    /// The address that the client has connected to.
    pub service: SocketAddr,
    /// Whether the connection has TLS.
    pub is_tls: bool,
    /// Whether the service keeps something beside it ([`Exchange::companion`]).
    pub has_companion: bool,
    /// Whether a trusted proxy is the other side of the connection, and has said the rest.
    pub is_proxied: bool,
}

impl Remote {
    /// The connection that another node has.
    pub(crate) fn of_relayed(client: ClientFacts) -> Self {
        Self {
            address: client.address,
            service: client.service,
            is_tls: client.is_tls,
            has_companion: false,
            is_proxied: false,
        }
    }
}

/// A service of which several nodes answer requests.
///
/// Every node that has a client's connection calls the service in the same order: understand,
/// admit, hold, route. Then the gateway hands the connection off, relays the request, or has
/// the service serve it.
pub trait Service: 'static {
    /// The meaning of a request.
    type Meaning;
    /// The reason for a refusal.
    type Error: std::fmt::Display;
    /// A guard that is held while a change is routed and answered.
    type Change<'s>;
    /// The part that answers other nodes' own requests.
    type Nodes: NodeRequests;

    /// Limits of requests.
    fn limits(&self) -> &Limits;

    /// Waits until this node knows what the node knew that sent a request with these facts.
    ///
    /// # Errors
    /// It does not in time. It may then act by an older copy of everything, so it answers no
    /// request on that connection.
    async fn hear_of(&self, _facts: &Facts) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Finds the caller and the operation. `verified`: another node has verified the caller, and
    /// has admitted the request. May replace `head`.
    ///
    /// # Errors
    /// The request is malformed, or its signature is not valid.
    fn understand(
        &self,
        head: &mut RequestHead,
        verified: Option<Facts>,
    ) -> Result<Self::Meaning, Self::Error>;

    /// Decides whether a client's request is allowed. Only the node that has the connection does
    /// this, unless another node has admitted the request.
    ///
    /// # Errors
    /// The request is forbidden, or the nodes that know are out of reach.
    async fn admit(
        &self,
        request: RequestMut<'_>,
        meaning: &mut Self::Meaning,
    ) -> Result<(), Self::Error>;

    /// Confirms the caller of a request that another node has admitted and relayed here, if this
    /// node does not know the caller.
    ///
    /// # Errors
    /// The caller exists no more, or nobody can tell.
    async fn confirm(&self, _meaning: &mut Self::Meaning) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Whether this node refuses requests that another node may answer. A refused client's
    /// connection then ends, so that its next one may reach that node.
    fn refuses_for_itself(&self) -> bool {
        false
    }

    /// Holds the cluster's next step back, if a request is a change. Waits for the end of the
    /// present step.
    async fn hold(&self, _meaning: &Self::Meaning) -> Option<Self::Change<'_>> {
        None
    }

    /// The nodes that answer a request. Only this decides it. `has_failed`: this node could not
    /// begin to answer it.
    fn route(&self, meaning: &Self::Meaning, has_failed: bool) -> Route;

    /// Whether this node has to send a relayed request back.
    fn is_elsewhere(&self, meaning: &Self::Meaning) -> bool;

    /// Whether the client's connection may stay here after the answer.
    fn may_stay(&self, meaning: &Self::Meaning) -> bool;

    /// Whether only the node that has the client's connection can answer the request as the client
    /// wants it. A relayed one is answered otherwise.
    fn has_to_move(&self, _meaning: &Self::Meaning) -> bool {
        false
    }

    /// The number of the cluster's present state, by which [`Self::route`] decides.
    fn epoch(&self) -> u64;

    /// Waits for a state after `epoch` that concerns a request, and returns whether it has come.
    /// `was_sent_elsewhere`: another node has it already.
    async fn has_moved_on(
        &self,
        meaning: &Self::Meaning,
        epoch: u64,
        was_sent_elsewhere: bool,
    ) -> bool;

    /// The facts of a request, for the node that answers it.
    fn facts(&self, meaning: &Self::Meaning) -> Facts;

    /// The facts of a request for logs and metrics.
    fn about<'m>(&self, meaning: &'m Self::Meaning) -> About<'m>;

    /// The object that a request reads, if its answer may be short.
    fn subject<'m>(&self, meaning: &'m Self::Meaning) -> Option<Subject<'m>>;

    /// Answers a request here.
    async fn serve(
        &self,
        exchange: &mut impl Exchange,
        request: RequestRef<'_, Self::Meaning>,
    ) -> io::Result<Served<Self::Error>>;

    /// The request that takes the place of one that a server has redirected.
    ///
    /// # Errors
    /// The server's answer names no resource that it may name.
    fn redirected(
        &self,
        _request: RequestRef<'_, Self::Meaning>,
        _answer: &ResponseHead,
    ) -> Result<Redirected<Self::Meaning>, Self::Error> {
        Err(self.error_for(Fault::OutOfReach, None))
    }

    /// The part that answers other nodes' own requests.
    fn nodes(&self) -> &Self::Nodes;

    /// Header fields of every answer to a request, errors included.
    async fn extra_fields(&self, head: &RequestHead) -> Option<Headers>;

    /// The service's error for a fault that the gateway has found. `meaning`: that of the request,
    /// if it was understood.
    fn error_for(&self, fault: Fault, meaning: Option<&Self::Meaning>) -> Self::Error;

    /// The status code of an error, and whether the fault is this system's own.
    fn status_of(&self, error: &Self::Error) -> (u16, bool);

    /// Sends an error about the resource `path`.
    async fn send_error(
        &self,
        exchange: &mut impl Exchange,
        error: &Self::Error,
        path: &str,
    ) -> io::Result<()>;
}
