//! The progress of one change at its primary.

use std::collections::BTreeSet;

/// A change that other replicas were asked to prepare. Dropping this decides nothing: a
/// change that is not committed has not happened.
#[derive(Debug, Clone)]
#[must_use]
pub struct Write<N> {
    waiting: BTreeSet<N>,
    asked: Vec<N>,
}

/// The next step of a primary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<N> {
    /// Wait for the missing answers.
    Wait,
    /// All replicas have prepared it: commit, answer the client, and tell them.
    Commit,
    /// Give the change up: answer the client, and tell the replicas that may have it.
    Abort {
        /// All replicas that were asked, because an answer may be lost.
        tell: Vec<N>,
    },
}

impl<N: Ord + Clone> Write<N> {
    /// A change that all of `others` have to prepare.
    pub fn new(others: impl IntoIterator<Item = N>) -> Self {
        let waiting: BTreeSet<N> = others.into_iter().collect();
        Self {
            asked: waiting.iter().cloned().collect(),
            waiting,
        }
    }

    /// The next step by the answers so far.
    #[must_use]
    pub fn step(&self) -> Step<N> {
        match self.waiting.is_empty() {
            true => Step::Commit,
            false => Step::Wait,
        }
    }

    /// Takes the answer of a `node` that has prepared the change durably.
    #[must_use]
    pub fn prepared(&mut self, node: &N) -> Step<N> {
        self.waiting.remove(node);
        self.step()
    }

    /// Gives the change up: a node refused or is out of reach, or the time is over.
    #[must_use]
    pub fn failed(self) -> Step<N> {
        Step::Abort { tell: self.asked }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_committed_when_all_have_it_and_not_before() {
        let mut write = Write::new(["b", "c"]);
        assert_eq!(write.step(), Step::Wait);
        assert_eq!(write.prepared(&"b"), Step::Wait);
        assert_eq!(write.prepared(&"b"), Step::Wait);
        assert_eq!(write.prepared(&"c"), Step::Commit);
        assert_eq!(Write::<u8>::new([]).step(), Step::Commit);
    }

    #[test]
    fn all_that_were_asked_hear_that_it_will_not_happen() {
        let mut write = Write::new([2, 1]);
        let _ = write.prepared(&1);
        assert_eq!(write.failed(), Step::Abort { tell: vec![1, 2] });
    }
}
