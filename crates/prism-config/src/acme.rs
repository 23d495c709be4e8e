//! `[service.acme]` as a struct, and its checks.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::problem::{Problems, is_label};
use crate::tls::MAX_NAME_BYTES;

/// Most names of one certificate. Let's Encrypt takes no more.
const MAX_DOMAINS: usize = 100;
/// Most addresses of the administrator.
const MAX_CONTACTS: usize = 10;
/// Longest URL in bytes.
const MAX_URL_BYTES: usize = 2_048;

section! {
    /// `[service.acme]`
    pub struct Acme;
    /// Required. The URL of the authority's directory, as in
    /// `https://acme-v02.api.letsencrypt.org/directory`. Frontends have to reach it.
    pub directory: String,
    /// Required. The host names of the certificate, without wildcards. The authority asks each of
    /// them on port 80, so each has to lead to `service.address`.
    pub domains: Vec<String>,
    /// Required to be true. Whether the administrator agrees to the authority's terms of service.
    pub terms_agreed: bool,
    /// Default none. The administrator's address for the authority, as in
    /// `mailto:admin@example.com`. It counts for a new account only.
    pub contact: Vec<String>,
    /// Default: the authorities that the system trusts. Certificates (PEM) of the authorities that
    /// sign for the server of `directory`.
    pub ca_file: Option<PathBuf>,
}

impl Acme {
    /// Checks the fields. `has_etcd` and `has_tls`: whether those sections exist.
    pub(crate) fn check(&self, has_etcd: bool, has_tls: bool, found: &mut Problems) {
        let fault = "needs [cluster.etcd], where all frontends find the certificate";
        let fix = "add that section, or use files of `service.tls.certificate`";
        found.check(has_etcd, "service.acme", fault, fix);
        let fix = "add an empty [service.tls] for HTTPS on port 443";
        found.check(has_tls, "service.acme", "needs [service.tls]", fix);
        self.check_directory(found);
        self.check_domains(found);
        let fix = "read the authority's terms of service, and set it to true";
        let field = "service.acme.terms_agreed";
        found.check(self.terms_agreed, field, "is not true", fix);
        let field = "service.acme.contact";
        let fault = format!("there are more than {MAX_CONTACTS}");
        let is_bounded = self.contact.len() <= MAX_CONTACTS;
        found.check(is_bounded, field, fault, "name some of them");
        for contact in &self.contact {
            let fault = format!("{contact:?} is not the URL of a mailbox");
            let fix = "write it as in \"mailto:admin@example.com\"";
            found.check(is_mailbox(contact), field, fault, fix);
        }
        if let Some(file) = &self.ca_file {
            found.path("service.acme.ca_file", file, "a file, or remove the field");
        }
    }

    fn check_directory(&self, found: &mut Problems) {
        let field = "service.acme.directory";
        let url = &self.directory;
        if url.is_empty() {
            let what = "the authority's URL, as in \
                        \"https://acme-v02.api.letsencrypt.org/directory\"";
            return found.missing(field, what);
        }
        let is_url = url.len() <= MAX_URL_BYTES
            && url.bytes().all(|byte| byte.is_ascii_graphic())
            && url
                .strip_prefix("https://")
                .is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['/', ':']));
        let fault = format!("{url:?} is not the URL of a directory");
        let fix = "write it as in \"https://acme-v02.api.letsencrypt.org/directory\"";
        found.check(is_url, field, fault, fix);
    }

    fn check_domains(&self, found: &mut Problems) {
        let field = "service.acme.domains";
        if self.domains.is_empty() {
            return found.missing(field, "the host names of the service");
        }
        let fault = format!("there are more than {MAX_DOMAINS}");
        let is_bounded = self.domains.len() <= MAX_DOMAINS;
        found.check(is_bounded, field, fault, "name some of them");
        let mut names = BTreeSet::new();
        for name in &self.domains {
            let fault = format!("{name:?} has a wildcard, which needs a record in DNS");
            let is_whole = !name.contains('*');
            let fix = "name each host";
            found.check(is_whole, field, fault, fix);
            let fault = format!("{name:?} is not a host name in lower case");
            let fix = "use a name such as \"s3.example.com\"";
            found.check(!is_whole || is_host(name), field, fault, fix);
            let fault = format!("{name:?} is listed twice");
            found.check(names.insert(name), field, fault, "remove one");
        }
    }
}

/// Whether a name is one that DNS can have: two labels at least, and no address.
fn is_host(name: &str) -> bool {
    let mut labels = name.rsplit('.');
    let has_letter = |label: &str| label.bytes().any(|byte| byte.is_ascii_lowercase());
    name.len() <= MAX_NAME_BYTES
        && name.contains('.')
        && !name.bytes().any(|byte| byte.is_ascii_uppercase())
        && labels.clone().all(is_label)
        && labels.next().is_some_and(has_letter)
}

/// Whether a text is `mailto:` and one address (RFC 8555, section 7.3).
fn is_mailbox(text: &str) -> bool {
    let address = text.strip_prefix("mailto:").unwrap_or_default();
    let is_allowed = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'?' | b',');
    address
        .split_once('@')
        .is_some_and(|(user, host)| !user.is_empty() && !host.is_empty() && !host.contains('@'))
        && address.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(change: impl FnOnce(&mut Acme), has_etcd: bool, has_tls: bool) -> Vec<String> {
        let mut acme = Acme {
            directory: "https://acme.example:14000/dir".into(),
            domains: vec!["s3.example.com".into(), "a.s3.example.com".into()],
            terms_agreed: true,
            contact: vec!["mailto:admin@example.com".into()],
            ca_file: None,
        };
        change(&mut acme);
        let mut found = Problems::default();
        acme.check(has_etcd, has_tls, &mut found);
        found.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_good_section_has_no_fault() {
        assert_eq!(faults(|_| {}, true, true), [""; 0]);
    }

    #[test]
    fn each_fault_is_named_with_its_fix() {
        type Change = fn(&mut Acme);
        let cases: [(Change, &str); 10] = [
            (
                |acme| acme.directory.clear(),
                "service.acme.directory: is missing",
            ),
            (
                |acme| acme.directory = "http://a/dir".into(),
                "is not the URL of a directory",
            ),
            (
                |acme| acme.directory = "https:///dir".into(),
                "is not the URL of a directory",
            ),
            (
                |acme| acme.domains.clear(),
                "service.acme.domains: is missing",
            ),
            (
                |acme| acme.domains = vec!["*.example.com".into()],
                "wildcard",
            ),
            (
                |acme| acme.domains = vec!["10.0.0.1".into()],
                "is not a host name",
            ),
            (
                |acme| acme.domains = vec!["S3.example.com".into()],
                "in lower case",
            ),
            (
                |acme| acme.domains = vec!["a.b".into(), "a.b".into()],
                "is listed twice",
            ),
            (|acme| acme.terms_agreed = false, "terms of service"),
            (
                |acme| acme.contact = vec!["admin@example.com".into()],
                "mailto:",
            ),
        ];
        for (change, expected) in cases {
            let found = faults(change, true, true);
            assert!(
                found.len() == 1 && found.concat().contains(expected),
                "{found:?}"
            );
        }
    }

    #[test]
    fn the_section_needs_two_others() {
        let found = faults(|_| {}, false, false);
        assert!(found.concat().contains("[cluster.etcd]"), "{found:?}");
        assert!(found.concat().contains("[service.tls]"), "{found:?}");
    }
}
