//! Pauses of writes while the cluster takes a step.
//!
//! A write is made in one epoch. A write that meets the next epoch fails, and its client has to
//! begin again. So the backend that makes the step asks all backends for a pause. Each lets its
//! writes end and holds new ones back, until it has adopted the step or the pause times out.
//!
//! Safety does not depend on pauses: the rules of replication refuse a write that takes longer.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The writes of this node.
#[derive(Debug, Default)]
pub struct Pauses {
    /// Shared by the writes of the present generation, and of the one before. The two alternate.
    /// A pause has both for itself. Locks are fair: a pause that waits holds new writes back.
    under_way: [RwLock<()>; 2],
    generation: AtomicUsize,
}

/// A write that has begun. It ends when this is dropped.
pub type UnderWay<'p> = RwLockReadGuard<'p, ()>;

impl Pauses {
    /// Begins a write as soon as there is no pause. The caller reads the cluster's view after
    /// that.
    pub async fn begin(&self) -> UnderWay<'_> {
        self.of_generation(self.generation.load(Ordering::SeqCst))
            .read()
            .await
    }

    fn of_generation(&self, generation: usize) -> &RwLock<()> {
        let [even, odd] = &self.under_way;
        match generation % 2 {
            0 => even,
            _ => odd,
        }
    }

    /// Resolves when the writes have ended that are under way now. Others may begin. May be
    /// called once in the life of a process.
    pub async fn present_writes_ended(&self) {
        let before = self.generation.fetch_add(1, Ordering::SeqCst);
        drop(self.of_generation(before).write().await);
    }

    /// Resolves when no write is under way. Holds new writes back until it is dropped with its
    /// result.
    pub(crate) async fn stop(&self) -> [RwLockWriteGuard<'_, ()>; 2] {
        let [even, odd] = &self.under_way;
        let (even, odd) = tokio::join!(even.write(), odd.write());
        [even, odd]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::pin::pin;
    use std::time::Duration;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_pause_waits_for_earlier_writes_and_holds_back_later_ones() {
        let pauses = Pauses::default();
        let first = pauses.begin().await;
        let mut stopping = pin!(pauses.stop());
        assert!(tokio::time::timeout(SHORT, &mut stopping).await.is_err());
        let held_back = tokio::time::timeout(SHORT, pauses.begin()).await;
        assert!(held_back.is_err(), "begun in a pause that waits");
        drop(first);
        let stopped = tokio::time::timeout(LONG, stopping).await.unwrap();
        let held_back = tokio::time::timeout(SHORT, pauses.begin()).await;
        assert!(held_back.is_err(), "begun in a pause");
        let (begun, ()) = tokio::join!(pauses.begin(), async { drop(stopped) });
        drop(begun);
        drop(tokio::time::timeout(LONG, pauses.stop()).await.unwrap());
    }

    #[tokio::test]
    async fn a_pause_that_is_given_up_holds_no_write_back() {
        let pauses = Pauses::default();
        let _first = pauses.begin().await;
        assert!(tokio::time::timeout(SHORT, pauses.stop()).await.is_err());
        drop(tokio::time::timeout(LONG, pauses.begin()).await.unwrap());
    }

    #[tokio::test]
    async fn present_writes_are_waited_for_and_later_ones_are_not() {
        let pauses = Pauses::default();
        let first = pauses.begin().await;
        let begins_another = async {
            tokio::task::yield_now().await;
            let second = pauses.begin().await;
            drop(first);
            second
        };
        let both = async { tokio::join!(pauses.present_writes_ended(), begins_another) };
        let ((), second) = tokio::time::timeout(LONG, both).await.unwrap();
        assert!(tokio::time::timeout(SHORT, pauses.stop()).await.is_err());
        drop(second);
        drop(tokio::time::timeout(LONG, pauses.stop()).await.unwrap());
    }
}
