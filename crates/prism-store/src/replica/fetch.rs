//! Copies of single scopes: one store hands them over, another one takes them in.

use std::sync::Arc;

use prism_replica::Stamp;
use serde::{Deserialize, Serialize};

use super::{CatchUp, Scope, VersionSummary};
use crate::{
    checked::CheckedFile,
    commit::{Op, TakeInOp, Taken, When},
    error::Error,
    inner::Inner,
    keys::{object_key, upload_key},
    layout::FileId,
    object::{Body, Object},
    put::PutWriter,
    record::{Payload, PutBytes, Record},
    types::{ObjectMeta, UploadId, check_bucket, check_key},
    uploads::{Manifest, ManifestPart, UploadRecord},
};

/// Describes a copy whose bytes follow; those of the pieces follow one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handed {
    /// The life of its bucket at the sender. A copy is not taken into another life.
    #[serde(default)]
    pub life: Stamp,
    /// The stamp of its last change.
    pub stamp: Stamp,
    /// Its metadata.
    pub meta: ObjectMeta,
    /// Length in bytes; none for an upload, which has no bytes itself.
    pub len: Option<u64>,
    /// The upload and the parts of an object of several parts.
    pub pieces: Option<(UploadId, Vec<Piece>)>,
    /// The versions of a key that has some, the newest first. Only `life` and `stamp` have a
    /// meaning then, and each version is a copy of its own.
    #[serde(default)]
    pub versions: Option<Vec<VersionSummary>>,
}

/// A copy and its bytes, if it has some.
type Found = Option<(Handed, Option<Body>)>;

impl Handed {
    pub(super) fn new(stamp: Stamp, meta: ObjectMeta, len: Option<u64>) -> Self {
        Self {
            life: Stamp::NONE,
            stamp,
            meta,
            len,
            pieces: None,
            versions: None,
        }
    }

    pub(super) fn of_object(object: Object) -> (Self, Option<Body>) {
        let mut handed = Self::new(object.stamp, object.meta, Some(object.len));
        if let Body::Parts(parts) = &object.body {
            let pieces = parts.iter().map(|(number, len, headers)| Piece {
                number,
                len,
                headers: headers.to_vec(),
            });
            handed.pieces = Some((parts.upload(), pieces.collect()));
        }
        (handed, Some(object.body))
    }
}

/// One part of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The part's number.
    pub number: u16,
    /// Length in bytes.
    pub len: u64,
    /// As its writer gave them.
    pub headers: Vec<(String, String)>,
}

impl CatchUp<'_> {
    /// A copy of a scope for another store, and its bytes. May block on disk.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; [`Error::NoSuchBucket`]; [`Error::Unsettled`] if the bucket begins
    /// another life.
    pub fn hand_over(&self, scope: &Scope) -> Result<Found, Error> {
        self.of_one_life(scope, || self.find_to_hand_over(scope))
    }

    /// The result of `find`, with the life that the bucket has before and after it.
    pub(super) fn of_one_life(
        &self,
        scope: &Scope,
        find: impl FnOnce() -> Result<Found, Error>,
    ) -> Result<Found, Error> {
        check_bucket(&scope.bucket)?;
        check_key(&scope.key)?;
        let life = self.life(&scope.bucket)?;
        let found = find()?;
        if self.life(&scope.bucket)? != life {
            return Err(Error::Unsettled);
        }
        Ok(found.map(|(handed, body)| (Handed { life, ..handed }, body)))
    }

    fn find_to_hand_over(&self, scope: &Scope) -> Result<Found, Error> {
        match scope.upload {
            None => {
                let object = self.store.get_version(&scope.bucket, &scope.key, None)?;
                // After the object was read: if the key has no versions even now, the object
                // was all that it had.
                match self.versions_of(scope)? {
                    Some(handed) => Ok(Some((handed, None))),
                    None => Ok(object.map(Handed::of_object)),
                }
            }
            Some((id, None)) => {
                let key = upload_key(&scope.bucket, &scope.key, id);
                let upload = self.store.view().upload(&key)?;
                Ok(upload.map(|record| (Handed::new(record.stamp, record.meta, None), None)))
            }
            Some((id, Some(number))) => self.part_to_hand_over(id, number),
        }
    }

    fn part_to_hand_over(&self, id: UploadId, number: u16) -> Result<Found, Error> {
        let view = self.store.view();
        let Some(record) = view.part(id, number)? else {
            return Ok(None);
        };
        let Payload::File { id: file } = record.payload else {
            return Err(Error::corrupt("part without a file"));
        };
        // A missing file means that the part was replaced: the other store will ask again.
        let opened = CheckedFile::open(&self.store.inner, file, || view.file(file))?;
        let handed = Handed::new(record.stamp, record.meta, Some(record.len));
        Ok(opened.map(|file| (handed, Some(Body::File(file)))))
    }

    /// Begins to take in a copy from another store, as of the epoch `since`. May block on
    /// disk.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::TooLarge`], [`Error::InvalidName`].
    pub fn begin_take_in(&self, scope: Scope, handed: Handed, since: u64) -> Result<TakeIn, Error> {
        TakeIn::begin(&self.store.inner, scope, handed, Some(since), None)
    }

    /// Begins to replace a damaged scope by a copy. The copy takes effect only if it has the
    /// same stamp, and so differs in nothing but the damage. May block on disk.
    ///
    /// # Errors
    /// As for [`CatchUp::begin_take_in`].
    pub fn begin_take_in_again(&self, scope: Scope, handed: Handed) -> Result<TakeIn, Error> {
        TakeIn::begin(&self.store.inner, scope, handed, None, None)
    }
}

