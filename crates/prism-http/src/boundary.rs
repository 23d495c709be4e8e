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
    let mut scan = Scan::default();
    for (at, &byte) in seen.iter().enumerate() {
        if scan.step(byte)? {
            return Ok(Some(at + 1));
        }
        if scan.lines == 0 && scan.line_bytes > limits.target_bytes + START_LINE_SLACK {
            return Err(HeadError::TargetTooLong);
        }
    }
    if buf.len() >= limits.head_bytes {
        return Err(HeadError::HeadTooLong);
    }
    Ok(None)
}

#[derive(Default)]
struct Scan {
    lines: usize,
    line_bytes: usize,
    after_cr: bool,
}

impl Scan {
    /// Takes one byte; true if it ends the head.
    fn step(&mut self, byte: u8) -> Result<bool, HeadError> {
        if self.after_cr {
            return self.line_end(byte);
        }
        match byte {
            b'\r' => self.after_cr = true,
            b'\n' => return Err(HeadError::BareLf),
            b' ' | b'\t' if self.line_bytes == 0 => {
                return Err(match self.lines {
                    0 => HeadError::StartLine,
                    _ => HeadError::LineFolding,
                });
            }
            b'\t' => self.line_bytes += 1,
            0..=0x1f | 0x7f => return Err(HeadError::ControlCharacter),
            _ => self.line_bytes += 1,
        }
        Ok(false)
    }

    fn line_end(&mut self, byte: u8) -> Result<bool, HeadError> {
        if byte != b'\n' {
            return Err(HeadError::BareCr);
        }
        let empty = self.line_bytes == 0;
        self.after_cr = false;
        self.line_bytes = 0;
        self.lines += 1;
        Ok(empty)
    }
}
