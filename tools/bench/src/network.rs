//! The options of every command that builds a network.

use anyhow::{Result, ensure};
use prism_lab::{Families, Family, LabSpec, Rate};

use super::rows::Case;
use super::turns::within;

/// The network that is built.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Network {
    /// Backends; the client's link has as many times the speed of one server's.
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub(crate) backends: usize,
    /// Speed of each server's link, each way.
    #[arg(long, default_value = "100mbit", value_name = "RATE")]
    link: Rate,
    /// Links as fast as the machine goes: CPU time decides then, not links.
    #[arg(long, conflicts_with = "link")]
    unshaped: bool,
    /// HTTPS: TLS 1.3 with AES-128-GCM up to the frontend, or the owner.
    #[arg(long)]
    pub(crate) tls: bool,
    #[command(flatten)]
    addresses: Addresses,
}

/// The addresses of the network's hosts.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Addresses {
    /// Family of all addresses: 4 or 6. Rows name it where it is not 4.
    #[arg(long, default_value = "4", value_name = "FAMILY", value_parser = one_family)]
    pub(crate) family: Family,
}

impl Addresses {
    const V4: Self = Self { family: Family::V4 };

    fn families(self) -> Families {
        match self.family {
            Family::V4 => Families::V4,
            Family::V6 => Families::V6,
        }
    }
}

impl Network {
    /// A network without a limit on its links.
    pub(crate) fn unshaped(backends: usize, tls: bool) -> Result<Self> {
        Ok(Self {
            backends,
            link: Rate::new(1_000_000_000)?,
            unshaped: true,
            tls,
            addresses: Addresses::V4,
        })
    }

    /// The same with `addresses`.
    pub(crate) const fn with(mut self, addresses: Addresses) -> Self {
        self.addresses = addresses;
        self
    }

    /// Whether it can be built.
    pub(crate) fn check(&self) -> Result<()> {
        within("--backends", self.backends, 20)
    }

    /// Whether it can be built, and gives each backend its share of `connections`.
    pub(crate) fn check_connections(&self, connections: usize, most: usize) -> Result<()> {
        self.check()?;
        within("--connections", connections, most)?;
        ensure!(
            connections.is_multiple_of(self.backends),
            "--connections must be a multiple of --backends: direct, each backend has its share"
        );
        Ok(())
    }

    pub(crate) fn link(&self) -> Option<Rate> {
        (!self.unshaped).then_some(self.link)
    }

    pub(crate) const fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }

    /// The names and values that every row has. A row without a family is of IPv4.
    pub(crate) fn case(&self) -> Case {
        let family = self.addresses.family;
        Case::default()
            .with("family", (family != Family::V4).then(|| family.to_string()))
            .with("link_bit_s", self.link().map(Rate::bits_per_s))
            .with("scheme", self.scheme())
            .with("backends", self.backends)
    }

    /// The length of a turn in which the one link of a proxy can give each connection two
    /// objects of so many bytes: at least `seconds`.
    pub(crate) fn turn_s(&self, seconds: u64, bytes: u64, connections: usize) -> u64 {
        let bits = bytes.saturating_mul(8 * 2 * connections as u64);
        let link = self.link();
        seconds.max(link.map_or(0, |link| bits.div_ceil(link.bits_per_s())))
    }

    /// `spec` with this network.
    pub(crate) fn shape(&self, mut spec: LabSpec) -> Result<LabSpec> {
        spec.family = self.addresses.families();
        spec.backends = self.backends;
        spec.link = self.link();
        if let Some(link) = spec.link {
            let all = link.bits_per_s().saturating_mul(self.backends as u64);
            spec.uplink = Some(Rate::new(all)?);
        }
        Ok(spec)
    }
}

/// A measurement has one family, as its rows name it.
fn one_family(text: &str) -> Result<Family, String> {
    match text {
        "4" => Ok(Family::V4),
        "6" => Ok(Family::V6),
        _ => Err("expected 4 or 6".into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rows_name_a_family_that_is_not_ipv4() {
        let network = Network::unshaped(2, false).unwrap();
        assert_eq!(network.case().text("family"), "");
        let family = one_family("6").unwrap();
        let network = network.with(Addresses { family });
        assert_eq!(network.case().text("family"), "IPv6");
        assert!(one_family("dual").is_err());
    }
}
