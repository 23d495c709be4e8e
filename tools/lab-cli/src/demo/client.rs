//! The demo's clients: aws-cli stores, and one curl fetches.

use std::io::{BufReader, Read, Write};
use std::net::IpAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use super::files::DemoFile;
use super::{AccessWay, BUCKET, Kind, Stage};

/// The longest time of each client.
const TIMEOUT: Duration = Duration::from_secs(40);
/// The pause between two looks at a client.
const POLL: Duration = Duration::from_millis(10);
/// The facts that curl prints after each answer, in the order of [`DemoAnswer`].
const FACTS: &str =
    "%{local_ip} %{local_port} %{remote_ip} %{http_code} %{size_header} %{size_download}";

/// One answer, by curl.
pub(super) struct DemoAnswer {
    pub(super) key: String,
    pub(super) local_port: u16,
    pub(super) remote: IpAddr,
    pub(super) status: u16,
    /// Bytes of head and body in the connection's stream, without the records of TLS.
    pub(super) wire_bytes: u64,
    pub(super) body_bytes: u64,
    /// Whether the body is the file, byte for byte.
    pub(super) is_right: bool,
}

/// The time between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// The next follows at once.
    Fast,
    /// Five begin in a second, so that a server can be killed between two.
    Slow,
}

/// Stores everything below `directory` with aws-cli.
pub(super) fn upload(stage: &Stage<'_>, directory: &Path) -> Result<()> {
    let lab = stage.lab;
    let cancel = stage.cancel;
    let target = format!("s3://{BUCKET}/");
    // Before 2.13, and so in Debian 12, aws-cli ignores the endpoint in the environment.
    let aws = || -> Result<Command> {
        let mut aws = lab.command("client", "aws")?;
        aws.args(["--endpoint-url", &lab.endpoint()]);
        Ok(aws)
    };
    run(aws()?.args(["s3", "mb", &target]), "aws s3 mb", cancel)?;
    let mut copy = aws()?;
    copy.args(["s3", "cp", "--recursive", "--only-show-errors"]);
    run(copy.arg(directory).arg(&target), "aws s3 cp", cancel)
}

/// Every file `rounds` times, always in the same order.
pub(super) fn order(files: &[DemoFile], rounds: u32) -> Vec<&DemoFile> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut all = Vec::new();
    for _ in 0..rounds {
        let mut round: Vec<_> = files.iter().collect();
        random.shuffle(&mut round);
        all.extend(round);
    }
    all
}

