//! TLS clients of the tests: their options for version and suite, and the negotiated values
//! that they print.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use prism_lab::Family;

use super::{Aead, Version};
use crate::support::objects::Object;
use crate::support::{BUCKET, Cluster, say};

/// The choices of a client's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    pub version: Version,
    pub aead: Aead,
    pub family: Family,
}

impl Choice {
    /// Every version and suite. The families take turns, so that each version and each suite
    /// has both.
    pub fn all() -> Vec<Self> {
        let suites = Version::ALL.into_iter().enumerate();
        let suites = suites.flat_map(|(n, version)| {
            let aeads = Aead::ALL.into_iter().enumerate();
            aeads.map(move |(m, aead)| (n + m, version, aead))
        });
        let choices = suites.map(|(n, version, aead)| Self {
            version,
            aead,
            family: Family::ALL[n % 2],
        });
        choices.collect()
    }

    /// The same as a name.
    pub fn label(self) -> String {
        let Self {
            version,
            aead,
            family,
        } = self;
        format!("{version:?}-{aead:?}-{family}").to_lowercase()
    }
}

/// Programs of the tests that make HTTPS requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Curl,
    Python,
    Go,
    Java,
    Node,
    Boto3,
}

impl Program {
    pub const ALL: [Self; 6] = [
        Self::Curl,
        Self::Python,
        Self::Go,
        Self::Java,
        Self::Node,
        Self::Boto3,
    ];

    /// Whether it can be told to use one suite of this version.
    pub fn chooses_suite(self, version: Version) -> bool {
        // Go leaves the suites of 1.3 to the server.
        self != Self::Go || version == Version::Tls12
    }

    /// Whether it is on this machine. Under CI all have to be.
    pub fn is_there(self) -> bool {
        let probe = match self {
            Self::Curl => "command -v curl",
            Self::Python => "command -v python3",
            Self::Go => "command -v go",
            Self::Java => "command -v java && command -v javac",
            Self::Node => "command -v node",
            Self::Boto3 => "python3 -c 'import boto3'",
        };
        let probed = Command::new("sh").args(["-c", probe]).output().unwrap();
        let is_there = probed.status.success();
        assert!(
            is_there || std::env::var_os("CI").is_none(),
            "CI must have {self:?}"
        );
        if !is_there {
            let _ = writeln!(io::stderr(), "SKIPPED: {self:?} is not installed");
        }
        is_there
    }
}

/// The name of a suite, by IANA or by OpenSSL.
pub fn suite_name(version: Version, aead: Aead, is_openssl: bool) -> &'static str {
    match (version, aead, is_openssl) {
        (Version::Tls13, Aead::Aes128, _) => "TLS_AES_128_GCM_SHA256",
        (Version::Tls13, Aead::Aes256, _) => "TLS_AES_256_GCM_SHA384",
        (Version::Tls13, Aead::ChaCha20, _) => "TLS_CHACHA20_POLY1305_SHA256",
        (Version::Tls12, Aead::Aes128, true) => "ECDHE-ECDSA-AES128-GCM-SHA256",
        (Version::Tls12, Aead::Aes256, true) => "ECDHE-ECDSA-AES256-GCM-SHA384",
        (Version::Tls12, Aead::ChaCha20, true) => "ECDHE-ECDSA-CHACHA20-POLY1305",
        (Version::Tls12, Aead::Aes128, false) => "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        (Version::Tls12, Aead::Aes256, false) => "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        (Version::Tls12, Aead::ChaCha20, false) => "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    }
}

