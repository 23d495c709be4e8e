//! `prism serve --upstream`: the node passes requests to HTTP servers, and stores nothing.

use std::fs::DirBuilder;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use prism_config::Upstream;
use prism_membership::Cluster;

use super::{Args, NAME, configuration, start};

/// The longest wait for a server that is tried at the start.
const TRIED_FOR: Duration = Duration::from_millis(300);

/// Serves until SIGTERM or SIGINT.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    if args.upstream.contains(&args.listen) {
        bail!(
            "{} is the address of Prism itself; choose another one with --listen",
            args.listen
        );
    }
    let directory = SocketDirectory::new()?;
    let mut config = configuration(args, &directory.0);
    config.service.upstream = Some(
        vec![Upstream {
            address: args.upstream.iter().copied().collect(),
            ..Upstream::default()
        }]
        .into(),
    );
    prism_process::log::init(&config.log, false)?;
    let cluster = Cluster::of_users(&config, &[])?;
    start(args, config, cluster, None, |address, admin| {
        introduce(args, address, admin, &directory.0)
    })
}

/// Prints the addresses, the state of the servers, and commands to paste.
fn introduce(
    args: &Args,
    address: SocketAddr,
    admin: Option<SocketAddr>,
    directory: &Path,
) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for server in &args.upstream {
        let state = match TcpStream::connect_timeout(server, TRIED_FOR) {
            Ok(_) => "",
            Err(_) => " (nothing listens there yet)",
        };
        writeln!(out, "Requests to http://{address} go to {server}{state}")?;
    }
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
