//! The load: `wrk`, unmodified, with a script that asks for random objects.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::objects::Objects;
use super::popularity::Popularity;
use super::rows::Values;
use super::stats::named;

/// Least size of an object whose unfinished answers count.
const LARGE: u64 = 64 << 10;
/// Seed of the order of popularity.
const SEED: u64 = 12;

/// The requests of `wrk`.
pub(crate) struct Load<'o> {
    pub(crate) objects: &'o Objects,
    pub(crate) connections: usize,
    pub(crate) popularity: Popularity,
    /// The percentage of requests that write.
    pub(crate) writes_percent: u8,
}

/// Addresses and signed heads of requests.
#[derive(Default)]
pub(crate) struct Recipients<'p> {
    /// Addresses of the backends and their port, if each thread asks one backend directly.
    pub(crate) owners: Option<(Vec<IpAddr>, u16)>,
    /// Heads of PUTs by key, and the file of [`Objects::pool`].
    pub(crate) writes: Option<(HashMap<&'p str, Vec<u8>>, &'p Path)>,
}

/// The output of `wrk`.
pub(crate) struct WrkOutput {
    requests: f64,
    /// Bytes of answers, also of unfinished ones.
    read_bytes: f64,
    /// PUTs that were sent, also unfinished ones.
    writes: f64,
    seconds: f64,
    /// Times from the request to the last byte of its answer: p50, p90, p99.
    percentiles_us: [f64; 3],
}

impl<'o> Load<'o> {
    /// GETs of all objects alike.
    pub(crate) fn of(objects: &'o Objects, connections: usize) -> Self {
        Self {
            objects,
            connections,
            popularity: Popularity::Uniform,
            writes_percent: 0,
        }
    }

    /// The script of `wrk`.
    pub(crate) fn script(&self, recipients: &Recipients<'_>) -> String {
        let mut lua = String::from("local objects = {\n");
        let mut objects: Vec<_> = self.objects.all().collect();
        // In the order of their popularity.
        fastrand::Rng::with_seed(SEED).shuffle(&mut objects);
        let heads = recipients.writes.as_ref().map(|(heads, _)| heads);
        for object in &objects {
            let key = object.key;
            let thread = object.backend + 1;
            let _ = write!(lua, "{{{thread}, \"{key}\", {}, \"", object.offset);
            let head = heads.and_then(|heads| heads.get(key));
            escape(head.map_or(b"", |head| head), &mut lua);
            lua.push_str("\"},\n");
        }
        lua.push_str("}\nlocal shares = {");
        if self.popularity != Popularity::Uniform {
            for share in self.popularity.shares(objects.len()) {
                let _ = write!(lua, "{share},");
            }
        }
        lua.push_str("}\nlocal hosts = {");
        let (hosts, port) = recipients.owners.clone().unwrap_or_default();
        for host in hosts {
            let _ = write!(lua, "\"{host}\",");
        }
        let pool = recipients.writes.as_ref().map(|(_, path)| path.display());
        let pool = pool.map(|path| path.to_string()).unwrap_or_default();
        let share = f64::from(self.writes_percent) / 100.0;
        let (bytes, prefix) = (self.objects.bytes, self.objects.prefix);
        let _ = writeln!(
            lua,
            "}}\nlocal port, bucket = \"{port}\", \"{prefix}\"\n\
             local writes, bytes, pool_file = {share}, {bytes}, \"{pool}\""
        );
        lua.push_str(SCRIPT);
        lua
    }

    /// Arguments of `wrk` for `seconds`.
    pub(crate) fn arguments(&self, wrk: &mut Command, script: &Path, seconds: u64) {
        wrk.arg(format!("-t{}", self.objects.keys.len()));
        wrk.args([format!("-c{}", self.connections), format!("-d{seconds}s")]);
        wrk.args(["--timeout", ANSWER_TIMEOUT, "-s"]).arg(script);
    }

