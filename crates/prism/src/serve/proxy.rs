//! `prism serve --upstream`: the node passes requests to HTTP servers.

use std::fs::DirBuilder;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use prism_config::{ObjectRoutes, Redirects, STORE, Service, Upstream};
use prism_membership::Cluster;

use super::{Args, NAME, configuration, start};

/// The longest wait for a server that is tried at the start.
const TRIED_FOR: Duration = Duration::from_millis(300);

/// A field of every request that S3 clients sign in its header.
const SIGNED: &str = "x-amz-date";

/// Puts the servers at these addresses behind a service. With `access_key` it has objects too,
/// which the servers may name as the holder of that key.
pub(super) fn configure(service: &mut Service, servers: &[SocketAddr], access_key: Option<&str>) {
    let redirects = access_key.map(|access_key| Redirects {
        access_key: Some(access_key.to_owned()),
        locations: service.address.iter().map(of_itself).collect(),
        ..Redirects::default()
    });
    service.objects = redirects.as_ref().map(|_| ObjectRoutes {
        headers: vec![SIGNED.into()],
        ..ObjectRoutes::default()
    });
    let upstream = Upstream {
        name: redirects.as_ref().map(|_| "server".into()),
        address: servers.iter().copied().collect(),
        redirects,
        ..Upstream::default()
    };
    service.upstream = Some(vec![upstream].into());
}

/// The beginning of the URLs of the objects at this address.
fn of_itself(address: SocketAddr) -> (String, String) {
    (format!("http://{address}/"), STORE.into())
}

/// Serves until SIGTERM or SIGINT, and stores nothing.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let directory = SocketDirectory::new()?;
    let mut config = configuration(args, &directory.0);
    configure(&mut config.service, &args.upstream, None);
    prism_process::log::init(&config.log, false)?;
    let cluster = Cluster::of_users(&config, &[])?;
    start(args, config, cluster, None, |address, admin| {
        introduce(args, address, admin, &directory.0)
    })
}

/// Prints the state of the servers.
pub(super) fn introduce_servers(servers: &[SocketAddr], address: SocketAddr) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for server in servers {
        let state = match TcpStream::connect_timeout(server, TRIED_FOR) {
            Ok(_) => "",
            Err(_) => " (nothing listens there yet)",
        };
        writeln!(out, "Requests to http://{address} go to {server}{state}")?;
    }
    Ok(())
}

/// Prints the addresses, the state of the servers, and commands to paste.
fn introduce(
    args: &Args,
    address: SocketAddr,
    admin: Option<SocketAddr>,
    directory: &Path,
) -> io::Result<()> {
    introduce_servers(&args.upstream, address)?;
    let mut out = io::stdout().lock();
    if let Some(admin) = admin {
        writeln!(out, "A page for a browser is at http://{admin}")?;
    }
    let socket = directory.join(format!("{NAME}.sock"));
    write!(
        out,
        "\n  \
         curl -i http://{address}/\n  \
         prism ctl status --socket {}\n\n\
         Ctrl-C ends it.\n",
        socket.display()
    )?;
    out.flush()
}

/// The directory of the admin socket, which is removed at the end.
struct SocketDirectory(PathBuf);

impl SocketDirectory {
    fn new() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("prism-serve-{}", std::process::id()));
        // One that a killed process has left, and that is of this user.
        let _ = std::fs::remove_dir_all(&path);
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("cannot make the directory {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for SocketDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
