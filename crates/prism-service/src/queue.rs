//! Bytes on their way to one side of a connection.

/// Bytes of which some have left. An empty queue that was never used has no buffer.
#[derive(Debug, Default)]
pub struct Queue {
    bytes: Vec<u8>,
    /// Bytes at its beginning that have left.
    sent_bytes: usize,
}

impl Queue {
    /// An empty queue with the buffer of an earlier one.
    pub fn with_buffer(mut buffer: Vec<u8>) -> Self {
        buffer.clear();
        Self {
            bytes: buffer,
            sent_bytes: 0,
        }
    }

    /// The buffer.
    pub fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }

    /// The bytes that have not left.
    pub fn rest(&self) -> &[u8] {
        self.bytes.get(self.sent_bytes..).unwrap_or_default()
    }

    /// Whether all bytes have left.
    pub fn is_empty(&self) -> bool {
        self.rest().is_empty()
    }

    /// The buffer to which bytes are added.
    pub fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Notes that the next `n` bytes have left. With the last one the buffer goes: the next use
    /// may be long after.
    pub fn consume(&mut self, n: usize) {
        self.sent_bytes = self.sent_bytes.saturating_add(n);
        if self.is_empty() {
            *self = Self::default();
        }
    }

    /// Drops all bytes, and keeps the buffer.
    pub fn clear(&mut self) {
        self.sent_bytes = 0;
        self.bytes.clear();
    }
}
