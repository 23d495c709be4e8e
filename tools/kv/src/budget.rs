//! The memory of values that arrive.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

/// The largest size of all values that are arriving from clients, and of relayed answers to them.
/// A copy of each may take as much again.
const MAX_BYTES: usize = 256 << 20;

/// The bytes that its shares have together.
#[derive(Default)]
pub(crate) struct Budget(Rc<Cell<usize>>);

/// A part of a budget, until it is dropped.
pub(crate) struct Share {
    used: Rc<Cell<usize>>,
    bytes: usize,
}

impl Budget {
    /// A share of no bytes.
    pub(crate) fn share(&self) -> Share {
        Share {
            used: self.0.clone(),
            bytes: 0,
        }
    }
}

impl Share {
    /// The only share of a budget: for streams whose other end is bounded.
    pub(crate) fn alone() -> Self {
        Budget::default().share()
    }

    /// Takes more of the budget.
    ///
    /// # Errors
    /// `OutOfMemory` if the budget has less left.
    pub(crate) fn add(&mut self, bytes: usize) -> io::Result<()> {
        let used = self.used.get().saturating_add(bytes);
        if used > MAX_BYTES {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.used.set(used);
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.used.set(self.used.get() - self.bytes);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn all_shares_together_are_bounded() {
        let budget = Budget::default();
        let (mut first, mut second) = (budget.share(), budget.share());
        first.add(MAX_BYTES - 1).unwrap();
        second.add(1).unwrap();
        assert!(first.add(1).is_err());
        drop(first);
        second.add(MAX_BYTES - 1).unwrap();
        drop(second);
        budget.share().add(MAX_BYTES).unwrap();
    }
}
