//! Looking through everything that is stored, for bytes that are not what was
//! written: object files block by block, inline objects, records, and the tree's
//! own files. Read from the disk where the kernel can be made to, not from its
//! cache. How fast, and what becomes of a fault, is the caller's.

use std::{
    fmt,
    fs::File,
    io,
    ops::Bound,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    audit::{self, TreeFault},
    blocks::{self, BLOCK_LEN},
    error::Error,
    layout::FileId,
    record::{FileRecord, Payload, Record, bucket_prefix, split_object_key},
    store::{Inner, Store, inline_body},
    uploads::{UploadId, split_upload_key, upload_prefix},
    versions::object_key_of,
    view::View,
};

/// Records looked at between two views of the tree, so that none is held long.
const PAGE: usize = 64;

/// Records by their keys in their tree.
type Records<'v> = Box<dyn Iterator<Item = Result<(fjall::UserKey, Record), Error>> + 'v>;

/// Something that is not what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScrubFault {
    /// Where.
    pub place: Place,
    /// What is wrong with it.
    pub what: String,
}

/// Where a fault is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Place {
    /// In an object's bytes.
    Object {
        /// Its bucket.
        bucket: String,
        /// Its key.
        key: String,
        /// The upload under way that the part is of; none for an object.
        upload: Option<UploadId>,
        /// The number of the part, for an object or upload that has parts.
        part: Option<u16>,
        /// The block, as an offset within the object, or within the part.
        offset: u64,
    },
    /// In one of the store's own files.
    Store {
        /// Which.
        path: PathBuf,
        /// The first byte that may be wrong, where that is known.
        offset: Option<u64>,
    },
}

/// What a scrub has looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScrubReport {
    /// Objects' records.
    pub objects: u64,
    /// Files of objects and parts.
    pub files: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Faults found.
    pub faults: u64,
    /// Whether it went through to the end.
    pub complete: bool,
}

/// Told of every fault of an object, by a scrub or by a read that met it, in
/// order to mend it from elsewhere. Called where it may block, but on somebody's
/// way: work that takes long belongs elsewhere.
pub trait Repair: Send + Sync {
    /// The object's bytes are not what was written.
    fn damaged(&self, fault: &ScrubFault);
}

/// What readers have met.
#[derive(Default)]
pub(crate) struct Corruption {
    reads: AtomicU64,
    repair: OnceLock<Arc<dyn Repair>>,
}

/// The search for bytes that are not what was written, and their repair.
#[derive(Debug, Clone, Copy)]
pub struct Integrity<'a> {
    pub(crate) store: &'a Store,
}

impl Integrity<'_> {
    /// Looks through everything. `pace` is told the number of bytes read after
    /// each piece; it may wait, and ends the scrub by giving `false`. Blocks on
    /// disk, for as long as reading everything takes; reads and writes go on.
    ///
    /// # Errors
    /// Where the scrub itself cannot go on; faults are no errors of it.
    pub fn scrub(
        &self,
        pace: &mut dyn FnMut(u64) -> bool,
        found: &mut dyn FnMut(&ScrubFault),
    ) -> Result<ScrubReport, Error> {
        let mut scrub = Scrub {
            store: &self.store.inner,
            pace,
            found,
            report: ScrubReport::default(),
            ended: false,
        };
        scrub.tree()?;
        scrub.records()?;
        scrub.files()?;
        scrub.report.complete = !scrub.ended;
        Ok(scrub.report)
    }

    /// When the last scrub that went through to the end began, in milliseconds
    /// since the Unix epoch; 0 if there was none. May block on disk.
    #[must_use]
    pub fn last_scrub_ms(&self) -> u64 {
        self.store.inner.lsm.last_scrub_ms()
    }

    /// Notes that a scrub went through to the end. May block on disk.
    ///
    /// # Errors
    /// Where the tree takes no writes.
    pub fn note_scrub(&self, began_ms: u64) -> Result<(), Error> {
        self.store.inner.lsm.note_scrub(began_ms)
    }

    /// How many reads have met bytes that were not what was written, since the
    /// store was opened. Does not block.
    #[must_use]
    pub fn corrupt_reads(&self) -> u64 {
        self.store.inner.corruption.reads.load(Ordering::Relaxed)
    }

    /// Says who is told of damaged objects; the first to be named stays. Does
    /// not block.
    pub fn set_repair(&self, repair: Arc<dyn Repair>) {
        let _ = self.store.inner.corruption.repair.set(repair);
    }
}

struct Scrub<'a> {
    store: &'a Inner,
    pace: &'a mut dyn FnMut(u64) -> bool,
    found: &'a mut dyn FnMut(&ScrubFault),
    report: ScrubReport,
    ended: bool,
}

