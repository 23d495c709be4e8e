//! Starts the program again, as the successor of this process.

use std::io;
use std::process::{Command, Stdio};

/// The option that makes a process a successor.
const TAKE_OVER: &str = "--take-over";

/// Starts the program that this process was started as, which may be a newer one by now, with the
/// same arguments. Returns the number of the new process.
pub(in crate::node) fn start_successor() -> io::Result<u32> {
    let mut words = std::env::args_os();
    let program = words.next().ok_or(io::ErrorKind::NotFound)?;
    let mut command = Command::new(program);
    command
        .args(words.filter(|word| word != TAKE_OVER))
        .arg(TAKE_OVER)
        // The service manager then takes the successor for the service.
        .env_remove("WATCHDOG_PID")
        .stdin(Stdio::null());
    let mut child = command.spawn()?;
    let pid = child.id();
    tracing::info!(pid, "started a successor");
    // It is waited for, so that none is left over that has failed.
    let waiting = move || match child.wait() {
        Ok(status) => tracing::warn!(pid, %status, "the successor has ended"),
        Err(error) => tracing::warn!(pid, %error, "cannot wait for the successor"),
    };
    std::thread::Builder::new()
        .name("successor".into())
        .spawn(waiting)?;
    Ok(pid)
}
