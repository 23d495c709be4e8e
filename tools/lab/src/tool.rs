//! Runs the system's tools (`ip`, `tc`, `sysctl`) and reads their output.

use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;

use crate::error::LabError;
use crate::state::Lock;

/// A command that runs `program` inside the namespace at `path`.
///
/// `ip netns exec` would remount `/sys` and hide bpffs.
pub(crate) fn in_namespace(path: &Path, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut net = std::ffi::OsString::from("--net=");
    net.push(path);
    let mut command = Command::new("nsenter");
    command.arg(net).arg("--").arg(program);
    command
}

/// Runs `command` to its end and returns its output.
pub(crate) fn run(command: &mut Command) -> Result<Output, LabError> {
    run_with(command, "", Stdio::piped())
}

/// The most starts of a tool that Ctrl-C ends before it is in its own group.
pub(crate) const MAX_STARTS: usize = 3;

fn run_with(command: &mut Command, input: &str, stdout: Stdio) -> Result<Output, LabError> {
    // The tool has its own process group, so that Ctrl-C does not end it while a lab is being
    // taken down.
    command
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(stdout)
        .stderr(Stdio::piped());
    let mut output = run_once(command, input);
    for _ in 1..MAX_STARTS {
        // A tool is in this process's group until just before it begins. The signal was for
        // this process, and the tool has done nothing.
        let interrupted = |output: &Output| output.status.signal() == Some(Signal::INT.as_raw());
        if !output.as_ref().is_ok_and(interrupted) {
            break;
        }
        output = run_once(command, input);
    }
    let failed = |outcome: String, output: &[u8]| LabError::Tool {
        command: command_line(command),
        outcome,
        output: String::from_utf8_lossy(output).trim().to_owned(),
    };
    match output {
        Ok(output) if output.status.success() => Ok(output),
        Ok(output) => Err(failed(output.status.to_string(), &output.stderr)),
        Err(error) => Err(failed(error.to_string(), b"")),
    }
}

fn run_once(command: &mut Command, input: &str) -> io::Result<Output> {
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A tool that ends early closes the pipe. Its status tells the cause.
        let _ = stdin.write_all(input.as_bytes());
    }
    child.wait_with_output()
}

/// Runs many `ip` or `tc` commands in one process, in a namespace if one is named. Stops at the
/// first that fails.
///
/// The tool holds the lock too. If this process is killed, the next sweep waits until the tool
/// has ended, and so sees all its work.
pub(crate) fn batch(
    tool: &str,
    namespace: Option<&str>,
    commands: &[String],
    lock: &Lock,
) -> Result<(), LabError> {
    if commands.is_empty() {
        return Ok(());
    }
    let mut command = Command::new(tool);
    if let Some(namespace) = namespace {
        command.args(["-n", namespace]);
    }
    command.args(["-batch", "-"]);
    // These tools print nothing, so standard output can carry the descriptor.
    run_with(&mut command, &(commands.join("\n") + "\n"), lock.share()?).map(drop)
}

fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_tool_that_an_interrupt_ended_before_it_began_is_started_again() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = shell("[ -e begun ] || { touch begun; kill -s INT $$; }; cat");
        command.current_dir(directory.path());
        let output = run_with(&mut command, "input", Stdio::piped()).unwrap();
        assert_eq!(output.stdout, b"input");
    }

    #[test]
    fn a_tool_that_fails_is_not_started_again() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = shell("echo once >>begun; echo why >&2; exit 3");
        command.current_dir(directory.path());
        let error = run(&mut command).unwrap_err().to_string();
        assert!(
            error.contains("exit status: 3") && error.contains("why"),
            "{error}"
        );
        let begun = std::fs::read_to_string(directory.path().join("begun")).unwrap();
        assert_eq!(begun, "once\n");
    }
}
