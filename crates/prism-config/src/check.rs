//! Checks of the values, each on its own and together.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::Path;

use crate::bounds::{Limits, Store};
use crate::load::Problem;
use crate::model::{Config, Node, Switch, UNSET};

/// Longest name of a network interface (`IFNAMSIZ` less the final zero).
const MAX_INTERFACE_BYTES: usize = 15;
/// Longest path of a Unix socket (`sun_path` less the final zero).
const MAX_SOCKET_PATH_BYTES: usize = 107;
/// Most nodes.
const MAX_NODES: usize = 1_024;

impl Config {
    /// All faults of the values; empty for a good configuration.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let mut found = Found::default();
        self.check_cluster(&mut found);
        self.check_service(&mut found);
        self.check_tls(&mut found);
        if let Some(switch) = &self.switch {
            self.check_switch(switch, &mut found);
        }
        self.check_nodes(&mut found);
        self.check_files(&mut found);
        check_store(&self.store, &mut found);
        check_limits(&self.limits, &mut found);
        check_level(&self.log.level, &mut found);
        found.0
    }

    fn check_cluster(&self, found: &mut Found) {
        found.name("cluster.name", &self.cluster.name);
        found.name("cluster.region", &self.cluster.region);
        if let Some(etcd) = &self.cluster.etcd {
            etcd.check(found);
        }
        // In etcd there may be nodes that this file does not know.
        let backends = match self.cluster.etcd {
            None => self.backends().count().max(1) as u64,
            Some(_) => MAX_NODES as u64,
        };
        found.range(
            "cluster.replicas",
            self.cluster.replicas.into(),
            1,
            backends,
        );
        if let Some(min) = self.cluster.min_replicas {
            let replicas = self.cluster.replicas.max(1).into();
            found.range("cluster.min_replicas", min.into(), 1, replicas);
        }
    }

    fn check_service(&self, found: &mut Found) {
        let address = self.service.address;
        if address == UNSET {
            found.missing(
                "service.address",
                "the address and port of clients, as in \"10.0.0.1:80\"",
            );
            return;
        }
        found.host("service.address", *address.ip());
        found.port("service.address", address.port());
        found.check(address.port() != self.peers.port, "service.address", || {
            (
                format!("has the port of the node protocol, {}", self.peers.port),
                "change one of service.address and peers.port".into(),
            )
        });
    }

    fn check_switch(&self, switch: &Switch, found: &mut Found) {
        if switch.control == UNSET {
            found.missing(
                "switch.control",
                "the switch's address and port, as in \"10.0.0.2:7300\"",
            );
        } else {
            found.host("switch.control", *switch.control.ip());
            found.port("switch.control", switch.control.port());
            found.check(
                switch.control.ip() != self.service.address.ip(),
                "switch.control",
                || {
                    (
                        "is the service address".into(),
                        "give the switch an address of its own".into(),
                    )
                },
            );
        }
        found.path(
            "switch.key_file",
            &switch.key_file,
            "the file of the control key",
        );
        found.check(is_plain_name(&switch.pin_dir), "switch.pin_dir", || {
            (
                format!(
                    "{:?} is not the name of a directory below /sys/fs/bpf",
                    switch.pin_dir
                ),
                "use letters, digits, '-' and '_', without '/'".into(),
            )
        });
        check_interfaces(&switch.interfaces, found);
        found.range("switch.max_flows", switch.max_flows.into(), 1_024, 1 << 26);
        found.range(
            "switch.idle_timeout_s",
            switch.idle_timeout_s.into(),
            10,
            7 * 86_400,
        );
        let idle_s = self.limits.idle_timeout_s.max(self.limits.stall_timeout_s);
        found.check(
            switch.idle_timeout_s > idle_s,
            "switch.idle_timeout_s",
            || {
                (
                    format!(
                        "{} s is not longer than the {idle_s} s that a connection may be silent",
                        switch.idle_timeout_s
                    ),
                    "raise it above limits.idle_timeout_s and limits.stall_timeout_s".into(),
                )
            },
        );
    }

    fn check_nodes(&self, found: &mut Found) {
        let has_directory = self.cluster.etcd.is_some();
        found.check(
            has_directory || self.frontends().next().is_some(),
            "node",
            || {
                (
                    "no node is a frontend".into(),
                    "give one node the role \"frontend\"".into(),
                )
            },
        );
        found.check(
            has_directory || self.backends().next().is_some(),
            "node",
            || {
                (
                    "no node is a backend".into(),
                    "give one node the role \"backend\"".into(),
                )
            },
        );
        found.check(self.nodes.len() <= MAX_NODES, "node", || {
            (
                format!("there are more than {MAX_NODES}"),
                "split the cluster".into(),
            )
        });
        let (mut names, mut addresses) = (BTreeSet::new(), BTreeSet::new());
        for (index, node) in self.nodes.iter().enumerate() {
            let field = |leaf: &str| format!("node[{index}].{leaf}");
            self.check_node(node, &field, found);
            found.check(names.insert(&node.name), &field("name"), || {
                (
                    format!("{:?} is another node's name", node.name),
                    "give each node a name of its own".into(),
                )
            });
            let is_new = node.address == Ipv4Addr::UNSPECIFIED || addresses.insert(node.address);
            found.check(is_new, &field("address"), || {
                (
                    format!("{} is another node's address", node.address),
                    "give each node an address of its own".into(),
                )
            });
        }
    }

    fn check_node(&self, node: &Node, field: &dyn Fn(&str) -> String, found: &mut Found) {
        found.name(&field("name"), &node.name);
        if node.address == Ipv4Addr::UNSPECIFIED {
            found.missing(
                &field("address"),
                "the host's own address, as in \"10.0.0.11\"",
            );
        } else {
            found.host(&field("address"), node.address);
            found.check(
                node.address != *self.service.address.ip(),
                &field("address"),
                || {
                    (
                        "is the service address".into(),
                        "name the host's own address; the service address is shared".into(),
                    )
                },
            );
        }
        found.check(!node.roles.is_empty(), &field("roles"), || {
            (
                "is missing".into(),
                "use [\"frontend\"], [\"backend\"] or both".into(),
            )
        });
        if node.is_backend() {
            found.path(&field("store"), &node.store, "a directory for objects");
        }
        found.range(&field("workers"), node.workers.into(), 0, 1_024);
        found.range(&field("link_mbit_s"), node.link_mbit_s.into(), 0, 1_600_000);
        let socket = self.admin_socket(&node.name);
        found.check(
            socket.as_os_str().len() <= MAX_SOCKET_PATH_BYTES,
            "admin.socket_dir",
            || {
                (
                    format!(
                        "makes {} longer than {MAX_SOCKET_PATH_BYTES} bytes",
                        socket.display()
                    ),
                    "use a shorter directory".into(),
                )
            },
        );
    }

    fn check_files(&self, found: &mut Found) {
        found.port("peers.port", self.peers.port);
        found.path(
            "peers.ca_file",
            &self.peers.ca_file,
            "the authority's certificate",
        );
        found.path(
            "peers.cert_dir",
            &self.peers.cert_dir,
            "the directory of certificates",
        );
        if self.cluster.etcd.is_none() {
            let file = &self.s3.credentials_file;
            found.path("s3.credentials_file", file, "the file of access keys");
        }
        found.path(
            "admin.socket_dir",
            &self.admin.socket_dir,
            "a directory for sockets",
        );
    }
}

