//! The memory for documents that clients send, over all connections of a service. Without a
//! bound one key could fill the memory with lists for DeleteObjects that it sends slowly.
//!
//! A document gets all of its memory before it is read, by its declared length. If it got more with
//! each byte, many documents could wait for each other. Not here: objects (`bodies.rs`).

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use prism_s3::{Code, Principal, S3Error};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// Bytes for the documents of all callers.
const ALL_BYTES: u64 = 64 << 20;
/// Bytes for the documents of one key, and of all callers without a signature. Four keys would have
/// to take their whole shares before others wait. Two of the longest documents have room in one.
const SHARE_BYTES: u64 = ALL_BYTES / 4;
/// Bytes that count as one.
const UNIT_BYTES: u64 = 1 << 10;
/// Longest wait for memory. Clients wait longer for an answer.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// The memory for documents.
pub(crate) struct DocumentMemory {
    all: Arc<Semaphore>,
    /// The shares in use.
    shares: Mutex<HashMap<Principal, Weak<Semaphore>>>,
}

/// Memory for one document, which is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct DocumentRoom {
    _share: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Default for DocumentMemory {
    fn default() -> Self {
        Self {
            all: Arc::new(Semaphore::new(units(ALL_BYTES) as usize)),
            shares: Mutex::default(),
        }
    }
}

impl DocumentMemory {
    /// Waits for memory for a document of `bytes`.
    ///
    /// # Errors
    /// `SlowDown` if there is none within [`MAX_WAIT`].
    pub(crate) async fn room(
        &self,
        caller: &Principal,
        bytes: u64,
    ) -> Result<DocumentRoom, S3Error> {
        let share = self.share(caller);
        let units = units(bytes);
        let waiting = async {
            Ok::<_, AcquireError>(DocumentRoom {
                _share: share.acquire_many_owned(units).await?,
                _of_all: self.all.clone().acquire_many_owned(units).await?,
            })
        };
        match tokio::time::timeout(MAX_WAIT, waiting).await {
            Ok(Ok(room)) => Ok(room),
            _ => Err(Code::SlowDown.with_message(
                "Too many documents are sent at the same time, such as lists of keys to delete. \
                 Send fewer of them at once with this key, and repeat the request.",
            )),
        }
    }

    fn share(&self, caller: &Principal) -> Arc<Semaphore> {
        let mut shares = self.shares.lock();
        if let Some(share) = shares.get(caller).and_then(Weak::upgrade) {
            return share;
        }
        shares.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Semaphore::new(units(SHARE_BYTES) as usize));
        shares.insert(caller.clone(), Arc::downgrade(&share));
        share
    }
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prism_s3::BucketOperation;

    use super::*;

    fn key(n: usize) -> Principal {
        Principal::AccessKey(format!("key{n}"))
    }

    /// The memory that is free at once for a caller.
    async fn free(memory: &DocumentMemory, caller: &Principal, bytes: u64) -> Option<DocumentRoom> {
        let waiting = memory.room(caller, bytes);
        let soon = tokio::time::timeout(Duration::from_millis(1), waiting).await;
        soon.ok()?.ok()
    }

    #[test]
    fn one_key_has_its_share_and_all_together_have_the_whole() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        runtime.unwrap().block_on(async {
            let memory = DocumentMemory::default();
            let max = BucketOperation::DeleteObjects.row().body.max_bytes();
            let mut held = Vec::new();
            while let Some(room) = free(&memory, &key(0), max).await {
                held.push(room);
            }
            assert_eq!(held.len() as u64, SHARE_BYTES / max);
            let mut keys = 1;
            while let Some(room) = free(&memory, &key(keys), SHARE_BYTES).await {
                held.push(room);
                keys += 1;
            }
            assert_eq!(keys, 4);
            assert!(
                free(&memory, &Principal::Anonymous, SHARE_BYTES)
                    .await
                    .is_none()
            );
            // A request that waits gets the memory that is freed.
            let next = key(keys);
            let waiting = memory.room(&next, SHARE_BYTES);
            let freeing = async { held.clear() };
            assert!(tokio::join!(waiting, freeing).0.is_ok());
            assert_eq!(memory.all.available_permits(), units(ALL_BYTES) as usize);
            assert!(free(&memory, &key(0), SHARE_BYTES).await.is_some());
            assert_eq!(memory.shares.lock().len(), 1, "shares without use are gone");
        });
    }
}
