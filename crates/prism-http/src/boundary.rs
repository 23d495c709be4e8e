//! Finds the end of a head, and refuses bytes that no head may hold.
//!
//! This runs before `httparse`, which is lenient about bare LF. After it, all readers agree where
//! the lines of a request end: with CRLF and nowhere else. A line of an answer may end with LF
//! alone, as a recipient may read it (RFC 9112, section 2.2): old servers and scripts write that.

use wide::u8x16;

use crate::HeadError;
use crate::limits::Limits;

/// Bytes of a start line besides the target: the longest method, the version and two spaces,
/// rounded up.
const START_LINE_SLACK: usize = 64;

/// The ends of lines that a head may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineEnd {
    CrLf,
    /// LF alone too.
    Lf,
}

/// The length of the head at the start of `buf` with its empty line, or `None` if more bytes
/// are needed and allowed.
pub(crate) fn head_end(
    buf: &[u8],
    limits: &Limits,
    end: LineEnd,
) -> Result<Option<usize>, HeadError> {
    walk_head(buf, limits, end, |_| {})
}

/// As [`head_end`], and calls `see` with each line but the empty one, without its end.
pub(crate) fn walk_head(
    buf: &[u8],
    limits: &Limits,
    end: LineEnd,
    mut see: impl FnMut(&[u8]),
) -> Result<Option<usize>, HeadError> {
    let seen = buf.get(..limits.head_bytes).unwrap_or(buf);
    let start_line_max = limits.target_bytes.saturating_add(START_LINE_SLACK);
    let mut rest = seen;
    let mut first = true;
    loop {
        check_line_start(rest, first)?;
        let line = next_line(rest, end)?;
        let line_bytes = line.map_or(rest.len(), |(bytes, _)| bytes);
        if first && line_bytes > start_line_max {
            return Err(HeadError::TargetTooLong);
        }
        match line {
            None if buf.len() >= limits.head_bytes => return Err(HeadError::HeadTooLong),
            None => return Ok(None),
            Some((0, after)) => return Ok(Some(seen.len() - after.len())),
            Some((bytes, after)) => {
                see(rest.get(..bytes).unwrap_or_default());
                rest = after;
            }
        }
        first = false;
    }
}

/// The bytes in front of the first CR or LF.
pub(crate) fn first_line(head: &[u8]) -> &[u8] {
    let mut lines = head.split(|b| matches!(b, b'\r' | b'\n'));
    lines.next().unwrap_or_default()
}

fn check_line_start(line: &[u8], first: bool) -> Result<(), HeadError> {
    match line {
        [b' ' | b'\t', ..] if first => Err(HeadError::StartLine),
        [b' ' | b'\t', ..] => Err(HeadError::LineFolding),
        _ => Ok(()),
    }
}

/// The length of the first line without its end, and the bytes behind it. `None` if the end has
/// not come yet.
fn next_line(bytes: &[u8], end: LineEnd) -> Result<Option<(usize, &[u8])>, HeadError> {
    let mut from = 0;
    loop {
        let rest = bytes.get(from..).unwrap_or_default();
        let Some(at) = first_control(rest) else {
            return Ok(None);
        };
        match rest.get(at..).unwrap_or_default() {
            [b'\t', ..] => from += at + 1,
            [b'\r', b'\n', after @ ..] => return Ok(Some((from + at, after))),
            [b'\r'] => return Ok(None),
            [b'\r', ..] => return Err(HeadError::BareCr),
            [b'\n', after @ ..] if end == LineEnd::Lf => return Ok(Some((from + at, after))),
            [b'\n', ..] => return Err(HeadError::BareLf),
            _ => return Err(HeadError::ControlCharacter),
        }
    }
}

/// Searches by blocks of 16 bytes, the vectors that every x86-64 and every 64-bit ARM has.
fn first_control(bytes: &[u8]) -> Option<usize> {
    let (blocks, rest) = bytes.as_chunks();
    for (n, block) in blocks.iter().enumerate() {
        let found = controls(*block);
        if found != 0 {
            return Some(n * block.len() + found.trailing_zeros() as usize);
        }
    }
    rest.iter()
        .position(u8::is_ascii_control)
        .map(|at| bytes.len() - rest.len() + at)
}

/// A bit for each of 16 bytes, which is set if the byte is a control character.
fn controls(block: [u8; 16]) -> u32 {
    let block = u8x16::new(block);
    let is_low = block.min(u8x16::splat(0x1f)).simd_eq(block);
    let is_delete = block.simd_eq(u8x16::splat(0x7f));
    (is_low | is_delete).to_bitmask()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing)]
    use super::*;

    #[test]
    fn control_characters_are_found_wherever_they_stand() {
        for byte in 0..=u8::MAX {
            let expected = byte.is_ascii_control();
            for (len, at) in [7, 8, 47, 80]
                .map(|len| (0..len).map(move |at| (len, at)))
                .into_iter()
                .flatten()
            {
                let mut bytes = vec![b'a' | (at as u8 & 1) << 7; len];
                bytes[at] = byte;
                assert_eq!(
                    first_control(&bytes),
                    expected.then_some(at),
                    "{byte} {len}"
                );
            }
        }
        assert_eq!(first_control(b"a\n\r"), Some(1));
    }
}
