//! Findings about the kernel: its features, and this process's privilege to use them.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use prism_sys::diag::{Connection, Diag};
use prism_sys::tcp::ktls::{Offered, ProbeError};
use prism_sys::tcp::{Freezer, InitialWindow, PauseFault, Paused, ProgramError};

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities as capabilities_of};

use super::finding::{Finding, HostPart, State, Subject, read};

/// The oldest kernel that Prism is tested on.
const OLDEST_TESTED: (u32, u32) = (6, 1);

pub(super) fn examine(part: &HostPart) -> Vec<Finding> {
    let mut findings = vec![version(), capabilities()];
    if part.is_node {
        findings.extend([tcp_repair(), freeze(), windows(), sock_diag(), kernel_tls()]);
    }
    findings.extend([btf(), bpffs(part), jit()]);
    findings
}

fn version() -> Finding {
    let subject = Subject("kernel");
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse::<u32>().ok());
    let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else {
        let found = format!("cannot read the version in {release:?}");
        return subject.unknown(found, "check that it is 6.1 or later");
    };
    if (major, minor) < OLDEST_TESTED {
        let found = format!("{release} is older than 6.1, the oldest that Prism is tested on");
        return subject.missing(found, "install a newer kernel");
    }
    subject.good(release)
}

fn capabilities() -> Finding {
    let subject = Subject("capabilities");
    let mend = "run as root, or grant CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON \
                (systemd: AmbientCapabilities=)";
    let Ok(CapabilitySets { effective, .. }) = capabilities_of(None) else {
        return subject.unknown("cannot read the capabilities of this process", mend);
    };
    // CAP_SYS_ADMIN includes two of them.
    let admin = effective.contains(CapabilitySet::SYS_ADMIN);
    let lacks = [
        ("NET_ADMIN", CapabilitySet::NET_ADMIN, false),
        ("PERFMON", CapabilitySet::PERFMON, admin),
        ("BPF", CapabilitySet::BPF, admin),
    ]
    .into_iter()
    .filter(|(_, capability, is_included)| !is_included && !effective.contains(*capability));
    let lacks: Vec<&str> = lacks.map(|(name, ..)| name).collect();
    if lacks.is_empty() {
        return subject.good("NET_ADMIN, BPF and PERFMON");
    }
    let found = format!("this process lacks {}; Prism needs them", lacks.join(", "));
    subject.unknown(found, mend)
}

/// Both ends of a connection over loopback.
fn loopback() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    Ok((client, listener.accept()?.0))
}

/// The remedy if there is no loopback.
const LOOPBACK_UP: &str = "ip link set lo up";

/// Pauses and resumes a real connection over loopback.
fn tcp_repair() -> Finding {
    let subject = Subject("TCP_REPAIR");
    let (_client, server) = match loopback() {
        Ok(pair) => pair,
        Err(error) => {
            let found = format!("no connection over loopback to try it on: {error}");
            return subject.unknown(found, LOOPBACK_UP);
        }
    };
    let outcome = match Paused::pause(server) {
        Ok(paused) => paused.resume().map_err(|error| error.to_string()),
        Err(error) if matches!(&error.reason, PauseFault::Kernel(call) if call.is_refused()) => {
            return subject.unknown("cannot be tried without CAP_NET_ADMIN", "run this as root");
        }
        Err(error) => Err(error.reason.to_string()),
    };
    match outcome {
        Ok(_) => subject.good("a live connection was paused and resumed"),
        Err(fault) => subject.missing(
            format!("does not work: {fault}"),
            "use a kernel with CONFIG_CHECKPOINT_RESTORE=y (Debian's has it); \
             in a container, allow the socket option",
        ),
    }
}

/// Loads the filter and attaches the egress program that a node needs to freeze sockets,
/// only for the duration of the call. Checks that the packets of a marked socket are lost.
fn freeze() -> Finding {
    let subject = Subject("freezing sockets");
    match Freezer::new() {
        Ok(_) => subject.good("a frozen socket neither takes nor sends segments"),
        Err(error) => program_fault(
            subject,
            &error,
            "hand-offs then use two phases, with one more command each",
            "service.hand_off_method = \"two-phase\"",
        ),
    }
}

