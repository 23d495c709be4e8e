//! `prism-lab demo`: the whole thing once, on real files and with real clients, and
//! what happened is measured from outside.
//!
//! Nothing here is taken from Prism's own word: who answered comes from packets
//! captured at the switch's ports, resets and addresses from packets captured at
//! the client, link bytes from the kernel's interface counters, and each answer
//! is compared with the file. Only the time of a hand-off is the nodes' own.

mod capture;
mod client;
mod files;
mod report;
mod trace;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::{Result, bail};
use prism_config::RelayUpTo;
use prism_lab::{Lab, LabName, LabSpec};

use self::capture::Recording;
use self::files::DemoFile;
use self::report::Findings;

/// What the client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

/// Bucket of the demo.
const BUCKET: &str = "demo";
/// Backends of the demo's lab.
const BACKENDS: usize = 3;
/// What is run, and the Debian package that has it.
const TOOLS: [(&str, &str); 5] = [
    ("aws", "awscli"),
    ("curl", "curl"),
    ("tcpdump", "tcpdump"),
    ("nsenter", "util-linux"),
    ("ip", "iproute2"),
];

/// Show one connection being answered by many backends.
///
/// Builds a lab of a client, a switch, one frontend and three backends; stores
/// files with aws-cli; fetches them all, several times, over one connection of
/// curl, and again over HTTPS; prints what the network's captures and counters
/// say about it; and removes the lab. Fails if an answer was wrong, a backend
/// stayed idle, the client saw a reset or another address, or object bytes went
/// through the frontend. Needs root.
#[derive(clap::Args, Debug)]
#[command(about = "Show one connection being answered by many backends")]
pub(crate) struct Args {
    /// Where to take files from: some of those found in it, up to 7 MiB each.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// How often each object is fetched.
    #[arg(long, value_name = "N", default_value_t = 12,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// The program `prism` that the hosts run [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    prism: Option<PathBuf>,
}

/// Runs the demo; what it builds is removed again, whatever happens.
///
/// # Errors
/// When something is missing or fails, or a check does.
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
    step(
        1,
        started,
        &format!("the lab is up; the service is {} and HTTPS", lab.endpoint()),
    );
    let outcome = show(&lab, args, &cancel);
    let removed = lab.down();
    let [plain, secure] = outcome?;
    removed?;
    print!(
        "{}{}",
        report::render(&plain),
        report::render_secure(&secure)
    );
    let failed = [plain.failed(), secure.failed()].concat();
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
    spec.tls = true;
    // Small files too: it is to be seen how connections move.
    spec.relay_up_to = RelayUpTo::Bytes(0);
    spec.cancel = cancel;
    Ok(spec)
}

/// What was found over HTTP, and over HTTPS.
fn show(lab: &Lab, args: &Args, cancel: &AtomicBool) -> Result<[Findings; 2]> {
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
    let started = Instant::now();
    let plain = observe(lab, Scheme::Http, &requests, &directory, cancel)?;
    let text = format!(
        "one curl has sent {} requests, one after the other",
        requests.len()
    );
    step(3, started, &text);
    let started = Instant::now();
    let secure = observe(lab, Scheme::Https, &requests, &directory, cancel)?;
    step(4, started, "another has sent the same over HTTPS");
    Ok([plain, secure])
}

/// Fetches over one connection, and watches.
fn observe(
    lab: &Lab,
    scheme: Scheme,
    requests: &[&DemoFile],
    directory: &Path,
    cancel: &AtomicBool,
) -> Result<Findings> {
    let recording = Recording::start(lab, directory)?;
    let servers = || {
        lab.hosts()
            .filter(|host| !["client", "switch"].contains(host))
    };
    for host in servers() {
        lab.ask(host, "trace on")?;
    }
    let before = lab.interface_bytes("fe0")?;
    let answers = client::fetch(lab, scheme, requests, directory, cancel)?;
    let after = lab.interface_bytes("fe0")?;
    let records = servers()
        .map(|host| Ok(lab.ask(host, "trace take")?))
        .collect::<Result<Vec<_>>>()?;
    let seen = recording.stop()?;

    Ok(Findings {
        service: lab.service(),
        scheme,
        frontend_bytes: (after.rx + after.tx).saturating_sub(before.rx + before.tx),
        hand_offs: trace::latencies(&records),
        answered_by: seen.answered_by(&answers, scheme, lab)?,
        resets: seen.resets(),
        strangers: seen.strangers(lab),
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

/// Says at once what is not installed.
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
