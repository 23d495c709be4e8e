//! What one store hands over, and another one takes in, of what it has missed.

use std::sync::Arc;

use prism_replica::Stamp;
use serde::{Deserialize, Serialize};

use super::{HeldVersion, Scope};
use crate::{
    blocks::crc32c,
    checked::CheckedFile,
    commit::{Op, PutBytes, TakeInOp, Taken, When},
    error::Error,
    layout::FileId,
    put::PutWriter,
    record::{Payload, Record, object_key},
    store::{Inner, Store},
    types::{Body, Object, ObjectMeta, check_bucket, check_key},
    uploads::{Manifest, ManifestPart, UploadId, UploadRecord, upload_key},
};

/// Describes what is handed over: its bytes follow, those of the pieces one behind
/// the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handed {
    /// The life of its bucket at the sender: a copy is not taken into another life.
    #[serde(default)]
    pub life: Stamp,
    /// The stamp of its last change.
    pub stamp: Stamp,
    /// Its metadata.
    pub meta: ObjectMeta,
    /// Length in bytes; none of an upload, which has no bytes itself.
    pub len: Option<u64>,
    /// What an object of several parts consists of.
    pub pieces: Option<(UploadId, Vec<Piece>)>,
    /// The versions of a key that has some, the newest first: nothing else is said of it
    /// but its last change, and each is to be asked for by itself.
    #[serde(default)]
    pub versions: Option<Vec<HeldVersion>>,
}

impl Handed {
    /// What is said of an object.
    pub(super) fn of(object: Object) -> (Self, Option<Body>) {
        let pieces = match &object.body {
            Body::Parts(parts) => {
                let pieces = parts.iter().map(|(number, len, headers)| Piece {
                    number,
                    len,
                    headers: headers.to_vec(),
                });
                Some((parts.upload(), pieces.collect()))
            }
            _ => None,
        };
        let handed = Self {
            life: Stamp::NONE,
            stamp: object.stamp,
            meta: object.meta,
            len: Some(object.len),
            pieces,
            versions: None,
        };
        (handed, Some(object.body))
    }
}

/// One part of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Of the part.
    pub number: u16,
    /// Length in bytes.
    pub len: u64,
    /// As its writer gave them.
    pub headers: Vec<(String, String)>,
}

impl Store {
    /// What this store holds of a scope, for another one to take in, and its bytes.
    /// May block on disk.
    ///
    /// # Errors
    /// [`Error::Corrupt`] among others.
    pub fn hand_over(&self, scope: &Scope) -> Result<Option<(Handed, Option<Body>)>, Error> {
        check_bucket(&scope.bucket)?;
        check_key(&scope.key)?;
        self.of_one_life(&scope.bucket, || self.find_to_hand_over(scope))
    }

    /// What `find` has found, with the life of the bucket that it was found in.
    pub(super) fn of_one_life(
        &self,
        bucket: &str,
        find: impl FnOnce() -> Result<Option<(Handed, Option<Body>)>, Error>,
    ) -> Result<Option<(Handed, Option<Body>)>, Error> {
        let life = self.head_bucket(bucket)?.which.life;
        let found = find()?;
        if self.head_bucket(bucket)?.which.life != life {
            return Err(Error::Unsettled);
        }
        Ok(found.map(|(handed, body)| (Handed { life, ..handed }, body)))
    }

    fn find_to_hand_over(&self, scope: &Scope) -> Result<Option<(Handed, Option<Body>)>, Error> {
        match scope.upload {
            None => self.hand_over_object(scope),
            Some((id, None)) => {
                let upload = self
                    .view()
                    .upload(&upload_key(&scope.bucket, &scope.key, id))?;
                Ok(upload.map(|UploadRecord { stamp, meta }| {
                    let handed = Handed {
                        life: Stamp::NONE,
                        stamp,
                        meta,
                        len: None,
                        pieces: None,
                        versions: None,
                    };
                    (handed, None)
                }))
            }
            Some((id, Some(number))) => self.hand_over_part(id, number),
        }
    }

    fn hand_over_object(&self, scope: &Scope) -> Result<Option<(Handed, Option<Body>)>, Error> {
        let object = self.get_version(&scope.bucket, &scope.key, None)?;
        // In this order: it was all there was of a key that has no versions even now.
        match self.hand_over_versions(scope)? {
            Some(handed) => Ok(Some((handed, None))),
            None => Ok(object.map(Handed::of)),
        }
    }

