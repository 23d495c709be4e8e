//! Tasks of a node that fail for a while, and go on.

use std::fs::{create_dir, read_to_string, remove_dir, write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::support::client::Request;
use crate::support::objects::Object;
use crate::support::{Cluster, eventually, turn};

/// The time during which the node can open nothing.
const SHORTAGE: Duration = Duration::from_secs(1);
/// More than the client's kernel takes unread, and less than the node's kernel takes of an
/// answer. An object in a file would take a descriptor.
const LEN: u64 = 12 << 10;

/// Limits the descriptors of a process of a lab, and returns its former limit.
fn bound_descriptors(pid: u32, current: Option<u64>) -> Option<u64> {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap());
    // The hard limit of all processes that the test has started.
    let maximum = getrlimit(Resource::Nofile).maximum;
    let bounds = Rlimit { current, maximum };
    prlimit(pid, Resource::Nofile, bounds).unwrap().current
}

#[test]
fn flows_are_released_also_after_the_kernel_refused_to_tell_of_closed_sockets() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(2);
    let object = Object::new(cluster.key_on("be0", "key"), LEN);
    cluster.put_all(std::slice::from_ref(&object));
    let mut client = cluster.connect_with(|socket| socket.set_recv_buffer_size(4096).unwrap());
    client.get(&cluster, &object);
    let restarts = || cluster.counter("be0", "handoff", "tasks_restarted");
    assert_eq!(restarts(), 0);
    let backend = cluster.lab.pid("be0").unwrap();
    let usual = bound_descriptors(backend, Some(0));
    // The backend closes with most of the answer unread. The socket stays in its kernel, and
    // the news of its end takes a descriptor.
    client.send(&Request::get(&object).encode(&cluster));
    client.half_close();
    std::thread::sleep(SHORTAGE);
    bound_descriptors(backend, usual);
    assert!(restarts() > 0, "nothing has failed");
    assert_eq!(cluster.counter("be0", "handoff", "flows_closing"), 1);
    client.reset();
    cluster.assert_no_flows();
}

/// The directory of the control group (version 2) of this process and of its labs.
fn own_group() -> PathBuf {
    let mounts = read_to_string("/proc/self/mountinfo").unwrap();
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let mount = mount.and_then(|line| line.split(' ').nth(4)).unwrap();
    let groups = read_to_string("/proc/self/cgroup").unwrap();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    Path::new(mount).join(own.unwrap())
}

#[test]
fn a_node_that_comes_into_another_control_group_freezes_sockets_again() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::up(2);
    let group = own_group();
    let below = group.join(format!("prism-test-{}", std::process::id()));
    create_dir(&below).unwrap();
    // Programs of the group above also count below it, so the test starts there.
    let move_to = |group: &Path, pid: u32| {
        write(group.join("cgroup.procs"), pid.to_string()).unwrap();
    };
    move_to(&below, std::process::id());
    let restarted = cluster.lab.restart("be0");
    move_to(&group, std::process::id());
    restarted.unwrap();
    let backend = cluster.lab.pid("be0").unwrap();
    let renewed = || cluster.counter("be0", "handoff", "freezer_renewed");
    assert_eq!(renewed(), 0);
    move_to(&group, backend);
    eventually("that is found out", Duration::from_secs(10), || {
        renewed() == 1
    });
    remove_dir(&below).unwrap();
    let objects = cluster.one_on_each("key", |_| 1000);
    cluster.put_all(&objects);
    let mut client = cluster.connect();
    for object in objects.iter().cycle().take(10) {
        client.get(&cluster, object);
    }
}
