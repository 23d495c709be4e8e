//! The messages of libbpf, which go to this process's log and not to standard error.
//!
//! libbpf warns of much that is in order: a queue of the interface that exists already, or a
//! feature of a newer kernel. Its warnings are therefore debug messages. They are told as warnings
//! only if the operation that they belong to fails; they then have the verifier's reasons.

use std::collections::VecDeque;

use libbpf_rs::PrintLevel;
use parking_lot::Mutex;

/// Most warnings that are kept for a failure. The verifier's log is one of them.
const MAX_WARNINGS: usize = 32;
/// The longest part of a warning that is kept, in bytes: the end, where the reason is.
const MAX_WARNING_BYTES: usize = 16 << 10;

/// The warnings since [`begin`] that have not been told.
static WARNINGS: Mutex<Warnings> = Mutex::new(Warnings(VecDeque::new()));

/// Gets the messages from now on, and forgets earlier ones.
pub(crate) fn begin() {
    libbpf_rs::set_print(Some((PrintLevel::Debug, print)));
    take();
}

/// Logs the warnings since [`begin`], because an operation that they belong to has failed.
pub(crate) fn tell_warnings() {
    for warning in take().0 {
        tracing::warn!(target: "libbpf", "{warning}");
    }
}

fn print(level: PrintLevel, text: String) {
    let text = text.trim_end();
    tracing::debug!(target: "libbpf", "{text}");
    if matches!(level, PrintLevel::Warn) {
        let mut warnings = WARNINGS.lock();
        warnings.keep(text);
    }
}

fn take() -> Warnings {
    std::mem::take(&mut *WARNINGS.lock())
}

/// The last warnings, within bounds.
#[derive(Default)]
struct Warnings(VecDeque<String>);

impl Warnings {
    fn keep(&mut self, text: &str) {
        let start = text.ceil_char_boundary(text.len().saturating_sub(MAX_WARNING_BYTES));
        if self.0.len() == MAX_WARNINGS {
            self.0.pop_front();
        }
        self.0
            .push_back(text.get(start..).unwrap_or_default().to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_warnings_are_kept_in_bounds() {
        let mut warnings = Warnings::default();
        for number in 0..MAX_WARNINGS {
            warnings.keep(&format!("warning {number}"));
        }
        let long = "ä".repeat(MAX_WARNING_BYTES);
        warnings.keep(&format!("{long} the reason"));
        let Warnings(kept) = warnings;
        assert_eq!(kept.len(), MAX_WARNINGS);
        assert_eq!(kept.front().map(String::as_str), Some("warning 1"));
        let last = kept.back().map(String::as_str).unwrap_or_default();
        assert!(last.len() <= MAX_WARNING_BYTES && last.ends_with("ä the reason"));
    }
}
