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
mod upstream;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use prism_config::RelayUpTo;
use prism_lab::{Families, Family, Lab, LabName, LabSpec};

use self::capture::Recording;
use self::client::Pace;
use self::files::DemoFile;
use self::report::{Check, Findings};
use self::upstream::Servers;

/// The protocol of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

/// The way of the client to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AccessWay {
    scheme: Scheme,
    family: Family,
}

impl AccessWay {
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

impl fmt::Display for AccessWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            Scheme::Http => "HTTP",
            Scheme::Https => "HTTPS",
        };
        write!(f, "{scheme} and {}", self.family)
    }
}

/// The kind of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It stores objects.
    Objects,
    /// It passes requests to an HTTP server beside each backend.
    Upstream,
}

/// The lab of a demo, and the surroundings of each of its steps.
struct Stage<'s> {
    lab: &'s Lab,
    kind: Kind,
    /// Files of the demo.
    directory: PathBuf,
    prism: PathBuf,
    cancel: &'s AtomicBool,
}

/// Bucket of the demo.
const BUCKET: &str = "demo";
/// Backends of the demo's lab.
const BACKENDS: usize = 3;
/// Programs that the demo runs, and the Debian package of each.
const TOOLS: [(&str, &str); 4] = [
    ("curl", "curl"),
    ("tcpdump", "tcpdump"),
    ("nsenter", "util-linux"),
    ("ip", "iproute2"),
];
/// The program that stores the objects, and the server of an upstream.
const STORING_TOOL: (&str, &str) = ("aws", "awscli");
const SERVING_TOOL: (&str, &str) = ("python3", "python3");

/// Show one connection being answered by many backends.
///
/// Builds a lab of a client, a switch, one frontend and three backends, with IPv4 and IPv6.
/// Stores files with aws-cli. Fetches them all, several times, over one connection of curl by
/// IPv4, another by IPv6, and a third by IPv6 and HTTPS. Prints what captures and counters of
/// the network show, and removes the lab.
///
/// Fails if an answer was wrong, a backend stayed idle, the client saw a reset or another
/// address, or bytes of files went through the frontend. Needs root.
///
/// With --upstream, the HTTP server of python3 serves the files beside each backend. Each
/// connection of curl moves to a backend and stays there. Kills a server while a connection uses
/// it, and starts it again. Fails also if a request failed meanwhile, or if `prism ctl status` did
/// not say within 5 s that the server is away, or that it is back.
#[derive(clap::Args, Debug)]
#[command(about = "Show one connection being answered by many backends")]
pub(crate) struct Args {
    /// Show a service with an upstream in the place of the object store.
    #[arg(long)]
    upstream: bool,
    /// Directory of files to serve; some of them are taken, of up to 7 MiB each.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Number of times that each file is fetched over a connection.
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
    let kind = if args.upstream {
        Kind::Upstream
    } else {
        Kind::Objects
    };
    check_tools(kind)?;
    let cancel = Arc::new(AtomicBool::new(false));
    prism_lab::cancel_on_signal(Arc::clone(&cancel))?;
    println!("A client, a switch, a frontend and {BACKENDS} backends, each with its own network:");
    let started = Instant::now();
    let prism = prism_lab::prism_program(args.prism.as_deref())?;
    let lab = Lab::up(spec(kind, prism.clone(), Arc::clone(&cancel))?)?;
    let endpoints: Vec<_> = lab.endpoints().collect();
    step(
        1,
        started,
        &format!(
            "the lab is up; the service is {}, and HTTPS",
            endpoints.join(", ")
        ),
    );
    let stage = Stage {
        directory: lab.status().directory.join("demo"),
        lab: &lab,
        kind,
        prism,
        cancel: &cancel,
    };
    let outcome = show(&stage, args);
    let removed = lab.down();
    let shown = outcome?;
    removed?;
    print!(
        "{}",
        match kind {
            Kind::Objects => report::render(&shown.plain),
            // All requests of its connection are answered by one backend.
            Kind::Upstream => report::render_short(&shown.plain, "The connection"),
        }
    );
    for other in &shown.others {
        print!("{}", report::render_short(other, "The same"));
    }
    if let Some(checks) = &shown.outage {
        print!("{}", report::render_outage(checks));
    }
    let all = std::iter::once(&shown.plain).chain(&shown.others);
    let checks = all.flat_map(Findings::checks);
    let failed = report::failed(checks.chain(shown.outage.into_iter().flatten()));
    if !failed.is_empty() {
        bail!(
            "the demo did not show what it should: {}",
            failed.join(", ")
        );
    }
    Ok(())
}

