//! The versions of a tree, and the files that they name. Neither changes once written.

use std::{
    collections::HashSet,
    fs,
    io::{self, Cursor, ErrorKind::NotFound, Read as _},
    path::{Path, PathBuf},
};

use prism_common::absent::present;
use prism_proto::wire::{DecodeError, Reader};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::{TreeFault, forget_cached};

/// Most attempts to read a version that another one replaces meanwhile.
const LOOKS: usize = 5;
/// Bytes read at a time.
const READ_LEN: usize = 256 * 1024;
/// Longest version that is read: 4 million files.
const VERSION_MAX: u64 = 256 << 20;

/// Files of a tree, with their checksums.
type Files = Vec<(PathBuf, u128)>;

/// The files of a keyspace's present version, or its damage. None if there is no version yet.
pub(super) fn current(keyspace: &Path) -> io::Result<Result<Files, TreeFault>> {
    for _ in 0..LOOKS {
        let pointer = keyspace.join("current");
        let Some(bytes) = present(fs::read(&pointer), NotFound)? else {
            break;
        };
        let Ok((number, checksum)) = parse_pointer(&bytes) else {
            return Ok(Err(fault(pointer, "is unreadable")));
        };
        let path = keyspace.join(format!("v{number}"));
        let version = match present(fs::metadata(&path), NotFound)? {
            Some(data) if data.len() <= VERSION_MAX => present(fs::read(&path), NotFound)?,
            Some(_) => return Ok(Err(fault(path, "too long for a version"))),
            None => None,
        };
        match version {
            Some(version) if xxh3_128(&version) == checksum => {
                let files = listed(keyspace, &version);
                return Ok(files.map_err(|_| fault(path, "cannot be read")));
            }
            // A newer version may have come meanwhile.
            _ if present(fs::read(&pointer), NotFound)? != Some(bytes) => {}
            Some(_) => return Ok(Err(fault(path, "differs from its checksum"))),
            None => return Ok(Err(fault(path, "missing"))),
        }
    }
    Ok(Ok(Files::new()))
}

fn parse_pointer(bytes: &[u8]) -> Result<(u64, u128), DecodeError> {
    let mut reader = Reader::new(bytes);
    let number = u64::from_le_bytes(reader.array("number")?);
    let checksum = u128::from_le_bytes(reader.array("checksum")?);
    reader.version(0, "kind of checksum")?;
    reader.finish()?;
    Ok((number, checksum))
}

/// Compares every file of a keyspace's present version with its checksum. `pace` gets the bytes
/// read, and ends the work by returning `false`.
///
/// # Errors
/// The kernel's. Damage is not an error.
pub fn tables(
    keyspace: &Path,
    pace: &mut dyn FnMut(u64) -> bool,
    found: &mut dyn FnMut(TreeFault),
) -> io::Result<()> {
    let mut done = HashSet::new();
    'again: for _ in 0..LOOKS {
        let files = match current(keyspace)? {
            Ok(files) => files,
            Err(fault) => {
                found(fault);
                break;
            }
        };
        for (path, checksum) in files {
            if done.contains(&path) {
                continue;
            }
            let is_named = |files: Files| files.iter().any(|(named, _)| *named == path);
            match present(hash(&path, pace), NotFound)? {
                Some(None) => return Ok(()),
                Some(Some(sum)) if sum == checksum => {}
                Some(Some(_)) => found(fault(path.clone(), "differs from its checksum")),
                // Compaction has replaced it, or it is lost.
                None if current(keyspace)?.is_ok_and(is_named) => {
                    found(fault(path.clone(), "missing"));
                }
                None => continue 'again,
            }
            done.insert(path);
        }
        break;
    }
    Ok(())
}

/// The files that a version names.
fn listed(keyspace: &Path, version: &[u8]) -> Result<Files, DecodeError> {
    let archive = sfa::Reader::from_reader(&mut Cursor::new(version));
    let archive = archive.map_err(|_| DecodeError::Invalid("table of contents"))?;
    let section = |name: &'static str| {
        let entry = archive.toc().section(name.as_bytes())?;
        let start = usize::try_from(entry.pos()).ok()?;
        let len = usize::try_from(entry.len()).ok()?;
        version.get(start..)?.get(..len).map(Reader::new)
    };
    let mut files = Files::new();
    let mut tables = section("tables").ok_or(DecodeError::Truncated("tables"))?;
    for _ in 0..tables.u8("number of levels")? {
        for _ in 0..tables.u8("number of runs")? {
            for _ in 0..u32::from_le_bytes(tables.array("number of tables")?) {
                let (id, checksum) = file(&mut tables)?;
                tables.array::<8>("sequence number")?;
                files.push((keyspace.join("tables").join(id.to_string()), checksum));
            }
        }
    }
    let mut blobs = section("blob_files").ok_or(DecodeError::Truncated("blob files"))?;
    for _ in 0..u32::from_le_bytes(blobs.array("number of blob files")?) {
        let (id, checksum) = file(&mut blobs)?;
        files.push((keyspace.join("blobs").join(id.to_string()), checksum));
    }
    Ok(files)
}

/// Number and checksum of a file, whose kind must be 0. Numbers are little-endian here.
fn file(reader: &mut Reader<'_>) -> Result<(u64, u128), DecodeError> {
    let id = u64::from_le_bytes(reader.array("file")?);
    reader.version(0, "kind of checksum")?;
    let checksum = u128::from_le_bytes(reader.array("checksum")?);
    Ok((id, checksum))
}

/// The checksum of a file, read from the disk; `None` if `pace` ends the work.
fn hash(path: &Path, pace: &mut dyn FnMut(u64) -> bool) -> io::Result<Option<u128>> {
    let mut file = fs::File::open(path)?;
    forget_cached(&file);
    let mut sum = Xxh3::new();
    let mut buffer = vec![0; READ_LEN];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok(Some(sum.digest128()));
        }
        sum.update(buffer.get(..read).unwrap_or_default());
        if !pace(read as u64) {
            return Ok(None);
        }
    }
}

fn fault(path: PathBuf, what: &str) -> TreeFault {
    TreeFault {
        path,
        offset: None,
        what: what.into(),
    }
}
