//! The memory that the kernel uses, and that this process uses.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// Lines of `/proc/meminfo` for eBPF maps, their elements, and sockets.
const KINDS: [&str; 3] = ["SUnreclaim", "VmallocUsed", "Percpu"];
/// Two readings that differ by less end the wait.
const STILL_BYTES: u64 = 256 << 10;
const PAUSE: Duration = Duration::from_millis(50);
/// Most pauses until then, for a busy machine.
const MOST_PAUSES: usize = 10;

/// Bytes in use, once two readings agree: the kernel frees removed maps later.
pub(crate) fn kernel_bytes() -> Result<u64> {
    let mut before = read()?;
    for _ in 0..MOST_PAUSES {
        std::thread::sleep(PAUSE);
        let now = read()?;
        if now.abs_diff(before) < STILL_BYTES {
            return Ok(now);
        }
        before = now;
    }
    Ok(before)
}

/// Bytes of this process that are in memory and in no file.
pub(crate) fn own_bytes() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/status").context("reading /proc/self/status")?;
    Ok(sum(&text, &["RssAnon"]))
}

fn read() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").context("reading /proc/meminfo")?;
    Ok(sum(&text, &KINDS))
}

/// The bytes of the lines of these kinds.
fn sum(text: &str, kinds: &[&str]) -> u64 {
    let of_kind = |line: &str| -> Option<u64> {
        let (kind, rest) = line.split_once(':')?;
        let kilobytes = rest.split_whitespace().next()?.parse().ok()?;
        kinds.contains(&kind).then_some(kilobytes)
    };
    text.lines().filter_map(of_kind).sum::<u64>() * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_maps_are_in_is_added_up() {
        let text = "MemTotal: 100 kB\nSlab: 70 kB\nSUnreclaim:      7 kB\nVmallocTotal: 9 kB\n\
                    VmallocUsed:  20 kB\nPercpu:   300 kB\n";
        assert_eq!(sum(text, &KINDS), 327 << 10);
    }
}
