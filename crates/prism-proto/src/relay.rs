//! The preamble of each request on a relay connection (docs/protocol.md, section 2.4), with the
//! facts of the request.

use crate::entries::{put_entry, put_sized, read_entries};
use crate::facts::{Draft, Facts, Form};
use crate::wire::{DecodeError, Put, Reader};

/// "PRLY".
pub const MAGIC: u32 = 0x5052_4c59;
/// Version of the preamble.
pub const VERSION: u8 = 5;
/// Version of the preamble of the former release.
pub const FORMER_VERSION: u8 = 4;

const FLAG_ALONE: u8 = 1;
const FLAG_MOST: u8 = 2;

/// Types of entries that only a preamble has, behind those of the facts.
const ALONE: u8 = 16;
const MOST_BYTES: u8 = 17;

/// The status that asks for the connection instead of an answer above [`Preamble::most_bytes`] (RFC
/// 9110, section 15.5.20). S3 never answers with it.
pub const HAND_OVER: u16 = 421;

/// A field of an answer that tells a relaying node more than the status does. Clients do not get
/// it.
pub const ANSWER_FIELD: &str = "Prism-Answer";
/// With [`HAND_OVER`]: the request is carried out, and its answer waits for the connection under
/// the request's identifier. No other node may carry it out again.
pub const ANSWER_PARKED: &str = "parked";
/// With [`HAND_OVER`]: this node cannot answer now, and the request may go to another one.
pub const ANSWER_ELSEWHERE: &str = "elsewhere";
/// With [`HAND_OVER`]: the server's answer is an internal redirect, which the node with the
/// connection of the client follows. The other fields are those of that answer.
pub const ANSWER_REDIRECT: &str = "redirect";
/// With [`ANSWER_REDIRECT`]: the status of the server's answer.
pub const STATUS_FIELD: &str = "Prism-Status";
/// The status [`HAND_OVER`] is that of a server behind the service, and is for the client.
pub const ANSWER_FINAL: &str = "final";
/// With [`ANSWER_ELSEWHERE`]: [`Facts::retries`] of the request now.
pub const RETRIES_FIELD: &str = "Prism-Retries";
/// An interim answer with this is the node's own, and not for the client: the request is worked on.
pub const ANSWER_AT_WORK: &str = "at-work";

/// The preamble of a relayed request's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preamble {
    /// The relaying node asks for itself. The answer is from the asked node's own store, in the
    /// form for nodes.
    pub alone: bool,
    /// The facts of the client's request; for a node's own request, the caller on whose behalf it
    /// is made.
    pub facts: Facts,
    /// The longest wanted body of an object; [`HAND_OVER`] answers for a longer one.
    pub most_bytes: Option<u32>,
}

impl Preamble {
    /// Appends the preamble.
    pub fn encode(&self, form: Form, out: &mut Vec<u8>) {
        out.put(&MAGIC.to_be_bytes());
        match form {
            Form::Entries => {
                out.put(&[VERSION]);
                put_sized(out, |out| self.put_entries(out));
            }
            Form::Former => {
                let alone = if self.alone { FLAG_ALONE } else { 0 };
                let most = self.most_bytes.map_or(0, |_| FLAG_MOST);
                out.put(&[FORMER_VERSION, alone | most]);
                self.facts.put_former(out);
                if let Some(most_bytes) = self.most_bytes {
                    out.put(&most_bytes.to_be_bytes());
                }
            }
        }
    }

    fn put_entries(&self, out: &mut Vec<u8>) {
        self.facts.put_entries(out, |out| {
            if self.alone {
                put_entry(out, ALONE, |_| {});
            }
            if let Some(most_bytes) = self.most_bytes {
                put_entry(out, MOST_BYTES, |out| out.put(&most_bytes.to_be_bytes()));
            }
        });
    }

    /// Reads a preamble in either form from the start of `bytes`, and returns its length; `None`
    /// when more bytes are needed.
    ///
    /// # Errors
    /// [`DecodeError`] if `bytes` are not the beginning of one.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, DecodeError> {
        let mut r = Reader::new(bytes);
        match Self::read(&mut r) {
            Ok(preamble) => Ok(Some((preamble, bytes.len() - r.remaining()))),
            Err(DecodeError::Truncated(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        r.magic(MAGIC, "preamble")?;
        match r.u8("version")? {
            FORMER_VERSION => Self::read_former(r),
            VERSION => Self::read_entries(r),
            found => Err(DecodeError::Version {
                found,
                expected: VERSION,
            }),
        }
    }

    fn read_entries(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut draft = Draft::default();
        let mut alone = false;
        let mut most_bytes = None;
        read_entries(r, |kind, value| {
            let mut value = Reader::new(value);
            match kind {
                ALONE => alone = true,
                MOST_BYTES => most_bytes = Some(value.u32("most_bytes")?),
                kind => return draft.take(kind, value.rest()),
            }
            value.finish()
        })?;
        let missing = |_| DecodeError::Invalid("facts of a request");
        Ok(Self {
            alone,
            facts: draft.facts().map_err(missing)?,
            most_bytes,
        })
    }

    fn read_former(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let flags = r.u8("flags")?;
        if flags & !(FLAG_ALONE | FLAG_MOST) != 0 {
            return Err(DecodeError::Invalid("flags"));
        }
        let facts = Facts::read_former(r)?;
        let most_bytes = match flags & FLAG_MOST {
            0 => None,
            _ => Some(r.u32("most_bytes")?),
        };
        Ok(Self {
            alone: flags & FLAG_ALONE != 0,
            facts,
            most_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    use crate::facts::facts_tests::every_form;

    const FORMS: [Form; 2] = [Form::Entries, Form::Former];

    #[test]
    fn round_trips_and_asks_for_more_at_every_cut() {
        let most = [None, Some(0), Some(4096), Some(u32::MAX)];
        for form in FORMS {
            for (facts, most_bytes) in every_form(form).into_iter().zip(most.into_iter().cycle()) {
                let preamble = Preamble {
                    alone: most_bytes.is_none(),
                    facts,
                    most_bytes,
                };
                let mut bytes = Vec::new();
                preamble.encode(form, &mut bytes);
                for len in 0..bytes.len() {
                    assert_eq!(Preamble::decode(&bytes[..len]), Ok(None));
                }
                bytes.extend_from_slice(b"GET / ");
                assert_eq!(
                    Preamble::decode(&bytes),
                    Ok(Some((preamble, bytes.len() - 6)))
                );
                bytes[0] = b'G';
                assert!(Preamble::decode(&bytes).is_err());
            }
        }
    }

    #[test]
    fn refuses_what_nobody_has_defined() {
        let preamble = Preamble {
            alone: false,
            facts: every_form(Form::Former).remove(0),
            most_bytes: None,
        };
        let encoded = |form| {
            let mut bytes = Vec::new();
            preamble.encode(form, &mut bytes);
            bytes
        };
        let mut flags = encoded(Form::Former);
        flags[5] |= 4;
        assert!(Preamble::decode(&flags).is_err());
        let mut version = encoded(Form::Entries);
        version[4] += 1;
        assert!(Preamble::decode(&version).is_err());
        // A list that is longer than any is refused before it has come.
        let long = [&MAGIC.to_be_bytes()[..], &[VERSION, 0xff, 0xff]].concat();
        assert!(Preamble::decode(&long).is_err());
    }
}
