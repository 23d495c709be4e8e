//! The links that systemd-networkd manages, and where their configuration can be added to.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::change::HostChange;
use super::files::{Root, read_bounded};
use super::live;

/// Its state of each link, by the link's index.
const LINKS: &str = "/run/systemd/netif/links";
/// The line with the file that configures a link.
const NETWORK_FILE: &str = "NETWORK_FILE=";
/// The name of our addition to a link's file.
const ADDITION: &str = "60-prism.conf";
/// The index of `lo` in every network namespace.
const LO: u64 = 1;

/// The additions to the files of links; of links that it manages only.
#[derive(Debug, Default)]
pub(crate) struct Links {
    lo: Option<PathBuf>,
    towards: BTreeMap<IpAddr, PathBuf>,
}

impl Links {
    /// The links that `changes` are about.
    pub(crate) fn find(root: &Root, changes: &[HostChange]) -> Self {
        if !root.path(Path::new(LINKS)).is_dir() {
            return Self::default();
        }
        let routes = changes.iter().filter_map(|change| match change {
            HostChange::Route { via, .. } => Some(*via),
            _ => None,
        });
        let towards = routes.filter_map(|via| {
            let route = live::route_to(via, None).ok()?;
            let device = route.get("dev").and_then(Value::as_str)?;
            Some((via, addition(root, live::link_index(device)?)?))
        });
        Self {
            lo: addition(root, LO),
            towards: towards.collect(),
        }
    }

    pub(super) fn lo(&self) -> Option<&PathBuf> {
        self.lo.as_ref()
    }

    /// That of the link that leads to `address`.
    pub(super) fn towards(&self, address: IpAddr) -> Option<&PathBuf> {
        self.towards.get(&address)
    }

    #[cfg(test)]
    pub(super) fn of(lo: &str, towards: &[(IpAddr, &str)]) -> Self {
        Self {
            lo: Some(lo.into()),
            towards: towards
                .iter()
                .map(|(address, path)| (*address, path.into()))
                .collect(),
        }
    }
}

fn addition(root: &Root, index: u64) -> Option<PathBuf> {
    let state = root.path(&Path::new(LINKS).join(index.to_string()));
    let state = read_bounded(&state).ok()??;
    let file = state
        .lines()
        .find_map(|line| line.strip_prefix(NETWORK_FILE))?;
    let name = Path::new(file).file_name()?.to_str()?;
    let directory = Path::new("/etc/systemd/network").join(format!("{name}.d"));
    Some(directory.join(ADDITION))
}

/// Has it read its files again. `networkctl` needs D-Bus, which a small host may lack.
pub(super) fn reload() -> anyhow::Result<()> {
    let reloaded = live::run("networkctl", "systemd", &["reload".to_owned()]);
    let restart = ["try-restart", "systemd-networkd"].map(str::to_owned);
    let done = reloaded.or_else(|_| live::run("systemctl", "systemd", &restart));
    done.map(drop)
}
