//! Entering named namespaces.

use std::net::TcpListener;

use crate::{ip, privileged};
use prism_netns::NetNs;

/// A namespace of `ip netns` that is removed whatever happens.
struct Named(String);

impl Named {
    fn new() -> Self {
        let name = format!("psys-{}", std::process::id());
        ip(&format!("netns add {name}"));
        Self(name)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        ip(&format!("netns del {}", self.0));
    }
}

fn interfaces() -> usize {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    table.lines().count() - 2
}

#[test]
fn work_runs_inside_and_the_caller_stays_outside() {
    if !privileged() {
        return;
    }
    let named = Named::new();
    let ns = NetNs::named(&named.0).unwrap();
    let before = interfaces();
    assert_eq!(ns.run(interfaces).unwrap(), 1, "only lo");
    // A child process is inside, and a socket stays inside.
    ns.run(|| ip("link set lo up")).unwrap();
    let listener = ns
        .run(|| TcpListener::bind("127.0.0.1:0").unwrap())
        .unwrap();
    let address = listener.local_addr().unwrap();
    assert!(std::net::TcpStream::connect(address).is_err());
    ns.run(|| std::net::TcpStream::connect(address).unwrap())
        .unwrap();
    assert_eq!(interfaces(), before);
}

#[test]
fn a_panic_inside_comes_out() {
    if !privileged() {
        return;
    }
    let ns = NetNs::anonymous().unwrap();
    let outcome = std::panic::catch_unwind(|| ns.run(|| panic!("inside")));
    let message = outcome.unwrap_err();
    assert_eq!(message.downcast_ref::<&str>(), Some(&"inside"));
}
