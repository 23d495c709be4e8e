//! Keeps idle cores awake while a benchmark runs.

use std::fs::{File, OpenOptions};
use std::io::Write;

/// Longest wake-up of a core, in µs. The kernel reads 4 bytes in native order
/// (`Documentation/power/pm_qos_interface.rst`).
const LONGEST_WAKE_UP_US: i32 = 0;

/// Asks the kernel to keep idle cores polling until the file is dropped. `None`, with a
/// warning, if the kernel does not support it.
pub(super) fn hold() -> Option<File> {
    let path = "/dev/cpu_dma_latency";
    let ask = || {
        let mut file = OpenOptions::new().write(true).open(path)?;
        file.write_all(&LONGEST_WAKE_UP_US.to_ne_bytes())?;
        Ok::<_, std::io::Error>(file)
    };
    ask()
        .inspect_err(|error| {
            tracing::warn!(%error, "{path}: idle cores will sleep, and waking them be measured");
        })
        .ok()
}