/// Fetches all `requests` by one curl over one connection, and compares.
pub(super) fn fetch(
    stage: &Stage<'_>,
    way: AccessWay,
    requests: &[&DemoFile],
    pace: Pace,
) -> Result<Vec<DemoAnswer>> {
    let lab = stage.lab;
    let facts_path = facts_path(stage);
    let facts_file = std::fs::File::create(&facts_path)?;
    let mut command = lab.command("client", "curl")?;
    // Standard output has the bodies, one after the other, and standard error the facts.
    // Standard input has the options, as the key is among them.
    let mut curl = command
        .args(["-q", "--config", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(facts_file)
        .spawn()
        .context("starting curl")?;
    let mut stdin = curl.stdin.take().context("curl has no input")?;
    let stdout = curl.stdout.take().context("curl has no output")?;
    let endpoint = way.endpoint(lab).context("the lab does not serve it")?;
    let options = options(stage, &endpoint, requests, pace);
    let (status, are_right) = std::thread::scope(|scope| {
        let compare = scope.spawn(|| compare(stdout, requests));
        stdin.write_all(options.as_bytes())?;
        drop(stdin);
        let status = wait(&mut curl, stage.cancel);
        let are_right = compare.join().ok().context("reading from curl")?;
        anyhow::Ok((status?, are_right?))
    })?;
    let facts = std::fs::read_to_string(&facts_path)?;
    let parsed: Option<Vec<_>> = facts
        .lines()
        .zip(requests.iter().zip(are_right))
        .map(|(line, (file, is_right))| parse(line, &file.key, is_right))
        .collect();
    match parsed {
        Some(answers) if status.success() && answers.len() == requests.len() => Ok(answers),
        _ => bail!("curl: {status}: {}", last_lines(&facts)),
    }
}

/// The number of answers that the running curl has got in full.
pub(super) fn answered(stage: &Stage<'_>) -> usize {
    let facts = std::fs::read_to_string(facts_path(stage));
    facts.map_or(0, |facts| facts.lines().count())
}

/// Removes the facts of an earlier curl.
pub(super) fn forget_answers(stage: &Stage<'_>) -> Result<()> {
    Ok(std::fs::remove_file(facts_path(stage))?)
}

/// The file of the facts that curl prints.
fn facts_path(stage: &Stage<'_>) -> PathBuf {
    stage.directory.join("facts")
}

fn options(stage: &Stage<'_>, endpoint: &str, requests: &[&DemoFile], pace: Pace) -> String {
    let mut options = format!("silent\nshow-error\nwrite-out = \"%{{stderr}}{FACTS}\\n\"\n");
    if pace == Pace::Slow {
        options += "rate = \"5/s\"\n";
    }
    let folder = match stage.kind {
        Kind::Objects => {
            let credential = stage.lab.credential();
            options += &format!(
                "aws-sigv4 = \"aws:amz:us-east-1:s3\"\nuser = \"{}:{}\"\n\
                 header = \"x-amz-content-sha256: UNSIGNED-PAYLOAD\"\n",
                credential.access_key, credential.secret_key
            );
            format!("{endpoint}/{BUCKET}")
        }
        Kind::Upstream => endpoint.to_owned(),
    };
    for file in requests {
        options += &format!("url = \"{folder}/{}\"\n", file.key);
    }
    options
}

/// Whether each of the consecutive bodies is the file of its request.
fn compare(bodies: impl Read, requests: &[&DemoFile]) -> Result<Vec<bool>> {
    let mut bodies = BufReader::with_capacity(1 << 20, bodies);
    let mut body = Vec::new();
    let mut are_right = Vec::with_capacity(requests.len());
    for file in requests {
        body.clear();
        let wanted = file.content.len() as u64;
        bodies.by_ref().take(wanted).read_to_end(&mut body)?;
        are_right.push(body == file.content);
    }
    // Reads the rest, so that curl can end.
    let surplus = std::io::copy(&mut bodies, &mut std::io::sink())?;
    if surplus > 0 {
        are_right.fill(false);
    }
    Ok(are_right)
}

fn parse(line: &str, key: &str, is_right: bool) -> Option<DemoAnswer> {
    let mut words = line.split(' ');
    let _local: IpAddr = words.next()?.parse().ok()?;
    let local_port = words.next()?.parse().ok()?;
    let remote = words.next()?.parse().ok()?;
    let status = words.next()?.parse().ok()?;
    let head_bytes: u64 = words.next()?.parse().ok()?;
    let body_bytes: u64 = words.next()?.parse().ok()?;
    Some(DemoAnswer {
        key: key.to_owned(),
        local_port,
        remote,
        status,
        wire_bytes: head_bytes + body_bytes,
        body_bytes,
        is_right: is_right && status == 200,
    })
}

fn run(command: &mut Command, what: &str, cancel: &AtomicBool) -> Result<()> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {what}"))?;
    let mut errors = child.stderr.take().context("no standard error")?;
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = errors.read_to_string(&mut text);
        text
    });
    let status = wait(&mut child, cancel)?;
    let errors = reader.join().unwrap_or_default();
    if !status.success() {
        bail!("{what}: {status}: {}", last_lines(&errors));
    }
    Ok(())
}

fn last_lines(text: &str) -> String {
    let mut lines: Vec<_> = text.trim().lines().rev().take(5).collect();
    lines.reverse();
    lines.join("\n")
}

/// Waits for `child`. Ends it after its time, or when the demo is interrupted.
fn wait(child: &mut Child, cancel: &AtomicBool) -> Result<ExitStatus> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let status = child.try_wait()?;
        // Ctrl-C ends the client too, and perhaps first. Its status then has no meaning.
        let by_interrupt = status.is_some_and(|s| s.signal() == Some(Signal::INT.as_raw()));
        let is_cancelled = by_interrupt || cancel.load(Ordering::Relaxed);
        if let Some(status) = status.filter(|status| status.success() || !is_cancelled) {
            return Ok(status);
        }
        if is_cancelled || Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            bail!(if is_cancelled {
                "interrupted"
            } else {
                "a client took too long"
            });
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(content: &[u8]) -> DemoFile {
        DemoFile {
            key: "k".into(),
            content: content.to_vec(),
        }
    }

    #[test]
    fn wrong_missing_and_surplus_bytes_are_noticed() {
        let files = [file(b"one"), file(b"three")];
        let requests: Vec<_> = files.iter().collect();
        let right = |bodies: &[u8]| compare(bodies, &requests).unwrap_or_default();
        assert_eq!(right(b"onethree"), [true, true]);
        assert_eq!(right(b"oneThree"), [true, false]);
        assert_eq!(right(b"onethre"), [true, false]);
        assert_eq!(right(b"onethree!"), [false, false]);
    }
}
