//! The records in etcd, below `acme/` of the cluster's keys. Values are in JSON
//! (docs/protocol.md, section 3).
//!
//! Not here: how they get there (`lock.rs`), and following them (`prism-membership`).

use std::path::Path;

use anyhow::Context;
use instant_acme::AccountCredentials;
use prism_config::Acme;
use prism_membership::{AcmeRecord, AcmeRecords};
use prism_pki::Certificate;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::schedule::replaced_s;

/// The names of the records.
pub(crate) const ACCOUNT: &str = "account";
pub(crate) const CERTIFICATE: &str = "certificate";
pub(crate) const FAILURE: &str = "failure";
pub(crate) const LOCK: &str = "lock";
/// Its value does not matter: an order renews the certificate and deletes the record.
pub const RENEW: &str = "renew";

/// The name that stands for the certificate's file in the log, in metrics and in commands.
pub const SOURCE: &str = "service.acme";

/// The account at an authority.
#[derive(Serialize, Deserialize)]
pub(crate) struct Account {
    /// The URL of the authority's directory.
    pub(crate) directory: String,
    /// With its private key.
    pub(crate) credentials: AccountCredentials,
}

/// The certificate that all frontends serve.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
pub struct Issued {
    /// The URL of the directory of the authority that has issued it.
    pub directory: String,
    /// The certificate in PEM, followed by those that lead to its authority.
    pub chain: String,
    /// Its private key in PEM.
    pub key: String,
    /// When to renew it, in seconds since 1970.
    pub renew_s: u64,
}

/// The failure of the last order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderFailure {
    /// Failures since the last success.
    pub count: u32,
    /// Its time in seconds since 1970.
    pub at_s: u64,
    /// The time of the next try in seconds since 1970.
    pub retry_s: u64,
    /// The node that has tried.
    pub node: String,
    /// The reason.
    pub error: String,
}

impl Issued {
    /// The content of the certificate.
    ///
    /// # Errors
    /// It is no certificate.
    pub fn certificate(&self) -> anyhow::Result<Certificate> {
        let found = Certificate::parse_all(Path::new(SOURCE), self.chain.as_bytes())?;
        let first = found.into_iter().next();
        first.context("the certificate in etcd holds nothing")
    }

    /// Whether it is what the configuration asks for.
    fn fits(&self, certificate: &Certificate, config: &Acme) -> bool {
        let mut domains = config.domains.iter();
        self.directory == config.directory && domains.all(|name| certificate.covers(name))
    }

    /// When to replace it, in seconds since 1970; `None` if it is no certificate.
    fn due_s(&self, config: &Acme) -> Option<u64> {
        let certificate = self.certificate().ok()?;
        if self.fits(&certificate, config) {
            return Some(self.renew_s);
        }
        let replaced_s = replaced_s(certificate.begin_s, certificate.end_s);
        Some(replaced_s.min(self.renew_s))
    }
}

/// The certificate in etcd, if there is one that can be read.
#[must_use]
pub fn issued(records: &AcmeRecords) -> Option<Issued> {
    read(records, CERTIFICATE)
}

/// The failure of the last order, if it has failed.
#[must_use]
pub fn failure(records: &AcmeRecords) -> Option<OrderFailure> {
    read(records, FAILURE)
}

/// The node that orders at this moment.
#[must_use]
pub fn orderer(records: &AcmeRecords) -> Option<String> {
    let holder: crate::lock::Holder = read(records, LOCK)?;
    Some(holder.node)
}

/// When the next order is due, in seconds since 1970; 0 for at once.
#[must_use]
pub fn due_s(records: &AcmeRecords, config: &Acme) -> u64 {
    let revision = |name: &str| records.get(name).map(|record| record.revision);
    let asked = revision(RENEW);
    let held = issued(records).filter(|_| asked.is_none());
    let due_s = held.and_then(|issued| issued.due_s(config)).unwrap_or(0);
    // A wish for a renewal overrules a failure before it.
    let failed = failure(records).filter(|_| asked <= revision(FAILURE));
    failed.map_or(due_s, |failure| due_s.max(failure.retry_s))
}

