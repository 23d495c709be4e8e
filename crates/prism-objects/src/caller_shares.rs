//! The share of each caller in the memory for documents, over all connections of a service, and in
//! the time for lists of keys to delete. Without these bounds one key could fill the memory with
//! lists for DeleteObjects that it sends slowly, and keep all backends busy with complete ones.
//!
//! A document gets all of its memory before it is read, by its declared length. If it got more with
//! each byte, many documents could wait for each other. Not here: objects (`bodies.rs`).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use prism_common::unguessable;
use prism_s3::{Code, Principal, S3Error};
use tokio::sync::{
    AcquireError, Mutex as TurnMutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore,
};
use tokio::time::Instant;

/// Bytes for the documents of all callers.
const ALL_BYTES: u64 = 64 << 20;
/// Bytes for the documents of one key, and of all callers without a signature. Four keys would have
/// to take their whole shares before others wait. Two of the longest documents have room in one.
const SHARE_BYTES: u64 = ALL_BYTES / 4;
/// Bytes that count as one.
const UNIT_BYTES: u64 = 1 << 10;
/// Shortest and longest time of a wait for memory that is in vain. Clients wait longer for an
/// answer. Requests that came together do not end together.
const VAIN_WAIT_MS: Range<u64> = 2_500..5_000;

/// The rest after work of a caller, in times of that work. A caller has a quarter of the time.
const REST: u32 = 3;
/// The longest rest. Work can take long because a backend does not answer.
const MAX_REST: Duration = Duration::from_millis(300);

/// The shares of all callers.
pub(crate) struct CallerShares {
    /// The memory for documents of all callers.
    memory: Arc<Semaphore>,
    /// The shares in use.
    shares: Mutex<HashMap<Principal, Weak<Share>>>,
}

/// The memory and the turns of one caller.
struct Share {
    memory: Arc<Semaphore>,
    /// The time of the next turn.
    next_turn: Arc<TurnMutex<Instant>>,
}

/// Memory for one document, which is free again when this is dropped.
pub(crate) struct DocumentRoom {
    _share: Arc<Share>,
    _of_share: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

/// A turn of a caller. The next one begins some time after this is dropped.
pub(crate) struct Turn {
    begun: Instant,
    next: OwnedMutexGuard<Instant>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        *self.next = Instant::now() + rest_after(self.begun.elapsed());
    }
}

impl Default for CallerShares {
    fn default() -> Self {
        Self {
            memory: Arc::new(Semaphore::new(units(ALL_BYTES) as usize)),
            shares: Mutex::default(),
        }
    }
}

impl CallerShares {
    /// Waits for a turn of a caller. Callers wait for their own earlier turns only.
    pub(crate) async fn turn(&self, caller: &Principal) -> Turn {
        let next_turn = self.share(caller).next_turn.clone();
        let next = next_turn.lock_owned().await;
        tokio::time::sleep_until(*next).await;
        Turn {
            begun: Instant::now(),
            next,
        }
    }

    /// Waits after work for a caller that took the time `worked` and had no turn, while the caller
    /// gets no turn. Its requests rest one after the other.
    pub(crate) async fn rest(&self, caller: &Principal, worked: Duration) {
        let next_turn = self.share(caller).next_turn.clone();
        let next = next_turn.lock().await;
        tokio::time::sleep_until(*next).await;
        tokio::time::sleep(rest_after(worked)).await;
    }

    /// Waits for memory for a document of `bytes`.
    ///
    /// # Errors
    /// `SlowDown` if there is none within a time of [`VAIN_WAIT_MS`].
    pub(crate) async fn room(
        &self,
        caller: &Principal,
        bytes: u64,
    ) -> Result<DocumentRoom, S3Error> {
        let share = self.share(caller);
        let units = units(bytes);
        let waiting = async {
            Ok::<_, AcquireError>(DocumentRoom {
                _of_share: share.memory.clone().acquire_many_owned(units).await?,
                _of_all: self.memory.clone().acquire_many_owned(units).await?,
                _share: share,
            })
        };
        let spread_ms = VAIN_WAIT_MS.end - VAIN_WAIT_MS.start;
        let wait_ms = VAIN_WAIT_MS.start + unguessable::number() % spread_ms;
        match tokio::time::timeout(Duration::from_millis(wait_ms), waiting).await {
            Ok(Ok(room)) => Ok(room),
            _ => Err(Code::SlowDown
                .with_message(
                    "Too many documents are sent at the same time, such as lists of keys to \
                     delete. Send fewer of them at once with this key, and repeat the request.",
                )
                .until(1)),
        }
    }