fn check_interfaces(interfaces: &[String], found: &mut Found) {
    let field = "switch.interfaces";
    found.check(!interfaces.is_empty(), field, || {
        (
            "is missing".into(),
            "name the interfaces that service traffic crosses".into(),
        )
    });
    let mut seen = BTreeSet::new();
    for name in interfaces {
        let is_name = !name.is_empty()
            && name.len() <= MAX_INTERFACE_BYTES
            && !name.contains(|c: char| c == '/' || c.is_whitespace());
        found.check(is_name, field, || {
            (
                format!("{name:?} cannot be the name of an interface"),
                format!("use the name from `ip link`, at most {MAX_INTERFACE_BYTES} bytes"),
            )
        });
        found.check(seen.insert(name), field, || {
            (format!("{name:?} is listed twice"), "remove one".into())
        });
    }
}

fn check_store(store: &Store, found: &mut Found) {
    const YEAR_S: u64 = 366 * 86_400;
    found.range(
        "store.scrub_interval_s",
        store.scrub_interval_s.into(),
        0,
        YEAR_S,
    );
    // A slower scrub would hardly ever end.
    let rate = store.scrub_bytes_per_s;
    found.range("store.scrub_bytes_per_s", rate, 64 << 10, 1 << 40);
    // At a lower rate other nodes would take the connection for a dead one.
    if store.refill_bytes_per_s != 0 {
        let rate = store.refill_bytes_per_s;
        found.range("store.refill_bytes_per_s", rate, 1 << 20, 1 << 40);
    }
    found.range("store.recheck_s", store.recheck_s.into(), 0, 86_400);
    let days = store.expire_uploads_days.into();
    found.range("store.expire_uploads_days", days, 0, 3_660);
}

