//! `prism-lab demo`: one connection with real clients and files, measured from outside.
//!
//! Packets captured at the switch's ports show who answered. Packets captured at the client
//! show resets and addresses. The kernel's interface counters give the bytes of links. Each
//! answer is compared with the file. Only the time of a hand-off comes from the nodes.

mod capture;
mod client;
mod files;
mod packets;
mod report;
mod trace;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use prism_config::RelayUpTo;
use prism_lab::{Families, Family, Lab, LabName, LabSpec};

use self::capture::Recording;
use self::files::DemoFile;
use self::report::Findings;

/// The protocol of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

/// The way of the client to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    scheme: Scheme,
    family: Family,
}

impl Way {
    /// HTTP over IPv4.
    const PLAIN: Self = Self {
        scheme: Scheme::Http,
        family: Family::V4,
    };
    /// HTTP over IPv6.
    const PLAIN_V6: Self = Self {
        scheme: Scheme::Http,
        family: Family::V6,
    };
    /// HTTPS over IPv6.
    const SECURE_V6: Self = Self {
        scheme: Scheme::Https,
        family: Family::V6,
    };
    /// All that the demo shows.
    const ALL: [Self; 3] = [Self::PLAIN, Self::PLAIN_V6, Self::SECURE_V6];

    /// The address and port of the service.
    fn service(self, lab: &Lab) -> Option<SocketAddr> {
        let is_like = |service: &SocketAddr| Family::of(service.ip()) == self.family;
        match self.scheme {
            Scheme::Http => lab.services().find(is_like),
            Scheme::Https => lab.https_services().find(is_like),
        }
    }

    /// The URL of the service.
    fn endpoint(self, lab: &Lab) -> Option<String> {
        let scheme = match self.scheme {
            Scheme::Http => "http",
            Scheme::Https => "https",
        };
        Some(format!("{scheme}://{}", self.service(lab)?))
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            Scheme::Http => "HTTP",
            Scheme::Https => "HTTPS",
        };
        write!(f, "{scheme} and {}", self.family)
    }
}

/// Bucket of the demo.
const BUCKET: &str = "demo";
/// Backends of the demo's lab.
const BACKENDS: usize = 3;
/// Programs that the demo runs, and the Debian package of each.
const TOOLS: [(&str, &str); 5] = [
    ("aws", "awscli"),
    ("curl", "curl"),
    ("tcpdump", "tcpdump"),
    ("nsenter", "util-linux"),
    ("ip", "iproute2"),
];

/// Show one connection being answered by many backends.
///
/// Builds a lab of a client, a switch, one frontend and three backends, with IPv4 and IPv6.
/// Stores files with aws-cli. Fetches them all, several times, over one connection of curl by
/// IPv4, another by IPv6, and a third by IPv6 and HTTPS. Prints what captures and counters of
/// the network show, and removes the lab.
///
/// Fails if an answer was wrong, a backend stayed idle, the client saw a reset or another
/// address, or object bytes went through the frontend. Needs root.
#[derive(clap::Args, Debug)]
#[command(about = "Show one connection being answered by many backends")]
pub(crate) struct Args {
    /// Directory of files to store; some of them are taken, of up to 7 MiB each.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Number of times that each object is fetched.
    #[arg(long, value_name = "N", default_value_t = 12,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// The program `prism` that the hosts run [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    prism: Option<PathBuf>,
}

/// Runs the demo, and removes its lab in any case.
///
/// # Errors When a program is missing, a step fails, or a check does not hold.
pub(crate) fn run(args: &Args) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("the demo needs root (network namespaces, eBPF); run it with sudo");
    }
    check_tools()?;
    let cancel = Arc::new(AtomicBool::new(false));
    prism_lab::cancel_on_signal(Arc::clone(&cancel))?;
    println!("A client, a switch, a frontend and {BACKENDS} backends, each with its own network:");
    let started = Instant::now();
    let lab = Lab::up(spec(args, Arc::clone(&cancel))?)?;
    let endpoints: Vec<_> = lab.endpoints().collect();
    step(
        1,
        started,
        &format!(
            "the lab is up; the service is {}, and HTTPS",
            endpoints.join(", ")
        ),
    );
    let outcome = show(&lab, args, &cancel);
    let removed = lab.down();
    let (plain, others) = outcome?;
    removed?;
    print!("{}", report::render(&plain));
    for other in &others {
        print!("{}", report::render_other(other));
    }
    let all = std::iter::once(&plain).chain(&others);
    let failed: Vec<_> = all.flat_map(Findings::failed).collect();
    if !failed.is_empty() {
        bail!(
            "the demo did not show what it should: {}",
            failed.join(", ")
        );
    }
    Ok(())
}

