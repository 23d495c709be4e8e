//! The load: `wrk`, unmodified, which asks for objects over and over.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::objects::{BUCKET, Objects};
use super::popularity::Popularity;
use super::rows::Values;

/// Of an object.
const LARGE: u64 = 64 << 10;
/// Of the order in which objects are popular.
const SEED: u64 = 12;

/// What `wrk` is to ask for.
pub(crate) struct Load<'o> {
    pub(crate) objects: &'o Objects,
    /// Those of the first so many backends; there is a thread for each.
    pub(crate) backends: usize,
    pub(crate) connections: usize,
    pub(crate) popularity: Popularity,
    /// How many of a hundred requests write what they name.
    pub(crate) writes_percent: u8,
}

/// Where it asks.
#[derive(Default)]
pub(crate) struct Places<'p> {
    /// Where given, each thread asks for the objects of one backend, there.
    pub(crate) owners: Option<(Vec<Ipv4Addr>, u16)>,
    /// Heads of requests that write, by key, and the file of [`Objects::pool`].
    pub(crate) writes: Option<(HashMap<&'p str, Vec<u8>>, &'p Path)>,
}

/// What `wrk` says of a run.
pub(crate) struct Said {
    requests: f64,
    /// Of answers, also of those that did not end in time.
    read_bytes: f64,
    /// Requests that wrote, whether or not the last of them were answered in time.
    writes: f64,
    seconds: f64,
    /// From the request to the last byte of its answer.
    percentiles_us: [f64; 3],
}

impl<'o> Load<'o> {
    /// All alike, and nobody writes.
    pub(crate) fn of(objects: &'o Objects, connections: usize) -> Self {
        Self {
            objects,
            backends: objects.keys.len(),
            connections,
            popularity: Popularity::Uniform,
            writes_percent: 0,
        }
    }

