//! Small runs of benchmarks. They end well, their rows make sense, and they leave nothing
//! behind. The figures are not judged.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use prism_lab::testing::{eventually, say, turn};

/// The longest time of a benchmark, and of its end after an interrupt.
const TIMEOUT: Duration = Duration::from_secs(90);
/// Programs that the benchmarks need.
const PROGRAMS: [&str; 3] = ["wrk", "nginx", "haproxy"];

/// A benchmark and the file of its rows.
struct Bench {
    command: &'static str,
    options: Vec<String>,
    directory: tempfile::TempDir,
}

/// A running benchmark; dropping it ends it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // SIGTERM lets it clean up.
        if let (Ok(None), Some(pid)) = (self.0.try_wait(), Pid::from_raw(self.0.id() as i32)) {
            let _ = kill_process(pid, Signal::TERM);
            let _ = self.0.wait();
        }
    }
}

impl Bench {
    /// A benchmark of two backends with turns of a second, one for each system.
    fn new(command: &'static str, options: &str) -> Self {
        Self::without_sizes(command, &format!("--sizes 16K {options}"))
    }

    fn without_sizes(command: &'static str, options: &str) -> Self {
        let usual = "--rounds 1 --seconds 1 --backends 2";
        let options = usual.split(' ').chain(options.split(' '));
        Self {
            command,
            options: options.map(str::to_owned).collect(),
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("rows.jsonl")
    }

    fn start(&self) -> Running {
        let log = |name: &str| fs::File::create(self.directory.path().join(name)).unwrap();
        let child = crate::prism_lab()
            .args(["bench", self.command, "--rows"])
            .arg(self.path())
            .args(&self.options)
            .stdin(Stdio::null())
            .stdout(log("out"))
            .stderr(log("err"))
            .spawn()
            .unwrap();
        Running(child)
    }

    /// Waits for the end. Returns whether it ended well, and its output.
    fn finish(&self, mut running: Running) -> (bool, String) {
        let deadline = Instant::now() + TIMEOUT;
        let status = loop {
            if let Some(status) = running.0.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "{} does not end", self.command);
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_nothing_left(running.0.id());
        let read = |name: &str| fs::read_to_string(self.directory.path().join(name)).unwrap();
        (status.success(), read("out") + &read("err"))
    }

    fn run(&self) -> String {
        let (ended_well, said) = self.finish(self.start());
        assert!(ended_well, "{}: {said}", self.command);
        said
    }

    /// Its rows, after a check of each.
    fn rows(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path()).unwrap_or_default();
        let rows = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let rows: Vec<Value> = rows.collect();
        for row in &rows {
            assert_eq!(row["result"], self.command);
            assert_eq!(row["round"], 0);
            assert_eq!(row["case"]["backends"], 2, "{row}");
            assert!(value(row, "requests") > 0.0, "{row}");
        }
        rows
    }

    /// The same for rows of requests over links with a speed.
    fn rows_of_load(&self) -> Vec<Value> {
        let rows = self.rows();
        for row in &rows {
            let ascending = ["p50_us", "p90_us", "p99_us"].map(|name| value(row, name));
            assert!(ascending.is_sorted() && ascending[0] > 0.0, "{row}");
            assert!(value(row, "seconds") > 0.9, "{row}");
            // The upper bound is the links' rate, and the content of their queues at the end.
            assert!((0.1..40.0).contains(&value(row, "mb_s")), "{row}");
        }
        rows
    }

    /// The number of rows whose case or system has `name` set to each of `values`.
    fn count(&self, name: &str, values: &[&str]) -> Vec<usize> {
        let rows = self.rows();
        let of = |row: &Value| match name {
            "system" => row["system"].as_str().unwrap().to_owned(),
            name => row["case"][name].to_string().trim_matches('"').to_owned(),
        };
        let counts = values
            .iter()
            .map(|value| rows.iter().filter(|row| of(row) == *value).count());
        counts.collect()
    }
}

fn value(row: &Value, name: &str) -> f64 {
    row["values"][name].as_f64().unwrap()
}

/// Checks that the labs and files of process `id` are gone.
fn assert_nothing_left(id: u32) {
    let id = format!("-{id}-");
    for place in ["/run/netns", "/run/prism-lab", "/dev/shm"] {
        let entries = fs::read_dir(place).into_iter().flatten();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let left: Vec<_> = names
            .filter(|name| format!("{name}-").contains(&id))
            .collect();
        assert!(left.is_empty(), "{left:?} is left in {place}");
    }
}

/// The right to run a benchmark. None where a program is missing.
fn ready() -> Option<std::sync::MutexGuard<'static, ()>> {
    let turn = turn()?;
    let paths = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    for program in PROGRAMS {
        let is_there = paths
            .split(':')
            .any(|path| Path::new(path).join(program).exists());
        if !is_there {
            assert!(std::env::var_os("CI").is_none(), "{program} is missing");
            say(&format!(
                "SKIPPED: needs {program} (scripts/setup.sh bench)"
            ));
            return None;
        }
    }
    Some(turn)
}

