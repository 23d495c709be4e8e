//! One request.

use prism_http::RequestHead;
use prism_proto::relay::Preamble;

use crate::{Remote, Span};

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
    /// The meaning that the service has found.
    pub meaning: M,
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
            meaning,
        }
    }

    /// The same as a part of a trace.
    #[must_use]
    pub fn traced(self, span: Option<Span>) -> Self {
        Self { span, ..self }
    }
}