fn spec(args: &Args, cancel: Arc<AtomicBool>) -> Result<LabSpec> {
    let name: LabName = format!("demo-{}", std::process::id()).parse()?;
    let prism = prism_lab::prism_program(args.prism.as_deref())?;
    let mut spec = LabSpec::new(name, prism);
    spec.backends = BACKENDS;
    spec.family = Families::Dual;
    spec.tls = true;
    // Connections move for small files too.
    spec.relay_up_to = RelayUpTo::Bytes(0);
    spec.cancel = cancel;
    Ok(spec)
}

/// The findings over HTTP and IPv4, and over each other way.
fn show(lab: &Lab, args: &Args, cancel: &AtomicBool) -> Result<(Findings, Vec<Findings>)> {
    let directory = lab.status().directory.join("demo");
    let files = files::gather(&args.dir, &directory.join("objects"))?;

    let started = Instant::now();
    client::upload(lab, &directory.join("objects"), cancel)?;
    let megabytes = bytes_of(&files) as f64 / 1e6;
    let text = format!(
        "aws-cli has stored {} files, {megabytes:.1} MB",
        files.len()
    );
    step(2, started, &text);

    let requests = client::order(&files, args.rounds);
    let mut all = Vec::new();
    for (number, way) in (3..).zip(Way::ALL) {
        let started = Instant::now();
        all.push(observe(lab, way, &requests, &directory, cancel)?);
        let text = match way {
            Way::PLAIN => format!(
                "one curl has sent {} requests over {way}, one after the other",
                requests.len()
            ),
            _ => format!("another has sent the same over {way}"),
        };
        step(number, started, &text);
    }
    let others = all.split_off(1);
    Ok((all.pop().context("nothing was shown")?, others))
}

/// Fetches over one connection, and records the network.
fn observe(
    lab: &Lab,
    way: Way,
    requests: &[&DemoFile],
    directory: &Path,
    cancel: &AtomicBool,
) -> Result<Findings> {
    let service = way.service(lab).context("the lab does not serve it")?;
    let recording = Recording::start(lab, directory)?;
    let servers = || {
        lab.hosts()
            .filter(|host| !["client", "switch"].contains(host))
    };
    for host in servers() {
        lab.ask(host, "trace on")?;
    }
    let before = lab.interface_bytes("fe0")?;
    let answers = client::fetch(lab, way, requests, directory, cancel)?;
    let after = lab.interface_bytes("fe0")?;
    let records = servers()
        .map(|host| Ok(lab.ask(host, "trace take")?))
        .collect::<Result<Vec<_>>>()?;
    let seen = recording.stop()?;

    Ok(Findings {
        service,
        way,
        frontend_bytes: (after.rx + after.tx).saturating_sub(before.rx + before.tx),
        hand_offs: trace::latencies(&records),
        answered_by: seen.answered_by(&answers, way, lab, service.ip())?,
        resets: seen.resets(),
        strangers: seen.strangers(lab, service.ip()),
        backends: BACKENDS,
        answers,
    })
}

fn bytes_of(files: &[DemoFile]) -> usize {
    files.iter().map(|file| file.content.len()).sum()
}

fn step(number: u32, started: Instant, what: &str) {
    println!(
        "  {number}. {what} ({:.1} s)",
        started.elapsed().as_secs_f64()
    );
}

/// Fails when a program is not installed.
fn check_tools() -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |tool: &str| std::env::split_paths(&path).any(|dir| dir.join(tool).is_file());
    let missing: Vec<_> = TOOLS.iter().filter(|(tool, _)| !is_there(tool)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = |part: fn(&(&'static str, &'static str)) -> &'static str, between: &str| {
        let words: Vec<_> = missing.iter().map(|tool| part(tool)).collect();
        words.join(between)
    };
    bail!(
        "the demo needs {}, not found in PATH; try: apt-get install {}",
        list(|tool| tool.0, ", "),
        list(|tool| tool.1, " ")
    )
}
