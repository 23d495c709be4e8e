//! The repair of damage that a scrub or a reader has found, by bytes from other replicas.
//!
//! A file is repaired block by block. A block is accepted only with the recorded checksum, so
//! its source and version do not matter. Other damage is repaired by a copy of the whole
//! scope with the same stamp: objects in the tree, parts of uploads, and objects without
//! checksums or manifest. [`Integrity::damaged_scope`] tells which.

use std::{fs::File, ops::Range, os::unix::fs::FileExt};

use crate::{
    blocks::{self, BLOCK_LEN, crc32c},
    damage::ObjectPlace,
    error::Error,
    keys::object_key,
    layout::FileId,
    object::Body,
    record::{FileRecord, Payload},
    scope::Scope,
    scrub::Integrity,
    view::View,
};

/// A block that differs from its checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedBlock {
    /// Its place, as a fault names it.
    pub place: ObjectPlace,
    /// Its range of bytes in the whole object.
    pub bytes: Range<u64>,
}

/// The file of a place.
struct Found {
    id: FileId,
    record: FileRecord,
    /// The offset of the file's first byte in the object.
    start: u64,
    /// The file, open for writing unless it is missing.
    file: Option<File>,
}

impl Integrity<'_> {
    /// All damaged blocks of the file of a place. None if the object is another by now or lies
    /// in the tree. Reads the whole file. Blocks on disk.
    pub fn damaged_blocks(&self, place: &ObjectPlace) -> Result<Vec<DamagedBlock>, Error> {
        let Some(Found {
            record,
            start,
            file,
            ..
        }) = self.found(place)?
        else {
            return Ok(Vec::new());
        };
        let mut damaged = Vec::new();
        for (at, recorded) in (0..).step_by(BLOCK_LEN as usize).zip(&record.crcs) {
            let end = record.len.min(at + BLOCK_LEN);
            let is_sound = |file| blocks::verify_block(file, at, end, *recorded).is_ok();
            if !file.as_ref().is_some_and(is_sound) {
                let place = ObjectPlace {
                    offset: at,
                    ..place.clone()
                };
                let bytes = start + at..start + end;
                damaged.push(DamagedBlock { place, bytes });
            }
        }
        Ok(damaged)
    }

    /// The scope to replace by a copy ([`CatchUp::begin_take_in`]), because the damage at
    /// this place cannot be repaired block by block. `None` if it can be, or if there is no
    /// damage. Blocks on disk.
    ///
    /// [`CatchUp::begin_take_in`]: crate::CatchUp::begin_take_in
    pub fn damaged_scope(&self, place: &ObjectPlace) -> Result<Option<Scope>, Error> {
        let bucket = &place.bucket;
        let key = &place.key;
        let is_damaged = match (place.upload, place.part) {
            (None, _) => self.is_unreadable(bucket, key)?,
            (Some(_), None) => false,
            (Some(_), Some(_)) => match self.found(place) {
                Ok(Some(_)) => !self.damaged_blocks(place)?.is_empty(),
                Ok(None) => true,
                Err(error) => error.is_damage(),
            },
        };
        Ok(is_damaged.then(|| Scope {
            upload: place.upload.map(|id| (id, place.part)),
            ..Scope::object(bucket, key)
        }))
    }

    /// Whether the object cannot be opened, or has a file without checksums.
    fn is_unreadable(&self, bucket: &str, key: &str) -> Result<bool, Error> {
        let object = match self.store.get_version(bucket, key, None) {
            Ok(Some(object)) => Some(object),
            Ok(None) | Err(Error::NoSuchBucket | Error::IsDeleteMarker) => return Ok(false),
            Err(error) if error.is_damage() => None,
            Err(error) => return Err(error),
        };
        let files = match object.as_ref().map(|object| &object.body) {
            Some(Body::Parts(parts)) => parts.manifest().parts.iter().map(|p| p.file).collect(),
            Some(Body::Inline(_) | Body::File(_)) => Vec::new(),
            // A missing file is written again, block by block.
            None => match file_of(&self.store.view(), &object_key(bucket, key), None) {
                Ok(Some((id, _))) => vec![id],
                Ok(None) | Err(_) => return Ok(true),
            },
        };
        let view = self.store.view();
        for id in files {
            if !view.has_file(id)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes a damaged block again, and its file if that is missing. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if `data` differs from the checksum too,
    /// [`Error::NoSuchObject`] if the object is another by now.
    pub fn write_block(&self, place: &ObjectPlace, data: &[u8]) -> Result<(), Error> {
        let found = self.found(place)?.ok_or(Error::NoSuchObject)?;
        let index = usize::try_from(place.offset / BLOCK_LEN).unwrap_or(usize::MAX);
        let recorded = found.record.crcs.get(index).ok_or(Error::NoSuchObject)?;
        if crc32c(data) != *recorded {
            return Err(Error::corrupt(
                "the other copy differs from the checksum too",
            ));
        }
        let files = self.store.files();
        let file = match found.file {
            Some(file) => file,
            None => {
                let file = files.create()?;
                files.publish(&file, found.id)?;
                files.sync_shard(found.id.shard())?;
                file
            }
        };
        if file.metadata()?.len() != found.record.len {
            file.set_len(found.record.len)?;
        }
        // In place: readers compare the block before they send it, and a crash leaves it
        // damaged as before.
        file.write_all_at(data, place.offset)?;
        file.sync_all()?;
        Ok(())
    }

    /// The file of a place. None if the object is another by now or lies in the tree.
    fn found(&self, place: &ObjectPlace) -> Result<Option<Found>, Error> {
        let view = self.store.view();
        let file = match (place.upload, place.part) {
            (None, part) => file_of(&view, &object_key(&place.bucket, &place.key), part)?,
            (Some(upload), Some(number)) => {
                let record = view.part(upload, number)?;
                record.and_then(|record| Some((record.file().ok()?, 0)))
            }
            (Some(_), None) => None,
        };
        let Some((id, start)) = file else {
            return Ok(None);
        };
        let Some(record) = view.file(id)? else {
            return Ok(None);
        };
        let file = self.store.files().open_damaged(id)?;
        Ok(Some(Found {
            id,
            record,
            start,
            file,
        }))
    }
}

/// The file of an object, or of one of its parts, and the offset of its first byte.
fn file_of(
    view: &View<'_>,
    object_key: &[u8],
    part: Option<u16>,
) -> Result<Option<(FileId, u64)>, Error> {
    let payload = view.object(object_key)?.map(|record| record.payload);
    let (manifest, number) = match (payload, part) {
        (Some(Payload::File { id }), None) => return Ok(Some((id, 0))),
        (Some(Payload::Parts { id }), Some(number)) => (view.manifest(id)?, number),
        _ => return Ok(None),
    };
    let mut start = 0;
    for part in manifest.map(|manifest| manifest.parts).unwrap_or_default() {
        if part.number == number {
            return Ok(Some((part.file, start)));
        }
        start += part.len;
    }
    Ok(None)
}
