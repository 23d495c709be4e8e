//! Findings about the kernel: its features, and this process's privilege to use them.

use std::io;
use std::net::{TcpListener, TcpStream};

use prism_sys::tcp::ktls::{Offered, ProbeError};
use prism_sys::tcp::{Freezer, InitialWindow, PauseFault, Paused, ProgramError};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

use super::{Finding, Part, State, read};

/// The oldest kernel that Prism is tested on.
const OLDEST_TESTED: (u32, u32) = (6, 1);
/// Bits of /proc/self/status CapEff (capability.h).
const CAPABILITIES: [(u32, &str); 3] = [(12, "NET_ADMIN"), (38, "PERFMON"), (39, "BPF")];
/// CAP_SYS_ADMIN, which includes CAP_BPF and CAP_PERFMON.
const CAP_SYS_ADMIN: u32 = 21;

/// All findings about the kernel.
pub(super) fn examine(part: &Part) -> Vec<Finding> {
    let mut findings = vec![version(), capabilities()];
    if part.is_node {
        findings.push(tcp_repair());
        findings.push(freeze());
        findings.push(windows());
        findings.push(sock_destroy());
        findings.push(kernel_tls());
    }
    findings.push(btf());
    findings.push(bpffs(part));
    findings.push(jit());
    findings
}

fn version() -> Finding {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse::<u32>().ok());
    let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else {
        let found = format!("cannot read the version in {release:?}");
        return Finding::new(
            "kernel",
            State::Unknown,
            found,
            "check that it is 6.1 or later",
        );
    };
    let number = (major, minor);
    if number < OLDEST_TESTED {
        let found = format!("{release} is older than 6.1, the oldest that Prism is tested on");
        return Finding::new("kernel", State::Missing, found, "install a newer kernel");
    }
    Finding::good("kernel", release)
}

fn effective_capabilities() -> Option<u64> {
    let status = read("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn capabilities() -> Finding {
    let subject = "capabilities";
    let mend = "run as root, or grant CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON \
                (systemd: AmbientCapabilities=)";
    let Some(have) = effective_capabilities() else {
        return Finding::new(
            subject,
            State::Unknown,
            "cannot read /proc/self/status",
            mend,
        );
    };
    let has = |bit: u32| have & (1 << bit) != 0;
    let lacks: Vec<&str> = CAPABILITIES
        .iter()
        .filter(|(bit, name)| !has(*bit) && (*name == "NET_ADMIN" || !has(CAP_SYS_ADMIN)))
        .map(|(_, name)| *name)
        .collect();
    if lacks.is_empty() {
        return Finding::good(subject, "NET_ADMIN, BPF and PERFMON");
    }
    let found = format!("this process lacks {}; Prism needs them", lacks.join(", "));
    Finding::new(subject, State::Unknown, found, mend)
}

/// Pauses and resumes a real connection over loopback.
fn tcp_repair() -> Finding {
    let subject = "TCP_REPAIR";
    let pair = || -> io::Result<(TcpStream, TcpStream)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let client = TcpStream::connect(listener.local_addr()?)?;
        Ok((client, listener.accept()?.0))
    };
    let (client, server) = match pair() {
        Ok(pair) => pair,
        Err(error) => {
            let found = format!("no connection over loopback to try it on: {error}");
            return Finding::new(subject, State::Unknown, found, "ip link set lo up");
        }
    };
    let outcome = match Paused::pause(server) {
        Ok(paused) => paused.resume().map_err(|error| error.to_string()),
        Err(error) if matches!(error.reason, PauseFault::NotPermitted) => {
            let found = "cannot be tried without CAP_NET_ADMIN";
            return Finding::new(subject, State::Unknown, found, "run this as root");
        }
        Err(error) => Err(error.reason.to_string()),
    };
    drop(client);
    match outcome {
        Ok(_) => Finding::good(subject, "a live connection was paused and resumed"),
        Err(fault) => {
            let mend = "use a kernel with CONFIG_CHECKPOINT_RESTORE=y (Debian's has it); \
                        in a container, allow the socket option";
            Finding::new(
                subject,
                State::Missing,
                format!("does not work: {fault}"),
                mend,
            )
        }
    }
}

