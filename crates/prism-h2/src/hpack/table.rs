//! The tables of header fields (RFC 7541, section 2.3).

use std::collections::VecDeque;

use super::{HpackError, TABLE_BYTES};

/// Bytes that an entry takes besides its texts (RFC 7541, section 4.1).
const OVERHEAD_BYTES: usize = 32;

/// The fields that every connection has (RFC 7541, appendix A).
pub(super) const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// A header field.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    name: Box<[u8]>,
    value: Box<[u8]>,
}

impl Entry {
    fn size_bytes(&self) -> usize {
        self.name.len() + self.value.len() + OVERHEAD_BYTES
    }
}

/// The fields that the sender has added, latest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    entries: VecDeque<Entry>,
    size_bytes: usize,
    max_bytes: usize,
}

/// A table that is not in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedTable {
    /// The most bytes that it may have, by the sender's last word.
    pub max_bytes: usize,
    /// Its fields, oldest first: names and values.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            size_bytes: 0,
            max_bytes: TABLE_BYTES,
        }
    }
}

impl Table {
    /// The field with this index, which is at least 1.
    pub(super) fn get(&self, index: usize) -> Result<(&[u8], &[u8]), HpackError> {
        let place = index.checked_sub(1).ok_or(HpackError::Index(index))?;
        if let Some((name, value)) = STATIC.get(place) {
            return Ok((name.as_bytes(), value.as_bytes()));
        }
        let entry = self.entries.get(place - STATIC.len());
        let entry = entry.ok_or(HpackError::Index(index))?;
        Ok((&entry.name, &entry.value))
    }

    /// Adds a field in front. One that is larger than the table empties it.
    pub(super) fn add(&mut self, name: &[u8], value: &[u8]) {
        let entry = Entry {
            name: name.into(),
            value: value.into(),
        };
        let size_bytes = entry.size_bytes();
        self.shrink_to(self.max_bytes.saturating_sub(size_bytes));
        if size_bytes <= self.max_bytes {
            self.size_bytes += size_bytes;
            self.entries.push_front(entry);
        }
    }

    /// Changes the most bytes that it may have.
    pub(super) fn resize(&mut self, max_bytes: usize) -> Result<(), HpackError> {
        if max_bytes > TABLE_BYTES {
            return Err(HpackError::TableSize);
        }
        self.max_bytes = max_bytes;
        self.shrink_to(max_bytes);
        Ok(())
    }

    /// Removes the oldest fields until the others have at most `bytes`.
    fn shrink_to(&mut self, bytes: usize) {
        while self.size_bytes > bytes
            && let Some(oldest) = self.entries.pop_back()
        {
            self.size_bytes -= oldest.size_bytes();
        }
    }

    pub(super) fn save(&self) -> SavedTable {
        let oldest_first = self.entries.iter().rev();
        let fields = oldest_first.map(|entry| (entry.name.to_vec(), entry.value.to_vec()));
        SavedTable {
            max_bytes: self.max_bytes,
            fields: fields.collect(),
        }
    }

    /// The same table again.
    ///
    /// # Errors
    /// It is larger than a table may be.
    pub(super) fn restore(saved: &SavedTable) -> Result<Self, HpackError> {
        let mut table = Self::default();
        table.resize(saved.max_bytes)?;
        for (name, value) in &saved.fields {
            table.add(name, value);
        }
        let is_whole = table.entries.len() == saved.fields.len();
        is_whole.then_some(table).ok_or(HpackError::TableSize)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_oldest_fields_make_room() {
        let mut table = Table::default();
        table.resize(100).unwrap();
        table.add(b"a", b"1");
        table.add(b"b", b"2");
        assert_eq!(table.get(62), Ok((&b"b"[..], &b"2"[..])));
        assert_eq!(table.get(63), Ok((&b"a"[..], &b"1"[..])));
        table.add(b"c", b"3");
        assert_eq!(table.get(63), Ok((&b"b"[..], &b"2"[..])));
        assert_eq!(table.get(64), Err(HpackError::Index(64)));
        assert_eq!(table.get(0), Err(HpackError::Index(0)));
        table.add(b"large", &[0; 64]);
        assert_eq!(table.get(62), Err(HpackError::Index(62)));
        assert_eq!(table.size_bytes, 0);
        assert_eq!(table.resize(TABLE_BYTES + 1), Err(HpackError::TableSize));
    }

    #[test]
    fn a_table_is_the_same_after_it_was_saved() {
        let mut table = Table::default();
        for n in 0..200_u32 {
            table.add(format!("name-{n}").as_bytes(), b"value");
        }
        let saved = table.save();
        assert_eq!(Table::restore(&saved), Ok(table));
        let too_large = SavedTable {
            max_bytes: 100,
            ..saved
        };
        assert_eq!(Table::restore(&too_large), Err(HpackError::TableSize));
    }
}
