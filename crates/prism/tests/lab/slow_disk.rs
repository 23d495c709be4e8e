//! Replicas of which one has a slow disk: a file system on a loop device that the kernel
//! throttles (blkio). The tests need root, loop devices and that controller; without them each
//! says so and passes, except under CI, where it fails.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use prism_http::{Limits, ResponseHead};

use crate::replicas::compare;
use crate::support::client::Request;
use crate::support::{Cluster, say, turn};

const THROTTLE: &str = "/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device";
/// The longest silence of another replica, in a node.
const SILENCE: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(60);

struct SlowDisk {
    _parent: tempfile::TempDir,
    dir: PathBuf,
    device: String,
    /// Its numbers.
    number: String,
}

impl SlowDisk {
    fn new() -> Option<Self> {
        if !Path::new(THROTTLE).exists() || !Path::new("/dev/loop-control").exists() {
            assert!(std::env::var_os("CI").is_none(), "needs blkio and loop");
            say("SKIPPED: needs the controller blkio and loop devices");
            return None;
        }
        let parent = tempfile::tempdir().unwrap();
        let (image, dir) = (parent.path().join("image"), parent.path().join("disk"));
        fs::create_dir(&dir).unwrap();
        fs::File::create(&image).unwrap().set_len(1 << 30).unwrap();
        run(Command::new("mkfs.ext4").arg("-qF").arg(&image));
        let device = run(Command::new("losetup").args(["-f", "--show"]).arg(&image));
        run(Command::new("mount").arg(&device).arg(&dir));
        let name = device.trim_start_matches("/dev/");
        let number = fs::read_to_string(format!("/sys/block/{name}/dev")).unwrap();
        Some(Self {
            _parent: parent,
            dir,
            number: number.trim().to_owned(),
            device,
        })
    }

    /// Limits its bytes per second from now on; 0 removes the limit.
    fn throttle(&self, bytes_per_s: u64) {
        fs::write(THROTTLE, format!("{} {bytes_per_s}", self.number)).unwrap();
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        let _ = fs::write(THROTTLE, format!("{} 0", self.number));
        let _ = Command::new("umount").arg("-l").arg(&self.dir).status();
        let _ = Command::new("losetup").arg("-d").arg(&self.device).status();
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Two replicas, of which `be1` has this disk.
fn up(disk: &SlowDisk) -> Cluster {
    let store = disk.dir.join("store");
    Cluster::configured(2, move |config| {
        config.cluster.replicas = 2;
        let node = config.nodes.iter_mut().find(|node| node.name == "be1");
        node.unwrap().store = store;
    })
}

/// The status and the time of the request.
fn put(cluster: &Cluster, key: &str, data: &[u8]) -> (u16, Duration) {
    let put = Request::new("PUT", &format!("/{key}"))
        .signing(data)
        .header("Content-Length", data.len().to_string());
    let client = cluster.connect();
    let mut stream = client.stream();
    stream.set_read_timeout(Some(LONGEST)).unwrap();
    let begun = Instant::now();
    stream.write_all(&put.encode(cluster)).unwrap();
    stream.write_all(data).unwrap();
    let mut answer = Vec::new();
    loop {
        let mut piece = [0; 1024];
        let read = stream.read(&mut piece).unwrap();
        assert!(read > 0, "closed");
        answer.extend_from_slice(&piece[..read]);
        if let Some((head, _)) = ResponseHead::parse(&answer, &Limits::DEFAULT).unwrap() {
            return (head.status(), begun.elapsed());
        }
    }
}

#[test]
fn a_replica_may_take_long_to_flush_a_large_object() {
    let Some(_turn) = turn() else { return };
    let Some(disk) = SlowDisk::new() else { return };
    let cluster = up(&disk);
    let key = cluster.key_on("be0", "large");
    let data = vec![b'x'; 26_000_000];
    disk.throttle(2_000_000);
    let (status, took) = put(&cluster, &key, &data);
    disk.throttle(0);
    say(&format!(
        "26 MB to a disk of 2 MB/s: {status} after {took:?}"
    ));
    assert_eq!(status, 200);
    assert!(took > SILENCE, "the disk was not slow");
    let objects = compare(cluster, 2);
    assert!(objects.keys().any(|(_, found)| *found == key));
}

#[test]
fn a_replica_may_take_no_bytes_for_long_while_its_disk_is_at_work() {
    let Some(_turn) = turn() else { return };
    let Some(disk) = SlowDisk::new() else { return };
    let cluster = up(&disk);
    let key = cluster.key_on("be0", "stalled");
    // More than the buffers between the two have room for.
    let data = vec![b'y'; 64 << 20];
    // One step takes longer than another replica may be silent.
    disk.throttle(90_000);
    let (status, took) = std::thread::scope(|scope| {
        let put = scope.spawn(|| put(&cluster, &key, &data));
        std::thread::sleep(SILENCE + Duration::from_secs(3));
        disk.throttle(0);
        put.join().unwrap()
    });
    say(&format!(
        "64 MiB to a disk that stood still: {status} after {took:?}"
    ));
    assert_eq!(status, 200);
    assert!(took > SILENCE, "the disk did not stand still");
}
