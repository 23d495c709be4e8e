//! Running the programs on packets that no interface saw, for tests and for
//! measurements (`BPF_PROG_TEST_RUN`). What they do to flows is real.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use libbpf_rs::ProgramInput;

use crate::load::Switch;
use crate::tables;

/// Of linux/bpf.h.
const BPF_F_TEST_SKB_CHECKSUM_COMPLETE: u32 = 1 << 2;

/// Which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// The tc program.
    Tc,
    /// The XDP program.
    Xdp,
}

/// What a program decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Left to the kernel of this host.
    Pass,
    /// Dropped.
    Drop,
    /// Sent on, or back.
    Send,
    /// Anything else; the raw code.
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

impl Switch {
    /// Runs a program `repeat` times on the same buffer: with more than one
    /// repetition, each run sees what the one before left.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn run_packet(&self, hook: Hook, packet: &[u8], repeat: u32) -> libbpf_rs::Result<Run> {
        self.run_with(hook, packet, repeat, 0)
    }

    /// Runs the tc program once on a packet whose sum the driver gave
    /// (`CHECKSUM_COMPLETE`).
    ///
    /// # Errors
    /// What the kernel said: `EBADMSG` where the sum is not the packet's
    /// afterwards, `EINVAL` from kernels that have no such run.
    pub fn run_summed_packet(&self, packet: &[u8]) -> libbpf_rs::Result<Run> {
        self.run_with(Hook::Tc, packet, 1, BPF_F_TEST_SKB_CHECKSUM_COMPLETE)
    }

    /// Kernel memory of the table of flows, in bytes, as the kernel accounts for
    /// it: what is used, from Linux 6.4 on, without what its allocator rounds up.
    ///
    /// # Errors
    /// Without `/proc`, or where it does not say.
    pub fn table_bytes(&self) -> io::Result<u64> {
        memlock(&self.skel.maps.flows)
    }

    /// From here on, until tables are updated, nothing is known to be a service but to
    /// those who look for the flow of an owner's packet.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn hide_services(&self) -> libbpf_rs::Result<()> {
        tables::hide_services(&self.skel.maps)
    }

    fn run_with(
        &self,
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
        let program = match hook {
            Hook::Tc => &self.skel.progs.prism_tc,
            Hook::Xdp => &self.skel.progs.prism_xdp,
        };
        let output = program.test_run(input)?;
        Ok(Run {
            verdict: verdict(hook, output.return_value),
            packet: output.data.map(|d| d.to_vec()).unwrap_or_default(),
            time: output.duration,
        })
    }
}

/// What a map takes, by what the kernel says of its file.
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
