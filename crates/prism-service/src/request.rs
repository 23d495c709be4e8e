//! One request, and the owner of its body.

use std::cell::Cell;

use prism_http::RequestHead;
use prism_proto::relay::Preamble;

use crate::RequestBody;

/// A request whose head the service has understood.
pub struct Request<M> {
    /// Its head.
    pub head: RequestHead,
    /// Bytes of the head that the connection still holds.
    pub head_bytes: usize,
    /// Whether another node has relayed it.
    pub is_relayed: bool,
    /// Whether it is another node's own request.
    pub is_for_node: bool,
    /// Longest body of an answer that the relaying node accepts, in bytes.
    pub max_answer_bytes: Option<u32>,
    /// The meaning that the service has found.
    pub meaning: M,
    is_body_taken: Cell<bool>,
}

impl<M> Request<M> {
    /// A client's request.
    pub fn new(head: RequestHead, head_bytes: usize, meaning: M) -> Self {
        Self {
            head,
            head_bytes,
            is_relayed: false,
            is_for_node: false,
            max_answer_bytes: None,
            meaning,
            is_body_taken: Cell::new(false),
        }
    }

    /// A request that another node has relayed. Its head is consumed.
    pub fn relayed(head: RequestHead, preamble: &Preamble, meaning: M) -> Self {
        Self {
            is_relayed: true,
            is_for_node: preamble.alone,
            max_answer_bytes: preamble.most_bytes,
            ..Self::new(head, 0, meaning)
        }
    }

    /// The body; of a chunked one at most `max_bytes` are read. A body has one owner: a second
    /// call returns [`RequestBody::unknown`].
    pub fn take_body(&self, max_bytes: u64) -> RequestBody {
        match self.is_body_taken.replace(true) {
            false => RequestBody::new(&self.head, max_bytes),
            true => RequestBody::unknown(),
        }
    }

    /// Lets the body be taken again, if no byte of it was read.
    pub fn give_body_back(&self) {
        self.is_body_taken.set(false);
    }
}
