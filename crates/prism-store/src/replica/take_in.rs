//! Copies that a store takes in from another one: of a scope, or of all versions of a key. The
//! versions that the store lacks come one after the other, and take effect in one commit.

use std::{collections::HashMap, sync::Arc};

use prism_replica::{Missed, Stamp, missed};

use super::{CatchUp, Handed, Scope, VersionName, VersionSummary};
use crate::{
    commit::{Op, TakeInOp, Taken, TakenVersion, When, own_versions},
    error::Error,
    inner::Inner,
    layout::FileId,
    put::PutWriter,
    record::{Payload, PutBytes, Record},
    types::{ObjectMeta, VersionId, check_bucket, check_key, place},
    uploads::{Manifest, ManifestPart, UploadRecord},
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
        check_bucket(&scope.bucket)?;
        check_key(&scope.key)?;
        let mut take_in = TakeIn {
            store: Arc::clone(&self.store.inner),
            object_key: scope.object_key(),
            scope,
            since,
            life: handed.life,
            stamp: handed.stamp,
            versions: Vec::new(),
            missing: Vec::new(),
            receiving: None,
            taken: HashMap::new(),
            named: Vec::new(),
        };
        match (handed.versions.take(), since) {
            (None, _) => {
                // Parts are files, whatever their length.
                let in_file = take_in.scope.upload.is_some();
                take_in.begin_copy(handed.stamp, None, handed, in_file)?;
            }
            (Some(versions), Some(since)) => take_in.list(versions, since)?,
            (Some(_), None) => return Err(Error::corrupt("versions in place of one object")),
        }
        Ok(take_in)
    }
}

/// A copy on its way in from another replica. Dropped before it is finished, it leaves no
/// trace.
#[must_use = "a copy that is not finished is discarded"]
pub struct TakeIn {
    store: Arc<Inner>,
    scope: Scope,
    object_key: Vec<u8>,
    /// The epoch of the copy; none for a copy that replaces a damaged scope.
    since: Option<u64>,
    life: Stamp,
    stamp: Stamp,
    /// All versions of the key; none for the copy of a scope.
    versions: Vec<VersionSummary>,
    /// The versions to fetch.
    missing: Vec<VersionSummary>,
    /// The copy, or the version, whose bytes come now.
    receiving: Option<Receiving>,
    /// Complete copies: versions by their places, the copy of a scope by its stamp.
    taken: HashMap<Stamp, Taken>,
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
        let taken = match self.since.filter(|_| !self.versions.is_empty()) {
            None => self.taken.remove(&self.stamp),
            Some(_) => Some(Taken::Versions(
                std::mem::take(&mut self.versions)
                    .into_iter()
                    .map(|version| version.taken(self.taken.remove(&version.at)))
                    .collect(),
            )),
        };
        let op = Op::TakeIn(TakeInOp {
            since: self.since,
            life: self.life,
            scope: self.scope.clone(),
            stamp: self.stamp,
            taken: taken.ok_or(Error::WritesDisabled)?,
        });
        let when = self.since.map_or(When::Always, When::In);
        let result = self.store.submit_when(op, None, when);
        // A commit in doubt may have referred to the files. The next opening finds out.
        if result
            .as_ref()
            .map_or_else(|failure| failure.in_doubt, |_| true)
        {
            self.named.clear();
        }
        Ok(self.store.finish(result)?.found > 0)
    }

    /// Finds the versions that this store lacks. Delete markers need no bytes.
    fn list(&mut self, versions: Vec<VersionSummary>, since: u64) -> Result<(), Error> {
        let is_ordered = versions.is_sorted_by(|a, b| a.at > b.at);
        let nulls = versions.iter().filter(|v| v.name != VersionName::Place);
        if versions.is_empty() || !is_ordered || nulls.count() > 1 {
            return Err(Error::corrupt("versions of another store"));
        }
        let view = self.store.lsm.view();
        if missed(since, holds(&view, &self.scope)?, Some(self.stamp)) == Missed::Take {
            let own = own_versions(&view, &self.object_key)?;
            for version in &versions {
                let own = own.get(&place(version.at));
                if own.is_some_and(|(own, _)| version.taken(None).is(own)) {
                    continue;
                }
                match version.marker() {
                    Some(marker) => drop(self.taken.insert(version.at, marker)),
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
            self.taken
                .insert(receiving.at, receiving.into_taken(&self.store)?);
        }
        Ok(())
    }
}

impl Drop for TakeIn {
    fn drop(&mut self) {
        for id in &self.named {
            self.store.files.remove(*id);
        }
    }
}

impl Receiving {
    /// Begins the next piece, if there is one.
    fn begin_next(&mut self, store: &Arc<Inner>, object_key: &[u8]) -> Result<(), Error> {
        let next = match &self.handed.pieces {
            Some((_, pieces)) => pieces.get(self.done.len()).map(|piece| piece.len),
            None => self.handed.len.filter(|_| self.done.is_empty()),
        };
        let Some(len) = next else { return Ok(()) };
        let object_key = object_key.to_vec();
        self.writer = Some(PutWriter::begin_piece(
            store,
            object_key,
            len,
            self.in_file,
        )?);
        Ok(())
    }

    fn into_taken(mut self, store: &Inner) -> Result<Taken, Error> {
        if let Some(writer) = &self.writer {
            let (written, left) = (writer.written(), writer.left());
            return Err(Error::LengthMismatch {
                expected: written.saturating_add(left),
                written,
            });
        }
        let (stamp, meta, version) = (self.handed.stamp, self.handed.meta, self.version);
        let Some(len) = self.handed.len else {
            return Ok(Taken::Upload(UploadRecord { stamp, meta }));
        };
        let record = |payload| Record {
            stamp,
            version,
            payload,
            len,
            meta,
        };
        let Some((upload, pieces)) = self.handed.pieces else {
            let (id, bytes) = self.done.pop().ok_or(Error::WritesDisabled)?;
            return Ok(Taken::Whole(record(bytes.payload(id)), id, bytes));
        };
        let parts = pieces.into_iter().zip(&self.done);
        let parts = parts.map(|(piece, (file, _))| ManifestPart {
            number: piece.number,
            file: *file,
            len: piece.len,
            headers: piece.headers,
        });
        let parts = parts.collect();
        let id = store.files.new_id()?;
        let manifest = Manifest { upload, parts };
        let record = record(Payload::Parts { id });
        Ok(Taken::Parts(record, id, manifest, self.done))
    }
}

impl VersionSummary {
    fn id(&self) -> Option<VersionId> {
        match self.name {
            VersionName::None => None,
            VersionName::Null => Some(VersionId::Null),
            VersionName::Place => Some(VersionId::Of(self.at)),
        }
    }

    /// The delete marker that this describes.
    fn marker(&self) -> Option<Taken> {
        let created_ms = self.marker_ms?;
        Some(Taken::Marker(Record {
            stamp: self.stamp,
            version: self.id(),
            payload: Payload::Marker,
            len: 0,
            meta: ObjectMeta {
                created_ms,
                ..ObjectMeta::default()
            },
        }))
    }

    fn taken(&self, taken: Option<Taken>) -> TakenVersion {
        TakenVersion {
            place: place(self.at),
            version: self.id(),
            stamp: self.stamp,
            taken,
        }
    }
}
