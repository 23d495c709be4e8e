//! Measures the store on a given directory: PUT and GET of 4 KiB and 1 MiB, by
//! one thread and by eight, with and without waiting for the disk.
//!
//! ```text
//! cargo run --release -p prism-store --example store_bench -- DIR [SECONDS]
//! ```
//!
//! A store is made under DIR and removed. GETs of files read them through the
//! page cache, so they say what the store costs, not what the disk does.

use std::{
    error::Error,
    fs,
    os::unix::fs::FileExt,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use prism_store::{Body, Config, Durability, ObjectMeta, Store};

type Failure = Box<dyn Error + Send + Sync>;

/// Distinct keys per thread: later rounds overwrite.
const KEYS: u64 = 64;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let Some(dir) = arguments.next() else {
        return Err("usage: store_bench DIR [SECONDS]".into());
    };
    let seconds = arguments.next().map_or(Ok(2.0), |text| text.parse())?;
    let time = Duration::try_from_secs_f64(seconds)?;
    println!(
        "| size | threads | durability | PUT/s | PUT MiB/s | puts per flush | GET/s | GET MiB/s |"
    );
    println!("|---:|---:|---|---:|---:|---:|---:|---:|");
    for len in [4 * 1024, 1024 * 1024] {
        for threads in [1, 8] {
            for durability in [Durability::Fsync, Durability::None] {
                row(Path::new(&dir), len, threads, durability, time)?;
            }
        }
    }
    println!("peak resident memory: {}", peak_memory()?);
    Ok(())
}

fn row(
    dir: &Path,
    len: usize,
    threads: u64,
    durability: Durability,
    time: Duration,
) -> Result<(), Failure> {
    let dir = dir.join(format!("store-bench-{}", std::process::id()));
    let config = Config {
        durability,
        ..Config::default()
    };
    let store = Store::open(&dir, config)?;
    store.buckets().create("bench", 0)?;
    let data = vec![0x5a; len];
    let before = store.commit_stats();
    let puts = rate(threads, time, |key| put(&store, key, &data))?;
    let after = store.commit_stats();
    let batches = (after.batches - before.batches).max(1);
    let per_flush = (after.operations - before.operations) as f64 / batches as f64;
    let gets = rate(threads, time, |key| get(&store, key))?;
    let mib = len as f64 / (1024.0 * 1024.0);
    println!(
        "| {} KiB | {threads} | {durability:?} | {puts:.0} | {:.1} | {per_flush:.1} | {gets:.0} | {:.1} |",
        len / 1024,
        puts * mib,
        gets * mib
    );
    drop(store);
    fs::remove_dir_all(&dir)?;
    Ok(())
}

/// Operations per second of `threads` threads, each over its own keys.
fn rate(
    threads: u64,
    time: Duration,
    operation: impl Fn(&str) -> Result<(), Failure> + Sync,
) -> Result<f64, Failure> {
    let done = AtomicU64::new(0);
    let started = Instant::now();
    thread::scope(|scope| {
        let (done, operation) = (&done, &operation);
        let workers: Vec<_> = (0..threads)
            .map(|worker| {
                scope.spawn(move || {
                    // Each key at least once, so that every GET finds its object.
                    let mut round = 0;
                    while round < KEYS || started.elapsed() < time {
                        operation(&format!("{worker}/{}", round % KEYS))?;
                        done.fetch_add(1, Ordering::Relaxed);
                        round += 1;
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| {
            worker
                .join()
                .unwrap_or_else(|_| Err("a worker panicked".into()))
        })
    })
    .map_err(|error: Failure| error)?;
    Ok(done.into_inner() as f64 / started.elapsed().as_secs_f64())
}

fn put(store: &Store, key: &str, data: &[u8]) -> Result<(), Failure> {
    let mut writer = store.begin_put("bench", key, Some(data.len() as u64))?;
    for chunk in data.chunks(256 * 1024) {
        writer.write(chunk)?;
    }
    writer.commit(ObjectMeta::default())?;
    Ok(())
}

fn get(store: &Store, key: &str) -> Result<(), Failure> {
    let object = store.get("bench", key)?.ok_or("object lost")?;
    if let Body::File(file) = &object.body {
        let len = file.len();
        file.check_all(0, len)?;
        let mut buffer = vec![0; 256 * 1024];
        let mut at = 0;
        while at < len {
            at += file.file().read_at(&mut buffer, at)? as u64;
        }
    }
    Ok(())
}

fn peak_memory() -> Result<String, Failure> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    Ok(line.unwrap_or("unknown").trim().to_owned())
}
