//! The tools of every part of a process: supervised tasks, work done in groups, files that are read
//! again when they change, sources of bytes, counters, means, random keys, and numbers that nobody
//! can guess.
//!
//! Not here: the subject of any part. This crate depends on no other crate of the workspace.
#![forbid(unsafe_code)]
#![expect(
    async_fn_in_trait,
    reason = "callers name the type, and with it whether it is Send"
)]

pub mod absent;
pub mod counter;
pub mod followed;
pub mod group;
pub mod input;
pub mod mean;
pub mod random;
pub mod supervise;
pub mod unguessable;

/// A runtime for tasks of the present thread.
///
/// # Errors
/// The kernel gives no more descriptors.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build()
}