fn check_limits(limits: &Limits, found: &mut Found) {
    const MAX_TIMEOUT_S: u64 = 86_400;
    found.range(
        "limits.head_bytes",
        limits.head_bytes.into(),
        1_024,
        1 << 20,
    );
    found.range(
        "limits.connections",
        limits.connections.into(),
        1,
        10_000_000,
    );
    found.range(
        "limits.unauthenticated_per_address",
        limits.unauthenticated_per_address.into(),
        1,
        10_000_000,
    );
    found.range(
        "limits.unauthenticated_timeout_s",
        limits.unauthenticated_timeout_s.into(),
        1,
        MAX_TIMEOUT_S,
    );
    found.range(
        "limits.idle_timeout_s",
        limits.idle_timeout_s.into(),
        1,
        MAX_TIMEOUT_S,
    );
    found.range(
        "limits.head_timeout_s",
        limits.head_timeout_s.into(),
        1,
        MAX_TIMEOUT_S,
    );
    found.range(
        "limits.stall_timeout_s",
        limits.stall_timeout_s.into(),
        1,
        MAX_TIMEOUT_S,
    );
    found.range(
        "limits.max_object_bytes",
        limits.max_object_bytes,
        1,
        5 << 30,
    );
    found.range(
        "limits.drain_timeout_s",
        limits.drain_timeout_s.into(),
        0,
        MAX_TIMEOUT_S,
    );
}

/// Checks levels separated by commas, each for all modules or for one.
fn check_level(level: &str, found: &mut Found) {
    const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
    for part in level.split(',') {
        let (module, level) = part.split_once('=').unwrap_or(("all", part));
        let is_known = LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level));
        let is_module = !module.is_empty() && !module.contains(char::is_whitespace);
        found.check(is_known && is_module, "log.level", || {
            (
                format!("{part:?} is not a level"),
                "use error, warn, info, debug, trace or off, or MODULE=LEVEL, with commas \
                 between several"
                    .into(),
            )
        });
    }
}

/// The faults that were found.
#[derive(Default)]
pub(crate) struct Found(Vec<Problem>);

impl Found {
    pub(crate) fn check(
        &mut self,
        holds: bool,
        field: &str,
        say: impl FnOnce() -> (String, String),
    ) {
        if !holds {
            let (fault, fix) = say();
            self.0.push(Problem {
                field: field.into(),
                fault,
                fix,
            });
        }
    }

    pub(crate) fn missing(&mut self, field: &str, what: &str) {
        self.check(false, field, || {
            ("is missing".into(), format!("give {what}"))
        });
    }

    fn name(&mut self, field: &str, name: &str) {
        if name.is_empty() {
            return self.missing(field, "a name of a-z, 0-9 and '-'");
        }
        let is_label = name.len() <= 63
            && name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !name.starts_with('-')
            && !name.ends_with('-');
        self.check(is_label, field, || {
            (
                format!("{name:?} is not a valid name"),
                "use 1 to 63 of a-z, 0-9 and '-', not '-' at either end".into(),
            )
        });
    }

    fn host(&mut self, field: &str, address: Ipv4Addr) {
        let is_host = !address.is_unspecified()
            && !address.is_multicast()
            && !address.is_broadcast()
            && !address.is_loopback();
        self.check(is_host, field, || {
            (
                format!("{address} cannot be a host's address on the network"),
                "use a unicast address that other hosts can reach".into(),
            )
        });
    }

    pub(crate) fn port(&mut self, field: &str, port: u16) {
        self.check(port != 0, field, || {
            ("has port 0".into(), "use 1 to 65535".into())
        });
    }

    pub(crate) fn path(&mut self, field: &str, path: &Path, what: &str) {
        if path.as_os_str().is_empty() {
            self.missing(field, what);
        }
    }

    pub(crate) fn range(&mut self, field: &str, value: u64, min: u64, max: u64) {
        self.check((min..=max).contains(&value), field, || {
            (
                format!("{value} is out of range"),
                format!("use {min} to {max}"),
            )
        });
    }
}

fn is_plain_name(name: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    !name.is_empty() && name.len() <= 64 && name.bytes().all(is_allowed)
}
