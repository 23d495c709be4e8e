//! Results of calls, and the message of the last error of a thread.

use std::cell::RefCell;
use std::ffi::{CStr, CString};

/// The result of a call. All but PRISM_STATUS_OK leave a message for prism_error().
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It worked.
    Ok = 0,
    /// An argument is null, malformed or too large.
    Invalid = -1,
    /// There is no such connection any more.
    Gone = -2,
    /// Not now: an export is under way, too much is unwritten, or a callback is running.
    Busy = -3,
    /// The operating system refused; the message has its reason.
    System = -4,
    /// The calling thread is not the one that opened the endpoint.
    WrongThread = -5,
    /// The worker has stopped. The endpoint can only be freed.
    Stopped = -6,
    /// An error in this library.
    Internal = -7,
}

/// How an export has ended.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The peer has the connection.
    Moved = 0,
    /// The connection is still here, and works as before.
    Kept = 1,
    /// The connection has ended.
    Lost = 2,
    /// The connection has left this node, and whether the peer has it is unknown.
    Unknown = 3,
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Error(pub(crate) Status, pub(crate) String);

impl Error {
    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Self(Status::Invalid, what.into())
    }

    pub(crate) fn busy(why: &str) -> Self {
        Self(Status::Busy, why.into())
    }

    pub(crate) fn system(what: &str, why: impl std::fmt::Display) -> Self {
        Self(Status::System, format!("{what}: {why}"))
    }

    pub(crate) fn gone() -> Self {
        Self(Status::Gone, "there is no such connection".into())
    }

    pub(crate) fn stopped() -> Self {
        Self(Status::Stopped, "the worker has stopped".into())
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Text for C. Bytes of value 0 are left out.
pub(crate) fn c_text(text: &str) -> CString {
    let bytes: Vec<u8> = text.bytes().filter(|byte| *byte != 0).collect();
    CString::new(bytes).unwrap_or_default()
}

/// Keeps the message of an error for [`with_last`].
pub(crate) fn note(error: &Error) -> Status {
    LAST.with(|last| last.replace(c_text(&error.1)));
    error.0
}

/// Calls `with` on the message of the last error of this thread.
pub(crate) fn with_last<T>(with: impl FnOnce(&CStr) -> T) -> T {
    LAST.with(|last| with(&last.borrow()))
}
