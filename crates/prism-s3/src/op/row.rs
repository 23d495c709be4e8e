//! The facts of an operation that do not depend on its parameters: one row for each.

use prism_http::Method;

use super::MAX_PUT_BYTES;
use crate::policy::actions::Actions;
use crate::query::Query;
use crate::rights::Rights;

/// The row of an operation.
#[derive(Debug)]
pub struct Row {
    /// The name of the operation in Amazon's API.
    pub name: &'static str,
    pub(super) request: Request,
    pub(crate) permission: Permission,
    /// The body of the request.
    pub body: Body,
    /// The nodes that answer the request.
    pub answerer: Answerer,
    /// Whether an object's bytes go between the client and the object's owner, so that bringing
    /// them together is worth a hand-off.
    pub moves_connection: bool,
}

/// The form of an operation's requests.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: Method,
    /// Parameters that it has.
    pub(super) named_by: &'static [&'static str],
    /// Parameters that it may have besides.
    optional: &'static [&'static str],
    /// Whether it names a source of a copy.
    pub(super) copies: bool,
    /// Headers of a copy that it ignores, without `x-amz-`.
    pub(super) ignored: &'static [&'static str],
}

/// The nodes that answer an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answerer {
    /// The node that reads the request. It needs no store.
    Reader,
    /// The same with the help of all backends.
    ReaderWithAll,
    /// Any backend, since every backend in sync knows every bucket.
    Backend,
    /// Any replica of the object.
    Replica,
    /// The owner of the object.
    Owner,
}

/// The body of an operation's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// It has no meaning, and is skipped.
    Skipped,
    /// The data of an object.
    Data,
    /// A document of at most so many bytes.
    Document(u64),
}

impl Body {
    /// The longest body that is read, in bytes.
    pub const fn max_bytes(self) -> u64 {
        match self {
            Self::Skipped => 0,
            Self::Data => MAX_PUT_BYTES,
            Self::Document(bytes) => bytes,
        }
    }
}

/// The permission that a caller needs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Permission {
    /// None.
    Nothing,
    /// A signature of any key.
    AnyKey,
    /// One of these rights on the bucket, or a policy that allows all of these actions.
    OneOf(Rights, Actions),
    /// The same with other actions if the request names a version.
    OfVersion(Rights, Actions, Actions),
    /// The same for some key. Each key is judged when it is known.
    ForSomeKey(Rights, Actions),
    /// The same for the policy itself, which an owner may always read, replace and delete.
    OfPolicy(Rights, Actions),
}

impl Request {
    /// A request of this method with these parameters.
    pub(super) const fn new(method: Method, named_by: &'static [&'static str]) -> Self {
        Self {
            method,
            named_by,
            optional: &[],
            copies: false,
            ignored: &[],
        }
    }

    /// The same, which may have these parameters besides.
    pub(super) const fn with(mut self, optional: &'static [&'static str]) -> Self {
        self.optional = optional;
        self
    }

    /// The same with a source of a copy.
    pub(super) const fn copying(mut self) -> Self {
        self.copies = true;
        self
    }

    /// The same, which ignores these headers of a copy.
    pub(super) const fn ignoring(mut self, headers: &'static [&'static str]) -> Self {
        self.ignored = headers;
        self
    }

    /// Whether a request of this method and query has this form, a source of a copy aside.
    pub(super) fn fits(&self, method: &Method, query: &Query) -> bool {
        self.method == *method && self.named_by.iter().all(|name| query.has(name))
    }

    pub(super) fn knows(&self, parameter: &str) -> bool {
        self.named_by.contains(&parameter) || self.optional.contains(&parameter)
    }
}
