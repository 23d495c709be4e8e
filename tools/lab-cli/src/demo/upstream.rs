//! The demo of a service with an upstream: python3's HTTP server beside each backend. One is
//! killed while a connection uses it, and started again.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use prism_config::ConfigFile;

use super::client::{self, Pace, answered};
use super::files::DemoFile;
use super::report::{Check, answer_checks};
use super::{AccessWay, Stage, step};

/// The address of the server beside each backend.
const SERVER: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 3000);
/// The longest time until all servers are healthy.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Nodes tell each other of their servers twice in this time.
const REPORTS: Duration = Duration::from_secs(1);
/// The time in which `prism ctl status` has to follow.
const FOLLOWS_IN: Duration = Duration::from_secs(5);
/// The longest time for which the demo waits until it has followed.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(15);
/// The pause between two looks at the client, and at the status.
const POLL: Duration = Duration::from_millis(10);
const STATUS_POLL: Duration = Duration::from_millis(100);
/// Requests of the connection whose server is killed: 10 s of them.
const REQUESTS: usize = 50;
/// The smallest files, which these requests fetch.
const SMALL_FILES: usize = 5;
/// The answers that show which server a connection uses, and those of another server while it is
/// away.
const SHOWN_ANSWERS: usize = 3;

/// Passes the requests of the service to the servers.
pub(super) fn configure(config: &mut ConfigFile) {
    crate::lab::pass_to(config, SERVER);
}

/// The servers that run, by their backends. They end with the lab.
pub(super) struct Servers<'s> {
    stage: &'s Stage<'s>,
    /// The directory of their files.
    files: &'s Path,
    running: BTreeMap<String, Child>,
}

impl<'s> Servers<'s> {
    /// Starts one beside each backend, and waits until all get requests.
    pub(super) fn start(stage: &'s Stage<'s>, files: &'s Path) -> Result<Self> {
        let mut servers = Self {
            stage,
            files,
            running: BTreeMap::new(),
        };
        let backends: Vec<_> = stage
            .lab
            .hosts()
            .filter(|host| host.starts_with("be"))
            .collect();
        for host in &backends {
            servers.start_at(host)?;
        }
        let are_healthy = || {
            let status = UpstreamStatus::of(stage)?;
            let are = backends.iter().all(|host| status.has(host, "healthy"));
            Ok(are && status.is_healthy)
        };
        if wait(stage, START_TIMEOUT, STATUS_POLL, are_healthy)?.is_none() {
            let status = UpstreamStatus::of(stage)?.text;
            bail!("the servers are not healthy after {START_TIMEOUT:?}:\n{status}");
        }
        thread::sleep(REPORTS);
        Ok(servers)
    }

    fn start_at(&mut self, host: &str) -> Result<()> {
        let mut log = OpenOptions::new();
        let log = log.create(true).append(true).open(self.log(host))?;
        let mut command = self.stage.lab.command(host, "python3")?;
        command.args(["-m", "http.server", &SERVER.port().to_string()]);
        command.args(["--bind", &SERVER.ip().to_string(), "--directory"]);
        command.arg(self.files).stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().context("starting python3")?;
        self.running.insert(host.to_owned(), child);
        Ok(())
    }

    fn kill(&mut self, host: &str) -> Result<()> {
        let mut child = self.running.remove(host).context("no server runs there")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    fn log(&self, host: &str) -> PathBuf {
        self.stage.directory.join(format!("{host}.server.log"))
    }

    /// The number of requests that each server has logged.
    fn counts(&self) -> Result<BTreeMap<String, usize>> {
        let hosts = self.stage.lab.hosts().filter(|host| host.starts_with("be"));
        let count = |host: &str| {
            let log = std::fs::read_to_string(self.log(host))?;
            let requests = log.lines().filter(|line| line.contains("\"GET /"));
            Ok((host.to_owned(), requests.count()))
        };
        hosts.map(count).collect()
    }

    /// The number of requests of each server since it had these.
    fn counts_since(&self, before: &BTreeMap<String, usize>) -> Result<BTreeMap<String, usize>> {
        let mut counts = self.counts()?;
        for (host, count) in &mut counts {
            *count -= before.get(host).copied().unwrap_or(0).min(*count);
        }
        counts.retain(|_, count| *count > 0);
        Ok(counts)
    }
}

/// What `prism ctl status` prints.
struct UpstreamStatus {
    text: String,
    /// By its exit status.
    is_healthy: bool,
}

impl UpstreamStatus {
    fn of(stage: &Stage<'_>) -> Result<Self> {
        let mut command = Command::new(&stage.prism);
        command.args(["ctl", "status", "--config"]);
        let output = command.arg(stage.lab.config_path()).output();
        let output = output.context("starting prism ctl")?;
        Ok(Self {
            text: String::from_utf8_lossy(&output.stdout).into_owned(),
            is_healthy: output.status.success(),
        })
    }

