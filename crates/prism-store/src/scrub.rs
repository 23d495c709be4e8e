//! The search for damage in everything that is stored: object files block by block, inline
//! objects, records, and the tree's own files. It reads from the disk rather than from the
//! kernel's cache, as far as the kernel allows. The caller sets the pace, and handles faults.

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
    read::inline_body,
    record::{FileRecord, Payload, Record, bucket_prefix, split_object_key},
    store::{Inner, Store},
    uploads::{UploadId, split_upload_key, upload_prefix},
    versions::object_key_of,
    view::View,
};

/// Records looked at by one view of the tree, so that no view is open for long.
const PAGE: usize = 64;

/// Records by their keys in their tree.
type Records<'v> = Box<dyn Iterator<Item = Result<(fjall::UserKey, Record), Error>> + 'v>;

/// Damage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScrubFault {
    /// Its place.
    pub place: Place,
    /// A description of the damage.
    pub what: String,
}

/// The place of a fault.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Place {
    /// In an object's bytes.
    Object {
        /// Its bucket.
        bucket: String,
        /// Its key.
        key: String,
        /// The unfinished upload of a part; none for an object.
        upload: Option<UploadId>,
        /// The number of the part, for an object or upload that has parts.
        part: Option<u16>,
        /// The block, as an offset within the object, or within the part.
        offset: u64,
    },
    /// In one of the store's own files.
    Store {
        /// The file.
        path: PathBuf,
        /// The first byte that may be wrong, where that is known.
        offset: Option<u64>,
    },
}

/// The extent and the result of a scrub.
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
    /// Whether it reached the end.
    pub complete: bool,
}

/// Receives every fault of an object that a scrub or a read meets, to repair it. The call may
/// block, but a reader waits for it: long work belongs on another thread.
pub trait Repair: Send + Sync {
    /// Damage was found.
    fn damaged(&self, fault: &ScrubFault);
}

/// The damage that readers have met.
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
    /// Searches everything for damage. `pace` gets the number of bytes read after each piece.
    /// It may wait, and ends the scrub by returning `false`. Reads and writes go on meanwhile.
    /// Blocks on disk for as long as it takes to read everything.
    ///
    /// # Errors
    /// Where the scrub itself cannot go on. Damage is not an error.
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

    /// When the last complete scrub began, in milliseconds since the Unix epoch; 0 if there was
    /// none. May block on disk.
    #[must_use]
    pub fn last_scrub_ms(&self) -> u64 {
        self.store.inner.lsm.last_scrub_ms()
    }

    /// Records a complete scrub. May block on disk.
    ///
    /// # Errors
    /// Where the tree takes no writes.
    pub fn note_scrub(&self, began_ms: u64) -> Result<(), Error> {
        self.store.inner.lsm.note_scrub(began_ms)
    }

    /// The number of reads that met damage since the store was opened. Does not block.
    #[must_use]
    pub fn corrupt_reads(&self) -> u64 {
        self.store.inner.corruption.reads.load(Ordering::Relaxed)
    }

    /// Sets the receiver of faults. A second call has no effect. Does not block.
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

    /// The records of objects and versions, and the parts of them that lie in the tree.
    fn records(&mut self) -> Result<(), Error> {
        self.records_of(|view, after| Box::new(view.objects(after)), <[u8]>::to_vec)?;
        self.records_of(|view, after| Box::new(view.versions(after)), object_key_of)
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
                    // The records behind it are out of reach.
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

    /// The files of objects and parts.
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
            let end = len.min(at + BLOCK_LEN);
            if let Err(error) = blocks::verify_block(&file, at, end, *recorded) {
                self.damaged(id, record, at, error.to_string());
            }
            self.read(end - at);
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

    /// Reports a tree that cannot be read on.
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
    /// Counts a read that met damage in the tree.
    pub(crate) fn note_object(&self, object_key: &[u8], error: &Error) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let fault = ScrubFault {
            place: object_place(object_key, (None, None), 0),
            what: error.to_string(),
        };
        tracing::error!(%fault, "read of a damaged object");
        self.tell(&fault);
    }

    /// Counts a read that met a damaged block.
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

fn object_place(object_key: &[u8], part: PartOf, offset: u64) -> Place {
    let (upload, part) = part;
    let (bucket, key) = split_object_key(object_key).unwrap_or_default();
    Place::Object {
        bucket: bucket.to_owned(),
        key: key.to_owned(),
        upload,
        part,
        offset,
    }
}

/// The place of a block of a file.
fn place_of(view: &View<'_>, id: FileId, object_key: &[u8], offset: u64) -> Place {
    let part = part_of(view, id, object_key).unwrap_or_default();
    object_place(object_key, part, offset)
}

/// Whether a file belongs to an unfinished upload of its object's key.
pub(crate) fn is_of_upload(view: &View<'_>, id: FileId, object_key: &[u8]) -> Result<bool, Error> {
    Ok(upload_of(view, id, object_key)?.is_some())
}

/// The unfinished upload of a part, and the part's number.
type PartOf = (Option<UploadId>, Option<u16>);

/// The part that a file has. None for a whole object, and for a file in no list of parts.
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

/// The unfinished upload that has the file, and the part's number.
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
    for found in view.uploads(Bound::Included(prefix.clone())) {
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
