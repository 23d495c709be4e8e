//! The two labs, what serves in them, and their CPU time.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use prism_config::{Certificate, Config, TlsSuite, TlsVersion};
use prism_lab::{Lab, LabName, LabSpec, Programs};
use prism_s3::Signer;
use prism_sys::netns::NetNs;

use super::load::{self, BUCKET, Objects};
use super::rows::Ran;
use super::{Args, proxies};
use crate::bench::http;
use crate::bench::processes::cpu_of_family;

const REGION: &str = "us-east-1";
const POLICY: &str = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*",
"Action":["s3:GetObject"],"Resource":["arn:aws:s3:::sweep/*"]}]}"#;
/// Where files are: in memory, so that no disk decides.
const MEMORY: &str = "/dev/shm";

/// Who serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum System {
    Prism,
    Nginx,
    Haproxy,
    /// The backends themselves, which are nginx.
    Direct,
}

/// Both labs, ended when dropped.
pub(super) struct Labs {
    prism: Lab,
    others: Lab,
    files: Files,
    tls: bool,
    backends: usize,
}

/// A directory in memory, removed when dropped.
struct Files(PathBuf);

impl System {
    /// In the order of their turns.
    pub(super) const ALL: [Self; 4] = [Self::Prism, Self::Nginx, Self::Haproxy, Self::Direct];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Prism => "prism",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Direct => "direct",
        }
    }

    /// The host of its proxy, if it has one.
    const fn frontend(self) -> Option<&'static str> {
        match self {
            Self::Prism | Self::Nginx => Some("fe0"),
            Self::Haproxy => Some("fe1"),
            Self::Direct => None,
        }
    }
}