fn spec(kind: Kind, prism: PathBuf, cancel: Arc<AtomicBool>) -> Result<LabSpec> {
    let name: LabName = format!("demo-{}", std::process::id()).parse()?;
    let mut spec = LabSpec::new(name, prism);
    spec.backends = BACKENDS;
    spec.family = Families::Dual;
    spec.tls = true;
    // Connections move for small files too.
    spec.relay_up_to = RelayUpTo::Bytes(0);
    spec.cancel = cancel;
    Ok(match kind {
        Kind::Objects => spec,
        Kind::Upstream => spec.configure(upstream::configure),
    })
}

/// The findings of the demo.
struct Shown {
    /// Over HTTP and IPv4.
    plain: Findings,
    /// Over each other way.
    others: Vec<Findings>,
    /// While a server was away.
    outage: Option<Vec<Check>>,
}

fn show(stage: &Stage<'_>, args: &Args) -> Result<Shown> {
    let objects = stage.directory.join("objects");
    let files = files::gather(&args.dir, &objects)?;

    let started = Instant::now();
    let servers = match stage.kind {
        Kind::Objects => {
            client::upload(stage, &objects)?;
            None
        }
        Kind::Upstream => Some(Servers::start(stage, &objects)?),
    };
    let done = match servers {
        None => "aws-cli has stored",
        Some(_) => "beside each backend, python3's HTTP server has",
    };
    let megabytes = bytes_of(&files) as f64 / 1e6;
    let text = format!("{done} {} files, {megabytes:.1} MB", files.len());
    step(2, started, &text);

    let requests = client::order(&files, args.rounds);
    let mut all = Vec::new();
    for (number, way) in (3..).zip(AccessWay::ALL) {
        let started = Instant::now();
        all.push(observe(stage, way, &requests)?);
        let text = match way {
            AccessWay::PLAIN => format!(
                "one curl has sent {} requests over {way}, one after the other",
                requests.len()
            ),
            _ => format!("another has sent the same over {way}"),
        };
        step(number, started, &text);
    }
    let others = all.split_off(1);
    let plain = all.pop().context("nothing was shown")?;
    let outage = servers.map(|mut servers| upstream::outage(stage, &mut servers, &files));
    Ok(Shown {
        plain,
        others,
        outage: outage.transpose()?,
    })
}

/// Fetches over one connection, and records the network.
fn observe(stage: &Stage<'_>, way: AccessWay, requests: &[&DemoFile]) -> Result<Findings> {
    let lab = stage.lab;
    let service = way.service(lab).context("the lab does not serve it")?;
    let recording = Recording::start(lab, &stage.directory)?;
    let servers = || {
        lab.hosts()
            .filter(|host| !["client", "switch"].contains(host))
    };
    for host in servers() {
        lab.ask(host, "trace on")?;
    }
    let before = lab.interface_bytes("fe0")?;
    let answers = client::fetch(stage, way, requests, Pace::Fast)?;
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
        backends: match stage.kind {
            Kind::Objects => BACKENDS,
            // The connection stays at its server.
            Kind::Upstream => 1,
        },
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
fn check_tools(kind: Kind) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |tool: &str| std::env::split_paths(&path).any(|dir| dir.join(tool).is_file());
    let own = match kind {
        Kind::Objects => &STORING_TOOL,
        Kind::Upstream => &SERVING_TOOL,
    };
    let all = TOOLS.iter().chain([own]);
    let missing: Vec<_> = all.filter(|(tool, _)| !is_there(tool)).collect();
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
