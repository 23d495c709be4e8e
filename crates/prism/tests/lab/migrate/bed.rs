//! The two ways to the same servers: the old proxy and Prism, each with its text of
//! `docs/migrate.md`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use prism_config::ConfigFile;
use prism_lab::{Lab, LabName, LabSpec};

use super::PATIENCE;
use crate::support::{Cluster, clients, eventually};

const DOCUMENT: &str = include_str!("../../../../../docs/migrate.md");
/// Addresses of the document, and the files of its certificates.
const SERVICE: &str = "203.0.113.10";
const SERVERS: [(&str, &str); 3] = [
    ("be0", "10.0.1.21"),
    ("be1", "10.0.1.22"),
    ("be2", "10.0.1.23"),
];
const CERTIFICATES: [&str; 2] = ["/etc/ssl/s3.pem", "/etc/ssl/shop.pem"];
/// The file of Traefik's routes in the document.
const WATCHED: &str = "/etc/traefik/site.yml";
/// The old proxy runs on this host, and is reached from there.
const OLD_HOST: &str = "be0";
const OLD_ADDRESS: &str = "127.0.0.1";

/// The texts in `language` below a heading of the document.
fn texts_of(heading: &str, language: &str) -> Vec<String> {
    let heading = format!("\n## {heading}\n");
    let (_, section) = DOCUMENT.split_once(&heading).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let fence = format!("\n```{language}\n");
    let blocks = section.split(&fence).skip(1);
    let text = |block: &str| block.split("\n```\n").next().unwrap().to_owned() + "\n";
    blocks.map(text).collect()
}

/// The first of them.
pub fn text_of(heading: &str, language: &str) -> String {
    texts_of(heading, language).swap_remove(0)
}

/// A way of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Old,
    Prism,
}

pub const WAYS: [Way; 2] = [Way::Old, Way::Prism];

/// An answer as curl prints it. Trailers are among the headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub headers: BTreeMap<String, Vec<String>>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The only value of a field; empty if it is absent.
    pub fn header(&self, name: &str) -> &str {
        let values = self.headers.get(name).map(Vec::as_slice);
        match values.unwrap_or_default() {
            [] => "",
            [value] => value,
            values => panic!("{name}: {values:?}"),
        }
    }

    /// The cookie of this name with its attributes, in lower case.
    pub fn cookie(&self, name: &str) -> Option<String> {
        let cookies = self.headers.get("set-cookie")?.iter();
        let mut cookies = cookies.filter(|cookie| cookie.starts_with(&format!("{name}=")));
        Some(cookies.next()?.to_ascii_lowercase())
    }

    /// Without the fields that concern one connection, one moment, one server or one request.
    pub fn comparable(mut self) -> Self {
        for name in [
            "connection",
            "date",
            "keep-alive",
            "transfer-encoding",
            "x-host",
            "x-request-id",
        ] {
            self.headers.remove(name);
        }
        self
    }
}

/// A program that is killed with its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub struct Both {
    pub cluster: Cluster,
    programs: Mutex<BTreeMap<String, Running>>,
    directory: tempfile::TempDir,
}

impl Both {
    /// Prism with its text below `heading`, whose addresses are replaced; without servers.
    pub fn up(
        heading: &str,
        has_tls: bool,
        replace: impl FnOnce(&LabSpec, String) -> String,
        change: impl FnOnce(&mut ConfigFile) + Send + 'static,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let name: LabName = format!("m{}", std::process::id()).parse().unwrap();
        let mut spec = LabSpec::new(name, env!("CARGO_BIN_EXE_prism").into());
        spec.tls = has_tls;
        let text = text_of("The hosts", "toml") + &text_of(heading, "toml");
        let pem = pem_in(directory.path());
        let text = with_certificate(&replace(&spec, text), &pem);
        spec.configure = Some(Box::new(move |config| {
            if let Some(tls) = &config.service.first().tls {
                write_pem(&tls.certificates[0], &pem);
            }
            put_in_place(config, &text);
            change(config);
        }));
        Self {
            cluster: Cluster::around(Lab::up(spec).unwrap()),
            programs: Mutex::default(),
            directory,
        }
    }

