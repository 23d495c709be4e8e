//! How much memory this process has taken.

use std::io;

/// The most bytes that were ever resident at once (`VmHWM`).
///
/// # Errors
/// Without `/proc`, or where it does not have the field.
pub fn peak_resident_bytes() -> io::Result<u64> {
    field("VmHWM:")
}

/// The bytes resident now (`VmRSS`).
///
/// # Errors
/// As [`peak_resident_bytes`].
pub fn resident_bytes() -> io::Result<u64> {
    field("VmRSS:")
}

fn field(name: &str) -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    parse(&status, name).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "a memory field is missing in /proc/self/status",
        )
    })
}

/// A line such as `VmHWM:      1234 kB`.
fn parse(status: &str, name: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn reads_its_own_memory() {
        assert_eq!(parse("a\nVmHWM:\t   12 kB\n", "VmHWM:"), Some(12288));
        assert_eq!(parse("VmHWM:\t 12 MB\n", "VmHWM:"), None);
        let peak = peak_resident_bytes().unwrap();
        assert!(peak > 100_000 && peak >= resident_bytes().unwrap() / 2);
    }
}
