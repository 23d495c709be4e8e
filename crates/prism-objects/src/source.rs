//! An object of this node's own store as an [`Input`].

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use prism_common::input::Unread;
use prism_replicas::PIECE_BYTES;
use prism_service::Input;
use prism_store::{Body, CheckedFile, Object};

/// Reads a range of an object, from beginning to end.
pub(crate) struct LocalObject {
    object: Object,
    /// Offsets in the object.
    at: u64,
    end: u64,
    /// The index and file of the part that was read last.
    open: Option<(usize, CheckedFile)>,
    buffer: Unread,
}

impl LocalObject {
    /// Reads the bytes `at..end` of an object.
    pub(crate) fn new(object: Object, at: u64, end: u64) -> Self {
        Self {
            object,
            at,
            end,
            open: None,
            buffer: Unread::default(),
        }
    }

    /// The file of the next bytes, and their range in it.
    fn next_piece(&mut self) -> io::Result<Option<(CheckedFile, Range<u64>)>> {
        let want = (self.end - self.at).min(PIECE_BYTES as u64);
        let parts = match &self.object.body {
            Body::Inline(_) => return Ok(None),
            Body::File(file) => return Ok(Some((file.clone(), self.at..self.at + want))),
            Body::Parts(parts) => parts,
        };
        let Some(segment) = parts.segments(self.at, want).first().copied() else {
            return Ok(None);
        };
        let file = match self.open.take() {
            Some((index, file)) if index == segment.index => file,
            _ => parts.open(segment.index).map_err(io::Error::other)?,
        };
        self.open = Some((segment.index, file.clone()));
        Ok(Some((file, segment.offset..segment.offset + segment.len)))
    }
}

/// Reads bytes of a file on the blocking pool, after a comparison of their blocks with the
/// checksums.
async fn read_checked(file: CheckedFile, range: Range<u64>) -> io::Result<Vec<u8>> {
    let reading = tokio::task::spawn_blocking(move || {
        let end = file.len().min(range.end);
        file.check_all(range.start, end).map_err(io::Error::other)?;
        let len = usize::try_from(range.end - range.start).unwrap_or(PIECE_BYTES);
        let mut piece = vec![0; len];
        let read = file.file().read_at(&mut piece, range.start)?;
        piece.truncate(read);
        Ok(piece)
    });
    reading.await.map_err(io::Error::other)?
}

impl Input for LocalObject {
    fn buffered(&self) -> &[u8] {
        self.buffer.unread()
    }

    fn consume(&mut self, n: usize) {
        self.buffer.consume(n);
    }

    /// Replaces the buffer, all of which must be consumed.
    async fn fill(&mut self) -> io::Result<usize> {
        if !self.buffered().is_empty() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        if self.at == self.end {
            return Ok(0);
        }
        let bytes = match &self.object.body {
            Body::Inline(bytes) => {
                let at = usize::try_from(self.at).unwrap_or(usize::MAX);
                let end = usize::try_from(self.end).unwrap_or(usize::MAX);
                bytes.get(at..end).unwrap_or_default().to_vec()
            }
            Body::File(_) | Body::Parts(_) => match self.next_piece()? {
                Some((file, range)) => read_checked(file, range).await?,
                None => Vec::new(),
            },
        };
        let read = bytes.len();
        self.buffer = Unread::new(bytes);
        self.at += read as u64;
        Ok(read)
    }
}