impl Scrub<'_> {
    fn report(&mut self, fault: &ScrubFault) {
        self.report.faults += 1;
        (self.found)(fault);
        self.store.corruption.tell(fault);
    }

    fn read(&mut self, bytes: u64) {
        self.report.bytes += bytes;
        self.ended |= !(self.pace)(bytes);
    }

    /// The tree's own files.
    fn tree(&mut self) -> Result<(), Error> {
        let layout = self.store.files.layout();
        let db = layout.db();
        let mut faults = Vec::new();
        let lsm = &self.store.lsm;
        let read = lsm.audit_logs(layout, &mut |fault| faults.push(fault))?;
        self.read(read);
        for keyspace in audit::keyspaces(&db)? {
            if self.ended {
                break;
            }
            let pace = &mut self.pace;
            let ended = &mut self.ended;
            let mut pace = |bytes| {
                *ended |= !pace(bytes);
                !*ended
            };
            let read = audit::tables(&keyspace, &mut pace, &mut |fault| faults.push(fault))?;
            self.report.bytes += read;
        }
        for TreeFault { path, offset, what } in faults {
            let place = Place::Store { path, offset };
            self.report(&ScrubFault { place, what });
        }
        Ok(())
    }

    /// The records of objects and of versions, and what of them lies in the tree.
    fn records(&mut self) -> Result<(), Error> {
        self.records_of(
            |view, after| Box::new(view.objects((after, Bound::Unbounded))),
            <[u8]>::to_vec,
        )?;
        self.records_of(
            |view, after| Box::new(view.versions((after, Bound::Unbounded))),
            object_key_of,
        )
    }

    fn records_of(
        &mut self,
        behind: impl for<'v> Fn(&'v View<'_>, Bound<Vec<u8>>) -> Records<'v>,
        object_key: fn(&[u8]) -> Vec<u8>,
    ) -> Result<(), Error> {
        let mut after = Bound::Unbounded;
        while !self.ended {
            let view = self.store.lsm.view();
            let mut last = None;
            let mut bytes = 0;
            for item in behind(&view, after).take(PAGE) {
                let (tree_key, record) = match item {
                    Ok(item) => item,
                    // What is behind it cannot be reached.
                    Err(error) => return self.unreadable(&error),
                };
                self.report.objects += 1;
                let checked = match record.payload {
                    Payload::Inline { id, crc } => {
                        bytes += record.len;
                        inline_body(&view, &record, id, crc).map(drop)
                    }
                    Payload::Parts { id } => view.manifest(id).and_then(|manifest| {
                        let found = manifest.map(drop);
                        found.ok_or_else(|| Error::corrupt("manifest missing"))
                    }),
                    Payload::File { id } => view.has_file(id).and_then(|has| match has {
                        true => Ok(()),
                        false => Err(Error::corrupt("file record missing")),
                    }),
                    Payload::Marker => Ok(()),
                };
                if let Err(error) = checked {
                    let place = object_place(&object_key(&tree_key), (None, None), 0);
                    let what = error.to_string();
                    self.report(&ScrubFault { place, what });
                }
                last = Some(tree_key.to_vec());
            }
            self.read(bytes);
            match last {
                Some(key) => after = Bound::Excluded(key),
                None => break,
            }
        }
        Ok(())
    }

    /// Files of objects, parts, and whatever else has one.
    fn files(&mut self) -> Result<(), Error> {
        let mut after = None;
        while !self.ended {
            let page: Result<Vec<_>, _> = self
                .store
                .lsm
                .view()
                .files_after(after)
                .take(PAGE)
                .collect();
            let page = match page {
                Ok(page) => page,
                Err(error) => return self.unreadable(&error),
            };
            let Some((last, _)) = page.last() else {
                break;
            };
            after = Some(*last);
            for (id, record) in page {
                if self.ended {
                    break;
                }
                self.file(id, &record)?;
            }
        }
        Ok(())
    }

    fn file(&mut self, id: FileId, record: &FileRecord) -> Result<(), Error> {
        self.report.files += 1;
        let file = match self.store.files.open_file(id) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if self.store.lsm.view().has_file(id)? {
                    self.damaged(id, record, 0, "file missing".into());
                }
                return Ok(());
            }
            Err(error) => {
                self.damaged(id, record, 0, error.to_string());
                return Ok(());
            }
        };
        let len = file.metadata()?.len();
        if len != record.len || record.crcs.len() as u64 != len.div_ceil(BLOCK_LEN) {
            let what = format!("file of {len} bytes instead of {}", record.len);
            self.damaged(id, record, 0, what);
            return Ok(());
        }
        forget_cached(&file);
        for (at, recorded) in (0..).step_by(BLOCK_LEN as usize).zip(&record.crcs) {
            let range = (at, len.min(at + BLOCK_LEN));
            if let Err(error) = blocks::verify_block(&file, range, *recorded) {
                self.damaged(id, record, at, error.to_string());
            }
            self.read(range.1 - range.0);
            if self.ended {
                break;
            }
        }
        forget_cached(&file);
        Ok(())
    }

    fn damaged(&mut self, id: FileId, record: &FileRecord, offset: u64, what: String) {
        let place = place_of(&self.store.lsm.view(), id, &record.object_key, offset);
        self.report(&ScrubFault { place, what });
    }

    /// A tree cannot be read on.
    fn unreadable(&mut self, error: &Error) -> Result<(), Error> {
        let place = Place::Store {
            path: self.store.files.layout().db(),
            offset: None,
        };
        let what = error.to_string();
        self.report(&ScrubFault { place, what });
        Ok(())
    }
}

