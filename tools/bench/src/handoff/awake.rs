//! Cores that do not sleep while a benchmark runs.

use std::fs::{File, OpenOptions};
use std::io::Write;

/// The longest wake-up that is allowed, in µs, as the kernel reads it: 4 bytes,
/// native order (`Documentation/power/pm_qos_interface.rst`).
const LONGEST_WAKE_UP_US: i32 = 0;

/// Asks the kernel to keep idle cores polling until what is given back is dropped,
/// as `tuned`'s profile `network-latency` does for good. `None`, with a warning,
/// where the kernel does not offer that.
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
