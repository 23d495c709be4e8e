//! Copies that a store takes in from another one: of a scope, or of all versions of a key. The
//! versions that the store lacks come one after the other, and take effect in one commit.

use std::{collections::HashMap, sync::Arc};

use prism_cluster::replica::{Missed, Stamp, missed};

use super::{CatchUp, Handed};
use crate::{
    commit::{Fetched, Op, TakeInOp, Taken, When, own_versions},
    error::Error,
    layout::FileId,
    primary::Primary,
    put::{PutWriter, Target},
    record::{Payload, PutBytes, Record},
    scope::Scope,
    storage::Storage,
    types::{UploadId, VersionId, place},
    uploads::{Manifest, ManifestPart, UploadRecord},
    version_summary::{VersionName, VersionSummary},
    view::holds,
};

/// Most small versions that wait in memory for their commit. With more of them missing, all
/// go to files.
const IN_MEMORY_MAX: usize = 64;

impl CatchUp<'_> {
    /// Begins to take in a copy from another store, as of the epoch `since`. Without `since`,
    /// the copy replaces a damaged scope: it takes effect only if it has the same stamp, and so
    /// differs in nothing but the damage. May block on disk.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooLarge`], [`Error::InvalidName`]; [`Error::Corrupt`] if
    /// `handed` cannot be a copy of the scope, or has versions without `since`.
    pub fn begin_take_in(
        &self,
        scope: Scope,
        mut handed: Handed,
        since: Option<u64>,
    ) -> Result<TakeIn, Error> {
        scope.check()?;
        let mut take_in = TakeIn {
            store: Arc::clone(&self.store.primary),
            object_key: scope.object_key(),
            scope,
            since,
            life: handed.life,
            stamp: handed.stamp,
            upload: None,
            versions: Vec::new(),
            missing: Vec::new(),
            receiving: None,
            fetched: HashMap::new(),
            named: Vec::new(),
        };
        let stamp = handed.stamp;
        let upload = take_in.scope.upload;
        match (handed.versions.take(), since, upload) {
            (Some(versions), Some(since), None) => take_in.list(versions, since)?,
            (None, _, Some((id, None))) if handed.len.is_none() => {
                let meta = handed.meta;
                take_in.upload = Some((id, UploadRecord { stamp, meta }));
            }
            // Parts are files, whatever their length.
            (None, _, None | Some((_, Some(_)))) if handed.len.is_some() => {
                take_in.begin_copy(stamp, None, handed, upload.is_some())?;
            }
            _ => return Err(Error::corrupt("a copy of something else than its scope")),
        }
        Ok(take_in)
    }
}

/// A copy on its way in from another replica. Dropped before it is finished, it leaves no
/// trace.
#[must_use = "a copy that is not finished is discarded"]
pub struct TakeIn {
    store: Arc<Primary>,
    scope: Scope,
    object_key: Vec<u8>,
    /// The epoch of the copy; none for a copy that replaces a damaged scope.
    since: Option<u64>,
    life: Stamp,
    stamp: Stamp,
    /// The copy of an upload, which has no bytes.
    upload: Option<(UploadId, UploadRecord)>,
    /// All versions of the key; none for the copy of a scope.
    versions: Vec<VersionSummary>,
    /// The versions to fetch.
    missing: Vec<VersionSummary>,
    /// The copy, or the version, whose bytes come now.
    receiving: Option<Receiving>,
    /// Complete copies: versions by their places, the copy of a scope by its stamp.
    fetched: HashMap<Stamp, Fetched>,
    /// Object files that have a name, to which no record refers yet.
    named: Vec<FileId>,
}

/// A copy whose bytes come, piece by piece.
struct Receiving {
    at: Stamp,
    version: Option<VersionId>,
    handed: Handed,
    /// Whether its bytes go to files, however few they are.
    in_file: bool,
    /// The writer of the present piece.
    writer: Option<PutWriter>,
    /// The pieces that are complete, in order.
    done: Vec<(FileId, PutBytes)>,
}

