//! Writing parts of a file from the page cache to the disk, before the file is flushed.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Begins to write `len` bytes from `offset` to the disk. It waits only if the disk's queue is
/// full.
///
/// # Errors
/// `InvalidInput` if the offset is beyond the size of files; else the disk's error.
pub fn begin(file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
    sync_file_range(file, offset, len, libc::SYNC_FILE_RANGE_WRITE)
}

/// Writes `len` bytes from `offset` to the disk, and waits for them. It makes nothing durable:
/// neither the file system's metadata nor the disk's own cache.
///
/// # Errors
/// As for [`begin`]. No later flush reports an error that is reported here.
pub fn finish(file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    sync_file_range(file, offset, len, flags)
}

fn sync_file_range(file: BorrowedFd<'_>, offset: u64, len: u64, flags: u32) -> io::Result<()> {
    let range = i64::try_from(offset).and_then(|offset| Ok((offset, i64::try_from(len)?)));
    let (offset, len) = range.map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: a valid descriptor; the call takes no pointers.
    let result = unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, flags) };
    match result {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            // A sandbox without the call: the last flush does all.
            error if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
            error => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    #[test]
    fn a_part_of_a_file_is_written_and_no_place_beyond_all_files_is() {
        let path = std::env::temp_dir().join(format!("writeback-{}", std::process::id()));
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(&[7; 100_000]).unwrap();
        begin(file.as_fd(), 0, 50_000).unwrap();
        finish(file.as_fd(), 0, 50_000).unwrap();
        finish(file.as_fd(), 50_000, 1 << 20).unwrap();
        assert!(begin(file.as_fd(), u64::MAX, 1).is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
