//! The servers behind the systems: each has the same objects in memory, at every backend.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use prism_lab::Lab;
use prism_signer::Signer;

use crate::client::connect_to_started;
use crate::files::Files;
use crate::http;
use crate::objects::{BUCKET, Objects};
use crate::processes::Running;
use crate::proxies;

const APP: &str = include_str!("app.go");
const ACCESS_KEY: &str = "GK000000000000000000000001";
const SECRET_KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const REGION: &str = "us-east-1";
const POLICY: &str = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*",
"Action":["s3:GetObject"],"Resource":["arn:aws:s3:::bench/*"]}]}"#;

/// An unmodified HTTP server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Server {
    /// nginx, which sends files.
    Nginx,
    /// An application in Go.
    Go,
    /// versitygw, an S3 server.
    Versitygw,
}

/// The parts that its processes are started from.
pub(super) struct Setup<'s> {
    pub(super) server: Server,
    pub(super) files: &'s Files,
    pub(super) versitygw: Option<&'s Path>,
    /// The certificate with its key, if clients may ask over HTTPS directly.
    pub(super) pem: Option<&'s Path>,
}

impl Server {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Go => "go",
            Self::Versitygw => "versitygw",
        }
    }
}

impl Setup<'_> {
    /// The directory with all objects, by bucket and key.
    fn root(&self) -> PathBuf {
        self.files.path("objects")
    }

    /// Makes what all backends share.
    pub(super) fn prepare(&self) -> Result<()> {
        fs::create_dir(self.root())?;
        match self.server {
            Server::Nginx => fs::create_dir(self.root().join(BUCKET))?,
            Server::Versitygw => {}
            Server::Go => {
                fs::create_dir(self.root().join(BUCKET))?;
                let source = self.files.write("app.go", APP.as_bytes())?;
                let mut go = Command::new("go");
                go.args(["build", "-o"]).arg(self.files.path("app"));
                let built = go.arg(source).env("GOFLAGS", "-buildvcs=false").status();
                let built = built.context("starting go, which builds the application")?;
                ensure!(built.success(), "go: {built}");
            }
        }
        Ok(())
    }

    /// Starts its processes at a backend.
    pub(super) fn start(&self, lab: &Lab, host: &str) -> Result<Vec<Running>> {
        let [plain, secure] = [false, true].map(|tls| format!(":{}", proxies::port(tls)));
        let commands = match self.server {
            Server::Nginx => {
                let prefix = self.files.path(&format!("{}-{host}", lab.name()));
                fs::create_dir(&prefix)?;
                let all = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
                let text = proxies::nginx_backend(all, &self.root(), self.pem);
                let config = prefix.join("nginx.conf");
                fs::write(&config, text)?;
                let mut nginx = lab.command(host, "nginx")?;
                nginx.arg("-p").arg(prefix).arg("-c").arg(config);
                vec![nginx]
            }
            Server::Go => {
                let mut app = lab.command(host, self.files.path("app"))?;
                app.arg(self.root()).arg(plain);
                if let Some(pem) = self.pem {
                    app.arg(secure).arg(pem);
                }
                vec![app]
            }
            Server::Versitygw => {
                let tls = self.pem.map(|pem| (secure, pem));
                let all = [
                    Some((plain, None)),
                    tls.map(|(port, pem)| (port, Some(pem))),
                ];
                let all = all.into_iter().flatten();
                all.map(|(port, pem)| self.versitygw(lab, host, &port, pem))
                    .collect::<Result<_>>()?
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

    fn versitygw(&self, lab: &Lab, host: &str, port: &str, pem: Option<&Path>) -> Result<Command> {
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
        if let Some(pem) = pem {
            gateway.arg("--cert").arg(pem).arg("--key").arg(pem);
        }
        gateway.arg("posix").arg(self.root());
        Ok(gateway)
    }

    /// Makes the bucket, once a server runs at `address`. The calling thread is in the network
    /// of the clients.
    pub(super) fn make_bucket(&self, address: SocketAddr) -> Result<()> {
        if self.server == Server::Versitygw {
            drop(connect_to_started(address, None)?);
            put(address, &format!("/{BUCKET}"), b"")?;
            put(address, &format!("/{BUCKET}?policy"), POLICY.as_bytes())?;
        }
        Ok(())
    }

    /// Stores `objects`, as [`Self::make_bucket`] does.
    pub(super) fn store(&self, address: SocketAddr, objects: &Objects) -> Result<()> {
        for object in objects.all() {
            match self.server {
                Server::Versitygw => put(address, &object.target(), object.body)?,
                _ => fs::write(self.root().join(BUCKET).join(object.key), object.body)?,
            }
        }
        Ok(())
    }
}

/// Sends a signed PUT.
fn put(address: SocketAddr, target: &str, body: &[u8]) -> Result<()> {
    let signer = Signer::new(ACCESS_KEY, SECRET_KEY, REGION);
    let head = http::signed(&signer, address, "PUT", target, body)?;
    http::call(address, &head, body).with_context(|| format!("PUT {target}"))?;
    Ok(())
}
