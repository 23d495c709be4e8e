//! The check of object files when a store is opened. Files without a record (orphans) are
//! removed, and records without a file (dangling ones) are reported.
//!
//! A crash leaves orphans: between the naming of a file and its commit, or between a commit
//! and the removal of the replaced file. The store itself never leaves a dangling record:
//! something else lost the file. Memory is bounded, because files are looked up one at a time.

use std::{fs, io, path::Path};

use crate::{
    error::OpenError,
    files::{BytesChange, Files},
    keys::split_object_key,
    layout::{FileId, SHARDS},
    lsm::Lsm,
    view::View,
};

/// The report of what was found when a store was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecoveryReport {
    /// Files of objects.
    pub files: u64,
    /// Bytes of the objects and parts in them.
    pub bytes: u64,
    /// Files removed because no record referred to them.
    pub orphans_removed: u64,
    /// Their length in bytes.
    pub orphan_bytes: u64,
    /// Bytes of an interrupted write, cut off the log's end.
    pub log_bytes_cut: u64,
    /// Entries under `files` that no store made; they were left alone.
    pub foreign: u64,
    /// Objects whose file is missing or of the wrong length. Reads of them fail until they are
    /// written again, repaired or deleted. The log has their keys.
    pub dangling: u64,
}

/// Costs a scan of the directories and, for each file, two look-ups and a `stat`.
pub(crate) fn recover(lsm: &Lsm, files: &Files) -> Result<RecoveryReport, OpenError> {
    let view = lsm.view();
    let mut report = RecoveryReport {
        log_bytes_cut: lsm.log_bytes_cut,
        ..RecoveryReport::default()
    };
    for shard in 0..SHARDS {
        let path = files.layout().shard(shard);
        collect_orphans(&view, files, &path, &mut report)?;
    }
    find_dangling(&view, files, &mut report)?;
    let mut used = report.bytes;
    if files.usage.is_limited() {
        used += view.inline_bytes()?;
    }
    files.usage.apply(BytesChange {
        taken: used,
        given: 0,
    });
    if report.orphans_removed > 0 {
        tracing::info!(
            files = report.orphans_removed,
            bytes = report.orphan_bytes,
            "removed object files nothing refers to"
        );
    }
    Ok(report)
}

fn collect_orphans(
    view: &View<'_>,
    files: &Files,
    shard: &Path,
    report: &mut RecoveryReport,
) -> Result<(), OpenError> {
    let fail = |e: io::Error| OpenError::io(format!("scan {}", shard.display()))(e);
    for entry in fs::read_dir(shard).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let name = entry.file_name();
        let ours = name
            .to_str()
            .and_then(FileId::parse)
            .filter(|id| files.layout().file(*id) == entry.path());
        let Some(id) = ours else {
            tracing::warn!(path = %entry.path().display(), "not an object file; left alone");
            report.foreign += 1;
            continue;
        };
        if view.has_file(id)? {
            report.files += 1;
            continue;
        }
        report.orphan_bytes += entry.metadata().map_err(fail)?.len();
        report.orphans_removed += 1;
        fs::remove_file(entry.path()).map_err(fail)?;
    }
    Ok(())
}

fn find_dangling(
    view: &View<'_>,
    files: &Files,
    report: &mut RecoveryReport,
) -> Result<(), OpenError> {
    for file in view.files_after(None) {
        let (id, record) = file?;
        report.bytes += record.len;
        if files.is_whole(id, record.len) {
            continue;
        }
        report.dangling += 1;
        let (bucket, key) = split_object_key(&record.object_key).unwrap_or_default();
        tracing::error!(bucket, key, file = %id, "object file missing or of the wrong length");
    }
    Ok(())
}
