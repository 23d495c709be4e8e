//! Header compression (RFC 7541). The decoder's table is state that a connection takes along. The
//! encoder adds nothing to its own, so it has none.

mod huffman;
mod integer;
mod read;
mod table;
mod write;

pub use read::{Decoder, FieldList};
pub use table::SavedTable;
pub use write::Encoder;

/// The default and only size of the decoder's table, in bytes (RFC 9113, section 6.5.2).
pub const TABLE_BYTES: usize = 4_096;

/// A block of header fields that cannot be decoded. The connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HpackError {
    /// It ends in the middle of a field.
    #[error("a block of header fields is incomplete")]
    Truncated,
    /// An integer is too large.
    #[error("an integer in a block of header fields is too large")]
    Integer,
    /// A text in the Huffman code is malformed.
    #[error("a text in the Huffman code is malformed")]
    Huffman,
    /// The table has no such entry.
    #[error("no header field has the index {0}")]
    Index(usize),
    /// A change of the table's size is too large, or behind a field.
    #[error("the size of the table of header fields cannot be changed so")]
    TableSize,
}
