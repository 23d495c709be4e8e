//! A checker of histories, for tests: whether the operations that clients have seen of one
//! key are linearizable. Each operation takes effect at one moment between its call and its
//! answer. An operation without an answer may take effect at any time after its call, or
//! never.
//!
//! The search is that of Wing and Gong (*Testing and Verifying Concurrent Objects*, 1993),
//! with Lowe's memory of the states that were tried (*Testing for Linearizability*, 2017).

use std::collections::HashSet;

/// Most operations of one history.
pub const OPERATIONS_MAX: usize = 128;

/// An operation of a client, with its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The client wrote this value; none is a deletion.
    Write(Option<u64>),
    /// The client added these bits to the value. Versions are bits of a key's value.
    Add(u64),
    /// The client removed these bits. Without any bits, the key has no value.
    Remove(u64),
    /// The client read this value, or none.
    Read(Option<u64>),
}

/// One operation. All times are of one clock, in any unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// A time not after the request was sent.
    pub called: u64,
    /// A time not before the answer came; none without an answer. A history has no reads
    /// without an answer, because they say nothing.
    pub answered: Option<u64>,
    /// The operation.
    pub action: Action,
}

/// Whether the operations are linearizable. `initial` is the first value of the key. `None`
/// for more than [`OPERATIONS_MAX`] operations.
#[must_use]
pub fn is_linearizable(initial: Option<u64>, operations: &[Operation]) -> Option<bool> {
    if operations.len() > OPERATIONS_MAX {
        return None;
    }
    let certain = mask(operations, |operation| operation.answered.is_some());
    // A write that has no answer and was never read explains nothing.
    let useless = mask(operations, |operation| {
        operation.answered.is_none() && !may_show(operations, operation.action)
    });
    let mut tried = HashSet::new();
    let mut open = vec![(useless, initial)];
    while let Some((done, value)) = open.pop() {
        if done & certain == certain {
            return Some(true);
        }
        if !tried.insert((done, value)) {
            continue;
        }
        // No later operation was answered before this one was called.
        let limit = pending(operations, done)
            .filter_map(|(_, operation)| operation.answered)
            .min()
            .unwrap_or(u64::MAX);
        for (index, operation) in pending(operations, done) {
            if operation.called > limit || is_like_an_earlier(operations, done, operation) {
                continue;
            }
            let after = match operation.action {
                Action::Write(written) => written,
                Action::Add(bits) => Some(value.unwrap_or(0) | bits),
                Action::Remove(bits) => value.map(|value| value & !bits).filter(|v| *v != 0),
                Action::Read(read) if read == value => value,
                Action::Read(_) => continue,
            };
            open.push((done | 1 << index, after));
        }
    }
    Some(false)
}

fn may_show(operations: &[Operation], action: Action) -> bool {
    let mut actions = operations.iter().map(|operation| operation.action);
    match action {
        Action::Write(value) => actions.any(|action| action == Action::Read(value)),
        Action::Add(bits) => {
            actions.any(|action| matches!(action, Action::Read(Some(value)) if value & bits != 0))
        }
        Action::Remove(_) | Action::Read(_) => true,
    }
}

/// Whether an equal write without an answer was called earlier: that one explains whatever
/// this one does.
fn is_like_an_earlier(operations: &[Operation], done: u128, this: &Operation) -> bool {
    this.answered.is_none()
        && pending(operations, done).any(|(_, other)| {
            other.answered.is_none() && other.action == this.action && other.called < this.called
        })
}

fn pending(operations: &[Operation], done: u128) -> impl Iterator<Item = (usize, &Operation)> {
    let all = operations.iter().enumerate();
    all.filter(move |(index, _)| done & (1 << index) == 0)
}

