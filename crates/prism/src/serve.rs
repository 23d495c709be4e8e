//! `prism serve DIR`: one node on this machine, for a first try and for the tests of
//! applications. It runs the node of a cluster with a configuration made here: no switch,
//! no other nodes, no root. `prism serve --upstream ADDRESS` is the same before an HTTP server, and
//! `prism serve DIR --upstream ADDRESS` is both.
//!
//! Not here: serving requests (`node`), storing objects (`prism-store`).

mod credentials;
mod dir;
mod proxy;

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use prism_config::{Config, Credential, Durability, Role};
use prism_membership::Cluster;
use prism_process::pages::bind;
use prism_store::Store;

use crate::node::{Server, open_store, until_stopped};

/// The node's name, which also names its admin socket.
const NAME: &str = "serve";
/// Time in seconds that requests have to finish after a signal.
const DRAIN_S: u32 = 5;

/// Serve S3 from a directory on this machine, or pass requests to an HTTP server, without root or
/// configuration.
///
/// For a first try, and for the tests of applications. AWS_ACCESS_KEY_ID and
/// AWS_SECRET_ACCESS_KEY give the access key. Without them, the first start makes
/// one and stores it in DIR. With --upstream and no DIR nothing is stored, and nobody needs a key.
/// SIGINT or SIGTERM ends the command.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the objects and the access key; created if it does not exist.
    #[arg(required_unless_present = "upstream")]
    dir: Option<PathBuf>,
    /// Pass requests to the HTTP server at this address. Several servers are separated by commas.
    /// With DIR too, requests that an S3 client has signed go to the objects, and the server may
    /// have others answered with one: `X-Accel-Redirect: @store/BUCKET/KEY`.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address, value_delimiter = ',')]
    upstream: Vec<SocketAddr>,
    /// Address and port to listen on; port 0 takes a free port.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9000",
          value_parser = address)]
    listen: SocketAddr,
    /// Allow an address that other machines can reach. The traffic is not encrypted.
    #[arg(long)]
    allow_remote: bool,
    /// The region that clients sign for.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "us-east-1",
        requires = "dir"
    )]
    region: String,
    /// Answer writes before they are on the disk. This is faster, but a power loss
    /// loses them. For stores in memory, and for tests.
    #[arg(long, requires = "dir")]
    no_fsync: bool,
    /// Most bytes of objects; 0 for no limit.
    #[arg(long, value_name = "BYTES", default_value_t = 0, requires = "dir")]
    quota_bytes: u64,
    /// Free bytes of the disk that writes leave.
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 20, requires = "dir")]
    reserve_bytes: u64,
    /// Address and port for metrics and health over HTTP [default: 127.0.0.1:9464, if it is
    /// free].
    #[arg(long, value_name = "ADDRESS:PORT")]
    admin_listen: Option<SocketAddr>,
    /// A host name, besides localhost and addresses, at which it is asked for metrics and health.
    /// May be repeated.
    #[arg(long, value_name = "NAME")]
    admin_name: Vec<String>,
    /// File of the access log, a line of JSON for each request; "stdout" for standard output.
    #[arg(long, value_name = "FILE")]
    access_log: Option<PathBuf>,
    /// File of the audit log, a line of JSON for each administrative action [default: the log on
    /// standard error].
    #[arg(long, value_name = "FILE")]
    audit_log: Option<PathBuf>,
    /// Level of the log on standard error: error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    log: String,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let fix = "use an address and a port, as in 127.0.0.1:9000 or [::1]:9000";
    text.parse().map_err(|_| fix.to_owned())
}

/// Serves until SIGTERM or SIGINT.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    prism_process::keep_files_private();
    if !args.listen.ip().is_loopback() && !args.allow_remote {
        bail!(
            "other machines can reach {}, and the traffic is not encrypted; \
             add --allow-remote to allow that",
            args.listen
        );
    }
    if args.upstream.contains(&args.listen) {
        bail!(
            "{} is the address of Prism itself; choose another one with --listen",
            args.listen
        );
    }
    match &args.dir {
        Some(dir) => run_store(args, dir),
        None => proxy::run(args),
    }
}

fn run_store(args: &Args, dir: &Path) -> anyhow::Result<()> {
    dir::prepare(dir)?;
    let mut config = configuration(args, dir);
    config.store.quota_bytes = args.quota_bytes;
    config.store.reserve_bytes = args.reserve_bytes;
    if let Some(node) = config.nodes.first_mut() {
        node.store = dir::store(dir);
    }
    prism_process::log::init(&config.log, false)?;
    // The store is locked before the port is tried, so a second start on the same
    // directory fails with that reason. Only the process with the store makes an access key.
    let store = open_store(&config, NAME)?;
    let (user, file) = credentials::of(dir)?;
    if !args.upstream.is_empty() {
        proxy::configure(&mut config.service, &args.upstream, Some(&user.access_key));
    }
    let cluster = Cluster::of_users(&config, std::slice::from_ref(&user))?;
    start(args, config, cluster, store, |address, admin| {
        proxy::introduce_servers(&args.upstream, address)?;
        introduce(dir, &args.region, address, admin, &user, file.as_deref())
    })
}