impl TakeIn {
    /// The versions to fetch, each by [`TakeIn::begin_version`]; none for a copy of a scope.
    #[must_use]
    pub fn missing(&self) -> Vec<VersionSummary> {
        self.missing.clone()
    }

    /// Begins to take in one version. The one before is complete. May block on disk.
    ///
    /// # Errors
    /// [`Error::Unsettled`] if the version has changed at the sender;
    /// [`Error::LengthMismatch`] if bytes of the version before are missing; as for
    /// [`CatchUp::begin_take_in`].
    pub fn begin_version(&mut self, version: &VersionSummary, handed: Handed) -> Result<(), Error> {
        self.end_copy()?;
        if handed.stamp != version.stamp || handed.len.is_none() {
            return Err(Error::Unsettled);
        }
        let in_file = self.missing.len() > IN_MEMORY_MAX;
        self.begin_copy(version.at, version.id(), handed, in_file)
    }

    /// Takes the next bytes. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] for more bytes than were announced; errors of the disk.
    pub fn write(&mut self, mut data: &[u8]) -> Result<(), Error> {
        while !data.is_empty() {
            let receiving = self.receiving.as_mut();
            let writer = receiving.and_then(|receiving| receiving.writer.as_mut());
            let writer = writer.ok_or(Error::WritesDisabled)?;
            let now = usize::try_from(writer.left()).unwrap_or(usize::MAX);
            let (piece, rest) = data.split_at_checked(now).unwrap_or((data, &[]));
            writer.write(piece)?;
            data = rest;
            self.end_pieces()?;
        }
        Ok(())
    }

    /// Replaces what this store has by the copy, unless that is newer; says whether it did.
    /// Blocks on disk.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] if bytes are missing; [`Error::OtherEpoch`] if the store is
    /// in another epoch by now; [`Error::Unsettled`] if a version is missing that was here
    /// when this began.
    pub fn finish(mut self) -> Result<bool, Error> {
        self.end_copy()?;
        let taken = if let Some((id, upload)) = self.upload.take() {
            Taken::Upload(id, upload)
        } else if self.versions.is_empty() {
            let fetched = self.fetched.remove(&self.stamp);
            Taken::Scope(fetched.ok_or(Error::WritesDisabled)?)
        } else {
            let fetched = &mut self.fetched;
            let versions = self.versions.drain(..);
            Taken::Versions(versions.map(|v| (v, fetched.remove(&v.at))).collect())
        };
        let op = Op::TakeIn(TakeInOp {
            since: self.since,
            life: self.life,
            scope: self.scope.clone(),
            stamp: self.stamp,
            taken,
        });
        let when = self.since.map_or(When::Always, When::In);
        let committer = &self.store.committer;
        let result = committer.submit(op, None, when);
        // A commit in doubt may have referred to the files. The next opening finds out.
        if result
            .as_ref()
            .map_or_else(|failure| failure.in_doubt, |_| true)
        {
            self.named.clear();
        }
        Ok(committer.finish(result)?.is_taken)
    }

    /// Finds the versions that this store lacks. Delete markers need no bytes.
    fn list(&mut self, versions: Vec<VersionSummary>, since: u64) -> Result<(), Error> {
        let is_ordered = versions.is_sorted_by(|a, b| a.at > b.at);
        let nulls = versions.iter().filter(|v| v.name != VersionName::Place);
        if versions.is_empty() || !is_ordered || nulls.count() > 1 {
            return Err(Error::corrupt("versions of another store"));
        }
        let view = self.store.storage.lsm.view();
        if missed(since, holds(&view, &self.scope)?, Some(self.stamp)) == Missed::Take {
            let own = own_versions(&view, &self.object_key)?;
            for version in &versions {
                let own = own.get(&place(version.at));
                if own.is_some_and(|(own, _)| version.is(own)) {
                    continue;
                }
                match version.marker() {
                    Some(record) => {
                        let marker = Fetched {
                            record,
                            bytes: Vec::new(),
                            manifest: None,
                        };
                        self.fetched.insert(version.at, marker);
                    }
                    None => self.missing.push(*version),
                }
            }
        }
        self.versions = versions;
        Ok(())
    }