    fn hand_over_part(
        &self,
        id: UploadId,
        number: u16,
    ) -> Result<Option<(Handed, Option<Body>)>, Error> {
        let view = self.view();
        let Some(record) = view.part(id, number)? else {
            return Ok(None);
        };
        let Payload::File { id: file } = record.payload else {
            return Err(Error::corrupt("part without a file"));
        };
        // Replaced meanwhile, if it is not there: whoever asks will ask again.
        let opened = CheckedFile::open(&self.inner, file, || view.file(file))?;
        let handed = Handed {
            life: Stamp::NONE,
            stamp: record.stamp,
            meta: record.meta,
            len: Some(record.len),
            pieces: None,
            versions: None,
        };
        Ok(opened.map(|file| (handed, Some(Body::File(file)))))
    }

    /// Begins to take in what another store handed over, as of the epoch `since`. May
    /// block on disk.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooLarge`], [`Error::InvalidName`].
    pub fn begin_take_in(&self, scope: Scope, handed: Handed, since: u64) -> Result<TakeIn, Error> {
        self.begin_taking(scope, handed, Some(since))
    }

    /// Begins to take in anew what is damaged here. It counts only if what is here has
    /// the same stamp, and so is the same but for the damage. May block on disk.
    ///
    /// # Errors
    /// As for [`Store::begin_take_in`].
    pub fn begin_take_in_again(&self, scope: Scope, handed: Handed) -> Result<TakeIn, Error> {
        self.begin_taking(scope, handed, None)
    }

    fn begin_taking(
        &self,
        scope: Scope,
        handed: Handed,
        since: Option<u64>,
    ) -> Result<TakeIn, Error> {
        check_bucket(&scope.bucket)?;
        check_key(&scope.key)?;
        TakeIn::begin(Arc::clone(&self.inner), scope, handed, (since, None))
    }
}

/// Something on its way in from another replica. Dropped before it is finished, it
/// leaves no trace.
#[must_use = "what is not finished is discarded"]
pub struct TakeIn {
    store: Arc<Inner>,
    scope: Scope,
    object_key: Vec<u8>,
    handed: Handed,
    /// None for what is taken in again.
    since: Option<u64>,
    /// Which version of the key, if it is one of several, and whether it has to be in a
    /// file.
    version: Option<(HeldVersion, bool)>,
    /// Of the piece under way.
    writer: Option<PutWriter>,
    /// What is not in pieces.
    whole: Option<(FileId, PutBytes)>,
    /// Files with a name, and their descriptions, in the order of the pieces.
    files: Vec<(FileId, Vec<u8>)>,
    /// All files with a name; whoever is told that they are referred to, has them.
    named: Vec<FileId>,
}

impl TakeIn {
    /// The names have been checked.
    pub(super) fn begin(
        store: Arc<Inner>,
        scope: Scope,
        handed: Handed,
        (since, version): (Option<u64>, Option<(HeldVersion, bool)>),
    ) -> Result<Self, Error> {
        let pieces = handed.pieces.as_ref();
        let sum = pieces.map(|(_, pieces)| pieces.iter().map(|piece| piece.len).sum::<u64>());
        if sum.is_some_and(|sum| handed.len != Some(sum)) {
            return Err(Error::corrupt("parts of another length than their object"));
        }
        if handed.versions.is_some() {
            return Err(Error::corrupt("versions in place of one thing"));
        }
        let mut take_in = Self {
            store,
            object_key: object_key(&scope.bucket, &scope.key),
            scope,
            handed,
            since,
            version,
            writer: None,
            whole: None,
            files: Vec::new(),
            named: Vec::new(),
        };
        take_in.begin_next()?;
        Ok(take_in)
    }

    /// Takes the next bytes. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] for more than were announced; those of the disk.
    pub fn write(&mut self, mut data: &[u8]) -> Result<(), Error> {
        while !data.is_empty() {
            let writer = self.writer.as_mut().ok_or(Error::WritesDisabled)?;
            let now = usize::try_from(writer.left()).unwrap_or(usize::MAX);
            let (piece, rest) = data.split_at_checked(now).unwrap_or((data, &[]));
            writer.write(piece)?;
            data = rest;
            self.end_pieces()?;
        }
        Ok(())
    }