/// Attaches the program, only for the duration of the call.
fn windows() -> Finding {
    let subject = Subject("congestion windows");
    match InitialWindow::new() {
        Ok(_) => subject.good("a connection that moves keeps its window"),
        Err(error) => program_fault(
            subject,
            &error,
            "the congestion window of a moved connection is then 10 segments",
            "service.congestion_window = \"fresh\"",
        ),
    }
}

/// A program on the control group that cannot be used. A node without it does `otherwise`, as
/// it does with `setting`.
fn program_fault(
    subject: Subject,
    error: &ProgramError,
    otherwise: &str,
    setting: &str,
) -> Finding {
    if let ProgramError::Kernel(call) = error
        && call.is_refused()
    {
        let mend = "run this as root; grant nodes CAP_NET_ADMIN and CAP_BPF";
        return subject.unknown(error.to_string(), mend);
    }
    let mend = format!(
        "mount control groups of version 2 (mount -t cgroup2 none /sys/fs/cgroup; systemd \
         does), on a kernel with CONFIG_CGROUP_BPF=y (Debian's has it), or set {setting}"
    );
    subject.advice(format!("{error}; {otherwise}"), mend)
}

/// Sets keys on connections over loopback, and sends nothing on them.
fn kernel_tls() -> Finding {
    let subject = Subject("kernel TLS");
    match Offered::probe() {
        Ok(offered) => subject.good(offered.to_string()),
        Err(error @ ProbeError::Loopback(_)) => subject.unknown(error.to_string(), LOOPBACK_UP),
        Err(error) => subject.advice(
            format!("{error}; HTTPS works, with TLS records made in user space"),
            "to send bodies by sendfile over HTTPS too: modprobe tls (CONFIG_TLS; \
             Debian's kernels have it)",
        ),
    }
}

/// Looks up a real connection over loopback.
fn sock_diag() -> Finding {
    let subject = Subject("sock_diag");
    let is_found = || -> anyhow::Result<bool> {
        let (client, _server) = loopback()?;
        let local = client.local_addr()?;
        let remote = client.peer_addr()?;
        let found = Diag::open()?.lookup(&Connection { local, remote })?;
        Ok(found.is_some())
    };
    let mend = "modprobe inet_diag tcp_diag";
    match is_found() {
        Ok(true) => subject.good("a live connection was looked up"),
        Ok(false) => subject.missing("the kernel does not find a live connection", mend),
        Err(error) => subject.unknown(format!("cannot be tried: {error}"), mend),
    }
}

fn btf() -> Finding {
    let subject = Subject("BTF");
    let file = "/sys/kernel/btf/vmlinux";
    if Path::new(file).exists() {
        return subject.good(format!("{file} exists"));
    }
    let mend = "use a kernel with CONFIG_DEBUG_INFO_BTF=y (Debian's has it)";
    subject.missing(format!("{file} does not exist"), mend)
}

fn bpffs(part: &HostPart) -> Finding {
    let subject = Subject("bpffs");
    let mounts = read("/proc/self/mounts").unwrap_or_default();
    let is_mounted = |line: &str| {
        let mut fields = line.split(' ').skip(1);
        fields.next() == Some("/sys/fs/bpf") && fields.next() == Some("bpf")
    };
    if mounts.lines().any(is_mounted) {
        return subject.good("mounted at /sys/fs/bpf");
    }
    let knows = read("/proc/filesystems").unwrap_or_default();
    if !knows.lines().any(|line| line.ends_with("\tbpf")) {
        let mend = "use a kernel with CONFIG_BPF_SYSCALL=y";
        return subject.missing("the kernel has no bpf file system", mend);
    }
    let finding = subject.advice(
        "not mounted at /sys/fs/bpf; the kernel has it",
        "mount -t bpf bpf /sys/fs/bpf (under `ip netns exec`, which hides the mount, \
         use nsenter --net instead)",
    );
    if part.is_switch {
        finding
    } else {
        Finding {
            state: State::Good,
            ..finding
        }
    }
}

fn jit() -> Finding {
    let subject = Subject("BPF JIT");
    match read("/proc/sys/net/core/bpf_jit_enable").as_deref() {
        Some("1" | "2") => subject.good("on"),
        Some(_) => subject.advice(
            "off; the switch then takes several times as long for each packet",
            "sysctl -w net.core.bpf_jit_enable=1",
        ),
        // The file exists only in the first network namespace, and for root.
        None => subject.unknown("cannot be read from here", ""),
    }
}
