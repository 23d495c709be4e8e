//! Running the system's tools (`ip`, `tc`, `sysctl`) and reading what they say.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::error::LabError;
use crate::state::Lock;

/// `program` inside the namespace at `path`.
///
/// Not `ip netns exec`, which remounts `/sys` and so hides bpffs.
pub(crate) fn in_namespace(path: &Path, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut net = std::ffi::OsString::from("--net=");
    net.push(path);
    let mut command = Command::new("nsenter");
    command.arg(net).arg("--").arg(program);
    command
}

/// Runs `command` to its end and gives its output.
pub(crate) fn run(command: &mut Command) -> Result<Output, LabError> {
    run_with(command, "", Stdio::piped())
}

fn run_with(command: &mut Command, input: &str, stdout: Stdio) -> Result<Output, LabError> {
    let failed = |command: &Command, outcome: String, output: &[u8]| LabError::Tool {
        command: command_line(command),
        outcome,
        output: String::from_utf8_lossy(output).trim().to_owned(),
    };
    // In its own process group, so that Ctrl-C on the terminal does not end a
    // tool in the middle of taking a lab down.
    let child = command
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(stdout)
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|error| failed(command, error.to_string(), b""))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A tool that ends early closes the pipe; its status tells why.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child
        .wait_with_output()
        .map_err(|error| failed(command, error.to_string(), b""))?;
    if output.status.success() {
        Ok(output)
    } else {
        Err(failed(command, output.status.to_string(), &output.stderr))
    }
}

/// Runs many `ip` or `tc` commands in one process, inside a namespace if one
/// is named. Stops at the first that fails.
///
/// The tool holds the lock with us: were this process killed, whoever sweeps
/// next would wait until the tool has ended, and so see all that it made.
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
