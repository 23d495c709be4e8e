//! The number of copies of a key that have to be in sync for a write.
//!
//! A write is answered when every replica that takes writes has it. If all but one are out,
//! that is one copy, and the loss of its disk loses the write. A cluster that refuses such
//! writes loses nothing that it has answered.

use crate::view::View;

/// The configured number; `None` for the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MinReplicas(pub Option<u16>);

impl MinReplicas {
    /// The number for keys with `replicas`, at most all of them. The default is 2 of 3 or more.
    /// It is 1 of fewer, because otherwise one absent backend would stop all writes.
    pub fn of(self, replicas: u16) -> u16 {
        let default = if replicas >= 3 { 2 } else { 1 };
        self.0.unwrap_or(default).clamp(1, replicas.max(1))
    }
}

/// Fewer copies of a key are in sync than a write needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{in_sync} of the key's copies are in sync, and a write needs {min}")]
pub struct TooFewCopies {
    /// The copies in sync.
    pub in_sync: usize,
    /// The copies that a write needs.
    pub min: u16,
}

impl View {
    /// Checks that enough copies of a key are in sync for a write.
    pub fn check_copies(
        &self,
        bucket: &str,
        key: &str,
        min: MinReplicas,
    ) -> Result<(), TooFewCopies> {
        let in_sync = self.readers(bucket, key).count();
        let min = min.of(self.state().placing.replicas);
        if in_sync < usize::from(min) {
            Err(TooFewCopies { in_sync, min })
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{NodeName, Phase, Placing, State, Status};

    fn placing(replicas: u16) -> Placing {
        let names = ["be0", "be1", "be2"].map(|name| NodeName::new(name).unwrap());
        Placing::new(names, replicas).unwrap()
    }

    fn with(state: &State, statuses: [Status; 3]) -> View {
        let mut state = state.clone();
        for (backend, status) in state.backends.values_mut().zip(statuses) {
            backend.status = status;
        }
        View::new(state).unwrap()
    }

    #[test]
    fn two_of_three_copies_are_needed_and_one_of_two_unless_it_is_said() {
        let of = |asked| [1, 2, 3, 9].map(|replicas| MinReplicas(asked).of(replicas));
        assert_eq!(of(None), [1, 1, 2, 2]);
        assert_eq!(of(Some(1)), [1, 1, 1, 1]);
        assert_eq!(of(Some(3)), [1, 2, 3, 3]);
        assert_eq!(of(Some(0)), [1, 1, 1, 1]);
    }

    #[test]
    fn a_key_is_written_while_enough_of_its_copies_are_in_sync() {
        use Status::{InSync, Lagging, Out};
        let state = State::new(placing(3));
        let rows = [
            ([InSync, InSync, InSync], 3),
            ([InSync, InSync, Out], 2),
            // A lagging copy gets every write from now on, and lacks older ones.
            ([InSync, Lagging, Lagging], 1),
            ([InSync, Out, Out], 1),
            ([Out, Lagging, Out], 0),
        ];
        for (statuses, in_sync) in rows {
            let view = with(&state, statuses);
            for min in 1..=3 {
                let found = view.check_copies("b", "k", MinReplicas(Some(min)));
                let expected = match in_sync < usize::from(min) {
                    true => Err(TooFewCopies { in_sync, min }),
                    false => Ok(()),
                };
                assert_eq!(found, expected, "{statuses:?}");
            }
        }
    }

    #[test]
    fn while_keys_move_the_placing_that_is_read_counts() {
        use Status::{InSync, Out};
        let default = MinReplicas::default();
        let mut state = State::new(placing(1));
        state.phase = Phase::Filling {
            to: placing(3),
            since: 2,
        };
        let one_left = [InSync, Out, Out];
        let keys: Vec<String> = (0..50).map(|n| n.to_string()).collect();
        let written = |view: &View| {
            let is = |key: &&String| view.check_copies("b", key, default).is_ok();
            keys.iter().filter(is).count()
        };
        // Each key has one copy only.
        assert_eq!(written(&with(&state, [InSync; 3])), keys.len());
        let of_one = written(&with(&state, one_left));
        assert!((1..keys.len()).contains(&of_one), "{of_one}");
        state.phase = Phase::Moved { from: placing(1) };
        state.placing = placing(3);
        assert_eq!(written(&with(&state, [InSync, InSync, Out])), keys.len());
        assert_eq!(written(&with(&state, one_left)), 0);
    }
}
