//! Recording the packets of a host with tcpdump.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::error::LabError;
use crate::process::ProcessId;
use crate::tool::{MAX_STARTS, in_namespace};

/// How long packets may take from the kernel's ring into the file.
const DRAIN: Duration = Duration::from_millis(200);
/// How long tcpdump may take to write its file and end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The part of each packet that is recorded, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureOptions {
    /// Bytes of each packet; default 128: all headers, hardly any content.
    /// 0 records whole packets.
    pub snaplen: u32,
    /// Interface. Default: `eth0`, and `any` on the switch.
    pub interface: Option<String>,
    /// Kernel buffer in KiB; default 65,536. It takes that much memory.
    pub buffer_kib: u32,
}

impl Default for CaptureOptions {
    fn default() -> Self {
        Self {
            snaplen: 128,
            interface: None,
            buffer_kib: 65_536,
        }
    }
}

/// The counts that tcpdump prints at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureStats {
    /// Packets in the file.
    pub captured: u64,
    /// Packets that the kernel dropped; the file lacks them.
    pub dropped: u64,
}

/// A running capture; stops when dropped.
#[derive(Debug)]
pub struct Capture {
    child: Child,
    process: Option<ProcessId>,
    messages: Option<BufReader<ChildStderr>>,
}

impl Capture {
    /// Starts recording. The file has all later packets.
    pub(crate) fn start(
        namespace: &Path,
        file: &Path,
        filter: &str,
        options: &CaptureOptions,
    ) -> Result<Self, LabError> {
        let mut command = command(namespace, file, filter, options);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command.process_group(0);
        let mut capture = Self::spawn(&mut command)?;
        let mut listening = capture.wait_listening();
        for _ in 1..MAX_STARTS {
            // A tool is in this process's group until just before it begins. The signal was for
            // this process.
            if listening.is_ok() || !capture.is_interrupted() {
                break;
            }
            capture = Self::spawn(&mut command)?;
            listening = capture.wait_listening();
        }
        listening.map(|()| capture)
    }

    fn spawn(command: &mut Command) -> Result<Self, LabError> {
        let mut child = command.spawn().map_err(LabError::io("starting tcpdump"))?;
        Ok(Self {
            messages: child.stderr.take().map(BufReader::new),
            process: ProcessId::of(child.id()),
            child,
        })
    }

    /// Whether tcpdump was ended by Ctrl-C.
    fn is_interrupted(&mut self) -> bool {
        let ended = self.child.wait();
        ended.is_ok_and(|status| status.signal() == Some(Signal::INT.as_raw()))
    }

    /// Stops recording. The file is complete then.
    ///
    /// # Errors When tcpdump does not end, or fails.
    pub fn stop(mut self) -> Result<CaptureStats, LabError> {
        std::thread::sleep(DRAIN);
        let ended = self.end();
        let mut text = String::new();
        if let Some(mut messages) = self.messages.take() {
            messages
                .read_to_string(&mut text)
                .map_err(LabError::io("reading from tcpdump"))?;
        }
        let status = ended.map_err(LabError::io("ending tcpdump"))?;
        if !status.success() {
            return Err(failed(&status.to_string(), &text));
        }
        let count = |what: &str| {
            let line = text.lines().find(|line| line.contains(what));
            line.and_then(|line| line.split(' ').next()?.parse().ok())
                .unwrap_or(0)
        };
        let captured = count("packets captured");
        let dropped = count("packets dropped by kernel");
        Ok(CaptureStats { captured, dropped })
    }

    fn wait_listening(&mut self) -> Result<(), LabError> {
        let Some(messages) = self.messages.as_mut() else {
            return Ok(());
        };
        let mut text = String::new();
        // Reads until tcpdump's first message, or its end.
        while messages
            .read_line(&mut text)
            .map_err(LabError::io("reading from tcpdump"))?
            > 0
        {
            if text.contains("listening on") {
                return Ok(());
            }
        }
        Err(failed("ended at once", &text))
    }

    fn end(&mut self) -> std::io::Result<std::process::ExitStatus> {
        if let Some(process) = self.process.take() {
            process.signal(Signal::INT);
            if !process.wait_gone(Instant::now() + STOP_TIMEOUT) {
                self.child.kill()?;
            }
        }
        self.child.wait()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // No caller is left to take an error, and the lab's end ends tcpdump too.
        let _ = self.end();
    }
}

/// The command that records the packets of the host in `namespace`.
pub(crate) fn command(
    namespace: &Path,
    file: &Path,
    filter: &str,
    options: &CaptureOptions,
) -> Command {
    let mut command = in_namespace(namespace, "tcpdump");
    // -U: each packet is written at once; -Z root: without this Debian's
    // tcpdump changes to a user that may not write the file.
    command.args(["-n", "-U", "--immediate-mode", "-Z", "root"]);
    command.args([
        "-s",
        &options.snaplen.to_string(),
        "-B",
        &options.buffer_kib.to_string(),
    ]);
    command.args(["-i", options.interface.as_deref().unwrap_or("eth0")]);
    command.arg("-w").arg(file);
    if !filter.is_empty() {
        command.arg(filter);
    }
    command
}

fn failed(outcome: &str, output: &str) -> LabError {
    LabError::Tool {
        command: "tcpdump".into(),
        outcome: outcome.into(),
        output: output.trim().into(),
    }
}
