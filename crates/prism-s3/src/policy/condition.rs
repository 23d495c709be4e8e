//! Conditions of statements.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;

use super::json::{OneOrMany, Single, present};
use super::pattern::TextCheck;
use super::{PolicyQuestion, fits};
use crate::{Code, S3Error};

/// A condition. All conditions of a statement have to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Condition {
    test: Test,
    /// Whether the test must fail.
    negated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    /// The client's address is in one of these networks.
    Address(Vec<IpNet>),
    /// The prefix of a listing is one of these.
    PrefixIs(Vec<String>),
    /// It matches one of these patterns.
    PrefixLike(Vec<String>),
    /// The connection has TLS, or has not.
    Tls(bool),
}

/// The conditions of a statement, as they are written.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields, default)]
pub(super) struct Written {
    #[serde(deserialize_with = "present")]
    ip_address: Option<Single<OfAddress>>,
    #[serde(deserialize_with = "present")]
    not_ip_address: Option<Single<OfAddress>>,
    #[serde(deserialize_with = "present")]
    string_equals: Option<Single<OfPrefix>>,
    #[serde(deserialize_with = "present")]
    string_not_equals: Option<Single<OfPrefix>>,
    #[serde(deserialize_with = "present")]
    string_like: Option<Single<OfPrefix>>,
    #[serde(deserialize_with = "present")]
    string_not_like: Option<Single<OfPrefix>>,
    #[serde(deserialize_with = "present")]
    bool: Option<Single<OfTransport>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfAddress {
    #[serde(rename = "aws:SourceIp")]
    networks: OneOrMany<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfPrefix {
    #[serde(rename = "s3:prefix")]
    prefixes: OneOrMany<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfTransport {
    #[serde(rename = "aws:SecureTransport")]
    is_tls: OneOrMany<TrueOrFalse>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "the value of aws:SecureTransport has to be true or false"
)]
enum TrueOrFalse {
    Bool(bool),
    Text(String),
}

impl Written {
    pub(super) fn read(self, check: &mut TextCheck) -> Result<Vec<Condition>, S3Error> {
        let mut conditions = Vec::new();
        let mut add = |negated, test| conditions.push(Condition { test, negated });
        for (negated, of) in [(false, self.ip_address), (true, self.not_ip_address)] {
            if let Some(Single(OfAddress { networks })) = of {
                let networks = networks.0.iter().map(|text| network(text));
                add(negated, Test::Address(networks.collect::<Result<_, _>>()?));
            }
        }
        for (negated, of) in [(false, self.string_equals), (true, self.string_not_equals)] {
            if let Some(Single(OfPrefix { prefixes })) = of {
                let mut texts = prefixes.0.iter();
                texts.try_for_each(|text| TextCheck::literal(text))?;
                add(negated, Test::PrefixIs(prefixes.0));
            }
        }
        for (negated, of) in [(false, self.string_like), (true, self.string_not_like)] {
            if let Some(Single(OfPrefix { prefixes })) = of {
                let mut patterns = prefixes.0.iter();
                patterns.try_for_each(|pattern| check.pattern(pattern))?;
                add(negated, Test::PrefixLike(prefixes.0));
            }
        }
        if let Some(Single(OfTransport { is_tls })) = self.bool {
            add(false, Test::Tls(one_truth(&is_tls.0)?));
        }
        Ok(conditions)
    }
}

/// The value of a `Bool`, which has to be one.
fn one_truth(values: &[TrueOrFalse]) -> Result<bool, S3Error> {
    match values {
        [TrueOrFalse::Bool(value)] => Ok(*value),
        [TrueOrFalse::Text(text)] if text == "true" => Ok(true),
        [TrueOrFalse::Text(text)] if text == "false" => Ok(false),
        _ => Err(Code::MalformedPolicy
            .with_message("The value of aws:SecureTransport has to be true or false.")),
    }
}

impl Condition {
    /// Whether the client's address has to be in networks that S3 counts as narrow.
    pub(super) fn names_networks(&self) -> bool {
        let is_narrow = |network: &IpNet| match network {
            IpNet::V4(network) => network.prefix_len() >= 8,
            IpNet::V6(network) => network.prefix_len() >= 32,
        };
        match &self.test {
            Test::Address(networks) => !self.negated && networks.iter().all(is_narrow),
            _ => false,
        }
    }

    /// Whether it holds. A test of a prefix fails for operations that have none.
    pub(super) fn holds(&self, question: &PolicyQuestion<'_>) -> bool {
        let is_prefix = |test: &dyn Fn(&str) -> bool| question.prefix.is_some_and(test);
        let holds = match &self.test {
            Test::Address(networks) => {
                let address = question.circumstances.address.to_canonical();
                networks.iter().any(|network| network.contains(&address))
            }
            Test::PrefixIs(texts) => is_prefix(&|prefix| texts.iter().any(|text| text == prefix)),
            Test::PrefixLike(patterns) => is_prefix(&|prefix| {
                let mut patterns = patterns.iter();
                patterns.any(|pattern| fits(pattern.bytes(), prefix.bytes()))
            }),
            Test::Tls(is_tls) => question.circumstances.is_tls == *is_tls,
        };
        holds != self.negated
    }
}

/// A network, or one address.
fn network(text: &str) -> Result<IpNet, S3Error> {
    let network = text.parse::<IpNet>().ok();
    let network = network.or_else(|| Some(text.parse::<IpAddr>().ok()?.into()));
    // Addresses of clients are compared in their IPv4 form.
    let is_mapped =
        |net: &IpNet| matches!(net, IpNet::V6(net) if net.addr().to_ipv4_mapped().is_some());
    network.filter(|net| !is_mapped(net)).ok_or_else(|| {
        Code::MalformedPolicy.with_message(format!(
            "{text:.64} is not an address or a network such as 10.0.0.0/8 or 2001:db8::/32."
        ))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_network_has_the_addresses_that_begin_with_it() {
        for (text, address, expected) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.1.2.3/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("0.0.0.0/0", "255.1.1.1", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("0.0.0.0/0", "::ffff:10.0.0.1", true),
            ("2001:db8::/32", "2001:db8:1::9", true),
            ("2001:db8::/32", "2001:db9::", false),
            ("::/0", "2001:db9::", true),
            ("::/0", "10.0.0.1", false),
            ("2001:db8::1", "2001:db8::1", true),
        ] {
            let address: IpAddr = address.parse().unwrap();
            let contains = network(text).unwrap().contains(&address.to_canonical());
            assert_eq!(contains, expected, "{text} {address}");
        }
        for wrong in [
            "",
            "10.0.0.0/33",
            "10.0.0/8",
            "::/129",
            "10.0.0.0/",
            "10.0.0.0/-1",
            "::ffff:10.0.0.0/104",
            "::ffff:10.0.0.1",
            "a",
        ] {
            assert!(network(wrong).is_err(), "{wrong}");
        }
    }
}
