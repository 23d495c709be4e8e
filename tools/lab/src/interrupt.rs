//! Signals set a flag, so that a process removes what it has built before it ends.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};

use crate::error::LabError;

/// Sets `cancel` at `SIGINT`, `SIGTERM` or `SIGHUP`. These signals no longer end the process.
///
/// # Errors When the signals cannot be waited for.
pub fn cancel_on_signal(cancel: Arc<AtomicBool>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let guard = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    drop(guard);
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
            cancel.store(true, Ordering::Relaxed);
        });
    });
    Ok(())
}

/// Fails once `cancel` is set.
pub(crate) fn go_on(cancel: &AtomicBool) -> Result<(), LabError> {
    if cancel.load(Ordering::Relaxed) {
        Err(LabError::Cancelled)
    } else {
        Ok(())
    }
}