/// Loads the filter and attaches the egress program that a node needs to freeze sockets,
/// only for the duration of the call. Checks that the packets of a marked socket are lost.
fn freeze() -> Finding {
    const NOT_FATAL: &str = "; hand-offs then use two phases, with one more command each";
    let subject = "freezing sockets";
    match Freezer::new() {
        Ok(_) => Finding::good(subject, "a frozen socket neither takes nor sends segments"),
        Err(error @ ProgramError::NotPermitted { .. }) => {
            let mend = "run this as root; grant nodes CAP_NET_ADMIN and CAP_BPF";
            Finding::new(subject, State::Unknown, error.to_string(), mend)
        }
        Err(error) => {
            let mend = "mount control groups of version 2 (mount -t cgroup2 none \
                        /sys/fs/cgroup; systemd does), on a kernel with CONFIG_CGROUP_BPF=y \
                        (Debian's has it), or set service.hand_off_method = \"two-phase\"";
            Finding::new(subject, State::Advice, format!("{error}{NOT_FATAL}"), mend)
        }
    }
}

/// Attaches the program, only for the duration of the call.
fn windows() -> Finding {
    const NOT_FATAL: &str = "; the congestion window of a moved connection is then 10 segments";
    let subject = "congestion windows";
    match InitialWindow::new() {
        Ok(_) => Finding::good(subject, "a connection that moves keeps its window"),
        Err(error @ ProgramError::NotPermitted { .. }) => {
            let mend = "run this as root; grant nodes CAP_NET_ADMIN and CAP_BPF";
            Finding::new(subject, State::Unknown, error.to_string(), mend)
        }
        Err(error) => {
            let mend = "mount control groups of version 2 (mount -t cgroup2 none \
                        /sys/fs/cgroup; systemd does), on a kernel with CONFIG_CGROUP_BPF=y \
                        (Debian's has it), or set service.congestion_window = \"fresh\"";
            Finding::new(subject, State::Advice, format!("{error}{NOT_FATAL}"), mend)
        }
    }
}

/// Sets keys on connections over loopback, and sends nothing on them.
fn kernel_tls() -> Finding {
    let subject = "kernel TLS";
    match Offered::probe() {
        Ok(offered) => Finding::good(subject, offered.to_string()),
        Err(error @ ProbeError::Loopback(_)) => Finding::new(
            subject,
            State::Unknown,
            error.to_string(),
            "ip link set lo up",
        ),
        Err(error) => {
            let found = format!("{error}; HTTPS works, with TLS records made in user space");
            let mend = "to send bodies by sendfile over HTTPS too: modprobe tls (CONFIG_TLS; \
                        Debian's kernels have it)";
            Finding::new(subject, State::Advice, found, mend)
        }
    }
}

/// Asks the kernel to destroy a connection that does not exist. A kernel with the feature
/// answers ENOENT, and one without it EOPNOTSUPP.
fn sock_destroy() -> Finding {
    let subject = "sock_diag";
    match destroy_nothing() {
        // ENOENT
        Some(2) => Finding::good(subject, "connections can be destroyed"),
        // EOPNOTSUPP
        Some(95) => Finding::new(
            subject,
            State::Advice,
            "the kernel cannot destroy sockets: connections left by a dead node stay until they \
             time out",
            "use a kernel with CONFIG_INET_DIAG_DESTROY=y",
        ),
        // EPERM
        Some(1) => {
            let found = "cannot be tried without CAP_NET_ADMIN";
            Finding::new(subject, State::Unknown, found, "run this as root")
        }
        other => {
            let found = format!("the kernel's answer is unexpected ({other:?})");
            Finding::new(
                subject,
                State::Unknown,
                found,
                "modprobe inet_diag tcp_diag",
            )
        }
    }
}

