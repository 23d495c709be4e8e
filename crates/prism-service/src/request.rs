//! One request, as the gateway has it and as a service sees it.

use prism_http::{Headers, RequestHead};
use prism_limits::Holds;
use prism_proto::relay::Preamble;

use crate::{Redirection, Remote, Span};

/// A request whose head the service has understood.
pub struct Request<M> {
    /// Its head.
    pub head: RequestHead,
    /// Its identifier, for the client and for logs.
    pub id: u64,
    /// This node's part of its trace; `None` if it is not traced.
    pub span: Option<Span>,
    /// The client's connection, if it is known.
    pub client: Option<Remote>,
    /// Whether another node has relayed it.
    pub is_relayed: bool,
    /// Whether it is another node's own request.
    pub is_for_node: bool,
    /// Longest body of an answer that the relaying node accepts, in bytes.
    pub max_answer_bytes: Option<u32>,
    /// The number of the cluster's state by which the gateway has decided that this node answers;
    /// `None` if it has not decided.
    pub decided_in: Option<u64>,
    /// How often a server has got it and has given no answer, before the present exchange.
    pub retries: u8,
    /// The internal redirects that have led to it.
    pub redirection: Redirection,
    /// The limits that count it while it is under way here.
    pub holds: Holds,
    /// The meaning that the service has found.
    pub meaning: M,
}

/// A request as the service sees it that answers it.
pub struct RequestRef<'r, M> {
    /// See [`Request::head`].
    pub head: &'r RequestHead,
    /// See [`Request::id`].
    pub id: u64,
    /// See [`Request::client`].
    pub client: Option<Remote>,
    /// See [`Request::is_relayed`].
    pub is_relayed: bool,
    /// See [`Request::is_for_node`].
    pub is_for_node: bool,
    /// See [`Request::max_answer_bytes`].
    pub max_answer_bytes: Option<u32>,
    /// See [`Request::decided_in`].
    pub decided_in: Option<u64>,
    /// See [`Request::meaning`].
    pub meaning: &'r M,
}

/// A request as the service sees it that decides about it, beside its meaning.
pub struct RequestMut<'r> {
    /// See [`Request::head`].
    pub head: &'r mut RequestHead,
    /// See [`Request::id`].
    pub id: u64,
    /// See [`Request::client`].
    pub client: Option<Remote>,
    /// See [`Request::is_relayed`].
    pub is_relayed: bool,
}

impl<M> Clone for RequestRef<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for RequestRef<'_, M> {}

impl<'r, M> RequestRef<'r, M> {
    /// The same request with a part of its meaning.
    #[must_use]
    pub fn with<P>(self, meaning: &'r P) -> RequestRef<'r, P> {
        RequestRef {
            head: self.head,
            id: self.id,
            client: self.client,
            is_relayed: self.is_relayed,
            is_for_node: self.is_for_node,
            max_answer_bytes: self.max_answer_bytes,
            decided_in: self.decided_in,
            meaning,
        }
    }
}

impl<M> Request<M> {
    /// A client's request.
    pub fn new(head: RequestHead, id: u64, client: Remote, meaning: M) -> Self {
        Self {
            head,
            id,
            span: None,
            client: Some(client),
            is_relayed: false,
            is_for_node: false,
            max_answer_bytes: None,
            decided_in: None,
            retries: 0,
            redirection: Redirection::default(),
            holds: Holds::default(),
            meaning,
        }
    }

    /// A request that another node has relayed.
    pub fn relayed(head: RequestHead, preamble: &Preamble, meaning: M) -> Self {
        Self {
            head,
            id: preamble.facts.request_id,
            span: None,
            client: preamble.facts.client.map(Remote::of_relayed),
            is_relayed: true,
            is_for_node: preamble.alone,
            max_answer_bytes: preamble.most_bytes,
            decided_in: None,
            retries: preamble.facts.retries,
            redirection: Redirection::of(&preamble.facts),
            holds: Holds::default(),
            meaning,
        }
    }

    /// The same as a part of a trace.
    #[must_use]
    pub fn traced(self, span: Option<Span>) -> Self {
        Self { span, ..self }
    }

    /// The same while limits count it.
    #[must_use]
    pub fn counted(self, holds: Holds) -> Self {
        Self { holds, ..self }
    }

    /// The request as the service sees it that answers it.
    pub fn view(&self) -> RequestRef<'_, M> {
        RequestRef {
            head: &self.head,
            id: self.id,
            client: self.client,
            is_relayed: self.is_relayed,
            is_for_node: self.is_for_node,
            max_answer_bytes: self.max_answer_bytes,
            decided_in: self.decided_in,
            meaning: &self.meaning,
        }
    }

    /// The request as the service sees it that decides about it, and its meaning.
    pub fn parts(&mut self) -> (RequestMut<'_>, &mut M) {
        let request = RequestMut {
            head: &mut self.head,
            id: self.id,
            client: self.client,
            is_relayed: self.is_relayed,
        };
        (request, &mut self.meaning)
    }

    /// The header fields that its answer gets in the place of its own.
    pub fn replaced_fields(&self) -> Option<Headers> {
        self.redirection.fields()
    }
}