    /// The values of a row. CPU times are those of the frontend, all backends and the client.
    /// `link_bytes` crossed the frontend's link, both ways.
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52 bytes")]
    pub(crate) fn values(&self, output: &WrkOutput, cpu: [Duration; 3], link_bytes: f64) -> Values {
        // Unfinished answers of large objects count. So do heads, which are less than a percent.
        let bytes = self.objects.bytes as f64;
        let moved = match self.objects.bytes {
            LARGE.. => output.read_bytes + output.writes * bytes,
            _ => output.requests * bytes,
        };
        let [p50_us, p90_us, p99_us] = output.percentiles_us;
        let [frontend, backends, client] = cpu.map(|cpu| cpu.as_secs_f64());
        named([
            ("requests", output.requests),
            ("read_bytes", output.read_bytes),
            ("writes", output.writes),
            ("seconds", output.seconds),
            ("mb_s", moved / output.seconds / 1e6),
            ("requests_s", output.requests / output.seconds),
            ("p50_us", p50_us),
            ("p90_us", p90_us),
            ("p99_us", p99_us),
            ("frontend_cpu_s", frontend),
            ("backends_cpu_s", backends),
            ("client_cpu_s", client),
            ("cpu_us", (frontend + backends) * 1e6 / output.requests),
            ("frontend_cpu_us", frontend * 1e6 / output.requests),
            ("frontend_link", link_bytes / output.read_bytes),
        ])
    }
}

/// Longest wait for an answer. It takes 36 s if 100 connections share a link of 100 Mbit/s
/// fairly for objects of 4 MiB.
const ANSWER_TIMEOUT: &str = "90s";

const SCRIPT: &str = include_str!("load.lua");

/// Runs `wrk`.
///
/// # Errors
/// When `wrk` reports an error of a request.
pub(crate) fn run(mut wrk: Command) -> Result<WrkOutput> {
    let output = wrk.output().context("running wrk")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let fields = text.lines().find_map(|line| line.strip_prefix("RESULT "));
    let fields: Vec<f64> = fields
        .unwrap_or_default()
        .split(' ')
        .filter_map(|field| field.parse().ok())
        .collect();
    let [
        requests,
        read_bytes,
        writes,
        duration_us,
        errors,
        p50,
        p90,
        p99,
    ] = fields[..]
    else {
        bail!("wrk: {text}{}", String::from_utf8_lossy(&output.stderr));
    };
    ensure!(errors == 0.0, "wrk met errors: {text}");
    Ok(WrkOutput {
        requests,
        read_bytes,
        writes,
        seconds: duration_us / 1e6,
        percentiles_us: [p50, p90, p99],
    })
}

/// Appends `bytes` to a string literal of Lua.
pub(crate) fn escape(bytes: &[u8], out: &mut String) {
    for &byte in bytes {
        match byte {
            b' '..=b'~' if !matches!(byte, b'"' | b'\\') => out.push(char::from(byte)),
            byte => {
                let _ = write!(out, "\\{byte:03}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_script_asks_for_all_objects_and_writes_them() {
        let objects = Objects::new(3, 4, 100).unwrap();
        let load = Load {
            popularity: Popularity::Zipf(0.9),
            writes_percent: 5,
            ..Load::of(&objects, 10)
        };
        let head = b"PUT /x HTTP/1.1\r\nX: \"\r\n\r\n".to_vec();
        let key = objects.all().next().unwrap().key;
        let recipients = Recipients {
            writes: Some((HashMap::from([(key, head)]), Path::new("/pool"))),
            ..Recipients::default()
        };
        let script = load.script(&recipients);
        for object in objects.all() {
            let quoted = format!("\"{}\"", object.key);
            assert!(script.contains(&quoted), "{quoted}");
        }
        assert!(script.contains("PUT /x HTTP/1.1\\013\\010X: \\034\\013\\010\\013\\010\"},"));
        assert!(script.contains("writes, bytes, pool_file = 0.05, 100, \"/pool\""));
        assert!(script.contains(",1,}\nlocal hosts = {}"));
    }
}
