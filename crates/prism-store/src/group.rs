//! Work that is cheaper in groups: callers that come while a group is at work form the next
//! one.
//!
//! There is no thread for it. The first caller that finds no leader leads: it takes the queued
//! items, its own first, does the work and wakes the other callers with their results. The
//! first caller that queued meanwhile leads next. A lone caller pays no switch of threads. The
//! caller brings the work, and says which items go together.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

/// A queue of items `T`, each answered by an `R`. Each queued item has a waiting thread, so the
/// number of threads bounds the queue.
pub struct Group<T, R> {
    queue: Mutex<Queue<T, R>>,
}

struct Queue<T, R> {
    waiting: VecDeque<(T, Arc<Slot<R>>)>,
    /// Whether a leader is at work. It takes the queued items, or passes on the lead.
    led: bool,
}

/// The place where a caller waits for an answer.
struct Slot<R> {
    turn: Mutex<Option<Turn<R>>>,
    wake: Condvar,
}

enum Turn<R> {
    Lead,
    Done(R),
    /// The leader gave no answer.
    Abandoned,
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
    /// `None` if the leader panicked or gave too few answers.
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
        let slots: Vec<_> = items.iter().map(|_| Arc::new(Slot::new())).collect();
        if slots.is_empty() {
            return Vec::new();
        }
        let lead = {
            let mut queue = locked(&self.queue);
            let items = items.into_iter().zip(slots.iter().map(Arc::clone));
            queue.waiting.extend(items);
            !std::mem::replace(&mut queue.led, true)
        };
        // Without a leader the queue was empty: our first item is its first.
        if lead {
            self.lead(&how_many, &work);
        }
        let answer = |slot: Arc<Slot<R>>| loop {
            match slot.wait() {
                Turn::Done(answer) => return Some(answer),
                Turn::Abandoned => return None,
                // Our item has become the first of the queue.
                Turn::Lead => self.lead(&how_many, &work),
            }
        };
        slots.into_iter().map(answer).collect()
    }

    fn lead(
        &self,
        how_many: &impl Fn(&mut dyn Iterator<Item = &T>) -> usize,
        work: &impl Fn(Vec<T>) -> Vec<R>,
    ) {
        let mut leadership = Leadership {
            group: self,
            slots: Vec::new(),
        };
        let taken: Vec<_> = {
            let waiting = &mut locked(&self.queue).waiting;
            let count = how_many(&mut waiting.iter().map(|(item, _)| item));
            waiting.drain(..count.clamp(1, waiting.len())).collect()
        };
        let mut items = Vec::with_capacity(taken.len());
        for (item, slot) in taken {
            items.push(item);
            leadership.slots.push(slot);
        }
        let answers = work(items);
        for (slot, answer) in leadership.slots.iter().zip(answers) {
            slot.give(Turn::Done(answer));
        }
    }
}

/// The duty to answer a group and to pass on the lead, even after a panic.
struct Leadership<'a, T, R> {
    group: &'a Group<T, R>,
    slots: Vec<Arc<Slot<R>>>,
}

impl<T, R> Drop for Leadership<'_, T, R> {
    fn drop(&mut self) {
        for slot in &self.slots {
            slot.abandon();
        }
        let mut queue = locked(&self.group.queue);
        match queue.waiting.front() {
            Some((_, slot)) => slot.give(Turn::Lead),
            None => queue.led = false,
        }
    }
}

impl<R> Slot<R> {
    fn new() -> Self {
        Self {
            turn: Mutex::new(None),
            wake: Condvar::new(),
        }
    }

    fn wait(&self) -> Turn<R> {
        let mut turn = locked(&self.turn);
        loop {
            match turn.take() {
                // `abandon` must find that an answer was given.
                Some(Turn::Done(answer)) => {
                    *turn = Some(Turn::Abandoned);
                    return Turn::Done(answer);
                }
                Some(turn) => return turn,
                None => turn = self.wake.wait(turn).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn give(&self, next: Turn<R>) {
        *locked(&self.turn) = Some(next);
        self.wake.notify_one();
    }

    /// Tells the caller that there is no answer, unless there was one.
    fn abandon(&self) {
        let mut turn = locked(&self.turn);
        if turn.is_none() {
            *turn = Some(Turn::Abandoned);
            self.wake.notify_one();
        }
    }
}

/// A panic cannot leave the guarded state half-changed.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
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
                        let answer = catch_unwind(AssertUnwindSafe(|| group.submit(t, all, work)));
                        match answer {
                            Ok(Some(answer)) => assert_eq!(answer, t),
                            Ok(None) | Err(_) => drop(lost.fetch_add(1, Ordering::Relaxed)),
                        }
                    }
                });
            }
        });
        assert_eq!(group.submit(9, all, |items| items), Some(9));
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
