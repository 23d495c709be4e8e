//! Warnings: parts of a good configuration that have no effect, or hardly the one that is meant.

use std::collections::BTreeSet;

use crate::bounds::Store;
use crate::model::{Config, ConfigFile, Durability, S3};
use crate::patterns::{is_hidden_by, warn_of_patterns};
use crate::problem::{Problem, Problems};
use crate::upstream::{Upstream, Upstreams};

impl ConfigFile {
    /// The warnings, without their places.
    pub(crate) fn warnings(&self) -> Vec<Problem> {
        let mut found = Problems::default();
        for (index, part) in self.parts().iter().enumerate() {
            let mut of_part = Problems::default();
            for (index, rule) in part.service.rule.iter().enumerate() {
                let field = |leaf: &str| format!("service.rule[{index}].{leaf}");
                warn_of_patterns(&rule.conditions(), field, &mut of_part);
            }
            for (index, limit) in part.service.limit.iter().enumerate() {
                let field = |leaf: &str| format!("service.limit[{index}].{leaf}");
                warn_of_patterns(&limit.conditions(), field, &mut of_part);
            }
            if let Some(all) = &part.service.upstream {
                warn_of_upstreams(all, &mut of_part);
                part.warn_of_objects(all, &mut of_part);
                part.warn_of_servers(&mut of_part);
            }
            found.0.extend(of_part.0.into_iter().map(|mut problem| {
                problem.field = self.field_of_part(index, part, &problem.field);
                problem
            }));
        }
        self.warn_of_unused(&mut found);
        found.0
    }

    /// Warns of fields of the object store in a file that has none, or at a node that has none.
    fn warn_of_unused(&self, found: &mut Problems) {
        let keeps_objects = self.service.iter().any(|one| one.keeps_objects());
        if !keeps_objects {
            let cluster = &self.cluster;
            let has_acme = self.service.iter().any(|one| one.acme.is_some());
            let fault = "has no effect: no service of this file keeps objects or has a certificate \
                         by ACME";
            let is_used = has_acme || cluster.etcd.is_none();
            found.check(is_used, "cluster.etcd", fault, "remove it");
            for (field, is_unused) in [
                ("s3", self.s3 == S3::default()),
                ("store", self.store == Store::default()),
                ("cluster.replicas", cluster.replicas <= 1),
                ("cluster.min_replicas", cluster.min_replicas.is_none()),
            ] {
                let fault = "has no effect: it is for the object store, and each service of this \
                             file has an `upstream`";
                found.check(is_unused, field, fault, "remove it");
            }
        }
        for (index, node) in self.nodes.iter().enumerate() {
            let is_unused = node.durability == Durability::default();
            let fault = "has no effect: it is for the object store, and the service of this \
                         backend has an `upstream`";
            let field = format!("node[{index}].durability");
            let is_fine = is_unused || !self.has_upstream(node);
            found.check(is_fine, &field, fault, "remove it");
        }
    }
}

impl Config {
    /// Warns of an object store that gets no request because an upstream gets all.
    fn warn_of_objects(&self, all: &Upstreams, found: &mut Problems) {
        let Some(objects) = &self.service.objects else {
            return;
        };
        let is_last = !objects.internal && objects.conditions().are_none();
        let takes_all = |one: &Upstream| !one.internal && one.conditions().are_none();
        let taker = all.iter().position(takes_all).filter(|_| is_last);
        if let Some(taker) = taker {
            let fault = format!("gets no request of a client: upstream {taker} gets all");
            let fix = "give it `paths` or `hosts`, or say `internal = true`";
            found.check(false, "service.objects", fault, fix);
        }
    }

    /// Warns of servers that stand twice in the line of a node.
    fn warn_of_servers(&self, found: &mut Problems) {
        for (index, node) in self.nodes.iter().enumerate() {
            if let Some(own) = &node.upstream {
                warn_of_doubles(own.iter(), &format!("node[{index}].upstream"), found);
            }
        }
    }
}

fn warn_of_upstreams(all: &Upstreams, found: &mut Problems) {
    let mut earlier: Vec<&Upstream> = Vec::new();
    for (index, upstream) in all.iter().enumerate() {
        let field = |leaf: &str| all.field(index, leaf);
        let conditions = upstream.conditions();
        if upstream.internal {
            warn_of_patterns(&conditions, field, found);
            warn_of_doubles(upstream.address.iter(), &field("address"), found);
            continue;
        }
        let mut wider = earlier.iter();
        let hiding = wider.position(|one| is_hidden_by(&conditions, &one.conditions()));
        if let Some(hiding) = hiding {
            let fault = format!(
                "gets no request: upstream {hiding} comes first and gets all that fit its rules"
            );
            let fix = "put the table with the narrower rules in front";
            found.check(false, &field(rule_of(upstream)), fault, fix);
        }
        warn_of_patterns(&conditions, field, found);
        warn_of_doubles(upstream.address.iter(), &field("address"), found);
        earlier.push(upstream);
    }
}

/// The field that stands for the rules of an upstream.
fn rule_of(upstream: &Upstream) -> &'static str {
    let rules = [
        ("paths", &upstream.paths),
        ("hosts", &upstream.hosts),
        ("methods", &upstream.methods),
    ];
    let given = rules.into_iter().find(|(_, rule)| !rule.is_empty());
    given.map_or("headers", |(field, _)| field)
}

fn warn_of_doubles(
    addresses: impl Iterator<Item = std::net::SocketAddr>,
    field: &str,
    found: &mut Problems,
) {
    let mut seen = BTreeSet::new();
    let mut told = BTreeSet::new();
    for address in addresses {
        if !seen.insert(address) && told.insert(address) {
            let fault = format!(
                "names {address} more than once: that is one server, which then gets more \
                 requests and is checked more often"
            );
            found.check(false, field, fault, "name it once");
        }
    }
}

#[cfg(test)]
#[path = "warnings_tests.rs"]
mod tests;
