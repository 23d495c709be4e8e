//! A cluster whose service is nginx for files and an application for all other requests, at every
//! backend.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use prism_config::{ConfigFile, RelayUpTo};
use prism_lab::{Families, Lab, LabName, LabSpec};

use super::{LONG, PATIENCE, build};
use crate::support::{Cluster, eventually, output};

pub const APP: &str = "127.0.0.1:9000";
const FILES: &str = "127.0.0.1:9001";
/// nginx that expects the PROXY protocol.
const WHO: &str = "127.0.0.1:9002";

/// The bytes of every body of the application.
pub fn pattern(len: usize) -> Vec<u8> {
    let byte = |n: usize| (n % (1 << 20) * 7 % 251) as u8;
    (0..len).map(byte).collect()
}

pub struct Behind {
    pub cluster: Cluster,
    pub apps: Apps,
    /// Identifiers of requests so far.
    pub ids: AtomicU64,
    files: Vec<Running>,
    directory: tempfile::TempDir,
}

/// A program that is killed with its test.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The application at each backend.
pub struct Apps {
    name: String,
    program: PathBuf,
    /// It has a file of each, with the requests that were carried out.
    directory: PathBuf,
    running: Mutex<BTreeMap<String, Running>>,
}

impl Apps {
    fn command(&self, host: &str, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("ip");
        let namespace = format!("prism-{}-{host}", self.name);
        command.args(["netns", "exec", &namespace]);
        command.arg(program.as_ref());
        command
    }

    /// Starts it at a backend, and waits until it listens.
    pub fn start(&self, host: &str) {
        self.start_another(host, host, APP);
    }

    /// Starts it at another address of a backend. Its journal and its answers have this name.
    pub fn start_another(&self, host: &str, name: &str, address: &str) {
        let mut command = self.command(host, &self.program);
        let child = command
            .args([name, address])
            .arg(self.journal(name))
            .spawn();
        let child = child.unwrap();
        let running = Running(child);
        self.running.lock().unwrap().insert(name.into(), running);
        eventually("the application listens", PATIENCE, || {
            self.ask_at(host, address, "/health").is_some()
        });
    }

    /// Kills it at a backend.
    pub fn kill(&self, host: &str) {
        self.running.lock().unwrap().remove(host);
    }

    /// The body of its answer, past Prism.
    pub fn ask(&self, host: &str, path: &str) -> Option<String> {
        self.ask_at(host, APP, path)
    }

    fn ask_at(&self, host: &str, address: &str, path: &str) -> Option<String> {
        let url = format!("http://{address}{path}");
        let mut curl = self.command(host, "curl");
        let asked = curl.args(["--silent", "--max-time", "5", &url]).output();
        let asked = asked.unwrap();
        let text = String::from_utf8_lossy(&asked.stdout).into_owned();
        asked.status.success().then_some(text)
    }

    fn journal(&self, host: &str) -> PathBuf {
        self.directory.join(format!("{host}.journal"))
    }

    /// How often it has carried out each request with an identifier, in all its lives.
    pub fn counts(&self, host: &str) -> BTreeMap<String, u64> {
        let text = std::fs::read_to_string(self.journal(host)).unwrap();
        let mut counts = BTreeMap::new();
        for id in text.lines() {
            *counts.entry(id.to_owned()).or_default() += 1;
        }
        counts
    }

    /// The number of requests that it has carried out.
    pub fn count(&self, host: &str) -> usize {
        self.counts(host).len()
    }
}

impl Behind {
    /// One frontend and three backends, unless `change` says otherwise; `more` follows the
    /// configuration of the application.
    pub fn up(change: impl FnOnce(&mut LabSpec), more: &str) -> Self {
        let behind = Self::up_without_warmth(change, more);
        behind.warm_up();
        behind
    }

    /// The same, of which no node has seen an answer yet.
    pub fn up_without_warmth(change: impl FnOnce(&mut LabSpec), more: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("upstream-app");
        build("app.go", &program);
        let name: LabName = format!("u{}", std::process::id()).parse().unwrap();
        let mut spec = LabSpec::new(name.clone(), env!("CARGO_BIN_EXE_prism").into());
        spec.family = Families::Dual;
        spec.relay_up_to = RelayUpTo::Bytes(0);
        let upstreams = format!(
            "[[upstream]]\naddress = \"{FILES}\"\npaths = [\"/files/\"]\n\
             [[upstream]]\naddress = \"{WHO}\"\npaths = [\"/who\"]\nproxy_protocol = true\n\
             [[upstream]]\naddress = \"{APP}\"\n{}",
            more.replace("[service.", "[")
        );
        spec.configure = Some(Box::new(move |config| configure(config, &upstreams)));
        change(&mut spec);
        let lab = Lab::up(spec).unwrap();
        let cluster = Cluster::around(lab);
        let apps = Apps {
            name: cluster.lab.name().to_string(),
            program,
            directory: directory.path().to_owned(),
            running: Mutex::default(),
        };
        let files = directory.path().join("www/files");
        std::fs::create_dir_all(&files).unwrap();
        std::fs::write(files.join("text"), "a file of nginx\n").unwrap();
        let mut long = pattern(LONG);
        long.rotate_left(1);
        std::fs::write(files.join("long"), long).unwrap();
        let hosts = cluster.backends();
        let running = hosts.iter().map(|host| {
            apps.start(host);
            nginx(&apps, host, directory.path())
        });
        let running = running.collect();
        let behind = Self {
            cluster,
            apps,
            ids: AtomicU64::new(0),
            files: running,
            directory,
        };
        behind.cluster.await_servers();
        behind
    }