/// Object files that have a name, to which no record refers yet. Dropping it removes them.
pub(super) struct NamedFiles {
    pub(super) store: Arc<Inner>,
    pub(super) ids: Vec<FileId>,
}

impl NamedFiles {
    pub(super) fn new(store: &Arc<Inner>) -> Self {
        Self {
            store: Arc::clone(store),
            ids: Vec::new(),
        }
    }

    /// Commits the operation that refers to the files, and says whether it took effect.
    pub(super) fn commit(mut self, op: Op, when: When) -> Result<bool, Error> {
        let result = self.store.submit_when(op, None, when);
        // A commit in doubt may have referred to the files. The next opening finds out.
        if result
            .as_ref()
            .map_or_else(|failure| failure.in_doubt, |_| true)
        {
            self.ids.clear();
        }
        let outcome = result.map_err(|failure| failure.error)?;
        self.store.release(&outcome);
        Ok(outcome.found > 0)
    }
}

impl Drop for NamedFiles {
    fn drop(&mut self) {
        for id in &self.ids {
            self.store.files.remove(*id);
        }
    }
}

/// A version that is taken in together with others of its key.
#[derive(Clone, Copy)]
pub(super) struct OneOfMany {
    pub(super) version: VersionSummary,
    /// Whether its bytes go to a file, however few they are.
    pub(super) in_file: bool,
}

/// A copy on its way in from another replica. Dropped before it is finished, it leaves no
/// trace.
#[must_use = "a copy that is not finished is discarded"]
pub struct TakeIn {
    scope: Scope,
    object_key: Vec<u8>,
    handed: Handed,
    /// The epoch of the copy; none for a copy that replaces a damaged scope.
    since: Option<u64>,
    version: Option<OneOfMany>,
    /// The writer of the present piece.
    writer: Option<PutWriter>,
    /// The bytes of a copy without pieces.
    whole: Option<(FileId, PutBytes)>,
    /// The files of the pieces and their encoded records, in order.
    files: Vec<(FileId, Vec<u8>)>,
    named: NamedFiles,
}

impl TakeIn {
    pub(super) fn begin(
        store: &Arc<Inner>,
        scope: Scope,
        handed: Handed,
        since: Option<u64>,
        version: Option<OneOfMany>,
    ) -> Result<Self, Error> {
        check_bucket(&scope.bucket)?;
        check_key(&scope.key)?;
        let pieces = handed.pieces.as_ref();
        let sum = pieces.map(|(_, pieces)| pieces.iter().map(|piece| piece.len).sum::<u64>());
        if sum.is_some_and(|sum| handed.len != Some(sum)) {
            return Err(Error::corrupt("parts of another length than their object"));
        }
        if handed.versions.is_some() {
            return Err(Error::corrupt("versions in place of one object"));
        }
        let mut take_in = Self {
            object_key: object_key(&scope.bucket, &scope.key),
            scope,
            handed,
            since,
            version,
            writer: None,
            whole: None,
            files: Vec::new(),
            named: NamedFiles::new(store),
        };
        take_in.begin_next()?;
        Ok(take_in)
    }

    /// Takes the next bytes. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] for more bytes than were announced; errors of the disk.
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

    /// Replaces what this store has by the copy, unless that is newer; says whether it did.
    /// Blocks on disk.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] if bytes are missing; [`Error::OtherEpoch`] if the store is
    /// in another epoch by now.
    pub fn finish(mut self) -> Result<bool, Error> {
        if self.version.is_some() {
            return Err(Error::WritesDisabled);
        }
        let taken = self.taken()?;
        let op = Op::TakeIn(TakeInOp {
            since: self.since,
            life: self.handed.life,
            scope: self.scope,
            object_key: self.object_key,
            stamp: self.handed.stamp,
            taken,
        });
        let when = self.since.map_or(When::Always, When::In);
        self.named.commit(op, when)
    }

    /// The place of a version, the copy, and its files.
    pub(super) fn into_version(mut self) -> Result<(Stamp, Taken, Vec<FileId>), Error> {
        let one = self.version.ok_or(Error::WritesDisabled)?;
        let taken = self.taken()?;
        Ok((one.version.at, taken, std::mem::take(&mut self.named.ids)))
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
        let version = self.version.and_then(|one| one.version.id());
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
            return Ok(Taken::Whole(record(bytes.payload(id)), id, bytes));
        };
        let files = std::mem::take(&mut self.files);
        let parts = pieces.into_iter().zip(&files);
        let parts = parts.map(|(piece, (file, _))| ManifestPart {
            number: piece.number,
            file: *file,
            len: piece.len,
            headers: piece.headers,
        });
        let parts = parts.collect();
        let manifest = Manifest { upload, parts };
        let id = self.named.store.files.new_id()?;
        let record = record(Payload::Parts { id });
        Ok(Taken::Parts(record, id, manifest, files))
    }

    /// Names the file of each piece that is complete, and begins the next one.
    fn end_pieces(&mut self) -> Result<(), Error> {
        while let Some(writer) = self.writer.take_if(|writer| writer.left() == 0) {
            let (id, bytes) = writer.finish_piece()?;
            if let PutBytes::File(_) = &bytes {
                self.named.ids.push(id);
            }
            match (&self.handed.pieces, bytes) {
                (Some(_), PutBytes::File(record)) => self.files.push((id, record)),
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
        let in_file = self.version.is_some_and(|one| one.in_file)
            || self.handed.pieces.is_some()
            || self.scope.upload.is_some();
        let store = Arc::clone(&self.named.store);
        let writer = PutWriter::begin_piece(store, self.object_key.clone(), len, in_file)?;
        self.writer = Some(writer);
        Ok(())
    }
}
