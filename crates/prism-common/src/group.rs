//! Work that is cheaper in groups: callers that come while a group is at work form the next
//! one.
//!
//! There is no thread for it. The first caller that finds no leader leads: it takes the queued
//! items, its own first, does the work and wakes the other callers with their results. The
//! first caller that queued meanwhile leads next. A lone caller pays no switch of threads. The
//! caller brings the work, and says which items go together.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
};

use parking_lot::Mutex;

/// A queue of items `T`, each answered by an `R`. Each queued item has a waiting thread, so the
/// number of threads bounds the queue.
pub struct Group<T, R> {
    queue: Mutex<Queue<T, R>>,
}

struct Queue<T, R> {
    waiting: VecDeque<(T, SyncSender<Turn<R>>)>,
    /// Whether a leader is at work. It takes the queued items, or passes on the lead.
    led: bool,
}

/// The message that a waiting caller gets. A leader that gives no answer hangs up.
enum Turn<R> {
    Lead,
    Done(R),
}

impl<T, R> Default for Group<T, R> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, R> Group<T, R> {
    /// An empty queue.
    #[must_use]
    pub fn new() -> Self {
        Self {
            queue: Mutex::new(Queue {
                waiting: VecDeque::new(),
                led: false,
            }),
        }
    }

    /// Queues `item` and waits for its answer. This caller may lead.
    ///
    /// `how_many` of the queued items go together: at least one. `work` answers those in order.
    /// `None` if `work` panicked or gave too few answers.
    pub fn submit(
        &self,
        item: T,
        how_many: impl Fn(&mut dyn Iterator<Item = &T>) -> usize,
        work: impl Fn(Vec<T>) -> Vec<R>,
    ) -> Option<R> {
        let mut answers = self.submit_all(vec![item], how_many, work);
        answers.pop().flatten()
    }

    /// [`Group::submit`] of several items of one caller. The answers come in their order.
    pub fn submit_all(
        &self,
        items: Vec<T>,
        how_many: impl Fn(&mut dyn Iterator<Item = &T>) -> usize,
        work: impl Fn(Vec<T>) -> Vec<R>,
    ) -> Vec<Option<R>> {
        if items.is_empty() {
            return Vec::new();
        }
        let queued = items.into_iter().map(|item| {
            // A caller that is told to lead does so before its item is answered.
            let (sender, turns) = sync_channel(1);
            ((item, sender), turns)
        });
        let (queued, turns): (Vec<_>, Vec<_>) = queued.unzip();
        let lead = {
            let mut queue = self.queue.lock();
            queue.waiting.extend(queued);
            !std::mem::replace(&mut queue.led, true)
        };
        // Without a leader the queue was empty: our first item is its first.
        if lead {
            self.lead(&how_many, &work);
        }
        let answer = |turns: Receiver<Turn<R>>| loop {
            match turns.recv() {
                Ok(Turn::Done(answer)) => return Some(answer),
                // Our item has become the first of the queue.
                Ok(Turn::Lead) => self.lead(&how_many, &work),
                Err(_) => return None,
            }
        };
        turns.into_iter().map(answer).collect()
    }

