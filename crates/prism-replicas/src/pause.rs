//! Writes pause while the cluster takes a step. A write is made in one epoch; one that
//! meets the next would fail, and its client would have to begin again. So the backend
//! that makes the step asks all for a pause: each lets its writes end, holds new ones
//! back, and goes on when it has adopted the step, or when none comes.
//!
//! Nothing depends on it: a write that takes longer than the others wait is refused by
//! the rules of replication, as without a pause.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use prism_membership::etcd::Pause;

use crate::Node;

/// How long writes under way may take until the others are told that they have ended.
const FINISHED_IN: Duration = Duration::from_millis(800);
/// How long a pause lasts where no step comes.
const OVER_IN: Duration = Duration::from_secs(3);

/// The writes of this node.
#[derive(Debug)]
pub struct Pauses {
    /// Writes of the present generation and of the one before, which alternate.
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

/// A write that has begun; over when dropped.
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
    /// Begins a write, as soon as there is no pause. The caller reads the view of the cluster
    /// after that.
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

    /// Resolves when the writes have ended that are under way now. Others may begin. Once
    /// in a life.
    pub async fn present_ended(&self) {
        let before = self.generation.fetch_add(1, Ordering::SeqCst) % 2;
        let none_left = || {
            let count = self.under_way.get(before);
            count.is_none_or(|count| count.load(Ordering::SeqCst) == 0)
        };
        self.until(none_left).await;
    }

    /// No write begins from now on; resolves when none is under way.
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
            // First: what ends from now on is heard.
            let ended = self.ended.notified();
            if is_over() {
                return;
            }
            ended.await;
        }
    }

    fn go_on(&self) {
        self.is_on.send_replace(false);
    }
}

/// Pauses whenever the cluster asks for it. Never ends.
pub async fn follow(node: &Arc<Node>) {
    let Some(mut asked) = node.cluster.pauses() else {
        return std::future::pending().await;
    };
    loop {
        let pause = *asked.borrow_and_update();
        if pause.number != 0 && pause.epoch == node.replication.view().epoch() {
            keep(node, pause).await;
        }
        if asked.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

async fn keep(node: &Node, pause: Pause) {
    let begun = tokio::time::Instant::now();
    if tokio::time::timeout(FINISHED_IN, node.pauses.stop())
        .await
        .is_err()
    {
        tracing::debug!("writes take longer than the cluster waits for them");
    }
    node.cluster.paused(pause);
    let left = OVER_IN.saturating_sub(begun.elapsed());
    node.replication.wait_beyond(pause.epoch, left).await;
    node.pauses.go_on();
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn a_pause_waits_for_the_writes_before_it_and_holds_back_those_behind() {
        let pauses = Pauses::default();
        let first = pauses.begin().await;
        let short = Duration::from_millis(20);
        assert!(tokio::time::timeout(short, pauses.stop()).await.is_err());
        let held_back = tokio::time::timeout(short, pauses.begin()).await;
        assert!(held_back.is_err(), "begun in a pause");
        drop(first);
        let long = Duration::from_secs(10);
        tokio::time::timeout(long, pauses.stop()).await.unwrap();
        let (begun, ()) = tokio::join!(pauses.begin(), async { pauses.go_on() });
        drop(begun);
        tokio::time::timeout(long, pauses.stop()).await.unwrap();
    }

    #[tokio::test]
    async fn those_that_are_there_are_waited_for_and_those_behind_them_are_not() {
        let pauses = Pauses::default();
        let first = pauses.begin().await;
        let begins_another = async {
            tokio::task::yield_now().await;
            let second = pauses.begin().await;
            drop(first);
            second
        };
        let both = async { tokio::join!(pauses.present_ended(), begins_another) };
        let long = Duration::from_secs(10);
        let ((), second) = tokio::time::timeout(long, both).await.unwrap();
        let short = Duration::from_millis(20);
        assert!(tokio::time::timeout(short, pauses.stop()).await.is_err());
        drop(second);
        tokio::time::timeout(long, pauses.stop()).await.unwrap();
    }
}
