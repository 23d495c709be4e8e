//! The signals by which a process is asked to stop, SIGTERM and SIGINT.
//!
//! A process with a store has one runtime after the other while a successor takes over. The signals
//! are followed across them, so none is lost between two.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Both signals, and whether one has come.
#[derive(Debug)]
pub struct Stops {
    terminate: Signal,
    interrupt: Signal,
    is_asked: bool,
}

impl Stops {
    /// Follows the signals from now on. Needs a runtime.
    ///
    /// # Errors
    /// The kernel's.
    pub fn follow() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            is_asked: false,
        })
    }

    /// Resolves once the process is asked to stop, and whenever it is awaited after that.
    pub async fn asked(&mut self) {
        if !self.is_asked {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => {}
            }
            self.is_asked = true;
        }
    }
}
