//! The facts about a request that logs and metrics need beside its head.

use std::cell::{Cell, Ref, RefCell};

/// The part of a trace that one node makes for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The identifier of the trace, which is not zero.
    pub trace_id: [u8; 16],
    /// The identifier of the span, which is not zero.
    pub id: u64,
    /// The identifier of the span above it, if there is one.
    pub parent_id: Option<u64>,
}

/// The identifier of a request, and the answer that it got. [`crate::ResponseHead::write_to`]
/// notes each answer.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct RequestNote {
    id: Cell<u64>,
    span: Cell<Option<Span>>,
    status: Cell<u16>,
    body_bytes: Cell<u64>,
    error: Cell<Option<&'static str>>,
    peer: RefCell<Option<Box<str>>>,
}

impl RequestNote {
    /// Sets the identifier, which the client sees too.
    pub fn set_id(&self, id: u64) {
        self.id.set(id);
    }

    /// The identifier; 0 if it was not set.
    pub fn id(&self) -> u64 {
        self.id.get()
    }

    /// Makes the request a part of a trace.
    pub fn set_span(&self, span: Option<Span>) {
        self.span.set(span);
    }

    /// The part of a trace that the request is; `None` if it is not traced.
    pub fn span(&self) -> Option<Span> {
        self.span.get()
    }

    /// Notes an answer that is about to be sent. The last one that is final counts; after 101 the
    /// connection has no further answer.
    pub fn set_answer(&self, status: u16, body_bytes: u64) {
        if status >= 200 || status == 101 {
            self.status.set(status);
            self.body_bytes.set(body_bytes);
        }
    }

    /// Notes the service's code for the error that the answer reports.
    pub fn set_error(&self, code: &'static str) {
        self.error.set(Some(code));
    }

    /// Notes the node whose answer is relayed; `None` for an answer that is made here.
    pub fn set_peer(&self, peer: Option<&str>) {
        self.peer.replace(peer.map(Box::from));
    }

    /// The node whose answer was relayed.
    pub fn peer(&self) -> Ref<'_, Option<Box<str>>> {
        self.peer.borrow()
    }

    /// The status of the answer; `None` before there is one.
    pub fn status(&self) -> Option<u16> {
        Some(self.status.get()).filter(|status| *status > 0)
    }

    /// Length of the answer's body; 0 if it has none, or its length was not declared.
    pub fn body_bytes(&self) -> u64 {
        self.body_bytes.get()
    }

    /// The service's code for the error; `None` if the answer reports none.
    pub fn error(&self) -> Option<&'static str> {
        self.error.get()
    }
}
