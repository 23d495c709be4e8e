//! Several small objects, committed together by one caller.

use crate::{
    commit::Condition,
    error::Error,
    put::{PutWriter, committed},
    store::Store,
    types::{Committed, ObjectMeta},
};

/// One of several objects for [`Store::commit_all`](crate::Store::commit_all).
pub struct Commit {
    /// The writer, with all bytes.
    pub writer: PutWriter,
    /// The metadata of the object.
    pub meta: ObjectMeta,
    /// A condition that has to hold at the moment of the commit.
    pub condition: Option<Condition>,
}

impl Commit {
    /// Commits it alone, as [`PutWriter::commit`] does, if the condition holds. Blocks on disk.
    ///
    /// # Errors
    /// As for [`PutWriter::commit`]; [`Error::ConditionFailed`].
    pub fn commit(self) -> Result<Committed, Error> {
        self.writer.ready(self.meta, self.condition)?.commit()
    }
}

impl Store {
    /// Commits objects as [`Commit::commit`] does. One flush of the disk serves all that
    /// [go with others](PutWriter::goes_with_others). The results come in their order. Blocks on
    /// disk.
    pub fn commit_all(&self, commits: Vec<Commit>) -> Vec<Result<Committed, Error>> {
        let mut results = Vec::with_capacity(commits.len());
        let (mut ops, mut places) = (Vec::new(), Vec::new());
        for commit in commits {
            let together = commit.writer.goes_with_others();
            let ready = commit.writer.ready(commit.meta, commit.condition);
            results.push(match ready {
                Ok(ready) if together => {
                    places.push((results.len(), ready.len));
                    ops.push(ready.op);
                    Err(Error::WritesDisabled)
                }
                Ok(ready) => ready.commit(),
                Err(error) => Err(error),
            });
        }
        let store = &self.inner;
        let outcomes: Vec<_> = match store.files.check_room(0) {
            Ok(()) => store.submit_all(ops),
            Err(error) => ops.iter().map(|_| Err(error.clone().into())).collect(),
        };
        for ((place, len), result) in places.into_iter().zip(outcomes) {
            let result = store.finish(result);
            if let Some(place) = results.get_mut(place) {
                *place = result.map(|outcome| committed(&outcome, len));
            }
        }
        results
    }
}
