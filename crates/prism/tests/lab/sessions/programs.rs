//! The clients: whether they are installed, and how a session runs.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use prism_lab::Family;

use crate::support::{Cluster, clients};

/// The transport of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Http,
    Https,
}

/// The first command of a script that fails ends it.
const SHELL: [&str; 2] = ["-euxo", "pipefail"];

/// Clients of S3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Aws,
    Boto3,
    S3cmd,
    Rclone,
    Restic,
    S5cmd,
    Arrow,
    Java,
    Mc,
    MinioGo,
    Browser,
    S3fs,
    Crt,
    Terraform,
}

impl Program {
    /// All programs, the slowest first.
    pub const ALL: [Self; 14] = [
        Self::Mc,
        Self::Aws,
        Self::Restic,
        Self::S3cmd,
        Self::S3fs,
        Self::Java,
        Self::MinioGo,
        Self::Browser,
        Self::Boto3,
        Self::Rclone,
        Self::Arrow,
        Self::Crt,
        Self::S5cmd,
        Self::Terraform,
    ];

    /// Whether it belongs to the short form. The others take long to install.
    pub const fn is_quick(self) -> bool {
        !matches!(self, Self::Mc | Self::Browser)
    }

    /// Its sessions in the short form: one for each family, if it takes addresses of both. Both
    /// transports are used, by clients of each language.
    pub const fn short_form(self) -> [(Transport, Family); 2] {
        use Transport::{Http, Https};
        match self {
            // It takes no IPv6 address, only a name.
            Self::S3cmd => [(Http, Family::V4), (Https, Family::V4)],
            Self::Restic => [(Http, Family::V4), (Https, Family::V6)],
            _ => [(Https, Family::V4), (Http, Family::V6)],
        }
    }

    /// All its sessions.
    pub fn long_form(self) -> Vec<(Transport, Family)> {
        use Transport::{Http, Https};
        let more = [(Http, Family::V4), (Https, Family::V4), (Http, Family::V6)];
        match self {
            Self::S3cmd => self.short_form().to_vec(),
            _ => [&more[..], &[(Https, Family::V6)]].concat(),
        }
    }

    /// Whether it is on this machine. Under CI all have to be.
    pub fn is_there(self) -> bool {
        let mut probe = Command::new("sh");
        probe
            .env("CLIENTS", clients())
            .env("PYTHONPATH", clients().join("python"));
        let probed = probe.args(["-c", self.probe()]).output().unwrap();
        let is_there = probed.status.success();
        let group = match self.is_quick() {
            true => "tests",
            false => "applications",
        };
        assert!(
            is_there || std::env::var_os("CI").is_none(),
            "CI must have {self:?}: scripts/setup.sh {group}"
        );
        if !is_there {
            let _ = writeln!(io::stderr(), "SKIPPED: {self:?} is not installed");
        }
        is_there
    }