    fn share(&self, caller: &Principal) -> Arc<Share> {
        let mut shares = self.shares.lock();
        if let Some(share) = shares.get(caller).and_then(Weak::upgrade) {
            return share;
        }
        shares.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Share {
            memory: Arc::new(Semaphore::new(units(SHARE_BYTES) as usize)),
            next_turn: Arc::new(TurnMutex::new(Instant::now())),
        });
        shares.insert(caller.clone(), Arc::downgrade(&share));
        share
    }
}

fn rest_after(work: Duration) -> Duration {
    work.saturating_mul(REST).min(MAX_REST)
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prism_s3::BucketOperation;
    use prism_service::join_all;

    use super::*;

    fn key(n: usize) -> Principal {
        Principal::AccessKey(format!("key{n}"))
    }

    /// The memory that is free at once for a caller.
    async fn free(callers: &CallerShares, caller: &Principal, bytes: u64) -> Option<DocumentRoom> {
        let waiting = callers.room(caller, bytes);
        let soon = tokio::time::timeout(Duration::from_millis(1), waiting).await;
        soon.ok()?.ok()
    }

    #[test]
    fn one_key_has_its_share_and_all_together_have_the_whole() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        runtime.unwrap().block_on(async {
            let callers = CallerShares::default();
            let max = BucketOperation::DeleteObjects.row().body.max_bytes();
            let mut held = Vec::new();
            while let Some(room) = free(&callers, &key(0), max).await {
                held.push(room);
            }
            assert_eq!(held.len() as u64, SHARE_BYTES / max);
            let mut keys = 1;
            while let Some(room) = free(&callers, &key(keys), SHARE_BYTES).await {
                held.push(room);
                keys += 1;
            }
            assert_eq!(keys, 4);
            assert!(
                free(&callers, &Principal::Anonymous, SHARE_BYTES)
                    .await
                    .is_none()
            );
            // A request that waits gets the memory that is freed.
            let next = key(keys);
            let waiting = callers.room(&next, SHARE_BYTES);
            let freeing = async { held.clear() };
            assert!(tokio::join!(waiting, freeing).0.is_ok());
            assert_eq!(
                callers.memory.available_permits(),
                units(ALL_BYTES) as usize
            );
            assert!(free(&callers, &key(0), SHARE_BYTES).await.is_some());
            assert_eq!(
                callers.shares.lock().len(),
                1,
                "shares without use are gone"
            );
        });
    }
    #[test]
    fn a_caller_has_turns_for_a_quarter_of_the_time() {
        const TURN: Duration = Duration::from_millis(2);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        runtime.unwrap().block_on(async {
            let callers = CallerShares::default();
            // Shares are kept while one is used.
            let _room = callers.room(&key(0), 1).await.unwrap();
            let begun = Instant::now();
            let request = async || {
                for _ in 0..5 {
                    let _turn = callers.turn(&key(0)).await;
                    tokio::time::sleep(TURN).await;
                }
            };
            // Two requests of one key share its turns.
            tokio::join!(request(), request());
            assert!(begun.elapsed() >= TURN * (10 + 9 * REST));
            // Work without a turn counts as well.
            let begun = Instant::now();
            let same = key(0);
            let resting = [callers.rest(&same, TURN), callers.rest(&same, TURN)];
            tokio::join!(join_all(resting.into()), request());
            assert!(begun.elapsed() >= TURN * (2 * REST + 5 + 4 * REST));
            // Another key does not wait for one that has a turn.
            let _turn = callers.turn(&key(0)).await;
            let other = tokio::time::timeout(Duration::from_secs(9), async {
                drop(callers.turn(&key(1)).await);
            });
            assert!(other.await.is_ok());
        });
    }
}
