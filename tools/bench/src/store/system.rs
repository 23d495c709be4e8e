//! The servers: each on a free port of loopback, with a store in memory.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use prism_signer::Signer;

use super::load::Case;
use crate::processes::{Running, cpu_of_family};

/// Stores are in memory, so that the disk is no limit.
const MEMORY: &str = "/dev/shm";
/// The only user. All servers accept this form of name.
const ACCESS_KEY: &str = "GK000000000000000000000001";
const SECRET_KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
pub(super) const REGION: &str = "us-east-1";
/// Longest time until a server listens.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A server's program.
#[derive(Debug, Clone)]
pub(super) enum Kind {
    Prism(PathBuf),
    Versitygw(PathBuf),
    Minio(PathBuf),
    Garage(PathBuf),
    Nginx(PathBuf),
}

/// A running server. It is killed and its store removed when dropped.
pub(super) struct System {
    kind: Kind,
    process: Running,
    directory: PathBuf,
    pub(super) address: SocketAddrV4,
}

impl System {
    /// Starts it, and waits until it listens.
    pub(super) fn start(kind: Kind) -> Result<Self> {
        let name = format!("prism-bench-{}-{}", std::process::id(), kind.name());
        let directory = Path::new(MEMORY).join(name);
        fs::create_dir(&directory).with_context(|| format!("making {}", directory.display()))?;
        let address = free_address()?;
        let mut command = kind.command(&directory, address)?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let started = command.spawn();
        let process = started.with_context(|| format!("starting {}", kind.name()))?;
        let mut system = Self {
            kind,
            process: Running(process),
            directory,
            address,
        };
        system.wait()?;
        Ok(system)
    }

    pub(super) fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// The directory of objects, if the server stores them as plain files.
    pub(super) fn files(&self) -> Option<PathBuf> {
        matches!(self.kind, Kind::Nginx(_)).then(|| self.directory.join("store"))
    }

    /// A directory for files of the load.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn signer(&self) -> Signer {
        Signer::new(ACCESS_KEY, SECRET_KEY, REGION)
    }

    /// User and system time of all its processes so far.
    pub(super) fn cpu(&self) -> Result<Duration> {
        cpu_of_family(self.process.id())
    }

    fn wait(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while TcpStream::connect(self.address).is_err() {
            if let Some(status) = self.process.0.try_wait()? {
                bail!("{} has ended: {status}", self.name());
            }
            if Instant::now() > deadline {
                bail!("{} does not listen", self.name());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

impl Drop for System {
    fn drop(&mut self) {
        self.process.end();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Kind {
    /// Whether it supports this case.
    pub(super) fn does(&self, case: &Case) -> bool {
        match self {
            Self::Nginx(_) => !case.writes,
            // Garage refuses unsigned requests.
            Self::Garage(_) => !case.anonymous,
            _ => true,
        }
    }

    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Prism(_) => "prism",
            Self::Versitygw(_) => "versitygw",
            Self::Minio(_) => "minio",
            Self::Garage(_) => "garage",
            Self::Nginx(_) => "nginx",
        }
    }

    fn command(&self, directory: &Path, address: SocketAddrV4) -> Result<Command> {
        let (listen, store) = (address.to_string(), directory.join("store"));
        fs::create_dir(&store)?;
        Ok(match self {
            Self::Prism(program) => {
                let mut command = Command::new(program);
                command.arg("serve").arg(&store);
                command.args(["--listen", &listen, "--region", REGION]);
                command.env("AWS_ACCESS_KEY_ID", ACCESS_KEY);
                command.env("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
                command
            }
            Self::Versitygw(program) => {
                let mut command = Command::new(program);
                command.args(["--port", &listen, "--region", REGION]);
                command.args(["--access", ACCESS_KEY, "--secret", SECRET_KEY]);
                // All other servers keep connections by default.
                command.args(["--quiet", "--keep-alive", "posix"]);
                command.arg(&store);
                command
            }
            Self::Minio(program) => {
                let mut command = Command::new(program);
                command.args(["server", "--quiet", "--address", &listen]);
                command.arg(&store);
                command.env("MINIO_ROOT_USER", ACCESS_KEY);
                command.env("MINIO_ROOT_PASSWORD", SECRET_KEY);
                command.env("MINIO_BROWSER", "off");
                command
            }
            Self::Garage(program) => {
                let file = directory.join("garage.toml");
                fs::write(&file, garage_config(&store, &listen)?)?;
                let mut command = Command::new(program);
                command.arg("-c").arg(file);
                command.args(["server", "--single-node", "--default-access-key"]);
                command.env("GARAGE_DEFAULT_ACCESS_KEY", ACCESS_KEY);
                command.env("GARAGE_DEFAULT_SECRET_KEY", SECRET_KEY);
                command.env("RUST_LOG", "error");
                command
            }
            Self::Nginx(program) => {
                let file = directory.join("nginx.conf");
                fs::write(&file, nginx_config(directory, &listen))?;
                let mut command = Command::new(program);
                command.arg("-p").arg(directory).arg("-c").arg(file);
                command
            }
        })
    }
}

/// Garage's defaults, without compression, which random bytes do not profit from.
fn garage_config(store: &Path, listen: &str) -> Result<String> {
    let (store, rpc) = (store.display(), free_address()?);
    let secret = SECRET_KEY;
    Ok(format!(
        "metadata_dir = \"{store}/meta\"\ndata_dir = \"{store}/data\"\n\
         db_engine = \"lmdb\"\nreplication_factor = 1\ncompression_level = \"none\"\n\
         rpc_bind_addr = \"{rpc}\"\nrpc_public_addr = \"{rpc}\"\nrpc_secret = \"{secret}\"\n\
         [s3_api]\ns3_region = \"{REGION}\"\napi_bind_addr = \"{listen}\"\n"
    ))
}

/// nginx at its best with files in memory.
fn nginx_config(directory: &Path, listen: &str) -> String {
    let directory = directory.display();
    format!(
        "daemon off; pid {directory}/pid; worker_processes auto; user root;\n\
         error_log {directory}/error.log crit;\n\
         events {{ worker_connections 2048; }}\n\
         http {{ access_log off; sendfile on; tcp_nopush on; tcp_nodelay on;\n\
         keepalive_requests 1000000000; open_file_cache max=1000 inactive=1h;\n\
         open_file_cache_valid 1h; etag on; default_type application/octet-stream;\n\
         client_body_temp_path {directory}/t; proxy_temp_path {directory}/t;\n\
         fastcgi_temp_path {directory}/t; uwsgi_temp_path {directory}/t;\n\
         scgi_temp_path {directory}/t;\n\
         server {{ listen {listen}; root {directory}/store; }} }}\n"
    )
}

fn free_address() -> Result<SocketAddrV4> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("finding a free port")?;
    Ok(SocketAddrV4::new(
        Ipv4Addr::LOCALHOST,
        listener.local_addr()?.port(),
    ))
}
