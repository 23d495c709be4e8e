//! The read side: it opens one record at a time in place, and acts on its content. It counts
//! how often a peer makes work without sending data.

use std::ops::Range;

use prism_proto::tls::Version;
use rustls::AlertDescription;

use super::Session;
use super::content::{Content, check_outer, strip_padding, understand};
use super::half::Half;
use super::open_error::OpenError;
use super::record::{Framing, HEADER_BYTES, RECORD_VERSION};
use super::witness::NonceWitness;
use super::write::{WriteState, records_per_key};

/// Most records in a row without data: KeyUpdates, empty records, warnings. BoringSSL allows
/// 32 of each.
pub(super) const MAX_BARREN_RECORDS: u8 = 32;
/// Most KeyUpdates that a peer may send in a session. One for every 2^24 records makes 2^38
/// full records, or 2^52 bytes.
pub(super) const MAX_KEY_UPDATES: u16 = 1 << 14;

/// The first record of the input, opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Bytes of the input to remove, after the data has been copied.
    pub consumed: usize,
    /// The record's meaning.
    pub event: Event,
}

/// The meaning of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A part of the record is missing. Nothing was consumed, and nothing changed.
    Incomplete {
        /// Bytes of input that the next attempt needs at least. It is never more than
        /// [`MAX_RECORD_BYTES`](super::MAX_RECORD_BYTES).
        need: usize,
    },
    /// Plaintext at this place of the input. It is never empty.
    Data(Range<usize>),
    /// A record without data, or a warning. There is nothing to do.
    Empty,
    /// The peer has a new key. An answer may be due ([`Session::wants_control`]).
    KeyUpdate,
    /// The peer sends no more. In TLS 1.2 this side answers with a close_notify at once; in
    /// TLS 1.3 it may go on sending.
    CloseNotify,
    /// The peer has aborted the session. Nothing can be sent or received any more.
    Aborted(AlertDescription),
    /// Bytes after the peer's close_notify, which are consumed unread.
    Discarded,
}

/// Whether records can be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadState {
    Open,
    /// close_notify has come.
    Closed,
    /// A record has ended the session, on either side's initiative.
    Failed,
}

pub(super) struct Reader {
    pub(super) half: Half,
    pub(super) state: ReadState,
    /// Records in a row without data.
    pub(super) barren: u8,
    /// KeyUpdates received.
    pub(super) updates: u16,
}

impl Reader {
    pub(super) fn new(half: Half) -> Self {
        Self {
            half,
            state: ReadState::Open,
            barren: 0,
            updates: 0,
        }
    }

    /// Length of the first record of `input`, if its header is whole. A header that cannot be
    /// right is refused at its first wrong byte.
    fn record_bytes(&self, input: &[u8]) -> Result<Option<usize>, OpenError> {
        let framing = self.half.framing;
        if let Some(kind) = input.first() {
            check_outer(framing, *kind)?;
        }
        let Some(([_, major, minor, high, low], _)) = input.split_first_chunk() else {
            return Ok(None);
        };
        if [*major, *minor] != RECORD_VERSION {
            return Err(OpenError::WrongVersion);
        }
        let body = usize::from(u16::from_be_bytes([*high, *low]));
        if body > framing.max_body_bytes() {
            return Err(OpenError::RecordOverflow);
        }
        Ok(Some(HEADER_BYTES + body))
    }

    /// Decrypts `record`. Returns its content type and the place of its content.
    fn decrypt(&mut self, record: &mut [u8]) -> Result<(u8, Range<usize>), OpenError> {
        if self.half.sequence == u64::MAX {
            return Err(OpenError::Exhausted);
        }
        let opened = self.half.open(record);
        let (offset, len) = opened.map_err(|_| OpenError::BadRecordMac)?;
        if len > self.half.framing.max_inner_bytes() {
            return Err(OpenError::RecordOverflow);
        }
        let inner = record.get(offset..offset + len).unwrap_or_default();
        let (kind, len) = match self.half.framing {
            Framing::Tls13 => strip_padding(inner)?,
            Framing::Tls12Explicit | Framing::Tls12Implicit => {
                (record.first().copied().unwrap_or_default(), len)
            }
        };
        Ok((kind, offset..offset + len))
    }

    /// Counts a record without data.
    fn count_barren(&mut self) -> Result<(), OpenError> {
        self.barren = self.barren.saturating_add(1);
        if self.barren > MAX_BARREN_RECORDS {
            return Err(OpenError::TooManyBarrenRecords);
        }
        Ok(())
    }

    fn next_key(&mut self) -> Result<(), OpenError> {
        self.updates = self.updates.saturating_add(1);
        if self.updates > MAX_KEY_UPDATES {
            return Err(OpenError::TooManyKeyUpdates);
        }
        self.half
            .next_generation()
            .map_err(|_| OpenError::Exhausted)
    }
}

impl<W: NonceWitness> Session<W> {
    /// Opens the first record of `input` in place. `input` may hold a part of a record, or
    /// many. Bytes that were not consumed must come again at its start.
    ///
    /// # Errors
    /// [`OpenError`]. The session then receives nothing any more. The write side stays open
    /// for the alert.
    pub fn open(&mut self, input: &mut [u8]) -> Result<Opened, OpenError> {
        match self.reader.state {
            ReadState::Open => {}
            ReadState::Failed => return Err(OpenError::Failed),
            ReadState::Closed => {
                let consumed = input.len();
                let event = Event::Discarded;
                return Ok(Opened { consumed, event });
            }
        }
        let opened = self.open_first(input);
        if opened.is_err() {
            self.reader.state = ReadState::Failed;
        }
        opened
    }

    fn open_first(&mut self, input: &mut [u8]) -> Result<Opened, OpenError> {
        let len = self.reader.record_bytes(input)?;
        let Some(record) = len.and_then(|len| input.get_mut(..len)) else {
            let need = len.unwrap_or(HEADER_BYTES);
            return Ok(Opened {
                consumed: 0,
                event: Event::Incomplete { need },
            });
        };
        let (kind, place) = self.reader.decrypt(record)?;
        let content = record.get(place.clone()).unwrap_or_default();
        let content = understand(self.version(), kind, content)?;
        let event = self.apply(content, place)?;
        Ok(Opened {
            consumed: record.len(),
            event,
        })
    }

    fn apply(&mut self, content: Content, place: Range<usize>) -> Result<Event, OpenError> {
        Ok(match content {
            Content::Data => {
                self.reader.barren = 0;
                self.ask_for_key_in_time();
                Event::Data(place)
            }
            Content::Nothing | Content::Warning => {
                self.reader.count_barren()?;
                Event::Empty
            }
            Content::KeyUpdate { answer } => {
                self.reader.count_barren()?;
                self.reader.next_key()?;
                if answer {
                    self.writer.pending = self.writer.pending.with_update();
                }
                Event::KeyUpdate
            }
            Content::CloseNotify => {
                self.reader.state = ReadState::Closed;
                Event::CloseNotify
            }
            Content::Fatal(description) => {
                self.reader.state = ReadState::Failed;
                self.writer.state = WriteState::Closed;
                Event::Aborted(description)
            }
        })
    }

    /// Asks a peer that has used up its key for another one, once for each key.
    fn ask_for_key_in_time(&mut self) {
        let limit = records_per_key(self.suite());
        if self.version() == Version::Tls13 && self.reader.half.sequence == limit {
            self.writer.pending = self.writer.pending.with_request();
        }
    }

    /// Whether the peer's close_notify has come. A stream that ends without it is truncated.
    #[must_use]
    pub fn read_closed(&self) -> bool {
        self.reader.state == ReadState::Closed
    }
}
