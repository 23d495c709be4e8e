//! Networks, such as `10.0.0.0/8`.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Networks. An address alone stands for the network that has no other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks(Vec<IpNet>);

impl Networks {
    /// Reads networks and addresses.
    ///
    /// # Errors
    /// One of the texts is neither; says which, and how to write it.
    pub fn parse<T: AsRef<str>>(texts: &[T]) -> Result<Self, String> {
        let read = |text: &T| {
            let text = text.as_ref();
            let network = text.parse::<IpNet>().ok();
            let network = network.or_else(|| Some(text.parse::<IpAddr>().ok()?.into()));
            network.ok_or_else(|| {
                format!("{text:?} is not a network; write it as in \"10.0.0.0/8\" or \"fd00::/8\"")
            })
        };
        texts.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// Whether one of them has the address. One of IPv4 in the form of IPv6 is one of IPv4.
    #[must_use]
    pub fn have(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> &[IpNet] {
        &self.0
    }
}

impl Serialize for Networks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(ToString::to_string))
    }
}

impl<'de> Deserialize<'de> for Networks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        Self::parse(&texts).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct File {
        of: Networks,
    }

    #[test]
    fn networks_have_the_addresses_that_begin_with_them() {
        let text = r#"of = ["10.0.0.0/8", "192.0.2.7", "fd00::/8"]"#;
        let networks = toml::from_str::<File>(text).unwrap().of;
        for (address, expected) in [
            ("10.1.2.3", true),
            ("::ffff:10.1.2.3", true),
            ("11.0.0.0", false),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("fd12::1", true),
            ("fe80::1", false),
        ] {
            assert_eq!(
                networks.have(address.parse().unwrap()),
                expected,
                "{address}"
            );
        }
        let written = toml::to_string(&File { of: networks }).unwrap();
        assert_eq!(
            written.trim(),
            r#"of = ["10.0.0.0/8", "192.0.2.7/32", "fd00::/8"]"#
        );
        for wrong in ["10.0.0.0/33", "10.0/8", "proxy", ""] {
            let text = format!("of = [{wrong:?}]");
            let error = toml::from_str::<File>(&text).err().unwrap();
            assert!(error.to_string().contains("write it as in"), "{error}");
        }
    }
}