    /// Nodes relay until they have heard from the switch and from each other.
    fn warm_up(&self) {
        self.cluster.await_servers();
        // The forecast of lengths is by host.
        for path in ["/bytes?n=100000", "/files/long"] {
            eventually("every backend answers directly", PATIENCE, || {
                let mut client = self.cluster.connect();
                let request = format!("GET {path} HTTP/1.1\r\nHost: warm\r\n\r\n");
                let is_well = client.call(request.as_bytes()).status() == 200;
                drop(client);
                let backends = self.cluster.backends();
                let all = backends.iter().all(|host| self.served_by(host) > 0);
                is_well && all && self.cluster.sum("handoff", "exports_moved") > 0
            });
        }
    }

    /// A header field with an identifier that no other request has.
    pub fn next_id(&self) -> String {
        format!("X-Id: {}", self.ids.fetch_add(1, Ordering::Relaxed))
    }

    /// How often each request with an identifier was carried out, by all applications.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for host in self.cluster.backends() {
            for (id, count) in self.apps.counts(&host) {
                *all.entry(id).or_default() += count;
            }
        }
        all
    }

    /// The backends whose applications have carried a request out, and how often.
    pub fn hosts_of(&self, id: &str) -> String {
        let hosts = self.cluster.backends().into_iter();
        let count = |host: &String| self.apps.counts(host).get(id).copied();
        let counts = hosts.filter_map(|host| count(&host).map(|count| format!("{host}: {count}")));
        counts.collect::<Vec<_>>().join(", ")
    }

    pub fn served_by(&self, host: &str) -> u64 {
        self.cluster.counter(host, "requests", "served_direct")
    }

    /// Kills nginx at all backends.
    pub fn kill_files(&mut self) {
        self.files.clear();
    }

    /// Has the application of `host` call itself bad.
    pub fn set_bad(&self, host: &str, is_bad: bool) {
        let path = format!("/bad?is={}", u8::from(is_bad));
        self.apps.ask(host, &path).unwrap();
    }

    pub fn file(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    /// A file that nginx serves, and clients send.
    pub fn long_file(&self) -> String {
        self.file("www/files/long")
    }

    /// Its SHA-256.
    pub fn long_digest(&self) -> String {
        let summed = output(Command::new("sha256sum").arg(self.long_file()));
        summed.split(' ').next().unwrap().to_owned()
    }

    pub fn text(&self) -> String {
        std::fs::read_to_string(self.file("www/files/text")).unwrap()
    }
}

pub fn configure(config: &mut ConfigFile, upstreams: &str) {
    #[derive(serde::Deserialize)]
    struct File {
        upstream: prism_config::Upstreams,
    }
    let file: File = toml::from_str(upstreams).unwrap();
    config.service.first_mut().upstream = Some(file.upstream);
}

/// nginx with the files, at a backend.
fn nginx(apps: &Apps, host: &str, directory: &Path) -> Running {
    let own = directory.join(host);
    std::fs::create_dir(&own).unwrap();
    let text = format!(
        "daemon off; master_process off; pid {own}/pid; error_log {own}/error.log;\n\
         user root; events {{ worker_connections 256; }}\n\
         http {{ access_log off; client_body_temp_path {own}/body; proxy_temp_path {own}/proxy;\n\
         fastcgi_temp_path {own}/fastcgi; uwsgi_temp_path {own}/uwsgi;\n\
         scgi_temp_path {own}/scgi; sendfile on;\n\
         server {{ listen {FILES}; root {root}; if_modified_since before;\n\
          default_type application/octet-stream; }}\n\
         server {{ listen {WHO} proxy_protocol;\n\
         return 200 \"$proxy_protocol_addr $proxy_protocol_port\"; }} }}\n",
        own = own.display(),
        root = directory.join("www").display(),
    );
    let config = own.join("nginx.conf");
    std::fs::write(&config, text).unwrap();
    let mut command = apps.command(host, "nginx");
    Running(command.arg("-c").arg(config).spawn().unwrap())
}