    fn begin_copy(
        &mut self,
        at: Stamp,
        version: Option<VersionId>,
        handed: Handed,
        in_file: bool,
    ) -> Result<(), Error> {
        let pieces = handed.pieces.as_ref();
        let sum = pieces.map(|(_, pieces)| pieces.iter().map(|piece| piece.len).sum::<u64>());
        if sum.is_some_and(|sum| handed.len != Some(sum)) {
            return Err(Error::corrupt("parts of another length than their object"));
        }
        if handed.versions.is_some() {
            return Err(Error::corrupt("versions in place of one object"));
        }
        let receiving = self.receiving.insert(Receiving {
            at,
            version,
            in_file: in_file || handed.pieces.is_some(),
            handed,
            writer: None,
            done: Vec::new(),
        });
        receiving.begin_next(&self.store, &self.object_key)
    }

    /// Names the file of each piece that is complete, and begins the next one.
    fn end_pieces(&mut self) -> Result<(), Error> {
        let Some(receiving) = &mut self.receiving else {
            return Ok(());
        };
        while let Some(writer) = receiving.writer.take_if(|writer| writer.left() == 0) {
            let (id, bytes) = writer.finish_piece()?;
            if let PutBytes::File(_) = &bytes {
                self.named.push(id);
            }
            receiving.done.push((id, bytes));
            receiving.begin_next(&self.store, &self.object_key)?;
        }
        Ok(())
    }

    /// Ends the copy, or the version, whose bytes have come.
    fn end_copy(&mut self) -> Result<(), Error> {
        self.end_pieces()?;
        if let Some(receiving) = self.receiving.take() {
            self.fetched
                .insert(receiving.at, receiving.into_fetched(&self.store.storage)?);
        }
        Ok(())
    }
}

impl Drop for TakeIn {
    fn drop(&mut self) {
        for id in &self.named {
            self.store.storage.files.remove(*id);
        }
    }
}

impl Receiving {
    /// Begins the next piece, if there is one.
    fn begin_next(&mut self, store: &Arc<Primary>, object_key: &[u8]) -> Result<(), Error> {
        let next = match &self.handed.pieces {
            Some((_, pieces)) => pieces.get(self.done.len()).map(|piece| piece.len),
            None => self.handed.len.filter(|_| self.done.is_empty()),
        };
        let Some(len) = next else { return Ok(()) };
        let in_file = self.in_file;
        let target = Target::Piece { in_file };
        let writer = PutWriter::new(store, target, object_key.to_vec(), Some(len))?;
        self.writer = Some(writer);
        Ok(())
    }

    fn into_fetched(self, storage: &Storage) -> Result<Fetched, Error> {
        if let Some(writer) = &self.writer {
            let written = writer.written();
            let left = writer.left();
            return Err(Error::LengthMismatch {
                expected: written.saturating_add(left),
                written,
            });
        }
        let (payload, manifest) = match self.handed.pieces {
            None => {
                let (id, bytes) = self.done.first().ok_or(Error::WritesDisabled)?;
                (bytes.payload(*id), None)
            }
            Some((upload, pieces)) => {
                let parts = pieces.into_iter().zip(&self.done);
                let parts = parts.map(|(piece, (file, _))| ManifestPart {
                    number: piece.number,
                    file: *file,
                    len: piece.len,
                    headers: piece.headers,
                });
                let parts = parts.collect();
                let id = storage.files.new_id()?;
                (
                    Payload::Parts { id },
                    Some((id, Manifest { upload, parts })),
                )
            }
        };
        let record = Record {
            stamp: self.handed.stamp,
            version: self.version,
            payload,
            len: self.handed.len.unwrap_or(0),
            meta: self.handed.meta,
        };
        Ok(Fetched {
            record,
            bytes: self.done,
            manifest,
        })
    }
}
