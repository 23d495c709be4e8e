//! An object of this node's own store as an [`Input`].

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use prism_replicas::PIECE_BYTES;
use prism_service::Input;
use prism_store::{Body, CheckedFile, Object, Segment};

/// Reads a range of an object, from beginning to end.
pub(crate) struct LocalObject {
    object: Arc<Object>,
    /// Offsets in the object.
    at: u64,
    end: u64,
    /// The index and file of the part that was read last.
    open: Option<(usize, CheckedFile)>,
    buffer: Vec<u8>,
    start: usize,
}

impl LocalObject {
    /// Reads the bytes `at..end` of an object.
    pub(crate) fn new(object: Object, at: u64, end: u64) -> Self {
        Self {
            object: Arc::new(object),
            at,
            end,
            open: None,
            buffer: Vec::new(),
            start: 0,
        }
    }

    /// The next file of an object in parts, and the segment of it to read.
    fn next_piece(&mut self) -> io::Result<Option<(CheckedFile, Segment)>> {
        let want = (self.end - self.at).min(PIECE_BYTES as u64);
        let Body::Parts(parts) = &self.object.body else {
            return Ok(None);
        };
        let Some(segment) = parts.segments(self.at, want).first().copied() else {
            return Ok(None);
        };
        let file = match self.open.take() {
            Some((index, file)) if index == segment.index => file,
            _ => parts.open(segment.index).map_err(io::Error::other)?,
        };
        self.open = Some((segment.index, file.clone()));
        Ok(Some((file, segment)))
    }

    async fn read_file(&mut self) -> io::Result<Vec<u8>> {
        if let Some((file, segment)) = self.next_piece()? {
            return read(
                move |piece| read_checked(&file, piece, segment.offset),
                segment.len,
            )
            .await;
        }
        let (object, at) = (self.object.clone(), self.at);
        let want = (self.end - self.at).min(PIECE_BYTES as u64);
        let read_at = move |piece: &mut [u8]| match &object.body {
            Body::File(file) => read_checked(file, piece, at),
            Body::Inline(_) | Body::Parts(_) => Ok(0),
        };
        read(read_at, want).await
    }
}

/// Reads bytes after a comparison of their blocks with the checksums.
fn read_checked(file: &CheckedFile, piece: &mut [u8], at: u64) -> io::Result<usize> {
    let end = file.len().min(at + piece.len() as u64);
    file.check_all(at, end).map_err(io::Error::other)?;
    file.file().read_at(piece, at)
}

/// Reads at most `want` bytes on the blocking pool.
async fn read(
    read_at: impl FnOnce(&mut [u8]) -> io::Result<usize> + Send + 'static,
    want: u64,
) -> io::Result<Vec<u8>> {
    let mut piece = vec![0; usize::try_from(want).unwrap_or(PIECE_BYTES)];
    let reading = tokio::task::spawn_blocking(move || {
        let len = read_at(&mut piece)?;
        piece.truncate(len);
        Ok(piece)
    });
    reading.await.map_err(io::Error::other)?
}

impl Input for LocalObject {
    fn buffered(&self) -> &[u8] {
        self.buffer.get(self.start..).unwrap_or_default()
    }

    fn consume(&mut self, n: usize) {
        self.start = (self.start + n).min(self.buffer.len());
    }

    /// Replaces the buffer, all of which must be consumed.
    async fn fill(&mut self) -> io::Result<usize> {
        if !self.buffered().is_empty() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        if self.at == self.end {
            return Ok(0);
        }
        self.buffer = match &self.object.body {
            Body::Inline(bytes) => {
                let at = usize::try_from(self.at).unwrap_or(usize::MAX);
                let end = usize::try_from(self.end).unwrap_or(usize::MAX);
                bytes.get(at..end).unwrap_or_default().to_vec()
            }
            Body::File(_) | Body::Parts(_) => self.read_file().await?,
        };
        self.start = 0;
        self.at += self.buffer.len() as u64;
        Ok(self.buffer.len())
    }
}
