//! Checks of the services: which backends each has, and what several must not share. The checks
//! of one service are those of its part of the file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use crate::addresses::ServiceAddrs;
use crate::model::{Config, ConfigFile, S3};
use crate::problem::{Problem, Problems};

impl ConfigFile {
    /// All faults of the values; empty for a good configuration.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        let mut found = Problems::default();
        self.check_backends(&mut found);
        if !self.service.are_several() {
            let is_one = self.service.first().s3.is_none() || self.s3 == S3::default();
            let fix = "keep one of the two";
            found.check(is_one, "service.s3", "is there beside [s3]", fix);
            found
                .0
                .extend(self.parts().iter().flat_map(Config::problems_of_one));
            return found.0;
        }
        self.check_differences(&mut found);
        self.check_node_roles(&mut found);
        for (index, part) in self.parts().iter().enumerate() {
            for mut problem in part.problems_of_one() {
                problem.field = self.field_of_part(index, part, &problem.field);
                let known =
                    |known: &Problem| known.field == problem.field && known.fault == problem.fault;
                if !found.0.iter().any(known) {
                    found.0.push(problem);
                }
            }
        }
        found.0
    }

    /// Each backend has one service.
    fn check_backends(&self, found: &mut Problems) {
        let several = self.service.are_several();
        let mut owners = BTreeMap::new();
        for (index, service) in self.service.iter().enumerate() {
            let field = self.field_of(index, "backends");
            if several && service.backends.is_empty() {
                let what = "the names of the backends that store its objects";
                found.missing(&field, what);
            }
            for name in &service.backends {
                let node = self.node(name);
                // In etcd there may be nodes that this file does not know.
                let is_known = node.is_some() || self.cluster.etcd.is_some();
                let fix = "name a [[node]] with the role \"backend\"";
                found.check(is_known, &field, format!("no node is called {name:?}"), fix);
                let is_backend = node.is_none_or(|node| node.is_backend());
                found.check(is_backend, &field, format!("{name} is no backend"), fix);
                if let Some(other) = owners.insert(name, &service.name) {
                    let fault = format!("{name} serves {other:?} already");
                    let fix = "give each service backends of its own";
                    found.check(false, &field, fault, fix);
                }
            }
        }
        for (index, node) in self.nodes.iter().enumerate() {
            let is_served = self.service.iter().any(|service| service.has_node(node));
            let fault = format!("no service has the backend {}", node.name);
            let fix = "name it in `backends` of one service";
            found.check(is_served, &format!("node[{index}].name"), fault, fix);
        }
    }

    /// Names the things that two services must not have in common.
    fn check_differences(&self, found: &mut Problems) {
        let fix = "move it to [service.s3] of each service";
        found.check(
            self.s3 == S3::default(),
            "s3",
            "is for one service only",
            fix,
        );
        let mut unique = Unique {
            config: self,
            seen: BTreeSet::new(),
            found,
        };
        for (index, part) in self.parts().iter().enumerate() {
            let service = &part.service;
            unique
                .found
                .name(&self.field_of(index, "name"), &service.name);
            unique.check(index, "name", Some(&service.name));
            unique.check(index, "peer_port", Some(part.peers.port));
            let switch = part.switch.as_ref();
            unique.check(index, "control_key_id", switch.map(|switch| switch.key_id));
            let file = switch.map(|switch| switch.key_file.display());
            unique.check(index, "control_key_file", file);
            unique.check(index, "admin_listen", service.admin_listen);
            let users = part.s3.credentials_file.display().to_string();
            let users = Some(users).filter(|file| !file.is_empty());
            unique.check(index, "s3.credentials_file", users);
            let https = part.tls_address().unwrap_or_else(ServiceAddrs::default);
            for address in service.address.iter() {
                unique.check(index, "address", Some(address));
            }
            for address in https.iter() {
                unique.check(index, "tls.port", Some(address));
            }
        }
    }

    /// A host that accepts clients of all services keeps the objects of none.
    fn check_node_roles(&self, found: &mut Problems) {
        for (index, node) in self.nodes.iter().enumerate() {
            let is_one = !(node.is_frontend() && node.is_backend());
            let fault = "is a frontend of several services, and a backend of one of them";
            let fix = "give the two roles to two nodes";
            found.check(is_one, &format!("node[{index}].roles"), fault, fix);
        }
    }

    /// The field of a service, as in `service[1].address`.
    fn field_of(&self, index: usize, leaf: &str) -> String {
        if self.service.are_several() {
            format!("service[{index}].{leaf}")
        } else {
            format!("service.{leaf}")
        }
    }

    /// The field of the whole file that is `field` in the part of the service at `index`.
    pub(crate) fn field_of_part(&self, index: usize, part: &Config, field: &str) -> String {
        let service = self.service.iter().nth(index);
        let limits = service.and_then(|service| service.limits.as_ref());
        let moved = match field.split_once('.') {
            Some(("service", leaf)) => Some(leaf),
            Some(("s3", _)) => Some(field),
            Some(("peers", "port")) if is(&service, |s| s.peer_port) => Some("peer_port"),
            Some(("cluster", "replicas")) if is(&service, |s| s.replicas) => Some("replicas"),
            Some(("cluster", "min_replicas")) if is(&service, |s| s.min_replicas) => {
                Some("min_replicas")
            }
            Some(("limits", leaf)) => {
                let own = match leaf {
                    "connections" => is(&limits, |l| l.connections),
                    "unauthenticated_per_address" => is(&limits, |l| l.unauthenticated_per_address),
                    "idle_timeout_s" => is(&limits, |l| l.idle_timeout_s),
                    "max_object_bytes" => is(&limits, |l| l.max_object_bytes),
                    _ => false,
                };
                own.then_some(field)
            }
            _ => None,
        };
        if let Some(leaf) = moved {
            return self.field_of(index, leaf);
        }
        let in_part = field.strip_prefix("node[").and_then(|rest| {
            let (at, leaf) = rest.split_once(']')?;
            let name = &part.nodes.get(at.parse::<usize>().ok()?)?.name;
            let at = self.nodes.iter().position(|node| node.name == *name)?;
            Some(format!("node[{at}]{leaf}"))
        });
        in_part.unwrap_or_else(|| field.to_owned())
    }
}

fn is<T, V>(of: &Option<&T>, value: impl Fn(&T) -> Option<V>) -> bool {
    of.is_some_and(|of| value(of).is_some())
}

/// Checks that services differ in a field.
struct Unique<'c> {
    config: &'c ConfigFile,
    seen: BTreeSet<(&'static str, String)>,
    found: &'c mut Problems,
}

impl Unique<'_> {
    fn check(&mut self, index: usize, leaf: &'static str, value: Option<impl Display>) {
        let Some(value) = value.map(|value| value.to_string()) else {
            return;
        };
        let field = self.config.field_of(index, leaf);
        let fix = "give each service one of its own";
        // Addresses of HTTP and of HTTPS are of one kind.
        let kind = match leaf {
            "tls.port" => "address",
            leaf => leaf,
        };
        let fault = format!("{value} is another service's");
        let is_new = self.seen.insert((kind, value));
        self.found.check(is_new, &field, fault, fix);
    }
}
