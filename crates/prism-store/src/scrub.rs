//! The search for damage in everything that is stored: object files block by block, inline
//! objects, records, and the tree's own files. It reads from the disk rather than from the
//! kernel's cache, as far as the kernel allows. The caller sets the pace, and handles faults.

use std::{
    fs::File,
    ops::Bound,
    sync::{Arc, atomic::Ordering},
};

use prism_audit::{TreeFault, forget_cached};

use crate::{
    blocks::{self, BLOCK_LEN},
    damage::{Place, Repair, ScrubFault, object_place, place_of},
    error::Error,
    keys::object_key_of,
    layout::FileId,
    read::inline_body,
    record::{FileRecord, Payload, Record},
    storage::Storage,
    store::Store,
    view::View,
};

/// The record of the tree `system` that says when the last complete scrub began.
const SCRUBBED_KEY: &str = "scrubbed";
/// Records looked at by one view of the tree, so that no view is open for long.
const PAGE: usize = 64;

/// Records by their keys in their tree.
type Records<'v> = Box<dyn Iterator<Item = Result<(fjall::UserKey, Record), Error>> + 'v>;

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

/// The search for bytes that are not what was written, and their repair.
#[derive(Debug, Clone, Copy)]
pub struct Integrity<'a> {
    pub(crate) store: &'a Store,
}

impl Store {
    /// The search for damage, and its repair.
    #[must_use]
    pub fn integrity(&self) -> Integrity<'_> {
        Integrity { store: self }
    }
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
            storage: self.store.storage(),
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
        let recorded = self.store.storage().lsm.number(SCRUBBED_KEY);
        recorded.ok().flatten().unwrap_or(0)
    }

    /// Records a complete scrub. May block on disk.
    pub fn note_scrub(&self, began_ms: u64) -> Result<(), Error> {
        let lsm = &self.store.storage().lsm;
        Ok(lsm.record(SCRUBBED_KEY, &began_ms.to_be_bytes())?)
    }

    /// The number of reads that met damage since the store was opened. Does not block.
    #[must_use]
    pub fn corrupt_reads(&self) -> u64 {
        let corruption = &self.store.storage().corruption;
        corruption.reads.load(Ordering::Relaxed)
    }

    /// Sets the receiver of faults. A second call has no effect. Does not block.
    pub fn set_repair(&self, repair: Arc<dyn Repair>) {
        let _ = self.store.storage().corruption.repair.set(repair);
    }
}

struct Scrub<'a> {
    storage: &'a Storage,
    pace: &'a mut dyn FnMut(u64) -> bool,
    found: &'a mut dyn FnMut(&ScrubFault),
    report: ScrubReport,
    ended: bool,
}

impl Scrub<'_> {
    fn report(&mut self, fault: &ScrubFault) {
        self.report.faults += 1;
        (self.found)(fault);
        self.storage.corruption.tell(fault);
    }

    /// Counts bytes, and says whether to go on.
    fn read(&mut self, bytes: u64) -> bool {
        self.report.bytes += bytes;
        self.ended |= !(self.pace)(bytes);
        !self.ended
    }

    /// The tree's own files.
    fn tree(&mut self) -> Result<(), Error> {
        let mut faults = Vec::new();
        let layout = self.storage.files.layout();
        let lsm = &self.storage.lsm;
        let read = lsm.audit_logs(layout, &mut |fault| faults.push(fault))?;
        self.read(read);
        for keyspace in prism_audit::keyspaces(&layout.db())? {
            if self.ended {
                break;
            }
            let mut pace = |bytes| self.read(bytes);
            prism_audit::tables(&keyspace, &mut pace, &mut |fault| faults.push(fault))?;
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
            let view = self.storage.lsm.view();
            let mut last = None;
            let mut bytes = 0;
            for item in behind(&view, after).take(PAGE) {
                let (tree_key, record) = match item {
                    Ok(item) => item,
                    // The records behind it are out of reach.
                    Err(error) => return self.unreadable(&error),
                };
                self.report.objects += 1;
                if let Payload::Inline { .. } = record.payload {
                    bytes += record.len;
                }
                if let Err(error) = check_payload(&view, &record) {
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
            let view = self.storage.lsm.view();
            let page: Result<Vec<_>, _> = view.files_after(after).take(PAGE).collect();
            drop(view);
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
        let what = match self.storage.files.open_file(id) {
            Ok(Some(file)) => return self.blocks(id, record, &file),
            Ok(None) if !self.storage.lsm.view().has_file(id)? => return Ok(()),
            Ok(None) => "file missing".into(),
            Err(error) => error.to_string(),
        };
        self.damaged(id, record, 0, what);
        Ok(())
    }

    /// The blocks of a file.
    fn blocks(&mut self, id: FileId, record: &FileRecord, file: &File) -> Result<(), Error> {
        let len = file.metadata()?.len();
        if len != record.len || record.crcs.len() as u64 != len.div_ceil(BLOCK_LEN) {
            let what = format!("file of {len} bytes instead of {}", record.len);
            self.damaged(id, record, 0, what);
            return Ok(());
        }
        forget_cached(file);
        for (at, recorded) in (0..).step_by(BLOCK_LEN as usize).zip(&record.crcs) {
            let end = len.min(at + BLOCK_LEN);
            if let Err(error) = blocks::verify_block(file, at, end, *recorded) {
                self.damaged(id, record, at, error.to_string());
            }
            if !self.read(end - at) {
                break;
            }
        }
        forget_cached(file);
        Ok(())
    }

    fn damaged(&mut self, id: FileId, record: &FileRecord, offset: u64, what: String) {
        let place = place_of(&self.storage.lsm.view(), id, &record.object_key, offset);
        self.report(&ScrubFault { place, what });
    }

    /// Reports a tree that cannot be read on.
    fn unreadable(&mut self, error: &Error) -> Result<(), Error> {
        let path = self.storage.files.layout().db();
        let offset = None;
        let place = Place::Store { path, offset };
        let what = error.to_string();
        self.report(&ScrubFault { place, what });
        Ok(())
    }
}

/// Checks the part of an object that lies in the tree.
fn check_payload(view: &View<'_>, record: &Record) -> Result<(), Error> {
    let (is_there, what) = match record.payload {
        Payload::Inline { id, crc } => return inline_body(view, record, id, crc).map(drop),
        Payload::Parts { id } => (view.manifest(id)?.is_some(), "manifest missing"),
        Payload::File { id } => (view.has_file(id)?, "file record missing"),
        Payload::Marker => return Ok(()),
    };
    if is_there {
        Ok(())
    } else {
        Err(Error::corrupt(what))
    }
}
