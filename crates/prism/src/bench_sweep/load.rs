//! What is asked for, and `wrk`, which asks for it over and over.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use prism_cluster::{NodeName, Placement};

/// The bucket that everybody may read.
pub(super) const BUCKET: &str = "sweep";
/// Objects of each backend.
const OBJECTS: usize = 8;

/// Objects of one size, the same number on each backend. The name of each begins
/// with that of its backend, so that proxies can tell it without a table.
pub(super) struct Objects {
    pub(super) bytes: u64,
    /// Keys, by backend.
    pub(super) keys: Vec<Vec<String>>,
}

/// What `wrk` says of a run.
pub(super) struct Said {
    pub(super) requests: u64,
    /// Of answers, also of those that did not end in time.
    pub(super) read_bytes: u64,
    pub(super) seconds: f64,
    pub(super) p50_us: f64,
    pub(super) p90_us: f64,
    pub(super) p99_us: f64,
}

impl Objects {
    /// Names that Prism's placement gives to each of `backends` backends.
    pub(super) fn new(backends: usize, bytes: u64) -> Result<Self> {
        let names: Vec<String> = (0..backends).map(|n| format!("be{n}")).collect();
        let nodes = names
            .iter()
            .map(|name| NodeName::new(name.as_str()))
            .collect::<Result<Vec<_>, _>>()?;
        let placement = Placement::new(nodes)?;
        let is_of = |name: &str, key: &str| {
            let owner = placement.owner(BUCKET, key);
            owner.is_some_and(|owner| owner.as_str() == name)
        };
        let keys = names.iter().map(|name| {
            let all = (0..).map(|n: u32| format!("{name}-{bytes}-{n}"));
            all.filter(|key| is_of(name, key)).take(OBJECTS).collect()
        });
        Ok(Self {
            bytes,
            keys: keys.collect(),
        })
    }

    /// The bytes of an object: random, and others for each.
    pub(super) fn body(&self, key: &str) -> Vec<u8> {
        let mut body = vec![0; usize::try_from(self.bytes).unwrap_or_default()];
        // FNV-1a.
        let seed = key.bytes().fold(0xcbf2_9ce4_8422_2325, |seed: u64, byte| {
            (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        fastrand::Rng::with_seed(seed).fill(&mut body);
        body
    }
}

/// The script of `wrk`: objects at random, of all backends; or where `owners` is
/// given, each thread those of one backend, from there.
pub(super) fn script(objects: &Objects, owners: Option<(&[Ipv4Addr], u16)>) -> String {
    let mut lua = String::from("local keys = {\n");
    for keys in &objects.keys {
        let _ = writeln!(lua, "{{\"{}\"}},", keys.join("\",\""));
    }
    lua.push_str("}\nlocal hosts = {");
    let (hosts, port) = owners.unwrap_or_default();
    for host in hosts {
        let _ = write!(lua, "\"{host}\",");
    }
    let _ = writeln!(
        lua,
        "}}\nlocal port = \"{port}\"\nlocal bucket = \"{BUCKET}\""
    );
    lua.push_str(SCRIPT);
    lua
}

/// A thread of `wrk` has an interpreter of its own, and `setup` and `done` one of
/// theirs.
const SCRIPT: &str = r#"
local threads = 0
function setup(thread)
  threads = threads + 1
  thread:set("number", threads)
  if #hosts > 0 then
    thread.addr = wrk.lookup(hosts[threads], port)[1]
  end
end

local requests = {}
function init(args)
  math.randomseed(number)
  for backend, own in ipairs(keys) do
    if #hosts == 0 or backend == number then
      for _, key in ipairs(own) do
        requests[#requests + 1] = wrk.format("GET", "/" .. bucket .. "/" .. key)
      end
    end
  end
end

function request()
  return requests[math.random(#requests)]
end

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format("RESULT %d %d %d %d %f %f %f\n", summary.requests, summary.bytes, summary.duration,
    e.connect + e.read + e.write + e.status + e.timeout,
    latency:percentile(50), latency:percentile(90), latency:percentile(99)))
end
"#;

/// Runs `wrk`. A run with an error does not count: it fails.
pub(super) fn run(mut wrk: Command) -> Result<Said> {
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
        duration_us,
        errors,
        p50_us,
        p90_us,
        p99_us,
    ] = fields[..]
    else {
        bail!("wrk: {text}{}", String::from_utf8_lossy(&output.stderr));
    };
    ensure!(errors == 0.0, "wrk met errors: {text}");
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "they were whole"
    )]
    let [requests, read_bytes] = [requests, read_bytes].map(|number| number as u64);
    Ok(Said {
        requests,
        read_bytes,
        seconds: duration_us / 1e6,
        p50_us,
        p90_us,
        p99_us,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_backend_has_as_many_objects_and_all_differ() {
        let objects = Objects::new(5, 1000).unwrap();
        assert_eq!(objects.keys.len(), 5);
        for (n, keys) in objects.keys.iter().enumerate() {
            assert_eq!(keys.len(), OBJECTS);
            assert!(keys.iter().all(|key| key.starts_with(&format!("be{n}-"))));
        }
        let mut bodies: Vec<_> = objects
            .keys
            .iter()
            .flatten()
            .map(|key| objects.body(key))
            .collect();
        bodies.sort();
        bodies.dedup();
        assert_eq!(bodies.len(), 5 * OBJECTS);
    }
}
