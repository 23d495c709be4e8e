//! The options of every command that builds a network.

use anyhow::{Result, ensure};
use prism_lab::{LabSpec, Rate};

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
}

impl Network {
    /// A network without a limit on its links.
    pub(crate) fn unshaped(backends: usize, tls: bool) -> Result<Self> {
        Ok(Self {
            backends,
            link: Rate::new(1_000_000_000)?,
            unshaped: true,
            tls,
        })
    }

    /// A network with links of this speed.
    pub(crate) const fn shaped(backends: usize, link: Rate, tls: bool) -> Self {
        Self {
            backends,
            link,
            unshaped: false,
            tls,
        }
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

    /// The names and values that every row has.
    pub(crate) fn case(&self) -> Case {
        Case::default()
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
        spec.backends = self.backends;
        spec.link = self.link();
        if let Some(link) = spec.link {
            let all = link.bits_per_s().saturating_mul(self.backends as u64);
            spec.uplink = Some(Rate::new(all)?);
        }
        Ok(spec)
    }
}