/// The account at the authority of `directory`.
pub(crate) fn account(records: &AcmeRecords, directory: &str) -> Option<AccountCredentials> {
    let account: Account = read(records, ACCOUNT)?;
    (account.directory == directory).then_some(account.credentials)
}

/// The record with the answer to a challenge.
pub(crate) fn token(token: &str) -> String {
    format!("tokens/{token}")
}

/// An unreadable record counts as absent. An order replaces it.
fn read<T: DeserializeOwned>(records: &AcmeRecords, name: &str) -> Option<T> {
    let AcmeRecord { value, .. } = records.get(name)?;
    serde_json::from_slice(value).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use serde_json::json;

    use super::*;

    const DIRECTORY: &str = "https://acme.example/dir";

    fn config() -> Acme {
        Acme {
            directory: DIRECTORY.into(),
            domains: vec!["s3.example.com".into()],
            ..Acme::default()
        }
    }

    fn put(records: &mut AcmeRecords, name: &str, value: &impl Serialize, revision: u64) {
        let value = serde_json::to_vec(value).unwrap().into();
        records.insert(name.into(), AcmeRecord { value, revision });
    }

    fn certificate(names: &[&str]) -> Issued {
        let names: Vec<String> = names.iter().map(|name| (*name).into()).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        Issued {
            directory: DIRECTORY.into(),
            chain: made.cert.pem(),
            key: made.signing_key.serialize_pem(),
            renew_s: 4_000_000_000,
        }
    }

    #[test]
    fn an_order_is_due_without_a_certificate_that_fits() {
        let mut records = AcmeRecords::new();
        assert_eq!(due_s(&records, &config()), 0);
        let good = certificate(&["S3.example.com", "other.example.com"]);
        put(&mut records, CERTIFICATE, &good, 3);
        assert_eq!(due_s(&records, &config()), 4_000_000_000);
        let mut elsewhere = good.clone();
        elsewhere.directory = "https://other.example/dir".into();
        for mut other in [certificate(&["s4.example.com"]), elsewhere] {
            put(&mut records, CERTIFICATE, &other, 3);
            let begin_s = other.certificate().unwrap().begin_s;
            assert_eq!(due_s(&records, &config()), begin_s + 3_600);
            other.renew_s = 39;
            put(&mut records, CERTIFICATE, &other, 3);
            assert_eq!(due_s(&records, &config()), 39);
            let mut asked = records.clone();
            put(&mut asked, RENEW, &json!({}), 6);
            assert_eq!(due_s(&asked, &config()), 0);
        }
        let mut broken = good.clone();
        broken.chain = "no PEM".into();
        put(&mut records, CERTIFICATE, &broken, 3);
        assert_eq!(due_s(&records, &config()), 0);
        put(&mut records, CERTIFICATE, &json!({ "chain": 1 }), 3);
        assert!(due_s(&records, &config()) == 0 && issued(&records).is_none());
    }

    #[test]
    fn a_failure_holds_back_and_a_wish_for_a_renewal_overrules_only_failures_before_it() {
        let mut records = AcmeRecords::new();
        let mut failed = OrderFailure {
            count: 1,
            at_s: 1,
            retry_s: 7_000,
            node: "fe0".into(),
            error: "refused".into(),
        };
        put(&mut records, FAILURE, &failed, 2);
        assert_eq!(due_s(&records, &config()), 7_000, "without a certificate");
        put(&mut records, RENEW, &json!({}), 3);
        assert_eq!(due_s(&records, &config()), 0);
        records.remove(RENEW);
        put(
            &mut records,
            CERTIFICATE,
            &certificate(&["s3.example.com"]),
            3,
        );
        assert_eq!(due_s(&records, &config()), 4_000_000_000);
        failed.retry_s = 4_500_000_000;
        put(&mut records, FAILURE, &failed, 5);
        assert_eq!(due_s(&records, &config()), 4_500_000_000);
        put(&mut records, RENEW, &json!({}), 6);
        assert_eq!(due_s(&records, &config()), 0);
        put(&mut records, FAILURE, &failed, 7);
        assert_eq!(due_s(&records, &config()), 4_500_000_000);
    }
}