    /// The old proxy's text below `heading`, for this lab.
    pub fn old_text(&self, heading: &str, language: &str) -> String {
        self.old_texts(heading, language).swap_remove(0)
    }

    /// The same of a proxy with several files.
    pub fn old_texts(&self, heading: &str, language: &str) -> Vec<String> {
        let at_lab = |text: String| {
            let text = text.replace(SERVICE, OLD_ADDRESS);
            let text = SERVERS.iter().fold(text, |text, (host, address)| {
                text.replace(address, &self.address(host).to_string())
            });
            with_certificate(&text, &pem_in(self.directory.path()))
        };
        let texts = texts_of(heading, language);
        texts.into_iter().map(at_lab).collect()
    }

    /// Starts HAProxy with this text.
    pub fn start_haproxy(&self, text: &str) {
        let config = self.path("haproxy.cfg");
        std::fs::write(&config, text).unwrap();
        let mut command = self.command(OLD_HOST, "haproxy");
        self.start(
            "haproxy",
            command.args(["-db", "-q", "-f"]).arg(config),
            OLD_HOST,
        );
    }

    /// Starts Traefik with the text of its own file and of the file that it watches.
    pub fn start_traefik(&self, static_text: &str, watched_text: &str) {
        let [config, watched] = ["traefik.yml", "site.yml"].map(|name| self.path(name));
        let static_text = static_text.replace(WATCHED, &watched.display().to_string());
        std::fs::write(&config, static_text).unwrap();
        std::fs::write(&watched, watched_text).unwrap();
        let mut command = self.command(OLD_HOST, clients().join("traefik"));
        command.arg("--configFile").arg(config);
        self.start("traefik", &mut command, OLD_HOST);
    }

    /// Starts nginx on a host with this text in its section `http`.
    pub fn start_nginx(&self, name: &str, host: &str, text: &str) {
        let own = self.path(&format!("{name}-{host}"));
        std::fs::create_dir(&own).unwrap();
        let own_text = own.display();
        let whole = format!(
            "daemon off; master_process off; pid {own_text}/pid;\n\
             error_log {own_text}/error.log; user root; events {{ worker_connections 256; }}\n\
             http {{ access_log off; client_body_temp_path {own_text}/body;\n\
             proxy_temp_path {own_text}/proxy; fastcgi_temp_path {own_text}/fastcgi;\n\
             uwsgi_temp_path {own_text}/uwsgi; scgi_temp_path {own_text}/scgi;\n{text} }}\n"
        );
        let config = own.join("nginx.conf");
        std::fs::write(&config, whole).unwrap();
        let mut command = self.command(host, "nginx");
        self.start(name, command.arg("-c").arg(config), host);
    }

    /// Starts a program, which has this name.
    pub fn start(&self, name: &str, command: &mut Command, host: &str) {
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        let key = format!("{name} {host}");
        self.programs.lock().unwrap().insert(key, Running(child));
    }

    /// Kills the program of this name on a host.
    pub fn kill(&self, name: &str, host: &str) {
        let mut programs = self.programs.lock().unwrap();
        drop(programs.remove(&format!("{name} {host}")).unwrap());
    }

    pub fn command(&self, host: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.cluster.lab.command(host, program).unwrap()
    }

    /// A program that makes requests this way, and the address of the proxy there.
    pub fn client(&self, way: Way, program: &str) -> (Command, String) {
        match way {
            Way::Old => (self.command(OLD_HOST, program), OLD_ADDRESS.to_owned()),
            Way::Prism => {
                let service = self.cluster.lab.service().ip().to_string();
                (self.command("client", program), service)
            }
        }
    }