#[test]
fn what_was_measured_before_an_interruption_is_not_measured_again() {
    let Some(_turn) = ready() else { return };
    let bench = Bench::without_sizes("sweep", "--sizes 16K,32K --connections 20");
    let running = bench.start();
    eventually("a turn is noted", TIMEOUT, || !bench.rows().is_empty());
    let pid = Pid::from_raw(running.0.id() as i32).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let (ended_well, said) = bench.finish(running);
    assert!(!ended_well && said.contains("interrupted"), "{said}");
    let before = fs::read_to_string(bench.path()).unwrap();

    bench.run();
    let after = fs::read_to_string(bench.path()).unwrap();
    assert!(after.starts_with(&before) && after != before, "{after}");
    let systems = ["prism", "nginx", "haproxy", "direct"];
    assert_eq!(bench.count("system", &systems), [2, 2, 2, 2]);
    assert_eq!(bench.count("bytes", &["16384", "32768"]), [4, 4]);
    assert_eq!(bench.rows_of_load().len(), 8);

    // With all turns in the file it only prints the results.
    let said = bench.run();
    assert!(said.contains("Prism over the other system"), "{said}");
    assert_eq!(fs::read_to_string(bench.path()).unwrap(), after);
}

#[test]
fn a_store_is_read_and_written_by_popularity_with_objects_on_one_backend_or_on_all() {
    let Some(_turn) = ready() else { return };
    for (command, others) in [("partitioned", "replicated"), ("replicated", "partitioned")] {
        let options = "--objects 20 --connections 20 --writes 20 \
                       --popularity uniform,zipf-1.2";
        let bench = Bench::new(command, options);
        bench.run();
        assert_eq!(bench.count("popularity", &["uniform", "zipf-1.2"]), [1, 1]);
        assert_eq!(bench.count("placement", &[command, others]), [2, 0]);
        assert_eq!(bench.count("engine", &["lsm"]), [2]);
        for row in bench.rows_of_load() {
            // Each connection may have one write without an answer.
            let writes = value(&row, "writes");
            assert!(
                writes > 0.0 && writes < value(&row, "requests") + 20.0,
                "{row}"
            );
        }
    }
}

#[test]
fn one_object_that_everybody_wants_is_read_where_it_is_and_where_all_have_it() {
    let Some(_turn) = ready() else { return };
    let options = "--objects 20 --connections 20 --popularity single";
    let bench = Bench::new("skew", options);
    bench.run();
    assert_eq!(bench.count("system", &["prism", "nginx"]), [2, 1]);
    let counts = bench.count("placement", &["partitioned", "replicated"]);
    assert_eq!(counts, [2, 1]);
    assert_eq!(bench.rows_of_load().len(), 3);
}

#[test]
fn answers_are_handed_off_or_relayed_as_it_is_asked_for() {
    let Some(_turn) = ready() else { return };
    // A frontend relays only what its link has room for.
    let bench = Bench::new("crossover", "--connections 20 --unshaped");
    bench.run();
    let systems = bench.count("system", &["hand-off", "relay", "auto"]);
    assert_eq!(systems, [1, 1, 1]);
    let rows = bench.rows();
    let frontend = |row: &Value| value(row, "frontend_cpu_s") / value(row, "requests");
    // A frontend passes every byte on, or almost none.
    assert!(frontend(&rows[1]) > 2.0 * frontend(&rows[0]), "{rows:?}");
}

#[test]
fn objects_are_written_over_https_by_all_systems() {
    let Some(_turn) = ready() else { return };
    let bench = Bench::new("upload", "--connections 4 --tls");
    bench.run();
    let systems = bench.count("system", &["prism", "nginx", "direct"]);
    assert_eq!(systems, [1, 1, 1]);
    assert_eq!(bench.rows_of_load().len(), 3);
}

#[test]
fn unmodified_servers_are_behind_all_systems() {
    let Some(_turn) = ready() else { return };
    let bench = Bench::new("upstream", "--servers nginx --connections 20");
    bench.run();
    let systems = ["prism", "nginx", "haproxy", "direct"];
    assert_eq!(bench.count("system", &systems), [1, 1, 1, 1]);
    assert_eq!(bench.count("server", &["nginx"]), [4]);
    for row in bench.rows_of_load() {
        // A frontend of Prism carries no answers, and a proxy carries each twice.
        let link = value(&row, "frontend_link");
        match row["system"].as_str().unwrap() {
            "prism" => assert!(link < 0.5, "{row}"),
            "direct" => assert!(link == 0.0, "{row}"),
            _ => assert!(link > 1.5, "{row}"),
        }
    }
}

#[test]
fn steps_of_hand_offs_are_rows() {
    let Some(_turn) = ready() else { return };
    let mut handoff = crate::prism_lab();
    handoff.args(["bench", "handoff", "--count", "100", "--json"]);
    let output = handoff.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    for mode in ["direct", "return"] {
        let p50_us = |step: &str| {
            let rows = document["rows"].as_array().unwrap();
            let fits = |row: &&Value| row["case"]["mode"] == mode && row["case"]["step"] == step;
            value(rows.iter().find(fits).unwrap(), "p50_us")
        };
        assert!(p50_us("block") > 0.0);
        assert!(p50_us("total") > p50_us("block") + p50_us("restore tcp"));
        assert!(p50_us("request") > p50_us("total"));
    }
}