fn mask(operations: &[Operation], wanted: impl Fn(&Operation) -> bool) -> u128 {
    let all = operations.iter().enumerate();
    all.filter(|(_, operation)| wanted(operation))
        .fold(0, |mask, (index, _)| mask | 1 << index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(called: u64, answered: u64, action: Action) -> Operation {
        Operation {
            called,
            answered: Some(answered),
            action,
        }
    }

    fn lost(called: u64, action: Action) -> Operation {
        Operation {
            called,
            answered: None,
            action,
        }
    }

    use Action::{Add, Read, Remove, Write};

    fn judge(operations: &[Operation]) -> bool {
        is_linearizable(None, operations) == Some(true)
    }

    #[test]
    fn what_happened_one_after_the_other_has_to_be_seen_so() {
        assert!(judge(&[op(0, 1, Write(Some(1))), op(2, 3, Read(Some(1)))]));
        assert!(!judge(&[op(0, 1, Write(Some(1))), op(2, 3, Read(None))]));
        assert!(!judge(&[op(0, 1, Read(Some(1)))]));
        let gone = [op(0, 1, Write(Some(1))), op(2, 3, Write(None))];
        assert!(judge(&[gone[0], gone[1], op(4, 5, Read(None))]));
        assert!(!judge(&[gone[0], gone[1], op(4, 5, Read(Some(1)))]));
    }

    #[test]
    fn a_read_beside_a_write_may_see_either_but_nobody_goes_back() {
        let write = op(0, 10, Write(Some(1)));
        let (new, old) = (Read(Some(1)), Read(None));
        assert!(judge(&[write, op(1, 2, old), op(3, 4, new)]));
        assert!(!judge(&[write, op(1, 2, new), op(3, 4, old)]));
        assert!(judge(&[write, op(1, 3, new), op(2, 4, old)]));
    }

    #[test]
    fn a_write_that_was_not_answered_may_happen_late_or_never_but_once() {
        let write = lost(0, Write(Some(1)));
        assert!(judge(&[write, op(5, 6, Read(None))]));
        assert!(judge(&[
            write,
            op(5, 6, Read(None)),
            op(7, 8, Read(Some(1)))
        ]));
        let other = op(9, 10, Write(Some(2)));
        let again = op(11, 12, Read(Some(1)));
        assert!(judge(&[write, other, again]));
        assert!(!judge(&[write, op(7, 8, Read(Some(1))), other, again]));
        assert!(!judge(&[lost(20, Write(Some(1))), op(5, 6, Read(Some(1)))]));
    }

    #[test]
    fn versions_are_added_and_removed_each_for_itself() {
        let two = [op(0, 1, Add(1)), op(2, 3, Add(2))];
        assert!(judge(&[two[0], two[1], op(4, 5, Read(Some(3)))]));
        assert!(!judge(&[two[0], two[1], op(4, 5, Read(Some(2)))]));
        let gone = op(4, 5, Remove(1));
        assert!(judge(&[two[0], two[1], gone, op(6, 7, Read(Some(2)))]));
        assert!(!judge(&[two[0], two[1], gone, op(6, 7, Read(Some(3)))]));
        let last = op(6, 7, Remove(2));
        assert!(judge(&[two[0], two[1], gone, last, op(8, 9, Read(None))]));
        // One that was not answered happens once, or never.
        let late = lost(0, Remove(1));
        assert!(judge(&[two[0], late, op(4, 5, Read(None))]));
        assert!(judge(&[two[0], late, op(4, 5, Read(Some(1)))]));
        let (seen, back) = (op(4, 5, Read(None)), op(6, 7, Read(Some(1))));
        assert!(!judge(&[two[0], late, seen, back]));
        let added = lost(0, Add(4));
        assert!(judge(&[
            added,
            op(4, 5, Read(None)),
            op(6, 7, Read(Some(4)))
        ]));
    }

    #[test]
    fn many_writes_without_an_answer_do_not_make_it_long() {
        let mut history = vec![op(0, 1, Write(Some(1)))];
        for n in 2..60 {
            let value = Some(n).filter(|n| n % 2 == 0);
            history.push(lost(n, Write(value)));
        }
        history.push(op(100, 101, Read(None)));
        history.push(op(102, 103, Read(Some(50))));
        history.push(op(104, 105, Read(None)));
        assert!(judge(&history));
        history.push(op(106, 107, Read(Some(50))));
        assert!(!judge(&history));
    }

    #[test]
    fn long_histories_are_judged_in_time_and_too_long_ones_not_at_all() {
        let step = |n: u64| {
            let action = match n % 2 {
                0 => Write(Some(n)),
                _ => Read(Some(n - 1)),
            };
            op(10 * n, 10 * n + 25, action)
        };
        let mut long: Vec<_> = (0..OPERATIONS_MAX as u64).map(step).collect();
        assert!(judge(&long));
        long.push(step(0));
        assert_eq!(is_linearizable(None, &long), None);
    }
}