/// Serves until SIGTERM or SIGINT. `introduce` prints the facts that a user needs at the start. It
/// gets the addresses of the service and of the page for a browser.
fn start(
    args: &Args,
    mut config: Config,
    cluster: Cluster,
    store: Option<Store>,
    introduce: impl FnOnce(SocketAddr, Option<SocketAddr>) -> io::Result<()>,
) -> anyhow::Result<()> {
    let address = free_address(args.listen)?;
    config.service.address = address.into();
    let listener = admin_listener(args.admin_listen)?;
    let admin = listener.as_ref().map(TcpListener::local_addr).transpose()?;
    config.service.cors_origins = admin.iter().flat_map(origins).collect();
    let server = Server::open(config, NAME, cluster, store, None)?;
    until_stopped(server, listener, || {
        // A closed standard output is no error.
        let _ = introduce(address, admin);
    })
}

/// The configuration of a cluster of one node, whose admin socket is in this directory.
fn configuration(args: &Args, socket_dir: &Path) -> Config {
    let mut config: Config = Config::default();
    config.cluster.name = NAME.into();
    config.cluster.region.clone_from(&args.region);
    config.service.address = args.listen.into();
    config.limits.drain_timeout_s = DRAIN_S;
    config.log.level.clone_from(&args.log);
    config.log.access = args.access_log.clone().unwrap_or_default();
    config.log.audit = args.audit_log.clone().unwrap_or_default();
    config.admin.names.clone_from(&args.admin_name);
    config.admin.socket_dir = socket_dir.to_owned();
    config.nodes.push(prism_config::Node {
        name: NAME.into(),
        address: loopback(args.listen).into(),
        roles: vec![Role::Frontend, Role::Backend],
        durability: if args.no_fsync {
            Durability::None
        } else {
            Durability::Fsync
        },
        ..prism_config::Node::default()
    });
    config
}

/// The address of a node that no other node dials.
fn loopback(listen: SocketAddr) -> IpAddr {
    match listen {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

/// Listens on the wanted address, or on the default one if that is free.
fn admin_listener(wanted: Option<SocketAddr>) -> anyhow::Result<Option<TcpListener>> {
    match (wanted, prism_config::Admin::default().listen) {
        (Some(wanted), _) => bind(wanted, "--admin-listen").map(Some),
        (None, Some(default)) => Ok(bind(default, "--admin-listen").ok()),
        (None, None) => Ok(None),
    }
}

/// The origins that a browser may send for the page at this address.
fn origins(admin: &SocketAddr) -> Vec<String> {
    let named = format!("http://localhost:{}", admin.port());
    vec![format!("http://{admin}"), named]
}

/// The address with a free port. The node's threads share theirs (`SO_REUSEPORT`), and
/// the kernel would let them share it with another process of this user too. One bind
/// without sharing rules that out.
fn free_address(wanted: SocketAddr) -> anyhow::Result<SocketAddr> {
    let tried = TcpListener::bind(wanted).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => anyhow::anyhow!(
            "another process listens on {wanted}; choose another port with --listen"
        ),
        _ => anyhow::Error::new(error).context(format!("cannot listen on {wanted}")),
    })?;
    let port = tried.local_addr().context("cannot read the port")?.port();
    Ok(SocketAddr::new(wanted.ip(), port))
}

/// Prints the addresses, the access key, and commands to paste. `file` has the secret key; `None`
/// if the environment has it.
fn introduce(
    dir: &Path,
    region: &str,
    address: SocketAddr,
    admin: Option<SocketAddr>,
    user: &Credential,
    file: Option<&Path>,
) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "Serving {} at http://{address}", dir.display())?;
    if let Some(admin) = admin {
        writeln!(out, "A page for a browser is at http://{admin}")?;
    }
    write!(
        out,
        "\n  \
         export AWS_ENDPOINT_URL=http://{address}\n  \
         export AWS_DEFAULT_REGION={region}\n"
    )?;
    let access_key = &user.access_key;
    match file {
        None => {
            writeln!(
                out,
                "  (with the access key {access_key:?} of the environment)"
            )?;
        }
        Some(path) => {
            writeln!(out, "  export AWS_ACCESS_KEY_ID={access_key}")?;
            // The output of a service becomes a log, so the secret stays in its file.
            let file = path.display();
            let read = credentials::COMMAND_TO_READ_SECRET;
            writeln!(out, "  export AWS_SECRET_ACCESS_KEY=$({read} '{file}')")?;
            writeln!(out, "  (kept in {file})")?;
        }
    }
    let user = "\"$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY\"";
    let curl = format!("curl --aws-sigv4 aws:amz:{region}:s3 -u {user}");
    write!(
        out,
        "\n  {curl} -X PUT $AWS_ENDPOINT_URL/first\n  \
         {curl} -T /etc/os-release \\\n      \
         -H 'x-amz-content-sha256: UNSIGNED-PAYLOAD' $AWS_ENDPOINT_URL/first/file\n  \
         {curl} $AWS_ENDPOINT_URL/first/file\n  \
         aws --endpoint-url $AWS_ENDPOINT_URL s3 ls s3://first\n\n\
         Ctrl-C ends it.\n"
    )?;
    out.flush()
}
