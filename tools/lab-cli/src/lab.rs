//! The commands that build, use and remove a lab.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use prism_config::{ConfigFile, Redirects, RelayUpTo, STORE, Upstream};
use prism_lab::{
    CaptureOptions, Failure, Families, HostStatus, Lab, LabName, LabSpec, LabStatus, Layout, Mode,
    Rate,
};

#[derive(clap::Subcommand, Debug)]
pub(crate) enum Command {
    /// Build a lab, start it, and wait until it serves.
    Up(Up),
    /// Start the process of a host; a running one is stopped first.
    Start(OneHost),
    /// End the process of a host by SIGTERM, or by SIGKILL after 15 s.
    Stop(OneHost),
    /// Let a host fail: a switch, a node, or another host.
    Fail(Fail),
    /// Repair all failures of a host, and wait until it is healthy.
    Heal(OneHost),
    /// Run a program on a host of the lab, with the lab's credentials and
    /// endpoint in its environment (AWS_...). PRISM_ENDPOINT_V4 and
    /// PRISM_ENDPOINT_V6 are the endpoints of each family.
    Exec(Exec),
    /// Show the hosts, their addresses, processes and traffic.
    Status(StatusArgs),
    /// Record the packets of a host into a pcap file, until interrupted.
    Capture(Capture),
    /// Stop all processes of the lab and remove it, also after a crash.
    Down(Name),
}

