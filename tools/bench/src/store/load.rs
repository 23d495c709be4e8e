//! The load: requests of a case, sent by `wrk` over and over.
//!
//! Requests are signed once and valid for a quarter of an hour. The server verifies each; the
//! client spends nothing on it. Anonymous reads have a bucket with a public policy. Answers
//! are checked before the first turn.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::system::System;
use crate::http;
use crate::load::escape;
use crate::processes::cpu_of_client;

/// Objects of a case.
const OBJECTS: usize = 64;
const BUCKET: &str = "bench";
/// A bucket that everybody may read.
const PUBLIC: &str = "public";
const POLICY: &str = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*",
"Action":["s3:GetObject"],"Resource":["arn:aws:s3:::public/*"]}]}"#;

/// A kind of request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    pub(super) writes: bool,
    /// Requests are not signed.
    pub(super) anonymous: bool,
    bytes: usize,
}

impl Case {
    pub(super) const ALL: &'static [Self] = &[
        Self::new(false, 4 << 10),
        Self::new(false, 1 << 20),
        Self::new(false, 4 << 10).anonymous(),
        Self::new(false, 1 << 20).anonymous(),
        Self::new(true, 4 << 10),
        Self::new(true, 1 << 20),
    ];

    const fn new(writes: bool, bytes: usize) -> Self {
        Self {
            writes,
            anonymous: false,
            bytes,
        }
    }

    const fn anonymous(self) -> Self {
        Self {
            anonymous: true,
            ..self
        }
    }

    /// As in "GET 4 KiB".
    pub(super) fn name(&self) -> String {
        let method = if self.writes { "PUT" } else { "GET" };
        let unsigned = if self.anonymous { ", anonymous" } else { "" };
        match self.bytes >> 20 {
            0 => format!("{method} {} KiB{unsigned}", self.bytes >> 10),
            mib => format!("{method} {mib} MiB{unsigned}"),
        }
    }

    const fn bucket(&self) -> &'static str {
        if self.anonymous { PUBLIC } else { BUCKET }
    }
}

/// A case that is prepared for one system.
pub(super) struct Target {
    address: SocketAddrV4,
    script: PathBuf,
}

/// The result of a run.
pub(super) struct Ran {
    pub(super) requests: u64,
    pub(super) seconds: f64,
    /// CPU time of the client.
    pub(super) cpu: Duration,
}

impl Target {
    /// Stores the objects, checks the answers, and writes the script.
    pub(super) fn prepare(system: &System, case: &Case) -> Result<Self> {
        let mut bodies = Vec::new();
        for n in 0..OBJECTS {
            let mut body = vec![0; case.bytes];
            fastrand::Rng::with_seed(n as u64).fill(&mut body);
            bodies.push(body);
        }
        store(system, case, &bodies).with_context(|| format!("storing at {}", system.name()))?;
        let mut script = "local requests = {}\n".to_owned();
        for (n, body) in bodies.iter().enumerate() {
            let path = path_of(case, n);
            let request = match case.writes {
                false => {
                    let get = match case.anonymous {
                        true => http::anonymous(system.address.into(), &path),
                        false => request(system, "GET", &path, b"")?,
                    };
                    let got = http::call(system.address.into(), &get, &[])?;
                    ensure!(got == *body, "{}: {path} has other bytes", system.name());
                    get
                }
                true => [request(system, "PUT", &path, body)?, body.clone()].concat(),
            };
            let _ = write!(script, "requests[{}] = \"", n + 1);
            escape(&request, &mut script);
            script.push_str("\"\n");
        }
        script.push_str(
            "local n = 0\n\
              function request()\n  n = n % #requests + 1\n  return requests[n]\nend\n",
        );
        let method = if case.writes { "put" } else { "get" };
        let name = format!("{method}-{}-{}.lua", case.bucket(), case.bytes);
        let file = system.directory().join(name);
        fs::write(&file, script)?;
        Ok(Self {
            address: system.address,
            script: file,
        })
    }

    /// Runs the client.
    ///
    /// # Errors
    /// When `wrk` reports an error of a request.
    pub(super) fn run(&self, time: Duration, connections: usize) -> Result<Ran> {
        let mut wrk = Command::new("wrk");
        wrk.args(["-t1", &format!("-c{connections}")]);
        wrk.arg(format!("-d{}", time.as_secs().max(1)));
        wrk.arg("-s").arg(&self.script);
        wrk.arg(format!("http://{}/", self.address));
        let (start, cpu) = (Instant::now(), cpu_of_client()?);
        let output = wrk.output().context("running wrk")?;
        let cpu = cpu_of_client()?.saturating_sub(cpu);
        let seconds = start.elapsed().as_secs_f64();
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() || text.contains("Non-2xx") || text.contains("Socket errors") {
            bail!("wrk: {text}{}", String::from_utf8_lossy(&output.stderr));
        }
        let requests = text
            .lines()
            .find_map(|line| line.trim().split_once(" requests in "))
            .and_then(|(count, _)| count.parse().ok())
            .with_context(|| format!("wrk says no number of requests: {text}"))?;
        Ok(Ran {
            requests,
            seconds,
            cpu,
        })
    }
}

fn path_of(case: &Case, n: usize) -> String {
    format!("/{}/{}-{n}", case.bucket(), case.bytes)
}

fn store(system: &System, case: &Case, bodies: &[Vec<u8>]) -> Result<()> {
    if let Some(files) = system.files() {
        fs::create_dir_all(files.join(case.bucket()))?;
        for (n, body) in bodies.iter().enumerate() {
            let path = path_of(case, n);
            fs::write(files.join(path.trim_start_matches('/')), body)?;
        }
        return Ok(());
    }
    let bucket = request(system, "PUT", &format!("/{}", case.bucket()), b"")?;
    // It may exist from an earlier case.
    let _ = http::call(system.address.into(), &bucket, &[]);
    if case.anonymous {
        let target = format!("/{PUBLIC}?policy");
        let policy = request(system, "PUT", &target, POLICY.as_bytes())?;
        http::call(system.address.into(), &policy, POLICY.as_bytes())?;
    }
    for (n, body) in bodies.iter().enumerate() {
        let put = request(system, "PUT", &path_of(case, n), body)?;
        http::call(system.address.into(), &put, body)?;
    }
    Ok(())
}

fn request(system: &System, method: &str, target: &str, body: &[u8]) -> Result<Vec<u8>> {
    http::signed(
        &system.signer(),
        system.address.into(),
        method,
        target,
        body,
    )
}