    fn lead(
        &self,
        how_many: &impl Fn(&mut dyn Iterator<Item = &T>) -> usize,
        work: &impl Fn(Vec<T>) -> Vec<R>,
    ) {
        let (items, senders): (Vec<_>, Vec<_>) = {
            let waiting = &mut self.queue.lock().waiting;
            let count = how_many(&mut waiting.iter().map(|(item, _)| item));
            waiting.drain(..count.clamp(1, waiting.len())).unzip()
        };
        // The leader may have more items in the queue, and goes on with them after a panic.
        let answers = catch_unwind(AssertUnwindSafe(|| work(items))).unwrap_or_default();
        for (sender, answer) in senders.iter().zip(answers) {
            let _ = sender.try_send(Turn::Done(answer));
        }
        let mut queue = self.queue.lock();
        match queue.waiting.front() {
            Some((_, sender)) => drop(sender.try_send(Turn::Lead)),
            None => queue.led = false,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::{
        sync::{
            Barrier,
            atomic::{AtomicUsize, Ordering},
        },
        thread,
        time::Duration,
    };

    use super::*;

    fn all<T>(items: &mut dyn Iterator<Item = &T>) -> usize {
        items.count()
    }

    #[test]
    fn each_caller_gets_its_own_answer_and_groups_form_under_load() {
        let group = Group::new();
        let (rounds, all_here) = (AtomicUsize::new(0), Barrier::new(8));
        thread::scope(|scope| {
            for t in 0..8_u64 {
                let (group, rounds, all_here) = (&group, &rounds, &all_here);
                scope.spawn(move || {
                    all_here.wait();
                    for i in 0..200 {
                        let answer = group.submit(t * 1000 + i, all, |items| {
                            rounds.fetch_add(1, Ordering::Relaxed);
                            thread::sleep(Duration::from_micros(50));
                            items.iter().map(|item| item + 1).collect()
                        });
                        assert_eq!(answer, Some(t * 1000 + i + 1));
                    }
                });
            }
        });
        let rounds = rounds.into_inner();
        assert!((200..1600).contains(&rounds), "{rounds} rounds");
    }

    #[test]
    fn a_group_is_the_head_of_the_queue_as_long_as_the_leader_likes() {
        let group = Group::new();
        let (longest, all_here) = (AtomicUsize::new(0), Barrier::new(6));
        thread::scope(|scope| {
            for t in 0..6 {
                let (group, longest, all_here) = (&group, &longest, &all_here);
                scope.spawn(move || {
                    all_here.wait();
                    for _ in 0..50 {
                        let work = |items: Vec<u32>| {
                            longest.fetch_max(items.len(), Ordering::Relaxed);
                            thread::sleep(Duration::from_micros(50));
                            items
                        };
                        assert_eq!(
                            group.submit(t, |items| items.take(2).count(), work),
                            Some(t)
                        );
                    }
                });
            }
        });
        assert_eq!(longest.into_inner(), 2);
        // Zero is taken as one.
        assert_eq!(group.submit(7, |_| 0, |items| items), Some(7));
    }

    #[test]
    fn a_leader_that_panics_leaves_nobody_waiting() {
        let group = Group::new();
        let lost = AtomicUsize::new(0);
        thread::scope(|scope| {
            for t in 0..6 {
                let (group, lost) = (&group, &lost);
                scope.spawn(move || {
                    for i in 0..20 {
                        let work = |items: Vec<u32>| {
                            thread::sleep(Duration::from_micros(100));
                            assert!(t != 0 || i % 5 != 0, "as intended");
                            items
                        };
                        match group.submit(t, all, work) {
                            Some(answer) => assert_eq!(answer, t),
                            None => drop(lost.fetch_add(1, Ordering::Relaxed)),
                        }
                    }
                });
            }
        });
        assert_eq!(group.submit(9, all, |items| items), Some(9));
    }

    #[test]
    fn a_panic_over_the_first_of_several_items_leaves_the_others_their_answers() {
        let group = Group::new();
        let work = |items: Vec<u32>| {
            assert!(items != [1], "as intended");
            items
        };
        let answers = group.submit_all(vec![1, 2, 3], |_| 1, work);
        assert_eq!(answers, [None, Some(2), Some(3)]);
        assert_eq!(group.submit(4, all, work), Some(4));
    }

    #[test]
    fn one_caller_with_several_items_gets_all_answers_in_their_order() {
        let group = Group::new();
        let all_here = Barrier::new(4);
        thread::scope(|scope| {
            for t in 0..4_u64 {
                let (group, all_here) = (&group, &all_here);
                scope.spawn(move || {
                    all_here.wait();
                    for i in 0..100 {
                        let items: Vec<_> = (0..t * 3).map(|n| t * 10_000 + i * 100 + n).collect();
                        let expected: Vec<_> = items.iter().map(|item| Some(item + 1)).collect();
                        let work = |items: Vec<u64>| items.iter().map(|item| item + 1).collect();
                        let answers = group.submit_all(items, |items| items.take(5).count(), work);
                        assert_eq!(answers, expected);
                    }
                });
            }
        });
    }

    #[test]
    fn a_missing_answer_is_no_answer() {
        let group = Group::<u8, u8>::new();
        assert_eq!(group.submit(1, all, |_| Vec::new()), None);
        assert_eq!(group.submit(2, all, |items| items), Some(2));
    }
}