/// The directory of the programs, which are compiled if necessary, and of their output.
pub struct Bench {
    directory: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self { directory }
    }

    /// Compiles what needs it.
    pub fn compile(&self, program: Program) {
        let mut compiler = match program {
            Program::Go => {
                let mut go = Command::new("go");
                go.args(["build", "-o"]).arg(self.path("client-go"));
                // Needs nothing but the standard library.
                go.envs([
                    ("GOPROXY", "off"),
                    ("GOFLAGS", "-mod=mod"),
                    ("GOTOOLCHAIN", "local"),
                ]);
                go.arg(source("client.go"));
                go
            }
            Program::Java => {
                let mut javac = Command::new("javac");
                javac.arg("-d").arg(self.path("java"));
                javac.arg(source("Client.java"));
                javac
            }
            _ => return,
        };
        run(&mut compiler);
    }

    /// Fetches `objects`, in order, over one connection, compares them, and
    /// checks what was negotiated.
    pub fn fetch(&self, cluster: &Cluster, program: Program, choice: Choice, objects: &[&Object]) {
        let bodies = self.path("bodies");
        let _ = std::fs::remove_dir_all(&bodies);
        std::fs::create_dir(&bodies).unwrap();
        let said = match program {
            Program::Curl => self.curl(cluster, choice, objects),
            _ => {
                let paths: Vec<_> = objects.iter().map(|o| path_of(o)).collect();
                std::fs::write(self.path("paths"), paths.join("\n")).unwrap();
                run(&mut self.command(cluster, program, choice))
            }
        };
        self.check_negotiated(&said, choice);
        for (n, object) in objects.iter().enumerate() {
            let body = std::fs::read(bodies.join(n.to_string())).unwrap();
            assert_eq!(body.len() as u64, object.len, "{program:?}: {}", object.key);
            object.check(0, &body);
        }
    }

    /// One line means one connection.
    fn check_negotiated(&self, said: &str, choice: Choice) {
        let Choice { version, aead, .. } = choice;
        let (names, suites) = match version {
            Version::Tls12 => (["TLSv1.2", "TLS 1.2"], [true, false]),
            Version::Tls13 => (["TLSv1.3", "TLS 1.3"], [true, false]),
        };
        let suites = suites.map(|is_openssl| suite_name(version, aead, is_openssl));
        let is_right = |(name, suite): (&str, &str)| said == format!("{name} {suite}\n");
        let mut pairs = names
            .into_iter()
            .flat_map(|name| suites.map(|suite| (name, suite)));
        assert!(pairs.any(is_right), "negotiated: {said}");
    }

    fn command(&self, cluster: &Cluster, program: Program, choice: Choice) -> Command {
        let Choice { version, aead, .. } = choice;
        let go = self.path("client-go");
        let (executable, script) = match program {
            Program::Go => (go.to_str().unwrap(), None),
            Program::Java => ("java", None),
            Program::Node => ("node", Some("client.js")),
            Program::Python => ("python3", Some("client.py")),
            Program::Boto3 => ("python3", Some("boto.py")),
            Program::Curl => unreachable!("takes other arguments"),
        };
        let mut command = cluster.lab.command("client", executable).unwrap();
        if let Some(script) = script {
            command.arg(source(script));
        }
        if program == Program::Java {
            command.arg("-cp").arg(self.path("java")).arg("Client");
        }
        let is_openssl = matches!(program, Program::Python | Program::Node | Program::Boto3);
        if matches!(program, Program::Python | Program::Boto3) {
            command.env("OPENSSL_CONF", self.openssl_conf(version, aead));
        }
        let version_name = match version {
            Version::Tls12 => "1.2",
            Version::Tls13 => "1.3",
        };
        command.env(
            "AWS_ENDPOINT_URL",
            cluster.endpoint_over(choice.family, true),
        );
        let service = cluster.https_service_of(choice.family);
        command.args([&service.ip().to_string(), &service.port().to_string()]);
        command.arg(cluster.lab.ca_file().unwrap());
        command.args([version_name, suite_name(version, aead, is_openssl)]);
        command.arg(self.path("paths")).arg(self.path("bodies"));
        command
    }

    /// Configures OpenSSL for programs without an option of their own.
    fn openssl_conf(&self, version: Version, aead: Aead) -> PathBuf {
        let suite = suite_name(version, aead, true);
        let choice = match version {
            Version::Tls12 => format!("MaxProtocol = TLSv1.2\nCipherString = {suite}"),
            Version::Tls13 => format!("MinProtocol = TLSv1.3\nCiphersuites = {suite}"),
        };
        let text = format!(
            "openssl_conf = all\n[all]\nssl_conf = ssl\n[ssl]\nsystem_default = choice\n[choice]\n{choice}\n"
        );
        let path = self.path("openssl.cnf");
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Prints the same as the others, and fails when curl saw an alert other than close_notify.
    fn curl(&self, cluster: &Cluster, choice: Choice, objects: &[&Object]) -> String {
        let Choice { version, aead, .. } = choice;
        let suite = suite_name(version, aead, true);
        let mut curl = cluster.lab.command("client", "curl").unwrap();
        let endpoint = cluster.endpoint_over(choice.family, true);
        for (n, object) in objects.iter().enumerate() {
            if n > 0 {
                curl.arg("--next");
            }
            curl.args(["--silent", "--show-error", "--fail", "--verbose"]);
            match version {
                Version::Tls12 => curl.args(["--tls-max", "1.2", "--ciphers", suite]),
                Version::Tls13 => curl.args(["--tlsv1.3", "--tls13-ciphers", suite]),
            };
            curl.arg("--output")
                .arg(self.path("bodies").join(n.to_string()));
            curl.arg(format!("{endpoint}{}", path_of(object)));
        }
        let output = curl.output().unwrap();
        let talk = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}", last(&talk));
        let alerts = talk.lines().filter(|line| line.contains("TLS alert"));
        for alert in alerts {
            assert!(alert.contains("close notify"), "{alert}");
        }
        let negotiated = talk.lines().filter_map(|line| {
            let (_, rest) = line.split_once("SSL connection using ")?;
            let (version, suite) = rest.split_once(" / ")?;
            Some(format!("{version} {suite}\n"))
        });
        negotiated.collect()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// A source file of the tests.
fn source(name: &str) -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab");
    tests.join("tls_clients").join(name)
}

/// The service's path of an object.
pub fn path_of(object: &Object) -> String {
    format!("/{BUCKET}/{}", object.key)
}

/// Runs a program to its end and returns its output.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        say(&format!("{command:?}"));
    }
    assert!(output.status.success(), "{text}{}", last(&errors));
    text
}

fn last(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(20);
    lines.get(from..).unwrap_or_default().join("\n")
}
