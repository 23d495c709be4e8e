//! Runs the switch's programs on packets that no interface saw, for tests and measurements
//! (`BPF_PROG_TEST_RUN`). Their changes of flows are real.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, ProgramInput};
use prism_switch::Switch;

/// From `linux/bpf.h`.
const BPF_F_TEST_SKB_CHECKSUM_COMPLETE: u32 = 1 << 2;
/// From `linux/bpf.h`.
const BPF_F_TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;

/// One of the two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// The tc program.
    Tc,
    /// The XDP program.
    Xdp,
}

/// A program's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Left to the kernel of this host.
    Pass,
    /// Dropped.
    Drop,
    /// Sent on, or back.
    Send,
    /// Any other code.
    Other(u32),
}

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The last run's verdict.
    pub verdict: Verdict,
    /// The packet as the last run left it.
    pub packet: Vec<u8>,
    /// Mean time of a run.
    pub time: Duration,
}

/// Runs a program `repeat` times on the same buffer: each run gets the packet as the run before
/// left it.
///
/// # Errors
/// The kernel's.
pub fn run_packet(
    switch: &Switch,
    hook: Hook,
    packet: &[u8],
    repeat: u32,
) -> libbpf_rs::Result<Run> {
    run_with(switch, hook, packet, repeat, 0)
}

/// Runs the tc program once on a packet with a sum from the driver (`CHECKSUM_COMPLETE`).
///
/// # Errors
/// The kernel's: `EBADMSG` if the packet has another sum afterwards, `EINVAL` from kernels without
/// such runs.
pub fn run_summed_packet(switch: &Switch, packet: &[u8]) -> libbpf_rs::Result<Run> {
    run_with(
        switch,
        Hook::Tc,
        packet,
        1,
        BPF_F_TEST_SKB_CHECKSUM_COMPLETE,
    )
}

/// Has the kernel receive a packet at an interface, as if its device had. The interface needs
/// native XDP, and the XDP program of the switch sees the packet first.
///
/// # Errors
/// The kernel's: `ENXIO` if the interface has no XDP, `EINVAL` before Linux 5.18.
pub fn receive_packet(switch: &Switch, ifindex: u32, packet: &[u8]) -> libbpf_rs::Result<()> {
    // A struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
    let bytes = u32::try_from(packet.len()).unwrap_or(u32::MAX);
    let mut context: Vec<u8> = [0, bytes, 0, ifindex, 0, 0]
        .iter()
        .flat_map(|field: &u32| field.to_ne_bytes())
        .collect();
    let input = ProgramInput {
        context_in: Some(&mut context),
        data_in: Some(packet),
        repeat: 1,
        flags: BPF_F_TEST_XDP_LIVE_FRAMES,
        ..Default::default()
    };
    switch.skeleton().progs.prism_xdp.test_run(input).map(drop)
}

/// Kernel memory of the table of flows, in bytes, as the kernel accounts for it. From Linux 6.4 on
/// this is the memory in use, without the rounding of the allocator.
///
/// # Errors
/// If `/proc` is missing, or does not say.
pub fn table_bytes(switch: &Switch) -> io::Result<u64> {
    memlock(&switch.skeleton().maps.flows)
}

/// Hides the services from all lookups but those for an owner's packet, until the tables are
/// updated.
///
/// # Errors
/// The kernel's.
pub fn hide_services(switch: &Switch) -> libbpf_rs::Result<()> {
    let maps = &switch.skeleton().maps;
    let keys: Vec<_> = maps.services.keys().collect();
    keys.iter().try_for_each(|key| maps.services.delete(key))?;
    let ports = &maps.service_ports;
    let none = vec![0; ports.value_size() as usize];
    ports.update(&[0; 4], &none, MapFlags::ANY)
}

fn run_with(
    switch: &Switch,
    hook: Hook,
    packet: &[u8],
    repeat: u32,
    flags: u32,
) -> libbpf_rs::Result<Run> {
    let mut out = vec![0; packet.len() + 256];
    let input = ProgramInput {
        data_in: Some(packet),
        data_out: Some(&mut out),
        repeat,
        flags,
        ..Default::default()
    };
    let programs = &switch.skeleton().progs;
    let program = match hook {
        Hook::Tc => &programs.prism_tc,
        Hook::Xdp => &programs.prism_xdp,
    };
    let output = program.test_run(input)?;
    Ok(Run {
        verdict: verdict(hook, output.return_value),
        packet: output.data.map(|d| d.to_vec()).unwrap_or_default(),
        time: output.duration,
    })
}

/// The memory of a map, in bytes, by the kernel's information on its descriptor.
fn memlock(map: &impl AsFd) -> io::Result<u64> {
    let fd = map.as_fd().as_raw_fd();
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}"))?;
    let bytes = info.lines().find_map(|line| line.strip_prefix("memlock:"));
    let bytes = bytes.and_then(|bytes| bytes.trim().parse().ok());
    bytes.ok_or_else(|| io::Error::other("the kernel does not say what a map takes"))
}

fn verdict(hook: Hook, code: u32) -> Verdict {
    const TC_ACT_UNSPEC: u32 = u32::MAX;
    match (hook, code) {
        (Hook::Tc, TC_ACT_UNSPEC | 0) | (Hook::Xdp, 2) => Verdict::Pass,
        (Hook::Tc, 2) | (Hook::Xdp, 1) => Verdict::Drop,
        (Hook::Tc, 7) | (Hook::Xdp, 3 | 4) => Verdict::Send,
        _ => Verdict::Other(code),
    }
}
