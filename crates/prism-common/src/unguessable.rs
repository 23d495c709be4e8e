//! Numbers that no other node can guess from those it has seen: of hand-offs, whose verdicts are
//! found by them, and of requests, whose answers may wait under them.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

/// A number that is not 0. It is SipHash of a counter under a random key of the thread.
#[must_use]
pub fn number() -> u64 {
    thread_local! {
        static KEY: RandomState = RandomState::new();
        static COUNTER: Cell<u64> = const { Cell::new(0) };
    }
    let next = || KEY.with(|key| key.hash_one(COUNTER.replace(COUNTER.get().wrapping_add(1))));
    loop {
        match next() {
            0 => {}
            number => return number,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn numbers_of_all_threads_differ() {
        let some = || (0..1000).map(|_| number()).collect::<HashSet<u64>>();
        let mut all = some();
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(some)).collect();
        threads
            .into_iter()
            .filter_map(|thread| thread.join().ok())
            .for_each(|others| all.extend(others));
        assert_eq!(all.len(), 5000);
        assert!(!all.contains(&0));
    }
}
