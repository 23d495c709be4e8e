//! The clocks, in nanoseconds.
//!
//! Protocol code takes the time as an argument, and its drivers read it here.

/// The time since an arbitrary start, which never goes back and stops while the host sleeps. It is
/// the clock of timeouts, and of `bpf_ktime_get_ns`. A read takes some tens of nanoseconds (vDSO),
/// without a system call.
#[must_use]
pub fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// The processor time of this thread so far. A system call.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is writable and outlives the call. It cannot fail: the
    // clocks exist in every kernel since 3.10.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    // Neither clock is negative.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
    // 2^64 ns last until 2554.
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_advances() {
        let first = monotonic_ns();
        assert!(monotonic_ns() >= first && first > 0);
    }
}
