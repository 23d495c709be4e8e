//! One change on its way, as its primary sees it.

use std::collections::BTreeSet;

/// A change that others were asked to prepare. Dropping it decides nothing: what
/// is not committed has not happened.
#[derive(Debug, Clone)]
#[must_use]
pub struct Write<N> {
    waiting: BTreeSet<N>,
    asked: Vec<N>,
}

/// What a primary does next with a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<N> {
    /// Wait for answers that are missing.
    Wait,
    /// All have it: commit, answer the client, and tell them.
    Commit,
    /// It will not happen: answer the client, and tell those who may have it.
    Abort {
        /// All that were asked: an answer may be lost.
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

    /// What is to be done if nobody answers any more.
    #[must_use]
    pub fn step(&self) -> Step<N> {
        match self.waiting.is_empty() {
            true => Step::Commit,
            false => Step::Wait,
        }
    }

    /// `node` has it durably.
    #[must_use]
    pub fn prepared(&mut self, node: &N) -> Step<N> {
        self.waiting.remove(node);
        self.step()
    }

    /// A node refused, or cannot be reached, or the time is over.
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
