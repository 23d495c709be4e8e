//! The servers behind the systems. Each backend has one, and all have the same objects in memory.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use prism_lab::Lab;
use prism_signer::Signer;

use crate::client::connect_to_started;
use crate::files::Files;
use crate::http;
use crate::objects::{BUCKET, Objects, POLICY};
use crate::processes::Running;
use crate::{proxies, registry};

const APP: &str = include_str!("servers/app.go");
const ACCESS_KEY: &str = "GK000000000000000000000001";
const SECRET_KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const REGION: &str = "us-east-1";
/// An unmodified HTTP server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ServerKind {
    /// nginx, which sends files.
    Nginx,
    /// An application in Go.
    Go,
    /// versitygw, an S3 server.
    Versitygw,
    /// A registry of container images, for `bench redirect`.
    #[value(skip)]
    Registry,
}

/// The same server at every backend.
#[derive(Debug, Clone)]
pub(crate) struct Servers<'s> {
    pub(crate) server: ServerKind,
    /// The program versitygw.
    pub(crate) versitygw: Option<&'s Path>,
    /// Whether Prism is in front of them, and follows their redirects.
    pub(crate) are_followed: bool,
    /// The certificate with its key, if clients may ask over HTTPS directly.
    pub(crate) pem: Option<PathBuf>,
}

impl ServerKind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Go => "go",
            Self::Versitygw => "versitygw",
            Self::Registry => "registry",
        }
    }
}

impl Servers<'_> {
    /// Without HTTPS.
    pub(crate) const fn of(server: ServerKind) -> Self {
        Self {
            server,
            versitygw: None,
            are_followed: false,
            pem: None,
        }
    }

    /// Makes what all backends share.
    pub(crate) fn prepare(&self, files: &Files) -> Result<()> {
        fs::create_dir(files.objects())?;
        match self.server {
            ServerKind::Nginx => fs::create_dir(files.objects().join(BUCKET))?,
            ServerKind::Versitygw | ServerKind::Registry => {}
            ServerKind::Go => {
                fs::create_dir(files.objects().join(BUCKET))?;
                let source = files.write("app.go", APP.as_bytes())?;
                let mut go = Command::new("go");
                go.args(["build", "-o"]).arg(files.path("app"));
                let built = go.arg(source).env("GOFLAGS", "-buildvcs=false").status();
                let built = built.context("starting go, which builds the application")?;
                ensure!(built.success(), "go: {built}");
            }
        }
        Ok(())
    }

    /// Starts its processes at a backend.
    pub(crate) fn start(&self, files: &Files, lab: &Lab, host: &str) -> Result<Vec<Running>> {
        let [plain, secure] = [false, true].map(|tls| format!(":{}", proxies::port(tls)));
        let commands = match self.server {
            ServerKind::Nginx => {
                let prefix = files.path(&format!("{}-{host}", lab.name()));
                fs::create_dir(&prefix)?;
                let all = match lab.address(host) {
                    Some(IpAddr::V6(_)) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
                    _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                };
                let text = proxies::nginx_backend(all, &files.objects(), self.pem.as_deref());
                let config = prefix.join("nginx.conf");
                fs::write(&config, text)?;
                let mut nginx = lab.command(host, "nginx")?;
                nginx.arg("-p").arg(prefix).arg("-c").arg(config);
                vec![nginx]
            }
            ServerKind::Go => {
                let mut app = lab.command(host, files.path("app"))?;
                app.arg(files.objects()).arg(plain);
                if let Some(pem) = &self.pem {
                    app.arg(secure).arg(pem);
                }
                vec![app]
            }
            ServerKind::Registry => {
                vec![registry::command(files, lab, host, self.are_followed)?]
            }
            ServerKind::Versitygw => {
                let mut gateways = vec![self.versitygw(lab, host, &plain)?];
                if let Some(pem) = &self.pem {
                    let mut gateway = self.versitygw(lab, host, &secure)?;
                    gateway.arg("--cert").arg(pem).arg("--key").arg(pem);
                    gateways.push(gateway);
                }
                for gateway in &mut gateways {
                    gateway.arg("posix").arg(files.objects());
                }
                gateways
            }
        };
        let started = commands.into_iter().map(|mut command| {
            command.stdin(Stdio::null()).stdout(Stdio::null());
            let child = command.stderr(Stdio::null()).spawn();
            let child = child.with_context(|| format!("starting {}", self.server.name()))?;
            Ok(Running(child))
        });
        started.collect()
    }

    fn versitygw(&self, lab: &Lab, host: &str, port: &str) -> Result<Command> {
        let program = self
            .versitygw
            .context("--versitygw PATH names the program (scripts/rivals/build.sh builds it)")?;
        let mut gateway = lab.command(host, program)?;
        gateway.args([
            "--port",
            port,
            "--region",
            REGION,
            "--quiet",
            "--keep-alive",
        ]);
        gateway.args(["--access", ACCESS_KEY, "--secret", SECRET_KEY]);
        Ok(gateway)
    }

    /// Makes the bucket, once a server runs at `address`. The calling thread is in the network
    /// of the clients.
    pub(crate) fn make_bucket(&self, address: SocketAddr) -> Result<()> {
        if self.server == ServerKind::Versitygw {
            drop(connect_to_started(address, None)?);
            put(address, &format!("/{BUCKET}"), b"")?;
            put(address, &format!("/{BUCKET}?policy"), POLICY.as_bytes())?;
        }
        Ok(())
    }

    /// Stores `objects`, as [`Self::make_bucket`] does.
    pub(crate) fn store(
        &self,
        files: &Files,
        address: SocketAddr,
        objects: &Objects,
    ) -> Result<()> {
        if self.server == ServerKind::Registry {
            return registry::store(files, objects);
        }
        for object in objects.all() {
            match self.server {
                ServerKind::Versitygw => put(address, &object.target(), object.body)?,
                _ => fs::write(files.of(object.key), object.body)?,
            }
        }
        Ok(())
    }

    /// Removes `objects`, which are files in all servers.
    pub(crate) fn remove(&self, files: &Files, objects: &Objects) -> Result<()> {
        if self.server == ServerKind::Registry {
            return Ok(fs::remove_dir_all(files.objects().join("docker"))?);
        }
        let mut objects = objects.all();
        objects.try_for_each(|object| Ok(fs::remove_file(files.of(object.key))?))
    }
}

/// Sends a signed PUT.
fn put(address: SocketAddr, target: &str, body: &[u8]) -> Result<()> {
    let signer = Signer::new(ACCESS_KEY, SECRET_KEY, REGION);
    let head = http::signed(&signer, address, "PUT", target, body)?;
    http::call(address, &head, body).with_context(|| format!("PUT {target}"))?;
    Ok(())
}
