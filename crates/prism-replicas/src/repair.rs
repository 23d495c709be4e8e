//! Repairs damaged objects with the bytes of another replica.
//!
//! Not here: finding damage, and checking the bytes that arrive (`prism-store`).

use std::io;

use prism_s3::query::encode_path;
use prism_s3::{Code, Principal, S3Error};
use prism_service::parse_own_head;
use prism_store::{DamagedBlock, Place, Scope, ScrubFault};

use crate::Replicator;
use crate::errors::StoreResult;
use crate::fetch::Purpose;

/// Longest block.
const MAX_BLOCK_BYTES: usize = prism_store::BLOCK_LEN as usize;

impl Replicator {
    /// Repairs the object that `fault` is in, as far as other replicas have it. Objects that
    /// have no blocks of their own are replaced whole.
    pub(crate) async fn repair(&self, fault: &ScrubFault) {
        let Place::Object(place) = &fault.place else {
            return;
        };
        let bucket = &place.bucket;
        let key = &place.key;
        let place = place.clone();
        let found = self.node.on_store(move |_, store| {
            Ok(match store.integrity().damaged_scope(&place).in_s3()? {
                Some(scope) => (Some(scope), Vec::new()),
                None => (None, store.integrity().damaged_blocks(&place).in_s3()?),
            })
        });
        let blocks = match found.await {
            Ok((Some(scope), _)) => return self.repair_whole(&scope).await,
            Ok((None, blocks)) => blocks,
            Err(error) => return tracing::error!(%fault, %error, "damage is not repaired"),
        };
        for block in blocks {
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
        let bucket = &scope.bucket;
        let key = &scope.key;
        for peer in self.other_readers(bucket, key) {
            match self.fetch(&peer, scope, Purpose::Repair).await {
                Ok(true) => {
                    self.node.scrub.count_repaired();
                    return tracing::info!(bucket, key, peer, "replaced by another replica's copy");
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
            let written = self
                .node
                .on_store(move |_, store| store.integrity().write_block(&place, &data).in_s3());
            match written.await {
                Ok(()) => return Ok(peer),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn other_readers(&self, bucket: &str, key: &str) -> impl Iterator<Item = String> {
        let peers = self.node.replication.readers(bucket, key).into_iter();
        peers.filter(|peer| *peer != self.node.core.name)
    }

    async fn read_block(
        &self,
        peer: &str,
        bucket: &str,
        key: &str,
        block: &DamagedBlock,
    ) -> io::Result<Vec<u8>> {
        let path = encode_path(key);
        let last = block.bytes.end.saturating_sub(1);
        let range = format!("bytes={}-{last}", block.bytes.start);
        let text =
            format!("GET /{bucket}/{path} HTTP/1.1\r\nHost: prism\r\nRange: {range}\r\n\r\n");
        let head = parse_own_head(text.as_bytes())?;
        // The node reads for itself; other nodes trust its preamble.
        let request = self.request_for(&head, &Principal::AccessKey(String::from("prism")));
        let asked = self.peers.ask(peer, &request, &[], MAX_BLOCK_BYTES).await;
        match asked.map_err(io::Error::other)? {
            (answer, data) if answer.status() == 206 => Ok(data),
            (answer, _) => Err(io::Error::other(format!("status {}", answer.status()))),
        }
    }
}
