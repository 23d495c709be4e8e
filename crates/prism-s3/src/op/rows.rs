//! The tables of operations on the service, on buckets, and on objects and uploads.
//!
//! A new operation is a variant of its enum and a row here.

mod bucket;
mod object;
mod unset;

use prism_http::{Method, RequestHead};

pub(super) use self::bucket::BUCKET;
pub(super) use self::object::OBJECT;
pub(super) use self::unset::UNSET;
pub use self::unset::UnsetConfiguration;
use super::row::{Answerer, Body, Permission, Request, Row};
use crate::S3Error;
use crate::query::Query;
use crate::rights::Rights;

/// The parts of a request that decide its operation.
pub(super) struct Given<'r> {
    pub(super) head: &'r RequestHead,
    pub(super) query: &'r Query,
    /// The source, if the request copies an object.
    pub(super) source: Option<&'r str>,
}

/// An operation's row, and the function that reads the operation from a request.
pub(super) struct Entry<T> {
    pub(super) row: Row,
    pub(super) read: fn(&Given<'_>) -> Result<T, S3Error>,
}

/// Makes a table of entries, of which the first that fits a request counts, and the function
/// that finds the row of an operation. Each entry has, in this order:
///
/// - a name in this file, the name in Amazon's API, and the operation
/// - its request
/// - the permission that its caller needs, its body, and the nodes that answer, with `moving` if
///   the connection moves to them
/// - the function that reads it
macro_rules! table {
    ($table:ident of $operation:ident: $(
        $name:ident $api_name:literal $pattern:pat =>
        $request:expr,
        $permission:ident $(($rights:expr $(, [$($action:ident),*])*))?,
        $body:expr, $answerer:ident $($moving:ident)?,
        $read:expr;
    )*) => {
        $(static $name: Entry<$operation> = Entry {
            row: Row {
                name: $api_name,
                request: $request,
                permission: Permission::$permission
                    $(($rights $(, Actions::empty()$(.union(Actions::$action))*)*))?,
                body: $body,
                answerer: Answerer::$answerer,
                moves_connection: table!(@ $($moving)?),
            },
            read: $read,
        };)*

        pub(in crate::op) static $table: &[&Entry<$operation>] = &[$(&$name,)*];

        impl $operation {
            /// The facts of the operation that do not depend on its parameters.
            pub const fn row(&self) -> &'static Row {
                match self { $($pattern => &$name.row,)* }
            }
        }
    };
    (@ moving) => { true };
    (@) => { false };
}
use table;

const GET: Method = Method::GET;
const HEAD: Method = Method::HEAD;
const PUT: Method = Method::PUT;
const POST: Method = Method::POST;
const DELETE: Method = Method::DELETE;
const OPTIONS: Method = Method::OPTIONS;

const READ: Rights = Rights::READ;
const WRITE: Rights = Rights::WRITE;
const OWNER: Rights = Rights::OWNER;
const READ_OR_OWNER: Rights = READ.union(OWNER);

/// The longest document about a bucket, or about an object's tags. Ten tags take less, even with
/// every character escaped.
const DOCUMENT: Body = Body::Document(64 << 10);
/// The longest list of keys to delete, or of the parts of an upload. Each of 1,000 keys has 1 KiB,
/// in which every byte is a reference such as `&amp;`, and elements of 100 bytes. Each of 10,000
/// parts takes 300 bytes: a number, an ETag, a SHA-256 and their elements. Some clients indent.
const LONG_LIST: Body = Body::Document(6 << 20);

const fn of_service(name: &'static str, method: Method, answerer: Answerer) -> Row {
    Row {
        name,
        request: Request::new(method, &[]),
        permission: Permission::Nothing,
        body: Body::Skipped,
        answerer,
        moves_connection: false,
    }
}

pub(super) static LIST_BUCKETS: Row = {
    let mut row = of_service("ListBuckets", Method::GET, Answerer::Backend);
    row.permission = Permission::AnyKey;
    row
};

pub(super) static SERVICE_PREFLIGHT: Row =
    of_service("Preflight", Method::OPTIONS, Answerer::Reader);

/// An unsupported operation does nothing, so it needs no permission. The sender of a form, who is
/// anonymous, hears what is missing.
pub(super) static UNSUPPORTED: Row = of_service("Unsupported", Method::GET, Answerer::Reader);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::ptr;

    use prism_http::Limits;

    use super::super::Operation;
    use super::*;

    /// The row of the operation that a request of this row is.
    fn row_of_request(row: &Row, target: &str) -> &'static Row {
        let request = &row.request;
        let query: Vec<String> = request
            .named_by
            .iter()
            .map(|name| format!("{name}=1"))
            .collect();
        let source = if request.copies {
            "x-amz-copy-source: /bkt/k\r\n"
        } else {
            ""
        };
        let text = format!(
            "{} {target}?{} HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n{source}\
             x-amz-object-attributes: ETag\r\n\r\n",
            request.method,
            query.join("&"),
        );
        let parsed = RequestHead::parse(text.as_bytes(), &Limits::DEFAULT);
        let (head, _) = parsed.unwrap().unwrap();
        let operation = Operation::parse(&head).unwrap();
        operation.row()
    }

    #[test]
    fn a_request_of_each_row_is_an_operation_of_that_row() {
        let service = [&LIST_BUCKETS, &SERVICE_PREFLIGHT].map(|row| (row, "/"));
        let bucket = BUCKET.iter().map(|entry| (&entry.row, "/bkt"));
        let unset = UNSET.iter().map(|entry| (&entry.row, "/bkt"));
        let object = OBJECT.iter().map(|entry| (&entry.row, "/bkt/k"));
        let of_bucket = bucket.chain(unset);
        for (row, target) in service.into_iter().chain(of_bucket).chain(object) {
            let found = row_of_request(row, target);
            assert!(ptr::eq(found, row), "{}: {}", row.name, found.name);
        }
    }

    #[test]
    fn operations_on_the_service_need_a_key_at_most_and_all_others_a_right() {
        for row in [&LIST_BUCKETS, &SERVICE_PREFLIGHT, &UNSUPPORTED] {
            let is_most = matches!(row.permission, Permission::Nothing | Permission::AnyKey);
            assert!(is_most, "{}", row.name);
        }
        let bucket = BUCKET.iter().map(|entry| &entry.row);
        let bucket = bucket.chain(UNSET.iter().map(|entry| &entry.row));
        for row in bucket.chain(OBJECT.iter().map(|entry| &entry.row)) {
            let is_open = matches!(row.permission, Permission::Nothing | Permission::AnyKey);
            assert_eq!(is_open, row.name == "Preflight", "{}", row.name);
        }
    }
}
