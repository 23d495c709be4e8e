//! The form of the tables that tell which operation a request is.

use prism_http::{Method, RequestHead};

use crate::query::Query;
use crate::{Code, S3Error};

/// The parts of a request that decide its operation.
pub(super) struct Request<'r> {
    pub(super) head: &'r RequestHead,
    pub(super) query: &'r Query,
    /// The source, if the request copies an object.
    pub(super) source: Option<&'r str>,
}

/// One kind of request. The first row that fits a request counts.
pub(super) struct Row<T: 'static> {
    method: Method,
    /// Parameters that a request of this kind has.
    named_by: &'static [&'static str],
    /// Parameters that it may have besides.
    optional: &'static [&'static str],
    takes_data: bool,
    /// Reads the operation.
    pub(super) read: fn(&Request<'_>) -> Result<T, S3Error>,
}

impl<T> Row<T> {
    pub(super) const fn new(
        method: Method,
        named_by: &'static [&'static str],
        optional: &'static [&'static str],
        read: fn(&Request<'_>) -> Result<T, S3Error>,
    ) -> Self {
        Self {
            method,
            named_by,
            optional,
            takes_data: false,
            read,
        }
    }

    /// A PUT whose body is an object's data, or that copies it from another object.
    pub(super) const fn data(
        named_by: &'static [&'static str],
        read: fn(&Request<'_>) -> Result<T, S3Error>,
    ) -> Self {
        Self {
            method: Method::Put,
            named_by,
            optional: &[],
            takes_data: true,
            read,
        }
    }

    pub(super) fn find<'t>(rows: &'t [Self], method: &Method, query: &Query) -> Option<&'t Self> {
        let has = |name: &&str| query.has(name);
        rows.iter()
            .find(|row| row.method == *method && row.named_by.iter().all(has))
    }

    pub(super) fn knows(&self, parameter: &str) -> bool {
        self.named_by.contains(&parameter) || self.optional.contains(&parameter)
    }

    pub(super) const fn takes_data(&self) -> bool {
        self.takes_data
    }
}

/// The answer to a method that no row has.
pub(super) fn other_method<T>() -> Result<T, S3Error> {
    Err(Code::MethodNotAllowed.into())
}