#[derive(clap::Args, Debug)]
pub(crate) struct Name {
    /// Name of the lab; several labs may be up.
    #[arg(long, default_value = "default")]
    name: LabName,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Up {
    #[command(flatten)]
    name: Name,
    /// Families of the hosts' addresses: 4, 6 or dual.
    #[arg(long, default_value_t = Families::V4, value_name = "FAMILY")]
    family: Families,
    /// Place of the steering program: on a switch, or with host on the nodes' own hosts.
    #[arg(long, default_value_t = Mode::Switch, value_name = "MODE")]
    mode: Mode,
    /// With `--mode host`: put a plain router between the segment of the frontends, that of each
    /// backend, and the client.
    #[arg(long)]
    l3: bool,
    /// With `--mode host`: as `--l3`, and the router spreads clients over all frontends, which need
    /// to be two or more.
    #[arg(long)]
    ecmp: bool,
    /// Number of switches: 1, or 2 of which one is active (package keepalived), switch0 and
    /// switch1.
    #[arg(long, default_value_t = 1, value_name = "N")]
    switches: usize,
    /// Number of backends: be0, be1, ...
    #[arg(long, default_value_t = 3, value_name = "N")]
    backends: usize,
    /// Number of backends that the cluster begins with; `prism-lab start` starts the others,
    /// and `prism ctl rebalance` gives them their share. Needs --etcd. [default: all]
    #[arg(long, value_name = "N", requires = "etcd")]
    members: Option<usize>,
    /// Keep the cluster's state in etcd, on a host called etcd (package etcd-server).
    #[arg(long)]
    etcd: bool,
    /// Number of frontends: fe0, fe1, ...
    #[arg(long, default_value_t = 1, value_name = "N")]
    frontends: usize,
    /// Serve HTTPS too, with a certificate of the lab's own authority. Programs that `prism-lab
    /// exec` runs then use it.
    #[arg(long)]
    tls: bool,
    /// Pass requests to the HTTP server at this address of each backend, in the place of storing
    /// objects.
    #[arg(long, value_name = "ADDRESS:PORT")]
    upstream: Option<SocketAddr>,
    /// With --upstream: store objects too. Requests that an S3 client has signed go to them, and
    /// the server may have others answered with one: `X-Accel-Redirect: @store/BUCKET/KEY`.
    #[arg(long, requires = "upstream")]
    objects: bool,
    /// With --upstream: the server, as a command of the shell that is started on each backend. Its
    /// output is in server.log beside the lab's other files.
    #[arg(long, value_name = "CMD", requires = "upstream")]
    server: Option<String>,
    /// Longest object that nodes relay instead of handing the connection off: auto, or bytes.
    /// With 0 a connection moves for every size.
    #[arg(long, default_value = "auto", value_name = "BYTES", value_parser = relay_up_to)]
    relay_up_to: RelayUpTo,
    /// Speed of each server's link, each way, as in 1gbit [default: unlimited]
    #[arg(long, value_name = "RATE")]
    link: Option<Rate>,
    /// Speed of the client's link, each way [default: unlimited]
    #[arg(long, value_name = "RATE")]
    uplink: Option<Rate>,
    /// Parent directory of the backends' objects; the default is in memory.
    #[arg(long, default_value = "/dev/shm", value_name = "DIR")]
    store_dir: PathBuf,
    /// The program `prism` that the hosts run [default: the one beside this program]
    #[arg(long, value_name = "PATH")]
    prism: Option<PathBuf>,
}

#[derive(clap::Args, Debug)]
pub(crate) struct OneHost {
    #[command(flatten)]
    name: Name,
    /// Name of the host: switch, fe0, be0, ...
    host: String,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Fail {
    #[command(flatten)]
    host: OneHost,
    /// The failure. kill: a node's process ends by SIGKILL; a switch loses power, and with it its
    /// tables. links: all links of the host are cut. stop: its process stands still (SIGSTOP).
    #[arg(long, default_value_t, value_name = "HOW")]
    how: Failure,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Exec {
    #[command(flatten)]
    name: Name,
    /// Name of the host: client, switch, fe0, be0, ...
    host: String,
    /// The program and its arguments, after `--`.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<String>,
}

#[derive(clap::Args, Debug)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    name: Name,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Capture {
    #[command(flatten)]
    name: Name,
    /// Name of the host: client, switch, fe0, be0, ...
    host: String,
    /// The pcap file to write.
    file: PathBuf,
    /// Packets to record, in pcap syntax, as in `tcp port 80` [default: all]
    filter: Vec<String>,
    /// Recorded bytes of each packet; 0 for all.
    #[arg(long, default_value_t = 128, value_name = "BYTES")]
    snaplen: u32,
}

fn relay_up_to(text: &str) -> Result<RelayUpTo, String> {
    match text {
        "auto" => Ok(RelayUpTo::Auto),
        number => match number.parse() {
            Ok(bytes) => Ok(RelayUpTo::Bytes(bytes)),
            Err(_) => Err("expected \"auto\" or a number of bytes below 4 GiB".into()),
        },
    }
}

/// Runs the command.
///
/// # Errors
/// When the command fails. A lab that does not come up is removed again.
pub(crate) fn run(command: Command) -> Result<()> {
    match command {
        Command::Up(up) => run_up(up),
        Command::Start(start) => Ok(Lab::attach(&start.name.name)?.restart(&start.host)?),
        Command::Stop(stop) => Ok(Lab::attach(&stop.name.name)?.stop(&stop.host)?),
        Command::Fail(fail) => {
            let OneHost { name, host } = fail.host;
            Ok(Lab::attach(&name.name)?.fail(&host, fail.how)?)
        }
        Command::Heal(heal) => Ok(Lab::attach(&heal.name.name)?.heal(&heal.host)?),
        Command::Exec(exec) => run_exec(&exec),
        Command::Status(status) => run_status(&status),
        Command::Capture(capture) => run_capture(&capture),
        Command::Down(Name { name }) => {
            Lab::remove(&name)?;
            println!("lab {name} is down");
            Ok(())
        }
    }
}

fn run_up(up: Up) -> Result<()> {
    let prism = prism_lab::prism_program(up.prism.as_deref())?;
    let mut spec = LabSpec::new(up.name.name, prism);
    spec.family = up.family;
    spec.mode = up.mode;
    spec.layout = match (up.l3, up.ecmp) {
        (_, true) => Layout::Spread,
        (true, false) => Layout::Routed,
        (false, false) => Layout::Segment,
    };
    spec.switches = up.switches;
    spec.backends = up.backends;
    spec.frontends = up.frontends;
    spec.members = up.members;
    spec.etcd = up.etcd;
    spec.tls = up.tls;
    spec.relay_up_to = up.relay_up_to;
    spec.link = up.link;
    spec.uplink = up.uplink;
    spec.store_dir = up.store_dir;
    prism_lab::cancel_on_signal(Arc::clone(&spec.cancel))?;
    if let Some(address) = up.upstream {
        let objects = up.objects;
        spec = spec.configure(move |config| {
            pass_to(config, address);
            if objects {
                prism_lab::add_objects(config, &Redirects::default());
            }
        });
    }
    if up.etcd && up.upstream.is_some() && !up.objects {
        bail!("--etcd is for objects; add --objects, or remove it");
    }
    let lab = Lab::up(spec)?;
    if up.objects {
        let status = lab.status();
        let urls = status.endpoints.iter().chain(&status.https_endpoints);
        let locations = urls.map(|url| (format!("{url}/"), STORE.to_owned()));
        let redirects = Redirects {
            access_key: Some(lab.credential().access_key.clone()),
            locations: locations.collect(),
            ..Redirects::default()
        };
        lab.reload(|config| prism_lab::add_objects(config, &redirects))?;
    }
    if let Some(server) = &up.server {
        start_servers(&lab, server)?;
    }
    let text = introduction(&lab, up.upstream, up.objects);
    lab.keep()?;
    print!("{text}");
    Ok(())
}

/// Passes the requests of the service to the server at `address` of each backend.
pub(crate) fn pass_to(config: &mut ConfigFile, address: SocketAddr) {
    let upstream = Upstream {
        address: address.into(),
        ..Upstream::default()
    };
    config.service.first_mut().upstream = Some(vec![upstream].into());
}

/// Starts a server on each backend. It ends with the lab.
fn start_servers(lab: &Lab, server: &str) -> Result<()> {
    let log = lab.status().directory.join("server.log");
    let log = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let backends = lab.hosts().filter(|host| host.starts_with("be"));
    for host in backends {
        let mut command = lab.command(host, "sh")?;
        command.args(["-c", server]).stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log.try_clone()?);
        command.spawn().context("cannot start the server")?;
    }
    Ok(())
}

/// The commands to try first.
fn first_steps(
    option: &str,
    endpoint: &str,
    upstream: Option<SocketAddr>,
    has_objects: bool,
) -> String {
    let exec = format!("prism-lab exec{option}");
    let objects = format!(
        "  {exec} client -- aws --endpoint-url {endpoint} s3 mb s3://photos\n  \
         {exec} client -- aws --endpoint-url {endpoint} s3 cp README.md s3://photos/\n"
    );
    let Some(server) = upstream else {
        return objects;
    };
    let servers = format!(
        "  {exec} client -- curl -i {endpoint}/\n  \
         {exec} be0 -- curl -i http://{server}/    # the server itself\n"
    );
    if has_objects {
        servers + &objects
    } else {
        servers
    }
}

fn introduction(lab: &Lab, upstream: Option<SocketAddr>, has_objects: bool) -> String {
    let status = lab.status();
    let credential = lab.credential();
    let option = match status.name.as_str() {
        "default" => String::new(),
        name => format!(" --name {name}"),
    };
    let mut endpoints = status.endpoints.iter().chain(&status.https_endpoints);
    let first = endpoints.next().map_or("", String::as_str);
    let others: String = endpoints
        .map(|other| format!("            {other}\n"))
        .collect();
    let authority = status.ca_file.as_ref().map_or(String::new(), |ca| {
        let ca = ca.display();
        format!("authority   {ca} (set for programs run by `prism-lab exec`)\n")
    });
    let preferred = status.https_endpoint.as_ref().unwrap_or(&status.endpoint);
    let keys = if upstream.is_none() || has_objects {
        format!(
            "access key  {}\nsecret key  {}\n",
            credential.access_key, credential.secret_key
        )
    } else {
        String::new()
    };
    format!(
        "lab {} is up\n\n{}\nendpoint    {first} (from the lab's hosts)\n{others}{authority}{keys}files       {}\n\n\
         Try:\n{}  prism-lab status{option}\n  prism-lab down{option}\n",
        status.name,
        table(&status),
        status.directory.display(),
        first_steps(&option, preferred, upstream, has_objects),
    )
}

fn run_exec(exec: &Exec) -> Result<()> {
    let lab = Lab::attach(&exec.name.name)?;
    let (program, arguments) = exec.command.split_first().context("no command given")?;
    let mut command = lab.command(&exec.host, program)?;
    // The program replaces this process, and so gets its signals and returns its own status.
    let error = command.args(arguments).exec();
    Err(error).context("starting nsenter (package util-linux)")
}

fn run_status(status: &StatusArgs) -> Result<()> {
    let lab = Lab::attach(&status.name.name)?;
    let known = lab.status();
    if status.json {
        println!("{}", serde_json::to_string_pretty(&known)?);
    } else {
        let endpoints = known.endpoints.iter().chain(&known.https_endpoints);
        let endpoints: Vec<&str> = endpoints.map(String::as_str).collect();
        let endpoints = endpoints.join(", ");
        print!("lab {} at {endpoints}\n\n{}", known.name, table(&known));
    }
    Ok(())
}

fn run_capture(capture: &Capture) -> Result<()> {
    let lab = Lab::attach(&capture.name.name)?;
    let options = CaptureOptions {
        snaplen: capture.snaplen,
        ..CaptureOptions::default()
    };
    let filter = capture.filter.join(" ");
    let mut command = lab.capture_command(&capture.host, &capture.file, &filter, &options)?;
    let error = command.exec();
    Err(error).context("starting nsenter (package util-linux)")
}

fn table(status: &LabStatus) -> String {
    let addresses = |host: &HostStatus| {
        let addresses: Vec<_> = host.addresses.iter().map(ToString::to_string).collect();
        addresses.join(" ")
    };
    let lengths = status.hosts.iter().map(|host| addresses(host).len());
    let width = lengths.max().unwrap_or(0).max(15);
    let mut text = format!(
        "{:<8} {:<width$} {:>8} {:>15} {:>15}\n",
        "HOST", "ADDRESS", "PROCESS", "RECEIVED BYTES", "SENT BYTES"
    );
    for host in &status.hosts {
        let process = match host.pid {
            Some(pid) => pid.to_string(),
            None if host.running => "-".to_owned(),
            None => "DEAD".to_owned(),
        };
        let count = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |bytes| bytes.to_string());
        text += &format!(
            "{:<8} {:<width$} {process:>8} {:>15} {:>15}\n",
            host.name,
            addresses(host),
            count(host.bytes.map(|bytes| bytes.rx)),
            count(host.bytes.map(|bytes| bytes.tx)),
        );
    }
    let active = status.hosts.iter().filter(|host| host.active == Some(true));
    text.extend(active.map(|host| format!("active switch: {}\n", host.name)));
    text
}