    /// The row of the server of `host`: upstream, server, backend, state, and more.
    fn row(&self, host: &str) -> Option<&str> {
        let server = SERVER.to_string();
        let mut rows = self.text.lines();
        rows.find(|row| {
            let mut words = row.split_whitespace().skip(1);
            words.next() == Some(&server) && words.next() == Some(host)
        })
    }

    fn has(&self, host: &str, state: &str) -> bool {
        let row = self.row(host);
        row.is_some_and(|row| row.split_whitespace().nth(3) == Some(state))
    }
}

/// Kills the server that a connection uses, and starts it again. The connection's requests go on.
pub(super) fn outage(
    stage: &Stage<'_>,
    servers: &mut Servers<'_>,
    files: &[DemoFile],
) -> Result<Vec<Check>> {
    let mut small: Vec<&DemoFile> = files.iter().collect();
    small.sort_by_key(|file| file.content.len());
    small.truncate(SMALL_FILES);
    let requests: Vec<_> = small.into_iter().cycle().take(REQUESTS).collect();
    client::forget_answers(stage)?;
    let (seen, answers) = thread::scope(|scope| {
        let client = scope.spawn(|| client::fetch(stage, AccessWay::PLAIN, &requests, Pace::Slow));
        let seen = kill_and_start(stage, servers);
        let answers = client.join().ok().context("the client has panicked")?;
        anyhow::Ok((seen?, answers?))
    })?;
    let mut checks = Vec::from(answer_checks(&answers));
    checks.extend(seen.checks());
    Ok(checks)
}

/// A server that was killed and started again, as clients saw it.
struct Outage {
    host: String,
    /// The time until the status named it, and its row.
    named: Option<Duration>,
    row: String,
    /// Requests that the servers got meanwhile.
    meanwhile: BTreeMap<String, usize>,
    /// The time until the status was healthy again.
    healthy: Option<Duration>,
}

fn kill_and_start(stage: &Stage<'_>, servers: &mut Servers<'_>) -> Result<Outage> {
    let before = servers.counts()?;
    await_answers(stage, SHOWN_ANSWERS)?;
    let used = servers.counts_since(&before)?;
    let host = used.into_iter().max_by_key(|(_, count)| *count);
    let (host, _) = host.context("no server has logged a request")?;

    let before = servers.counts()?;
    // An answer has just ended, so no other one is cut.
    let started = Instant::now();
    servers.kill(&host)?;
    let mut row = String::new();
    let is_named = || {
        let status = UpstreamStatus::of(stage)?;
        let words = status.row(&host).unwrap_or_default().split_whitespace();
        row = words.collect::<Vec<_>>().join(" ");
        Ok(status.has(&host, "unhealthy"))
    };
    let named = wait(stage, FOLLOW_TIMEOUT, STATUS_POLL, is_named)?;
    await_answers(stage, SHOWN_ANSWERS)?;
    let meanwhile = servers.counts_since(&before)?;
    let text =
        format!("the server of a fourth connection, at {host}, was killed; its requests go on");
    step(6, started, &text);

    let started = Instant::now();
    servers.start_at(&host)?;
    let is_back = || {
        let status = UpstreamStatus::of(stage)?;
        Ok(status.is_healthy && status.has(&host, "healthy"))
    };
    let healthy = wait(stage, FOLLOW_TIMEOUT, STATUS_POLL, is_back)?;
    let text = match healthy {
        Some(_) => "the server was started again, and is healthy",
        None => "the server was started again",
    };
    step(7, started, text);
    Ok(Outage {
        host,
        named,
        row,
        meanwhile,
        healthy,
    })
}

impl Outage {
    fn checks(&self) -> [Check; 4] {
        let after = |time: Option<Duration>| match time {
            Some(time) => format!("after {:.1} s", time.as_secs_f64()),
            None => format!("not within {FOLLOW_TIMEOUT:?}"),
        };
        let is_soon = |time: Option<Duration>| time.is_some_and(|time| time <= FOLLOWS_IN);
        let shares = self.meanwhile.iter();
        let shares: Vec<_> = shares
            .map(|(host, count)| format!("{host} {count}"))
            .collect();
        let check = |name, value, holds| Check { name, value, holds };
        [
            check("named by status", after(self.named), is_soon(self.named)),
            check("row of status", self.row.clone(), self.named.is_some()),
            check(
                "answered by others",
                format!("{} requests", shares.join(", ")),
                !shares.is_empty() && !self.meanwhile.contains_key(&self.host),
            ),
            check("healthy again", after(self.healthy), is_soon(self.healthy)),
        ]
    }
}

/// Waits until the client has got `count` more answers. Ends as the last of them has.
fn await_answers(stage: &Stage<'_>, count: usize) -> Result<()> {
    let wanted = answered(stage) + count;
    let limit = FOLLOW_TIMEOUT;
    match wait(stage, limit, POLL, || Ok(answered(stage) >= wanted))? {
        Some(_) => Ok(()),
        None => bail!("the client has got no {count} more answers within {limit:?}"),
    }
}

/// Waits until `done`, and returns how long that took; none at `limit`.
fn wait(
    stage: &Stage<'_>,
    limit: Duration,
    poll: Duration,
    mut done: impl FnMut() -> Result<bool>,
) -> Result<Option<Duration>> {
    let started = Instant::now();
    loop {
        if stage.cancel.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        if done()? {
            return Ok(Some(started.elapsed()));
        }
        if started.elapsed() >= limit {
            return Ok(None);
        }
        thread::sleep(poll);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::report::failed;

    fn seen() -> Outage {
        Outage {
            host: "be1".into(),
            named: Some(Duration::from_secs(1)),
            row: "/ 127.0.0.1:3000 be1 unhealthy".into(),
            meanwhile: [("be0".to_owned(), 4)].into(),
            healthy: Some(Duration::from_secs(2)),
        }
    }

    #[test]
    fn each_fault_of_an_outage_fails_its_check() {
        let fault = |change: fn(&mut Outage)| {
            let mut seen = seen();
            change(&mut seen);
            failed(seen.checks())
        };
        assert!(fault(|_| {}).is_empty());
        assert_eq!(
            fault(|seen| seen.named = Some(FOLLOWS_IN + POLL)),
            ["named by status"]
        );
        assert_eq!(
            fault(|seen| seen.named = None),
            ["named by status", "row of status"]
        );
        assert_eq!(fault(|seen| seen.meanwhile.clear()), ["answered by others"]);
        let dead = |seen: &mut Outage| seen.meanwhile.extend([("be1".to_owned(), 1)]);
        assert_eq!(fault(dead), ["answered by others"]);
        assert_eq!(fault(|seen| seen.healthy = None), ["healthy again"]);
    }

    #[test]
    fn a_server_is_found_in_the_status_by_its_address_and_backend() {
        let text = "UPSTREAM   SERVER          BACKEND  STATE\n\
                    /          127.0.0.1:3000  be0      healthy    0  0  -\n\
                    /          127.0.0.1:3000  be10     unhealthy  0  3  refused\n";
        let status = UpstreamStatus {
            text: text.into(),
            is_healthy: false,
        };
        assert!(status.has("be0", "healthy") && !status.has("be0", "unhealthy"));
        assert!(status.has("be10", "unhealthy") && status.row("be1").is_none());
    }
}
