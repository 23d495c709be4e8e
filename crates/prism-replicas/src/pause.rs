//! Pauses of writes while the cluster takes a step.
//!
//! A write is made in one epoch. A write that meets the next epoch fails, and its client has to
//! begin again. So the backend that makes the step asks all backends for a pause. Each lets its
//! writes end and holds new ones back, until it has adopted the step or the pause times out.
//!
//! Safety does not depend on pauses: the rules of replication refuse a write that takes longer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use prism_membership::etcd::Pause;
use tokio::sync::{Notify, watch};

use crate::Node;

/// Time for the writes under way to end. Afterwards this node reports that they have ended.
const WRITES_TIMEOUT: Duration = Duration::from_millis(800);
/// Length of a pause without a step.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(3);

/// The writes of this node.
#[derive(Debug)]
pub struct Pauses {
    /// Numbers of writes of the present generation and of the one before. The two alternate.
    under_way: [AtomicUsize; 2],
    generation: AtomicUsize,
    ended: Notify,
    is_on: watch::Sender<bool>,
}

impl Default for Pauses {
    fn default() -> Self {
        Self {
            under_way: Default::default(),
            generation: AtomicUsize::new(0),
            ended: Notify::new(),
            is_on: watch::Sender::new(false),
        }
    }
}

/// A write that has begun. It ends when this is dropped.
pub struct UnderWay<'p> {
    pauses: &'p Pauses,
    count: &'p AtomicUsize,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.pauses.ended.notify_waiters();
        }
    }
}

impl Pauses {
    /// Begins a write as soon as there is no pause. The caller reads the cluster's view after
    /// that.
    pub async fn begin(&self) -> UnderWay<'_> {
        loop {
            let begun = self.count_one();
            if !*self.is_on.borrow() {
                return begun;
            }
            drop(begun);
            // The channel stays open: `self` holds its sender.
            let _ = self.is_on.subscribe().wait_for(|is_on| !is_on).await;
        }
    }

    fn count_one(&self) -> UnderWay<'_> {
        let [even, odd] = &self.under_way;
        let count = match self.generation.load(Ordering::SeqCst) % 2 {
            0 => even,
            _ => odd,
        };
        count.fetch_add(1, Ordering::SeqCst);
        UnderWay {
            pauses: self,
            count,
        }
    }

    /// Resolves when the writes have ended that are under way now. Others may begin. May be
    /// called once in the life of a process.
    pub async fn present_writes_ended(&self) {
        let before = self.generation.fetch_add(1, Ordering::SeqCst) % 2;
        let none_left = || {
            let count = self.under_way.get(before);
            count.is_none_or(|count| count.load(Ordering::SeqCst) == 0)
        };
        self.until(none_left).await;
    }

    /// Holds new writes back. Resolves when none is under way.
    async fn stop(&self) {
        self.is_on.send_replace(true);
        let none_left = || {
            let mut counts = self.under_way.iter();
            counts.all(|count| count.load(Ordering::SeqCst) == 0)
        };
        self.until(none_left).await;
    }

    async fn until(&self, is_over: impl Fn() -> bool) {
        loop {
            // Created before the check, so that no end of a write is missed.
            let ended = self.ended.notified();
            if is_over() {
                return;
            }
            ended.await;
        }
    }

    fn resume(&self) {
        self.is_on.send_replace(false);
    }
}

/// Pauses writes whenever the cluster asks for it. Never returns.
pub async fn follow(node: &Arc<Node>) {
    let Some(mut asked) = node.cluster.pauses() else {
        return std::future::pending().await;
    };
    loop {
        let pause = *asked.borrow_and_update();
        if pause.number != 0 && pause.epoch == node.replication.view().epoch() {
            hold_writes(node, pause).await;
        }
        if asked.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

async fn hold_writes(node: &Node, pause: Pause) {
    let begun = tokio::time::Instant::now();
    if tokio::time::timeout(WRITES_TIMEOUT, node.pauses.stop())
        .await
        .is_err()
    {
        tracing::debug!("some writes take longer than the cluster's step waits for them");
    }
    node.cluster.paused(pause);
    let left = PAUSE_TIMEOUT.saturating_sub(begun.elapsed());
    node.replication.wait_beyond(pause.epoch, left).await;
    node.pauses.resume();
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn a_pause_waits_for_earlier_writes_and_holds_back_later_ones() {
        let pauses = Pauses::default();
        let first = pauses.begin().await;
        let short = Duration::from_millis(20);
        assert!(tokio::time::timeout(short, pauses.stop()).await.is_err());
        let held_back = tokio::time::timeout(short, pauses.begin()).await;
        assert!(held_back.is_err(), "begun in a pause");
        drop(first);
        let long = Duration::from_secs(10);
        tokio::time::timeout(long, pauses.stop()).await.unwrap();
        let (begun, ()) = tokio::join!(pauses.begin(), async { pauses.resume() });
        drop(begun);
        tokio::time::timeout(long, pauses.stop()).await.unwrap();
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
        let long = Duration::from_secs(10);
        let ((), second) = tokio::time::timeout(long, both).await.unwrap();
        let short = Duration::from_millis(20);
        assert!(tokio::time::timeout(short, pauses.stop()).await.is_err());
        drop(second);
        tokio::time::timeout(long, pauses.stop()).await.unwrap();
    }
}