    const fn probe(self) -> &'static str {
        match self {
            Self::Aws => "command -v aws",
            Self::Boto3 => "python3 -c 'import boto3'",
            Self::S3cmd => "command -v s3cmd",
            Self::Rclone => "command -v rclone",
            Self::Restic => "command -v restic",
            Self::S5cmd => "test -x \"$CLIENTS/s5cmd\"",
            Self::Arrow => "python3 -c 'import pyarrow'",
            Self::Java => "command -v javac && test -d \"$CLIENTS/java\"",
            Self::Mc => "test -x \"$CLIENTS/mc\"",
            Self::MinioGo => "test -x \"$CLIENTS/s3/minio\"",
            Self::Browser => {
                "command -v node chromium && test -d \"$CLIENTS/applications/node_modules/@aws-sdk\""
            }
            Self::S3fs => "command -v s3fs && test -c /dev/fuse",
            Self::Crt => "PYTHONPATH=\"$CLIENTS/crt\" python3 -c 'import awscrt'",
            Self::Terraform => "test -x \"$CLIENTS/s3/terraform\"",
        }
    }

    /// Runs its session to the end. A failure shows its output.
    pub fn session(
        self,
        cluster: &Cluster,
        (transport, family): (Transport, Family),
        shared: &Path,
        classes: &Path,
    ) -> Result<(), String> {
        let scratch = tempfile::tempdir().unwrap();
        let mut command = match self {
            Self::Boto3 => python(cluster, "boto.py"),
            Self::Arrow => {
                let mut command = python(cluster, "arrow.py");
                command.env("PYTHONPATH", clients().join("python"));
                command
            }
            Self::Java => {
                let mut command = cluster.lab.command("client", "java").unwrap();
                command.args(["-XX:TieredStopAtLevel=1", "-cp"]);
                command.arg(class_path(classes)).arg("Session");
                command
            }
            Self::Crt => {
                let mut command = python(cluster, "crt.py");
                command.env("PYTHONPATH", clients().join("crt"));
                command
            }
            Self::Browser => {
                let mut command = cluster.lab.command("client", "node").unwrap();
                command.arg(source("browser.mjs"));
                command
            }
            Self::S3fs => {
                // Its mounts and its processes end with the script.
                let mut command = cluster.lab.command("client", "unshare").unwrap();
                command.args(["--mount", "--pid", "--fork", "--kill-child", "bash"]);
                command.args(SHELL).arg(source("s3fs.sh"));
                command
            }
            Self::MinioGo => built(cluster, "minio"),
            Self::Terraform => built(cluster, "terraform"),
            Self::Mc => shell(cluster, "mc.sh"),
            Self::Aws => shell(cluster, "aws.sh"),
            Self::S3cmd => shell(cluster, "s3cmd.sh"),
            Self::Rclone => shell(cluster, "rclone.sh"),
            Self::Restic => shell(cluster, "restic.sh"),
            Self::S5cmd => shell(cluster, "s5cmd.sh"),
        };
        let endpoint = cluster.endpoint_over(family, transport == Transport::Https);
        let bucket = format!("{self:?}-{transport:?}-{family}").to_lowercase();
        command
            .env("AWS_ENDPOINT_URL", &endpoint)
            .env("CLIENTS", clients())
            .env("CA_FILE", cluster.lab.ca_file().unwrap())
            .env("BUCKET", bucket)
            .env("SHARED", shared)
            .env("SCRATCH", scratch.path())
            .env("HOME", scratch.path())
            .current_dir(scratch.path());
        let output = command.output().unwrap();
        if output.status.success() {
            return Ok(());
        }
        let said = [output.stdout, output.stderr].concat();
        Err(format!(
            "{}: {}",
            output.status,
            String::from_utf8_lossy(&said)
        ))
    }
}

/// Compiles the session of Java, if it is one of these.
pub fn compile_java(programs: &[Program]) -> tempfile::TempDir {
    let classes = tempfile::tempdir().unwrap();
    if programs.contains(&Program::Java) {
        let mut javac = Command::new("javac");
        javac.arg("-cp").arg(class_path(classes.path()));
        javac
            .arg("-d")
            .arg(classes.path())
            .arg(source("Session.java"));
        let output = javac.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
    }
    classes
}

fn class_path(classes: &Path) -> String {
    format!("{}:{}/java/*", classes.display(), clients().display())
}

fn source(name: &str) -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab");
    tests.join("sessions").join(name)
}

fn python(cluster: &Cluster, script: &str) -> Command {
    let mut command = cluster.lab.command("client", "python3").unwrap();
    command.arg(source(script));
    command
}

/// A script of commands.
fn shell(cluster: &Cluster, script: &str) -> Command {
    let mut command = cluster.lab.command("client", "bash").unwrap();
    command.args(SHELL).arg(source(script));
    command
}

/// A program of `scripts/clients/s3`.
fn built(cluster: &Cluster, name: &str) -> Command {
    let program = clients().join("s3").join(name);
    cluster.lab.command("client", program).unwrap()
}