impl Corruption {
    /// A read has met what lies in the tree and is not what was written.
    pub(crate) fn note_object(&self, object_key: &[u8], error: &Error) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let fault = ScrubFault {
            place: object_place(object_key, (None, None), 0),
            what: error.to_string(),
        };
        tracing::error!(%fault, "read of a damaged object");
        self.tell(&fault);
    }

    /// A read has met a block that is not what was written.
    pub(crate) fn note(&self, store: &Inner, id: FileId, offset: u64, error: &Error) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let view = store.lsm.view();
        let Ok(Some(record)) = view.file(id) else {
            tracing::error!(file = %id, %error, "read of a damaged file");
            return;
        };
        let fault = ScrubFault {
            place: place_of(&view, id, &record.object_key, offset),
            what: error.to_string(),
        };
        tracing::error!(%fault, "read of a damaged object");
        self.tell(&fault);
    }

    fn tell(&self, fault: &ScrubFault) {
        if let (Place::Object { .. }, Some(repair)) = (&fault.place, self.repair.get()) {
            repair.damaged(fault);
        }
    }
}

/// Makes the kernel read a file from the disk again. A hint, and without effect
/// on file systems in memory.
pub(crate) fn forget_cached(file: &File) {
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
}

fn object_place(object_key: &[u8], (upload, part): PartOf, offset: u64) -> Place {
    let (bucket, key) = split_object_key(object_key).unwrap_or_default();
    Place::Object {
        bucket: bucket.to_owned(),
        key: key.to_owned(),
        upload,
        part,
        offset,
    }
}

/// Whose bytes a file has.
fn place_of(view: &View<'_>, id: FileId, object_key: &[u8], offset: u64) -> Place {
    let part = part_of(view, id, object_key).unwrap_or_default();
    object_place(object_key, part, offset)
}

/// Whether a file is of an upload of its object's key.
pub(crate) fn is_of_upload(view: &View<'_>, id: FileId, object_key: &[u8]) -> Result<bool, Error> {
    Ok(upload_of(view, id, object_key)?.is_some())
}

/// The upload under way and the number of a part.
type PartOf = (Option<UploadId>, Option<u16>);

/// The part that the file is; none for a whole object, and where it is found in no
/// list of parts.
fn part_of(view: &View<'_>, id: FileId, object_key: &[u8]) -> Result<PartOf, Error> {
    if let Some(record) = view.object(object_key)? {
        match record.payload {
            Payload::File { id: whole } if whole == id => return Ok((None, None)),
            Payload::Parts { id: manifest } => {
                let manifest = view.manifest(manifest)?;
                let parts = manifest.map(|manifest| manifest.parts).unwrap_or_default();
                if let Some(part) = parts.iter().find(|part| part.file == id) {
                    return Ok((None, Some(part.number)));
                }
            }
            _ => {}
        }
    }
    let part = upload_of(view, id, object_key)?.unzip();
    Ok(part)
}

/// The upload under way that the file is a part of, and the part's number.
fn upload_of(
    view: &View<'_>,
    id: FileId,
    object_key: &[u8],
) -> Result<Option<(UploadId, u16)>, Error> {
    let Some((bucket, key)) = split_object_key(object_key) else {
        return Ok(None);
    };
    let prefix = upload_prefix(bucket, key);
    let all = bucket_prefix(bucket);
    for found in view.uploads((Bound::Included(prefix.clone()), Bound::Unbounded)) {
        let (upload_key, _) = found?;
        let Some((_, upload)) = split_upload_key(&upload_key)
            .filter(|_| upload_key.starts_with(&prefix) && upload_key.starts_with(&all))
        else {
            break;
        };
        for part in view.parts(upload, 0) {
            let (number, record) = part?;
            if record.payload == (Payload::File { id }) {
                return Ok(Some((upload, number)));
            }
        }
    }
    Ok(None)
}

impl fmt::Display for ScrubFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Object {
                bucket,
                key,
                upload,
                part,
                offset,
            } => {
                write!(f, "{bucket}/{key}")?;
                if let Some(upload) = upload {
                    write!(f, " upload {upload}")?;
                }
                if let Some(part) = part {
                    write!(f, " part {part}")?;
                }
                write!(f, " at {offset}: {}", self.what)
            }
            Place::Store { path, offset } => {
                write!(f, "{}", path.display())?;
                if let Some(offset) = offset {
                    write!(f, " at {offset}")?;
                }
                write!(f, ": {}", self.what)
            }
        }
    }
}
