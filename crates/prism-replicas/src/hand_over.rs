//! The source's side of a fetch: what this node has of a scope, as the answer to
//! [`Question::Fetch`](crate::Question::Fetch).
//!
//! The answer is a description in JSON and then the bytes (`framed.rs`). At most one block of
//! them is in memory.

use std::io;
use std::sync::Arc;

use prism_http::ResponseHead;
use prism_s3::Code;
use prism_service::{Exchange, send};
use prism_store::{Body, CheckedFile, Scope, Stamp};

use crate::errors::StoreResult;
use crate::framed::encode_header;
use crate::{Node, checked_file};

/// Sends what this node has of `scope`; with `version`, only that version of the key.
pub(crate) async fn hand_over(
    node: &Arc<Node>,
    exchange: &mut impl Exchange,
    scope: Scope,
    version: Option<Stamp>,
) -> io::Result<()> {
    let found = node.on_store(move |_, store| {
        let found = store.catch_up().hand_over(&scope, version);
        found.in_s3()?.ok_or(Code::NoSuchKey.into())
    });
    let (handed, body) = match found.await {
        Ok(found) => found,
        Err(error) => {
            let head = ResponseHead::new(error.status());
            return send(exchange, head, &[]).await;
        }
    };
    let header = encode_header(&handed)?;
    let len = header.len() as u64 + handed.len.unwrap_or(0);
    exchange.begin(&ResponseHead::new(200), None, Some(len));
    exchange.put(&header);
    match body {
        None => {}
        Some(Body::Inline(data)) => exchange.put(&data),
        Some(Body::File(file)) => send_checked(exchange, &file, 0, file.len()).await?,
        Some(Body::Parts(parts)) => {
            for segment in parts.segments(0, u64::MAX) {
                let file = parts.open(segment.index).map_err(io::Error::other)?;
                let end = segment.offset + segment.len;
                send_checked(exchange, &file, segment.offset, end).await?;
            }
        }
    }
    exchange.end(None).await
}

async fn send_checked(
    exchange: &mut impl Exchange,
    file: &CheckedFile,
    start: u64,
    end: u64,
) -> io::Result<()> {
    let checked = checked_file::check(file, start, end).await;
    let checked_until = checked.map_err(io::Error::other)?;
    checked_file::send(exchange, file, start..end, checked_until).await
}