    /// The script of `wrk`.
    pub(crate) fn script(&self, places: &Places<'_>) -> String {
        let mut lua = String::from("local objects = {\n");
        let mut objects: Vec<_> = self.objects.all().collect();
        objects.retain(|object| object.backend < self.backends);
        // In the order of their popularity.
        fastrand::Rng::with_seed(SEED).shuffle(&mut objects);
        let heads = places.writes.as_ref().map(|(heads, _)| heads);
        for object in &objects {
            let (key, thread) = (object.key, object.backend + 1);
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
        let (hosts, port) = places.owners.clone().unwrap_or_default();
        for host in hosts {
            let _ = write!(lua, "\"{host}\",");
        }
        let pool = places.writes.as_ref().map(|(_, path)| path.display());
        let pool = pool.map(|path| path.to_string()).unwrap_or_default();
        let share = f64::from(self.writes_percent) / 100.0;
        let bytes = self.objects.bytes;
        let _ = writeln!(
            lua,
            "}}\nlocal port, bucket = \"{port}\", \"{BUCKET}\"\n\
             local writes, bytes, pool_file = {share}, {bytes}, \"{pool}\""
        );
        lua.push_str(SCRIPT);
        lua
    }

    /// Arguments of `wrk` for `seconds`.
    pub(crate) fn arguments(&self, wrk: &mut Command, script: &Path, seconds: u64) {
        wrk.arg(format!("-t{}", self.backends));
        wrk.args([format!("-c{}", self.connections), format!("-d{seconds}s")]);
        wrk.args(["--timeout", ANSWER_TIMEOUT, "-s"]).arg(script);
    }

    /// What a run came to, as rows have it. CPU times are those of the frontend,
    /// of all backends and of the client.
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52 bytes")]
    pub(crate) fn values(&self, said: &Said, cpu: [Duration; 3]) -> Values {
        // Of large objects those count that were on their way when the turn ended,
        // and heads as well: they are less than a percent.
        let bytes = self.objects.bytes as f64;
        let moved = match self.objects.bytes {
            LARGE.. => said.read_bytes + said.writes * bytes,
            _ => said.requests * bytes,
        };
        let [p50_us, p90_us, p99_us] = said.percentiles_us;
        let [frontend, backends, client] = cpu.map(|cpu| cpu.as_secs_f64());
        let values = [
            ("requests", said.requests),
            ("read_bytes", said.read_bytes),
            ("writes", said.writes),
            ("seconds", said.seconds),
            ("mb_s", moved / said.seconds / 1e6),
            ("requests_s", said.requests / said.seconds),
            ("p50_us", p50_us),
            ("p90_us", p90_us),
            ("p99_us", p99_us),
            ("frontend_cpu_s", frontend),
            ("backends_cpu_s", backends),
            ("client_cpu_s", client),
            ("cpu_us", (frontend + backends) * 1e6 / said.requests),
        ];
        let values = values.map(|(name, value)| (name.to_owned(), value));
        values.into_iter().collect()
    }
}

/// Longer than any answer takes: 100 connections share a link of 100 Mbit/s for objects of
/// 4 MiB, which is 36 s each, if they share it fairly.
const ANSWER_TIMEOUT: &str = "90s";

/// A thread of `wrk` has an interpreter of its own, and `setup` and `done` one of
/// theirs.
const SCRIPT: &str = r#"
local threads = {}
function setup(thread)
  threads[#threads + 1] = thread
  thread:set("number", #threads)
  if #hosts > 0 then
    thread.addr = wrk.lookup(hosts[#threads], port)[1]
  end
end

local gets, puts, offsets, pool = {}, {}, {}, nil
written = 0
function init(args)
  math.randomseed(number)
  for _, object in ipairs(objects) do
    if #hosts == 0 or object[1] == number then
      gets[#gets + 1] = wrk.format("GET", "/" .. bucket .. "/" .. object[2])
      offsets[#offsets + 1] = object[3]
      puts[#puts + 1] = object[4]
    end
  end
  if writes > 0 then
    local file = assert(io.open(pool_file, "rb"))
    pool = file:read("*a")
    file:close()
  end
end

local function pick()
  if #shares == 0 then
    return math.random(#gets)
  end
  local share, low, high = math.random(), 1, #shares
  while low < high do
    local middle = math.floor((low + high) / 2)
    if share < shares[middle] then high = middle else low = middle + 1 end
  end
  return low
end

function request()
  local n = pick()
  if writes > 0 and math.random() < writes then
    written = written + 1
    return puts[n] .. pool:sub(offsets[n] + 1, offsets[n] + bytes)
  end
  return gets[n]
end

function done(summary, latency, requests)
  local e, all = summary.errors, 0
  for _, thread in ipairs(threads) do
    all = all + thread:get("written")
  end
  io.write(string.format("RESULT %d %d %d %d %d %f %f %f\n", summary.requests, summary.bytes, all,
    summary.duration, e.connect + e.read + e.write + e.status + e.timeout,
    latency:percentile(50), latency:percentile(90), latency:percentile(99)))
end
"#;

/// Runs `wrk`. A run with an error does not count: it fails.
pub(crate) fn run(mut wrk: Command) -> Result<Said> {
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
    Ok(Said {
        requests,
        read_bytes,
        writes,
        seconds: duration_us / 1e6,
        percentiles_us: [p50, p90, p99],
    })
}

/// Bytes as within a text of Lua.
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
    fn a_script_asks_for_the_objects_of_the_backends_it_is_for() {
        let objects = Objects::new(3, 4, 100).unwrap();
        let load = Load {
            backends: 2,
            popularity: Popularity::Zipf(0.9),
            writes_percent: 5,
            ..Load::of(&objects, 10)
        };
        let head = b"PUT /x HTTP/1.1\r\nX: \"\r\n\r\n".to_vec();
        let key = objects.all().next().unwrap().key;
        let places = Places {
            writes: Some((HashMap::from([(key, head)]), Path::new("/pool"))),
            ..Places::default()
        };
        let script = load.script(&places);
        for object in objects.all() {
            let is_in = script.contains(&format!("\"{}\"", object.key));
            assert_eq!(is_in, object.backend < 2, "{}", object.key);
        }
        assert!(script.contains("PUT /x HTTP/1.1\\013\\010X: \\034\\013\\010\\013\\010\"},"));
        assert!(script.contains("writes, bytes, pool_file = 0.05, 100, \"/pool\""));
        assert!(script.contains(",1,}\nlocal hosts = {}"));
    }
}
