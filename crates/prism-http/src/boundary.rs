//! Finds where a head ends, and refuses what no head may hold.
//!
//! This runs before `httparse`, which is lenient about bare LF. After it, a
//! line ends with CRLF and nowhere else, whoever reads it next.

use crate::HeadError;
use crate::limits::Limits;

/// Bytes that a start line holds besides the target: the longest method,
/// the version and two spaces, rounded up.
const START_LINE_SLACK: usize = 64;

/// The length of the head at the start of `buf` including its empty line, or
/// `None` where more bytes are needed and allowed.
pub(crate) fn head_end(buf: &[u8], limits: &Limits) -> Result<Option<usize>, HeadError> {
    let seen = buf.get(..limits.head_bytes).unwrap_or(buf);
    let start_line_max = limits.target_bytes.saturating_add(START_LINE_SLACK);
    let mut rest = seen;
    let mut first = true;
    loop {
        check_line_start(rest, first)?;
        let line = next_line(rest)?;
        let line_bytes = line.map_or(rest.len(), |(bytes, _)| bytes);
        if first && line_bytes > start_line_max {
            return Err(HeadError::TargetTooLong);
        }
        match line {
            None if buf.len() >= limits.head_bytes => return Err(HeadError::HeadTooLong),
            None => return Ok(None),
            Some((bytes, after)) => {
                rest = after;
                if bytes == 0 {
                    return Ok(Some(seen.len() - rest.len()));
                }
            }
        }
        first = false;
    }
}

fn check_line_start(line: &[u8], first: bool) -> Result<(), HeadError> {
    match line {
        [b' ' | b'\t', ..] if first => Err(HeadError::StartLine),
        [b' ' | b'\t', ..] => Err(HeadError::LineFolding),
        _ => Ok(()),
    }
}

/// The length of the first line without its end, and what follows it; `None`
/// if the end has not come yet.
fn next_line(bytes: &[u8]) -> Result<Option<(usize, &[u8])>, HeadError> {
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
            [b'\n', ..] => return Err(HeadError::BareLf),
            _ => return Err(HeadError::ControlCharacter),
        }
    }
}

/// Blocks are checked as a whole, which compiles to vector instructions.
const BLOCK: usize = 32;

fn first_control(bytes: &[u8]) -> Option<usize> {
    let clean = bytes
        .chunks_exact(BLOCK)
        .take_while(|block| {
            !block
                .iter()
                .fold(false, |found, &b| found | b.is_ascii_control())
        })
        .count()
        * BLOCK;
    let rest = bytes.get(clean..).unwrap_or_default();
    rest.iter()
        .position(u8::is_ascii_control)
        .map(|at| clean + at)
}
