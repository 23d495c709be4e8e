//! Damaged objects are put right with the bytes of another replica. What is
//! damaged, and whether what comes is what was written, the store says.

use std::io;

use prism_http::{Headers, Limits, RequestHead};
use prism_s3::query::encode_path;
use prism_s3::{Code, Principal, S3Error};
use prism_service::{PeerRequest, read_all};
use prism_store::{DamagedBlock, Place, Scope, ScrubFault};

use crate::Replicator;
use crate::ask::preamble_for;
use crate::errors::store_error;

/// Longest block.
const MAX_BLOCK_BYTES: usize = prism_store::BLOCK_LEN as usize;

impl Replicator {
    /// Mends what a fault is in, as far as others have it: by whole, where blocks will
    /// not do, or all of the file.
    pub(crate) async fn mend(&self, fault: &ScrubFault) {
        let Place::Object { bucket, key, .. } = &fault.place else {
            return;
        };
        let place = fault.place.clone();
        let scope = self.node.on_store(move |_, store| {
            store
                .integrity()
                .damaged_scope(&place)
                .map_err(|e| store_error(&e))
        });
        match scope.await {
            Ok(None) => {}
            Ok(Some(scope)) => return self.mend_whole(&scope).await,
            Err(error) => return tracing::error!(%fault, %error, "not mended"),
        }
        let place = fault.place.clone();
        let damaged = self.node.on_store(move |_, store| {
            store
                .integrity()
                .damaged_blocks(&place)
                .map_err(|e| store_error(&e))
        });
        for block in damaged.await.unwrap_or_default() {
            match self.mend_block(bucket, key, &block).await {
                Ok(peer) => {
                    self.node.scrub.count_mended();
                    tracing::info!(bucket, key, bytes = ?block.bytes, peer, "mended from another replica");
                }
                Err(error) => {
                    tracing::error!(bucket, key, bytes = ?block.bytes, %error, "not mended");
                    return;
                }
            }
        }
    }

    /// Takes in anew what another replica has of a scope.
    async fn mend_whole(&self, scope: &Scope) {
        let (bucket, key) = (&scope.bucket, &scope.key);
        let peers = self.node.replication.readers(bucket, key);
        for peer in peers.into_iter().filter(|peer| *peer != self.node.name) {
            match self.fetch_again(&peer, scope).await {
                Ok(true) => {
                    self.node.scrub.count_mended();
                    return tracing::info!(bucket, key, peer, "taken in anew from another replica");
                }
                // It has changed meanwhile, here or there.
                Ok(false) => tracing::debug!(peer, "a replica has something else"),
                Err(error) => tracing::debug!(peer, %error, "a replica cannot mend another"),
            }
        }
        tracing::error!(bucket, key, upload = ?scope.upload, "not mended: no other replica has it");
    }

    /// Asks the other replicas one after the other; gives the one that had it.
    async fn mend_block(
        &self,
        bucket: &str,
        key: &str,
        block: &DamagedBlock,
    ) -> Result<String, S3Error> {
        let mut failure = S3Error::from(Code::ServiceUnavailable);
        let peers = self.node.replication.readers(bucket, key);
        for peer in peers.into_iter().filter(|peer| *peer != self.node.name) {
            let data = match self.read_block(&peer, (bucket, key), block).await {
                Ok(data) => data,
                Err(error) => {
                    tracing::debug!(peer, %error, "a replica cannot mend another");
                    continue;
                }
            };
            let place = block.place.clone();
            let mended = self.node.on_store(move |_, store| {
                store
                    .integrity()
                    .write_block(&place, &data)
                    .map_err(|e| store_error(&e))
            });
            match mended.await {
                Ok(()) => return Ok(peer),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    async fn read_block(
        &self,
        peer: &str,
        (bucket, key): (&str, &str),
        block: &DamagedBlock,
    ) -> io::Result<Vec<u8>> {
        let head = head_of(bucket, key, block)?;
        // The node itself; others believe it.
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

fn head_of(bucket: &str, key: &str, block: &DamagedBlock) -> io::Result<RequestHead> {
    let mut headers = Headers::new();
    let range = format!(
        "bytes={}-{}",
        block.bytes.start,
        block.bytes.end.saturating_sub(1)
    );
    for (name, value) in [("Host", "prism"), ("Range", range.as_str())] {
        headers.append(name, value).map_err(io::Error::other)?;
    }
    let mut text = format!("GET /{bucket}/{} HTTP/1.1\r\n", encode_path(key)).into_bytes();
    headers.write_to(&mut text);
    text.extend_from_slice(b"\r\n");
    match RequestHead::parse(&text, &Limits::DEFAULT) {
        Ok(Some((head, _))) => Ok(head),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}
