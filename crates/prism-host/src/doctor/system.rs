//! Findings about limits and the clock.

use std::path::Path;
use std::time::SystemTime;

use prism_handoff::MAX_PIPES;
use rustix::process::{Resource, getrlimit};

use super::finding::{Finding, HostPart, Subject, read};

/// File descriptors besides those of client connections: peers, 512 open files of objects,
/// 256 of the metadata tree, eBPF maps, and the two of each pipe that bodies pass.
const OTHER_DESCRIPTORS: u64 = 1_536 + 2 * MAX_PIPES as u64;
/// 2025-01-01, in seconds since 1970. An earlier clock is wrong.
const EARLIEST_S: u64 = 1_735_689_600;

pub(super) fn examine(part: &HostPart) -> Vec<Finding> {
    let mut findings = vec![clock(), time_service(part)];
    if part.is_node {
        findings.push(descriptors(part));
    }
    findings
}

fn descriptors(part: &HostPart) -> Finding {
    let subject = Subject("open files");
    let needed = part.connections.saturating_add(OTHER_DESCRIPTORS);
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX);
    if most >= needed {
        return subject.good(format!("up to {most} (needed: {needed})"));
    }
    let found = format!("at most {most}; limits.connections may need {needed}");
    let mend = format!("systemd: LimitNOFILE={needed}; else ulimit -Hn {needed}");
    subject.advice(found, mend)
}

fn clock() -> Finding {
    let seconds = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |time| time.as_secs());
    if seconds >= EARLIEST_S {
        return Subject("clock").good("plausible");
    }
    let found = "before 2025; signatures and certificates would be refused";
    Subject("clock").missing(found, "date -s, and run a time service")
}

fn time_service(part: &HostPart) -> Finding {
    let subject = Subject("time service");
    let signs = [
        "/run/systemd/timesync/synchronized",
        "/run/chrony",
        "/run/ntpd.pid",
        "/run/openntpd.pid",
    ];
    if signs.iter().any(|path| Path::new(path).exists()) {
        return subject.good("runs");
    }
    if read("/sys/devices/virtual/ptp/ptp0/clock_name").is_some() {
        return subject.good("this host has a PTP clock");
    }
    let found = if part.has_objects {
        "none seen; S3 signatures allow clocks to differ by 15 minutes"
    } else {
        "none seen; certificates need the right time"
    };
    subject.unknown(found, "apt-get install chrony")
}
