//! Results in which one kind of error says that something is absent.

use std::io;

/// `None` where the error is of the kind `absent`.
///
/// # Errors
/// All other errors.
pub fn present<T>(result: io::Result<T>, absent: io::ErrorKind) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == absent => Ok(None),
        result => result.map(Some),
    }
}