    /// Makes it what this store holds, unless something newer has come meanwhile; says
    /// which. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] if bytes are missing; [`Error::OtherEpoch`] if the
    /// store is in another one by now.
    pub fn finish(mut self) -> Result<bool, Error> {
        if self.version.is_some() {
            return Err(Error::WritesDisabled);
        }
        let taken = self.taken()?;
        let op = Op::TakeIn(TakeInOp {
            since: self.since,
            life: self.handed.life,
            scope: self.scope.clone(),
            object_key: self.object_key.clone(),
            stamp: self.handed.stamp,
            taken,
        });
        let outcome =
            self.store
                .committer
                .submit_when(op, None, self.since.map_or(When::Always, When::In));
        let outcome = outcome.map_err(|failure| {
            if failure.in_doubt {
                // Then the next opening of the store judges.
                self.named.clear();
            }
            failure.error
        })?;
        self.named.clear();
        self.store.release(&outcome);
        Ok(outcome.found > 0)
    }

    /// One version of several: where it lies, what it is, and the files that it has.
    pub(super) fn into_version(mut self) -> Result<(Stamp, Taken, Vec<FileId>), Error> {
        let (version, _) = self.version.ok_or(Error::WritesDisabled)?;
        let taken = self.taken()?;
        Ok((version.at, taken, std::mem::take(&mut self.named)))
    }

    fn taken(&mut self) -> Result<Taken, Error> {
        self.end_pieces()?;
        if let Some(writer) = &self.writer {
            let (written, left) = (writer.written(), writer.left());
            return Err(Error::LengthMismatch {
                expected: written.saturating_add(left),
                written,
            });
        }
        let version = self.version.and_then(|(version, _)| version.version());
        let (stamp, meta) = (self.handed.stamp, self.handed.meta.clone());
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
        let Some((upload, pieces)) = self.handed.pieces.take() else {
            let (id, bytes) = self.whole.take().ok_or(Error::WritesDisabled)?;
            let payload = match &bytes {
                PutBytes::Inline(bytes) => {
                    let crc = crc32c(bytes);
                    Payload::Inline { id, crc }
                }
                PutBytes::File(_) => Payload::File { id },
            };
            return Ok(Taken::Whole(record(payload), id, bytes));
        };
        let parts = pieces.into_iter().zip(&self.files);
        let parts = parts.map(|(piece, (file, _))| ManifestPart {
            number: piece.number,
            file: *file,
            len: piece.len,
            headers: piece.headers,
        });
        let parts = parts.collect();
        let manifest = Manifest { upload, parts };
        let id = self.store.files.new_id()?;
        let payload = Payload::Parts { id };
        Ok(Taken::Parts(
            record(payload),
            id,
            manifest,
            self.files.clone(),
        ))
    }

    /// Names the file of each piece that is whole, and begins the next one.
    fn end_pieces(&mut self) -> Result<(), Error> {
        while self
            .writer
            .as_ref()
            .is_some_and(|writer| writer.left() == 0)
        {
            let Some(writer) = self.writer.take() else {
                return Ok(());
            };
            let (id, bytes) = writer.finish_piece()?;
            if let PutBytes::File(_) = &bytes {
                self.named.push(id);
            }
            match (&self.handed.pieces, bytes) {
                (Some(_), PutBytes::File(described)) => self.files.push((id, described)),
                (_, bytes) => self.whole = Some((id, bytes)),
            }
            self.begin_next()?;
        }
        Ok(())
    }

    fn begin_next(&mut self) -> Result<(), Error> {
        let next = match &self.handed.pieces {
            Some((_, pieces)) => pieces.get(self.files.len()).map(|piece| piece.len),
            None => self.handed.len.filter(|_| self.whole.is_none()),
        };
        let Some(len) = next else { return Ok(()) };
        // Parts are files, whatever their length.
        let of_many = self.version.is_some_and(|(_, of_many)| of_many);
        let in_file = of_many || self.handed.pieces.is_some() || self.scope.upload.is_some();
        let (store, key) = (Arc::clone(&self.store), self.object_key.clone());
        self.writer = Some(PutWriter::begin_piece(store, key, len, in_file)?);
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