/// The kernel's answer (errno) to `SOCK_DESTROY` of a connection from and to
/// 0.0.0.0:0; sock_diag(7) and linux/inet_diag.h have the layouts.
fn destroy_nothing() -> Option<i32> {
    const SOCK_DESTROY: u16 = 21;
    const NLM_F_REQUEST_ACK: u16 = 1 | 4;
    const HEADER_BYTES: usize = 16;
    // inet_diag_req_v2: family, protocol, extensions, padding, states, then
    // a 48-byte socket id.
    const REQUEST_BYTES: usize = 8 + 48;
    const AF_INET: u8 = 2;
    const IPPROTO_TCP: u8 = 6;
    let mut message = Vec::with_capacity(HEADER_BYTES + REQUEST_BYTES);
    let length = u32::try_from(HEADER_BYTES + REQUEST_BYTES).ok()?;
    message.extend(length.to_ne_bytes());
    message.extend(SOCK_DESTROY.to_ne_bytes());
    message.extend(NLM_F_REQUEST_ACK.to_ne_bytes());
    message.extend([0; 8]);
    message.extend([AF_INET, IPPROTO_TCP, 0, 0]);
    message.extend(u32::MAX.to_ne_bytes());
    message.extend([0; 40]);
    // The cookie: any.
    message.extend([0xff; 8]);

    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )
    .ok()?;
    rustix::net::sockopt::set_socket_timeout(
        &socket,
        rustix::net::sockopt::Timeout::Recv,
        Some(std::time::Duration::from_secs(1)),
    )
    .ok()?;
    rustix::net::send(&socket, &message, SendFlags::empty()).ok()?;
    let mut answer = [0_u8; 256];
    rustix::net::recv(&socket, &mut answer, RecvFlags::empty()).ok()?;
    // NLMSG_ERROR: the header, then the negated errno.
    let code = answer.get(HEADER_BYTES..HEADER_BYTES + 4)?;
    i32::from_ne_bytes(code.try_into().ok()?).checked_neg()
}

fn btf() -> Finding {
    if std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Finding::good("BTF", "/sys/kernel/btf/vmlinux exists");
    }
    let mend = "use a kernel with CONFIG_DEBUG_INFO_BTF=y (Debian's has it)";
    Finding::new(
        "BTF",
        State::Missing,
        "/sys/kernel/btf/vmlinux does not exist",
        mend,
    )
}

fn bpffs(part: &Part) -> Finding {
    let subject = "bpffs";
    let mounts = read("/proc/self/mounts").unwrap_or_default();
    let is_mounted = |line: &str| {
        let mut fields = line.split(' ').skip(1);
        fields.next() == Some("/sys/fs/bpf") && fields.next() == Some("bpf")
    };
    if mounts.lines().any(is_mounted) {
        return Finding::good(subject, "mounted at /sys/fs/bpf");
    }
    let mend = "mount -t bpf bpf /sys/fs/bpf (under `ip netns exec`, which hides the mount, \
                use nsenter --net instead)";
    let knows = read("/proc/filesystems").unwrap_or_default();
    if !knows.lines().any(|line| line.ends_with("\tbpf")) {
        let mend = "use a kernel with CONFIG_BPF_SYSCALL=y";
        return Finding::new(
            subject,
            State::Missing,
            "the kernel has no bpf file system",
            mend,
        );
    }
    let state = if part.is_switch {
        State::Advice
    } else {
        State::Good
    };
    Finding::new(
        subject,
        state,
        "not mounted at /sys/fs/bpf; the kernel has it",
        mend,
    )
}

fn jit() -> Finding {
    match read("/proc/sys/net/core/bpf_jit_enable").as_deref() {
        Some("1" | "2") => Finding::good("BPF JIT", "on"),
        Some(_) => Finding::new(
            "BPF JIT",
            State::Advice,
            "off; the switch then takes several times as long for each packet",
            "sysctl -w net.core.bpf_jit_enable=1",
        ),
        // The file exists only in the first network namespace, and for root.
        None => Finding::new("BPF JIT", State::Unknown, "cannot be read from here", ""),
    }
}