impl Files {
    fn new() -> Result<Self> {
        let path = Path::new(MEMORY).join(format!("prism-bench-{}", std::process::id()));
        // Private keys come into it.
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("making {}", path.display()))?;
        Ok(Self(path))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<PathBuf> {
        use std::io::Write;
        let path = self.0.join(name);
        let mut options = fs::OpenOptions::new();
        let file = options.create_new(true).write(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(bytes))
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// What a backend serves: files by bucket and key.
    fn root(&self, backend: usize) -> PathBuf {
        self.0.join(format!("be{backend}"))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Labs {
    pub(super) fn up(args: &Args) -> Result<Self> {
        let files = Files::new()?;
        let (prism, certificate) = prism_lab(args)?;
        let others = other_lab(args, &files, &certificate)?;
        let labs = Self {
            prism,
            others,
            files,
            tls: args.tls,
            backends: args.backends,
        };
        labs.call_prism("PUT", &format!("/{BUCKET}"), b"")?;
        labs.call_prism("PUT", &format!("/{BUCKET}?policy"), POLICY.as_bytes())?;
        Ok(labs)
    }

    fn lab(&self, system: System) -> &Lab {
        match system {
            System::Prism => &self.prism,
            _ => &self.others,
        }
    }

    /// Where requests for `backend`'s objects are sent.
    fn address(&self, system: System, backend: usize) -> Result<SocketAddrV4> {
        if system == System::Prism {
            let https = self.prism.https_service();
            return Ok(https.unwrap_or(self.prism.service()));
        }
        let owner = format!("be{backend}");
        let host = system.frontend().unwrap_or(&owner);
        let address = self
            .others
            .address(host)
            .context("a host without address")?;
        Ok(SocketAddrV4::new(address, proxies::port(self.tls)))
    }

    fn call_prism(&self, method: &str, target: &str, body: &[u8]) -> Result<()> {
        let credential = self.prism.credential();
        let (key, secret) = (&credential.access_key, &credential.secret_key);
        let signer = Signer::new(key.as_str(), secret.as_str(), REGION);
        let address = SocketAddr::from(self.prism.service());
        let head = http::signed(&signer, address, method, target, body)?;
        let namespace = self.prism.namespace("client")?;
        let name = namespace.file_name().and_then(|name| name.to_str());
        let netns = NetNs::named(name.context("a namespace without a name")?)?;
        netns
            .run(|| http::call(address, &head, body))?
            .with_context(|| format!("{method} {target}"))?;
        Ok(())
    }

    /// Stores `objects` for all systems.
    pub(super) fn store(&self, objects: &Objects) -> Result<()> {
        for (backend, keys) in objects.keys.iter().enumerate() {
            let directory = self.files.root(backend).join(BUCKET);
            fs::create_dir_all(&directory)?;
            for key in keys {
                let body = objects.body(key);
                self.call_prism("PUT", &format!("/{BUCKET}/{key}"), &body)?;
                fs::write(directory.join(key), body)?;
            }
        }
        Ok(())
    }

    /// Removes them again.
    pub(super) fn remove(&self, objects: &Objects) -> Result<()> {
        for (backend, keys) in objects.keys.iter().enumerate() {
            for key in keys {
                self.call_prism("DELETE", &format!("/{BUCKET}/{key}"), b"")?;
                fs::remove_file(self.files.root(backend).join(BUCKET).join(key))?;
            }
        }
        Ok(())
    }

    /// Whether `system` serves an object of each backend as it was stored.
    pub(super) fn check(&self, system: System, objects: &Objects) -> Result<()> {
        for (backend, keys) in objects.keys.iter().enumerate() {
            let key = keys.first().context("no object")?;
            let url = format!("{}/{BUCKET}/{key}", self.url(system, backend)?);
            let mut curl = self.lab(system).command("client", "curl")?;
            curl.args(["--silent", "--show-error", "--fail", "--insecure"]);
            // It may just have been started.
            curl.args(["--retry", "10", "--retry-delay", "1", "--retry-connrefused"]);
            let output = curl.args(["--noproxy", "*", &url]).output()?;
            if !output.status.success() {
                bail!("curl: {}", String::from_utf8_lossy(&output.stderr));
            }
            ensure!(output.stdout == objects.body(key), "{url} has other bytes");
        }
        Ok(())
    }

    fn url(&self, system: System, backend: usize) -> Result<String> {
        let scheme = if self.tls { "https" } else { "http" };
        Ok(format!("{scheme}://{}", self.address(system, backend)?))
    }

    /// Lets the client ask `system` for `seconds`.
    pub(super) fn load(
        &self,
        system: System,
        objects: &Objects,
        connections: usize,
        seconds: u64,
    ) -> Result<Ran> {
        let owners = (0..self.backends).map(|n| Ok(*self.address(system, n)?.ip()));
        let owners = owners.collect::<Result<Vec<Ipv4Addr>>>()?;
        let each = (system == System::Direct).then_some((&*owners, proxies::port(self.tls)));
        let script = self.files.0.join("load.lua");
        fs::write(&script, load::script(objects, each))?;
        let mut wrk = self.lab(system).command("client", "wrk")?;
        wrk.arg(format!("-t{}", self.backends));
        wrk.args([format!("-c{connections}"), format!("-d{seconds}s")]);
        wrk.args(["--timeout", "30s", "-s"]).arg(&script);
        wrk.arg(self.url(system, 0)? + "/");
        let before = self.cpu(system)?;
        let said = load::run(wrk)?;
        let after = self.cpu(system)?;
        let spent = |n: usize| {
            let [before, after] = [before, after].map(|cpu| cpu.get(n).copied());
            after
                .unwrap_or_default()
                .saturating_sub(before.unwrap_or_default())
        };
        Ok(Ran {
            requests: said.requests,
            read_bytes: said.read_bytes,
            seconds: said.seconds,
            p50_us: said.p50_us,
            p90_us: said.p90_us,
            p99_us: said.p99_us,
            frontend_cpu_s: spent(0).as_secs_f64(),
            backends_cpu_s: spent(1).as_secs_f64(),
        })
    }

    /// CPU time so far of its frontend, and of all backends.
    fn cpu(&self, system: System) -> Result<[Duration; 2]> {
        let of = |host: &str| {
            let pid = self.lab(system).pid(host);
            cpu_of_family(pid.with_context(|| format!("{host} does not run"))?)
        };
        let frontend = system.frontend().map_or(Ok(Duration::ZERO), of)?;
        let backends = (0..self.backends).map(|n| of(&format!("be{n}")));
        Ok([frontend, backends.sum::<Result<_>>()?])
    }
}

fn name(what: &str) -> Result<LabName> {
    Ok(format!("sweep-{what}-{}", std::process::id()).parse()?)
}

fn shaped(args: &Args, mut spec: LabSpec) -> Result<LabSpec> {
    spec.backends = args.backends;
    spec.link = args.link();
    if let Some(link) = spec.link {
        let backends = u64::try_from(args.backends)?;
        let all = link.bits_per_s().saturating_mul(backends);
        spec.uplink = Some(prism_lab::Rate::new(all)?);
    }
    Ok(spec)
}

/// The lab of Prism, and the certificate that it has if it needs one.
fn prism_lab(args: &Args) -> Result<(Lab, Certificate)> {
    let prism = std::env::current_exe().context("finding this program")?;
    let mut spec = shaped(args, LabSpec::new(name("prism")?, prism))?.configure(|config| {
        config.log.level = "warn".into();
        config.cluster.region = REGION.into();
        if let Some(tls) = &mut config.service.tls {
            tls.min_version = TlsVersion::Tls13;
            tls.suites = vec![TlsSuite::Aes128];
        }
    });
    spec.tls = args.tls;
    let lab = Lab::up(spec)?;
    let config = Config::load(&lab.config_path())?;
    let certificate = config
        .service
        .tls
        .and_then(|tls| tls.certificates.into_iter().next());
    Ok((lab, certificate.unwrap_or_default()))
}

/// The lab of the others: nginx on each backend and on `fe0`, HAProxy on `fe1`.
fn other_lab(args: &Args, files: &Files, certificate: &Certificate) -> Result<Lab> {
    let empty = Programs::Custom(BTreeMap::new());
    let mut spec = shaped(args, LabSpec::with_programs(name("others")?, empty))?;
    spec.frontends = 2;
    let address = |host: &str| {
        let address = spec.address(host);
        address.with_context(|| format!("{host} has no address"))
    };
    let names: Vec<String> = (0..args.backends).map(|n| format!("be{n}")).collect();
    let addresses = names.iter().map(|name| address(name));
    let backends = addresses.collect::<Result<Vec<_>>>()?;
    let tls = match args.tls {
        true => {
            let pair = [&certificate.file, &certificate.key_file].map(fs::read);
            let [chain, key] = pair;
            Some(files.write("server.pem", &[chain?, key?].concat())?)
        }
        false => None,
    };
    let mut programs = BTreeMap::new();
    let mut nginx = |host: &str, text: String| -> Result<()> {
        let config = files.write(&format!("{host}.conf"), text.as_bytes())?;
        let prefix = files.0.join(format!("{host}-nginx"));
        fs::create_dir(&prefix)?;
        programs.insert(host.to_owned(), line(&["nginx", "-p"], &[&prefix, &config]));
        Ok(())
    };
    for (n, name) in names.iter().enumerate() {
        let root = files.root(n);
        fs::create_dir_all(root.join(BUCKET))?;
        let backend = proxies::nginx_backend(address(name)?, &root, tls.as_deref());
        nginx(name, backend)?;
    }
    nginx(
        "fe0",
        proxies::nginx_proxy(address("fe0")?, &backends, tls.as_deref()),
    )?;
    let text = proxies::haproxy(address("fe1")?, &backends, tls.as_deref());
    let config = files.write("fe1.conf", text.as_bytes())?;
    programs.insert("fe1".into(), line(&["haproxy", "-db", "-f"], &[&config]));
    spec.programs = Programs::Custom(programs);
    Lab::up(spec).context("starting nginx and haproxy (scripts/setup.sh bench installs them)")
}

/// A command line; a prefix and a configuration are nginx's.
fn line(words: &[&str], paths: &[&PathBuf]) -> Vec<String> {
    let mut line: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    for (n, path) in paths.iter().enumerate() {
        if n > 0 {
            line.push("-c".into());
        }
        line.push(path.display().to_string());
    }
    line
}
