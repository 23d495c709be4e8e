//! Findings about certificates: those that end soon, those that have ended, and orders by ACME
//! that have failed.

use prism_acme::{SOURCE, failure, issued};
use prism_config::{Config, Node};
use prism_membership::etcd::Key;
use prism_pki::{Certificate, Dated, Term, now_s};

use super::finding::{Finding, State, Subject};
use super::records;

const SUBJECT: Subject = Subject("certificates");
/// The remedies for a certificate of each kind.
const RENEW_NODE: &str = "renew it with `prism pki issue --replace`; see docs/operating.md";
const RENEW_AUTHORITY: &str = "replace the authority (`prism pki new-authority`), or drop it if \
                               another one has replaced it; see docs/operating.md";
const RENEW_SERVICE: &str = "renew it at its authority; nodes read the file again";
const ADD_WILDCARD: &str = "add one, or HTTPS clients that put the bucket into the host's name \
                            refuse this service";
const RENEW_ACME: &str = "remove the cause that `prism ctl certificate list` shows, then run \
                          `prism ctl certificate renew`";

/// The certificates that have ended, each with its remedy.
pub(crate) fn ended(config: &Config, node: &Node) -> Vec<String> {
    let findings = examine(config, node).into_iter();
    let ended = findings.filter(|finding| finding.state == State::Missing);
    ended
        .map(|ended| format!("{}; {}", ended.found, ended.mend))
        .collect()
}

/// Files that cannot be read are faults of the configuration.
pub(super) fn examine(config: &Config, node: &Node) -> Vec<Finding> {
    let now = now_s();
    let mut found = Vec::new();
    if !config.peers.ca_file.as_os_str().is_empty() {
        let own = Dated::first_in(&config.peers.cert_file(&node.name));
        found.extend(own.ok().flatten().map(|own| (own, RENEW_NODE)));
        let authorities = Dated::all_in(&config.peers.ca_file).unwrap_or_default();
        let authorities = authorities.into_iter();
        found.extend(authorities.map(|authority| (authority, RENEW_AUTHORITY)));
    }
    if let Some(tls) = config.service.tls.as_ref().filter(|_| node.is_frontend()) {
        let files = tls.certificates.iter();
        let dated = files.filter_map(|files| Dated::first_in(&files.file).ok().flatten());
        found.extend(dated.map(|dated| (dated, RENEW_SERVICE)));
    }
    let findings = found.iter();
    let findings = findings.map(|(dated, mend)| finding(dated, mend, now));
    let findings = findings.chain(without_wildcard(config, node));
    findings.chain(by_acme(config, node, now)).collect()
}

/// The domains of buckets whose hosts no certificate is for.
fn without_wildcard(config: &Config, node: &Node) -> Vec<Finding> {
    let Some(tls) = config.service.tls.as_ref().filter(|_| node.is_frontend()) else {
        return Vec::new();
    };
    let files = tls.certificates.iter();
    let leaves = files.filter_map(|files| {
        let chain = Certificate::read_all(&files.file).ok()?;
        chain.into_iter().next()
    });
    let names: Vec<String> = leaves.flat_map(|leaf| leaf.names).collect();
    let wildcards = config.s3.domains.iter().map(|domain| format!("*.{domain}"));
    let missing = wildcards.filter(|wildcard| {
        let is_it = |name: &String| name.eq_ignore_ascii_case(wildcard);
        !names.iter().any(is_it)
    });
    missing
        .map(|wildcard| {
            let found = format!("no certificate of service.tls is for {wildcard}");
            SUBJECT.advice(found, ADD_WILDCARD)
        })
        .collect()
}

/// The certificate by ACME, and the failure of its last order.
fn by_acme(config: &Config, node: &Node, now_s: u64) -> Vec<Finding> {
    if config.service.acme.is_none() || !node.is_frontend() {
        return Vec::new();
    }
    let records = match records::read(config, |keys| keys.path(&Key::Acme(""))) {
        Ok(records) => records.acme,
        Err(error) => {
            let found = format!("the certificate by ACME, which is in etcd: {error:#}");
            return vec![SUBJECT.unknown(found, records::REMEDY)];
        }
    };
    let certificate = issued(&records).and_then(|issued| issued.certificate().ok());
    let certificate = match certificate {
        Some(found) => finding(&Dated::by_acme(SOURCE.into(), found), RENEW_ACME, now_s),
        None => SUBJECT.advice(
            "no certificate by ACME yet",
            "start a frontend, which orders it",
        ),
    };
    let failed = failure(&records).map(|failure| {
        let found = format!(
            "{} orders by ACME have failed: {}",
            failure.count, failure.error
        );
        SUBJECT.advice(found, RENEW_ACME)
    });
    std::iter::once(certificate).chain(failed).collect()
}

fn finding(dated: &Dated, mend: &str, now_s: u64) -> Finding {
    let said = dated.said(now_s);
    match dated.term(now_s) {
        Term::Valid => SUBJECT.good(said),
        Term::EndsSoon => SUBJECT.advice(said, mend),
        Term::Ended => SUBJECT.missing(said, mend),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use prism_config::{Certificate as Files, Role, Tls};

    use super::*;

    #[test]
    fn a_domain_of_buckets_without_a_wildcard_is_found_at_frontends() {
        let dir = tempfile::tempdir().unwrap();
        prism_pki::init(dir.path(), &["fe0".to_owned()]).unwrap();
        let mut config = Config::default();
        config.s3.domains = vec!["s3.example.com".to_owned()];
        let mut node = Node {
            roles: vec![Role::Frontend],
            ..Node::default()
        };
        assert_eq!(without_wildcard(&config, &node).len(), 0);
        let certificate = Files {
            file: dir.path().join("fe0.crt"),
            ..Files::default()
        };
        config.service.tls = Some(Tls {
            certificates: vec![certificate],
            ..Tls::default()
        });
        let found = without_wildcard(&config, &node);
        assert_eq!(found.len(), 1);
        assert!(found.iter().all(|f| f.found.contains("*.s3.example.com")));
        node.roles = vec![Role::Backend];
        assert_eq!(without_wildcard(&config, &node).len(), 0);
    }
}
