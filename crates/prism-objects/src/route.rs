//! The one place that decides which nodes answer a request.
//!
//! Four callers ask: the node that has a client's connection, the same node again when the
//! nodes that it relays to have a newer view, a node that gets a relayed request, and a
//! frontend that gets a returned connection.

use std::time::Instant;

use prism_http::RequestHead;
use prism_replicas::Node;
use prism_s3::op::Answerer;
use prism_s3::{ObjectRef, Operation};
use prism_service::Route;

/// Whether an operation changes an object.
pub(crate) fn changes_object(operation: &Operation) -> bool {
    operation.object().is_some() && !operation.only_reads_object()
}

/// Whether any node answers an operation, with the help of all backends.
pub(crate) fn concerns_all(operation: &Operation) -> bool {
    operation.row().answerer == Answerer::ReaderWithAll
}

/// Whether an operation is answered by the node that read it, whichever this is.
fn is_for_any(operation: &Operation) -> bool {
    let answerer = operation.row().answerer;
    matches!(answerer, Answerer::Reader | Answerer::ReaderWithAll)
}

/// Whether [`route`] ranks the owners of an operation's key, by the rules of [`may_answer`].
pub(crate) fn ranks_owners(operation: &Operation) -> bool {
    operation.object().is_some() && !is_for_any(operation)
}

/// Which nodes answer an operation.
pub(crate) fn route(node: &Node, operation: &Operation) -> Route {
    if is_for_any(operation) {
        return Route::Here;
    }
    let Some(mut others) = others(node, operation) else {
        return Route::Here;
    };
    if others.len() > 1 {
        others.sort_by_key(|name| node.core.process.is_leaving(name));
    }
    if operation.moves_data() {
        Route::HandOff(others)
    } else {
        Route::Relay(others)
    }
}

/// Whether this node may answer an operation from its store.
pub(crate) fn may_answer(node: &Node, operation: &Operation) -> bool {
    let replication = &node.replication;
    match operation.object() {
        Some(ObjectRef { bucket, key }) if operation.only_reads_object() => {
            replication.may_read(bucket.as_str(), key.as_str())
        }
        Some(ObjectRef { bucket, key }) => replication.is_primary(bucket.as_str(), key.as_str()),
        // Every backend in sync knows every bucket.
        None => replication.is_in_sync(),
    }
}

/// The nodes that may answer an operation, best first; `None` if this node may.
fn others(node: &Node, operation: &Operation) -> Option<Vec<String>> {
    let replication = &node.replication;
    let Some(ObjectRef { bucket, key }) = operation.object() else {
        // Every backend in sync knows every bucket.
        return (!replication.is_in_sync()).then(|| backends(node));
    };
    let bucket = bucket.as_str();
    let key = key.as_str();
    if operation.only_reads_object() {
        return replication.other_readers(bucket, key);
    }
    let primary = Vec::from_iter(replication.primary(bucket, key));
    (primary.first() != Some(&node.core.name)).then_some(primary)
}

/// All backends in sync, in random order. Backends that leave or did not answer come last.
pub(crate) fn backends(node: &Node) -> Vec<String> {
    let mut names = node.replication.in_sync();
    let now = Instant::now();
    fastrand::shuffle(&mut names);
    let process = &node.core.process;
    names.sort_by_key(|name| (process.is_leaving(name), process.comes_last(name, now)));
    names
}

/// The node to which a connection is handed off for its unread request, if there is one. A
/// frontend sends a returned connection on to it.
pub fn owner_of_unread(node: &Node, limits: &prism_http::Limits, unread: &[u8]) -> Option<String> {
    let (head, _) = RequestHead::parse(unread, limits).ok()??;
    let operation = Operation::parse(&head).ok()?;
    match route(node, &operation) {
        Route::HandOff(nodes) => nodes.into_iter().next(),
        Route::Here | Route::Relay(_) => None,
    }
}