    /// The answer to a request that curl makes.
    pub fn curl(&self, way: Way, url: &str, arguments: &[&str]) -> Answer {
        let answer = self.try_curl(way, url, arguments);
        answer.unwrap_or_else(|fault| panic!("{way:?} {url} {arguments:?}: {fault}"))
    }

    /// The same, or curl's message.
    pub fn try_curl(&self, way: Way, url: &str, arguments: &[&str]) -> Result<Answer, String> {
        let (heads, body) = (self.path("heads"), self.path("body"));
        std::fs::write(&body, "").unwrap();
        let (mut curl, address) = self.client(way, "curl");
        curl.args([
            "--silent",
            "--show-error",
            "--insecure",
            "--max-time",
            "20",
            "--connect-to",
        ]);
        curl.arg(format!("::{address}:"));
        curl.arg("--dump-header").arg(&heads);
        curl.arg("--output").arg(&body);
        let done = curl.args(arguments).arg(url).output().unwrap();
        if !done.status.success() {
            return Err(String::from_utf8_lossy(&done.stderr).into_owned());
        }
        // curl shows the head of an answer to HEAD in the place of its body.
        let has_body = !arguments.contains(&"--head");
        let body = has_body.then(|| std::fs::read(&body).unwrap());
        let mut answer = Answer {
            status: 0,
            headers: BTreeMap::new(),
            body: body.unwrap_or_default(),
        };
        for line in std::fs::read_to_string(&heads).unwrap().lines() {
            if let Some(rest) = line.strip_prefix("HTTP/1.1 ") {
                answer.status = rest[..3].parse().unwrap();
                answer.headers.clear();
            } else if let Some((name, value)) = line.split_once(':') {
                let values = answer.headers.entry(name.to_ascii_lowercase());
                values.or_default().push(value.trim().to_owned());
            }
        }
        Ok(answer)
    }

    /// Waits until both ways answer from each server, as `told` finds in an answer.
    pub fn await_all(
        &self,
        url: &str,
        arguments: &[&str],
        told: impl Fn(&Answer) -> Option<String>,
    ) {
        for way in WAYS {
            let mut seen = std::collections::BTreeSet::new();
            eventually("every server answers", PATIENCE, || {
                let answer = self.try_curl(way, url, arguments);
                seen.extend(answer.ok().and_then(|answer| told(&answer)));
                seen.len() == SERVERS.len()
            });
        }
    }

    pub fn address(&self, host: &str) -> IpAddr {
        self.cluster.lab.address(host).unwrap()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn file(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }
}

fn pem_in(directory: &Path) -> PathBuf {
    directory.join("certificate.pem")
}

fn with_certificate(text: &str, pem: &Path) -> String {
    let pem = pem.display().to_string();
    let [first, second] = CERTIFICATES;
    text.replace(first, &pem).replace(second, &pem)
}

/// One file with the certificate and its key, as HAProxy has it.
fn write_pem(certificate: &prism_config::Certificate, pem: &Path) {
    let parts = [&certificate.file, &certificate.key_file];
    let text = parts.map(|file| std::fs::read_to_string(file).unwrap());
    std::fs::write(pem, text.concat()).unwrap();
    std::fs::set_permissions(pem, PermissionsExt::from_mode(0o600)).unwrap();
}

/// Makes this text the configuration, at the lab's addresses and with the lab's keys.
fn put_in_place(config: &mut ConfigFile, text: &str) {
    let lab = std::mem::replace(config, ConfigFile::from_toml(text).unwrap());
    let names = |config: &ConfigFile| {
        let nodes = config.nodes.iter();
        let mut names: Vec<_> = nodes.map(|node| node.name.clone()).collect();
        names.sort();
        names
    };
    assert_eq!(names(config), names(&lab));
    config.cluster.name = lab.cluster.name;
    config.service.first_mut().address = lab.service.first().address.clone();
    config.switch = lab.switch;
    config.nodes = lab.nodes;
    config.peers = lab.peers;
    config.s3 = lab.s3;
    config.admin = lab.admin;
}
