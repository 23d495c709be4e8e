//! Repairs damaged objects with the bytes of another replica.
//!
//! Not here: finding damage, and checking the bytes that arrive (`prism-store`).

use std::io;

use prism_http::{Headers, RequestHead};
use prism_s3::query::encode_path;
use prism_s3::{Code, Principal, S3Error};
use prism_service::{PeerRequest, parse_own_head, read_all};
use prism_store::{DamagedBlock, Place, Scope, ScrubFault};

use crate::Replicator;
use crate::ask::preamble_for;
use crate::errors::store_error;

/// Longest block.
const MAX_BLOCK_BYTES: usize = prism_store::BLOCK_LEN as usize;

impl Replicator {
    /// Repairs the object that `fault` is in, as far as other replicas have it. Objects that
    /// have no blocks of their own are replaced whole.
    pub(crate) async fn repair(&self, fault: &ScrubFault) {
        let Place::Object { bucket, key, .. } = &fault.place else {
            return;
        };
        let place = fault.place.clone();
        let scope = self.node.on_store(move |_, store| {
            let scope = store.integrity().damaged_scope(&place);
            scope.map_err(|e| store_error(&e))
        });
        match scope.await {
            Ok(None) => {}
            Ok(Some(scope)) => return self.repair_whole(&scope).await,
            Err(error) => return tracing::error!(%fault, %error, "damage is not repaired"),
        }
        let place = fault.place.clone();
        let damaged = self.node.on_store(move |_, store| {
            let blocks = store.integrity().damaged_blocks(&place);
            blocks.map_err(|e| store_error(&e))
        });
        for block in damaged.await.unwrap_or_default() {
            match self.repair_block(bucket, key, &block).await {
                Ok(peer) => {
                    self.node.scrub.count_repaired();
                    tracing::info!(bucket, key, bytes = ?block.bytes, peer, "repaired a block from another replica");
                }
                Err(error) => {
                    tracing::error!(bucket, key, bytes = ?block.bytes, %error, "a damaged block is not repaired");
                    return;
                }
            }
        }
    }

    /// Replaces a scope by the copy of another replica.
    async fn repair_whole(&self, scope: &Scope) {
        let (bucket, key) = (&scope.bucket, &scope.key);
        for peer in self.other_readers(bucket, key) {
            match self.fetcher.fetch_again(&peer, scope).await {
                Ok(true) => {
                    self.node.scrub.count_repaired();
                    return tracing::info!(
                        bucket,
                        key,
                        peer,
                        "replaced by the copy of another replica"
                    );
                }
                // The object has changed meanwhile, here or there.
                Ok(false) => tracing::debug!(peer, "a replica has something else"),
                Err(error) => tracing::debug!(peer, %error, "a replica cannot repair this one"),
            }
        }
        tracing::error!(bucket, key, upload = ?scope.upload, "damage is not repaired: no other replica has it");
    }

    /// Asks the other replicas one after the other. Returns the one that had the block.
    async fn repair_block(
        &self,
        bucket: &str,
        key: &str,
        block: &DamagedBlock,
    ) -> Result<String, S3Error> {
        let mut failure = S3Error::from(Code::ServiceUnavailable);
        for peer in self.other_readers(bucket, key) {
            let data = match self.read_block(&peer, bucket, key, block).await {
                Ok(data) => data,
                Err(error) => {
                    tracing::debug!(peer, %error, "a replica cannot repair this one");
                    continue;
                }
            };
            let place = block.place.clone();
            let written = self.node.on_store(move |_, store| {
                let written = store.integrity().write_block(&place, &data);
                written.map_err(|e| store_error(&e))
            });
            match written.await {
                Ok(()) => return Ok(peer),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn other_readers(&self, bucket: &str, key: &str) -> impl Iterator<Item = String> {
        let peers = self.node.replication.readers(bucket, key).into_iter();
        peers.filter(|peer| *peer != self.node.name)
    }

    async fn read_block(
        &self,
        peer: &str,
        bucket: &str,
        key: &str,
        block: &DamagedBlock,
    ) -> io::Result<Vec<u8>> {
        let head = block_head(bucket, key, block)?;
        // The node reads for itself; other nodes trust its preamble.
        let itself = Principal::AccessKey(String::from("prism"));
        let request = PeerRequest {
            head: &head,
            preamble: preamble_for(&itself),
            is_repeatable: true,
        };
        let asked = self.peers.begin_asking(peer, &request, &[]).await;
        let (mut upstream, answer) = asked.map_err(io::Error::other)?;
        let framing = answer.framing(head.method()).map_err(io::Error::other)?;
        let data = read_all(&mut upstream, framing, MAX_BLOCK_BYTES).await;
        let data = data.map_err(io::Error::other)?;
        if answer.status() != 206 {
            return Err(io::Error::other(format!("status {}", answer.status())));
        }
        if answer.keep_alive() && upstream.is_clean() {
            self.peers.keep(peer, upstream);
        }
        Ok(data)
    }
}

/// The head of a GET of one block.
fn block_head(bucket: &str, key: &str, block: &DamagedBlock) -> io::Result<RequestHead> {
    let last = block.bytes.end.saturating_sub(1);
    let range = format!("bytes={}-{last}", block.bytes.start);
    let mut headers = Headers::new();
    for (name, value) in [("Host", "prism"), ("Range", range.as_str())] {
        headers.append(name, value).map_err(io::Error::other)?;
    }
    let mut text = format!("GET /{bucket}/{} HTTP/1.1\r\n", encode_path(key)).into_bytes();
    headers.write_to(&mut text);
    text.extend_from_slice(b"\r\n");
    parse_own_head(&text)
}
