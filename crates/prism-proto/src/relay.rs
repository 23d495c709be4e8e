//! The preamble of each request on a relay connection (docs/protocol.md, section 2.4), with the
//! relaying node's verification.

use crate::verified::Verified;
use crate::wire::{DecodeError, Put, Reader};

/// "PRLY".
pub const MAGIC: u32 = 0x5052_4c59;
/// Version of the preamble.
pub const VERSION: u8 = 4;

const FLAG_ALONE: u8 = 1;
const FLAG_MOST: u8 = 2;

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
/// The status [`HAND_OVER`] is that of a server behind the service, and is for the client.
pub const ANSWER_FINAL: &str = "final";

/// The preamble of a relayed request's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preamble {
    /// The relaying node asks for itself. The answer is from the asked node's own store, in the
    /// form for nodes.
    pub alone: bool,
    /// The verification of the client's request; for a node's own request, the caller on
    /// whose behalf it is made.
    pub verified: Verified,
    /// The longest wanted body of an object; [`HAND_OVER`] answers for a longer one.
    pub most_bytes: Option<u32>,
}

impl Preamble {
    /// Appends the preamble.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put(&MAGIC.to_be_bytes());
        let alone = if self.alone { FLAG_ALONE } else { 0 };
        let most = self.most_bytes.map_or(0, |_| FLAG_MOST);
        out.put(&[VERSION, alone | most]);
        self.verified.put(out);
        if let Some(most_bytes) = self.most_bytes {
            out.put(&most_bytes.to_be_bytes());
        }
    }

    /// Reads a preamble from the start of `bytes`, and returns its length; `None` when more bytes
    /// are needed.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, DecodeError> {
        let mut r = Reader::new(bytes);
        let read = |r: &mut Reader<'_>| {
            r.magic(MAGIC, "preamble")?;
            r.version(VERSION, "version")?;
            let flags = r.u8("flags")?;
            if flags & !(FLAG_ALONE | FLAG_MOST) != 0 {
                return Err(DecodeError::Invalid("flags"));
            }
            let verified = Verified::read(r)?;
            let most_bytes = match flags & FLAG_MOST {
                0 => None,
                _ => Some(r.u32("most_bytes")?),
            };
            Ok(Self {
                alone: flags & FLAG_ALONE != 0,
                verified,
                most_bytes,
            })
        };
        match read(&mut r) {
            Ok(preamble) => Ok(Some((preamble, bytes.len() - r.remaining()))),
            Err(DecodeError::Truncated(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    use crate::verified::verified_tests::every_form;

    #[test]
    fn round_trips_and_asks_for_more_at_every_cut() {
        for (verified, most_bytes) in every_form().into_iter().zip(
            [None, Some(0), Some(4096), Some(u32::MAX)]
                .into_iter()
                .cycle(),
        ) {
            let preamble = Preamble {
                alone: most_bytes.is_none(),
                verified,
                most_bytes,
            };
            let mut bytes = Vec::new();
            preamble.encode(&mut bytes);
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

    #[test]
    fn refuses_flags_that_nobody_has_defined() {
        let mut bytes = Vec::new();
        let preamble = Preamble {
            alone: false,
            verified: every_form().remove(0),
            most_bytes: None,
        };
        preamble.encode(&mut bytes);
        bytes[5] |= 4;
        assert!(Preamble::decode(&bytes).is_err());
    }
}
