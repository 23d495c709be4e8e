//! Flushing a file while it is written, so that little is left to flush at the end.

use std::{fs::File, io, os::fd::AsFd};

use prism_sys::writeback;

const STEP_BYTES: u64 = 1 << 20;
/// Most bytes on their way to the disk. A disk of 1 MB/s needs 8 s for them.
const UNDER_WAY_BYTES: u64 = 8 << 20;

#[derive(Debug, Default)]
pub(crate) struct WriteBehind {
    /// Bytes that were sent to the disk.
    begun: u64,
    /// Bytes that are on the disk.
    done: u64,
}

impl WriteBehind {
    /// Sends the steps that are complete by `written` bytes. Waits if the disk is too far behind.
    pub(crate) fn advance(&mut self, file: &File, written: u64) -> io::Result<()> {
        while written.saturating_sub(self.begun) >= STEP_BYTES {
            writeback::begin(file.as_fd(), self.begun, STEP_BYTES)?;
            self.begun += STEP_BYTES;
        }
        while self.begun - self.done > UNDER_WAY_BYTES {
            self.step(file)?;
        }
        Ok(())
    }

    /// Waits for the oldest step that was sent; whether there was one.
    pub(crate) fn step(&mut self, file: &File) -> io::Result<bool> {
        if self.done == self.begun {
            return Ok(false);
        }
        writeback::finish(file.as_fd(), self.done, STEP_BYTES)?;
        self.done += STEP_BYTES;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;

    #[test]
    fn no_more_than_a_bounded_number_of_bytes_is_left_to_be_flushed() {
        let mut file = tempfile::tempfile().unwrap();
        let mut behind = WriteBehind::default();
        let mut written = 0;
        for len in [10_000, 5 << 20, 20 << 20, 300_000] {
            file.write_all(&vec![7; len]).unwrap();
            written += len as u64;
            behind.advance(&file, written).unwrap();
            assert!(written - behind.done < UNDER_WAY_BYTES + STEP_BYTES);
            assert!(behind.done <= behind.begun && behind.begun <= written);
        }
        let mut steps = 0;
        while behind.step(&file).unwrap() {
            steps += 1;
        }
        assert_eq!(steps, UNDER_WAY_BYTES / STEP_BYTES);
        assert!(written - behind.done < STEP_BYTES);
    }
}
