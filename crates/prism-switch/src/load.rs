//! Loads a switch, takes it over, and removes it.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, OpenMapMut, OpenObject};

use prism_proto::control::{FRESHNESS_NS, MAX_EPOCH_AHEAD_NS, MAX_EPOCH_STEP, VERSION};
use prism_proto::term::MAX_EPOCH;

use crate::attach;
use crate::bpffs;
use crate::config::SwitchConfig;
use crate::error::{KernelError, LoadError, kernel};
use crate::layout::{ip_addr, nanos};
use crate::libbpf_log;
use crate::skel::{OpenSwitchSkel, SwitchSkel, SwitchSkelBuilder};
use crate::tables;

/// Pin of a link that earlier releases made.
const FORMER_FLOW_LIST: &str = "flow_list";

/// Pin of the map that has the version of the control protocol of the pinned programs.
const CONTROL_VERSION: &str = "control_version";
/// The version of the releases that pinned no such map.
const UNPINNED_CONTROL_VERSION: u8 = 2;

/// A loaded switch. Programs, maps and links stay when it is dropped.
pub struct Switch {
    pub(crate) skel: SwitchSkel<'static>,
    dir: PathBuf,
    own: Own,
}

/// The constants of host mode about this host: its addresses, and whether it is a frontend.
#[derive(PartialEq, Eq)]
struct Own {
    addresses: Option<BTreeSet<IpAddr>>,
    is_frontend: bool,
}

impl Own {
    fn of(config: &SwitchConfig) -> Self {
        Self {
            addresses: config.host_mode.clone(),
            is_frontend: config.has_frontend_here(),
        }
    }
}

impl Switch {
    /// Loads the switch, or takes over the one that is pinned under the same name. Flows stay,
    /// and tables are updated. Each program is replaced in one step, so that no packet is lost.
    ///
    /// # Errors
    /// [`LoadError`]. If taking over fails, the programs that ran before go on.
    pub fn load(config: &SwitchConfig) -> Result<Self, LoadError> {
        if let Some(problem) = config.problem() {
            return Err(LoadError::Config(problem));
        }
        let dir = bpffs::dir(&config.pin_dir)
            .ok_or_else(|| LoadError::Config(format!("bad pin_dir {:?}", config.pin_dir)))?;
        bpffs::prepare(&dir)?;
        // Before anything changes: nodes of the other version would be left without a switch.
        let is_pinned = check_control_version(&dir)?;
        let loaded = load_programs(config, &dir);
        let skel = loaded.inspect_err(|_| libbpf_log::tell_warnings())?;
        if !is_pinned {
            pin_control_version(&dir)?;
        }
        let mut tables = config.clone();
        tables.services = tables::with_present_frontends(&skel.maps, &config.services)
            .map_err(kernel("read the frontends"))?;
        tables::sync(&skel.maps, &tables).map_err(kernel("fill the tables"))?;
        let switch = Self {
            skel,
            dir,
            own: Own::of(config),
        };
        let former = switch.dir.join(FORMER_FLOW_LIST);
        bpffs::remove(&former).map_err(|e| bpffs::cannot_use(&former, e))?;
        for interface in &config.interfaces {
            switch.attach(interface, config.xdp)?;
        }
        Ok(switch)
    }

    /// Attaches to an interface, or replaces the program that is attached there.
    pub fn attach(&self, interface: &str, xdp: bool) -> Result<(), LoadError> {
        let attached = self.attach_programs(interface, xdp);
        attached.inspect_err(|_| libbpf_log::tell_warnings())
    }

    fn attach_programs(&self, interface: &str, xdp: bool) -> Result<(), LoadError> {
        let index = attach::interface_index(interface)?;
        attach::tc(&self.skel.progs.prism_tc, interface, index)?;
        let pin = attach::xdp_pin(&self.dir, interface);
        if xdp {
            attach::xdp(&self.skel.progs.prism_xdp, interface, index, &pin)?
        } else {
            attach::no_xdp(interface, &pin)?
        }
        Ok(())
    }

    /// Replaces services, nodes and senders by those of `config`, and ignores its other fields. In
    /// host mode this host stays the node that it was at the load.
    ///
    /// # Errors
    /// [`LoadError`]. Entries that were written before the error stay.
    pub fn update_tables(&self, config: &SwitchConfig) -> Result<(), LoadError> {
        if let Some(problem) = config.problem() {
            return Err(LoadError::Config(problem));
        }
        if self.own != Own::of(config) {
            tracing::error!(
                "this host has other addresses or roles of a node than at the agent's start: \
                 restart the agent, which costs no connection"
            );
        }
        let config = SwitchConfig {
            host_mode: self.own.addresses.clone(),
            ..config.clone()
        };
        Ok(tables::sync(&self.skel.maps, &config).map_err(kernel("fill the tables"))?)
    }

    /// The programs and maps themselves, for tests and measurements.
    #[must_use]
    pub fn skeleton(&self) -> &SwitchSkel<'static> {
        &self.skel
    }

    /// Removes the switch called `pin_dir` from this host, if there is one: detaches it from
    /// every interface of this network namespace, and forgets its flows.
    ///
    /// # Errors
    /// [`KernelError`]. The call can be repeated.
    pub fn unload(pin_dir: &str) -> Result<(), KernelError> {
        let Some(dir) = bpffs::dir(pin_dir) else {
            return Ok(());
        };
        let failed = |path: &Path, e| kernel(format!("remove {}", path.display()))(e);
        let pins = bpffs::pins(&dir).map_err(|e| failed(&dir, e))?;
        if pins.is_empty() && !dir.exists() {
            return Ok(());
        }
        libbpf_log::begin();
        let detached = attach::detach_all();
        detached.inspect_err(|_| libbpf_log::tell_warnings())?;
        for pin in pins {
            bpffs::remove(&pin).map_err(|e| failed(&pin, e))?;
        }
        std::fs::remove_dir(&dir).map_err(|e| failed(&dir, e))
    }
}

/// Opens the object. Its few bytes of bookkeeping are never freed: the skeleton borrows them
/// forever, and a process loads a switch once.
pub(crate) fn open() -> Result<OpenSwitchSkel<'static>, LoadError> {
    libbpf_log::begin();
    let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
    let opened = SwitchSkelBuilder::default().open(object);
    Ok(opened.map_err(kernel("open the object"))?)
}

fn load_programs(config: &SwitchConfig, dir: &Path) -> Result<SwitchSkel<'static>, LoadError> {
    let mut skel = open()?;
    let rodata = skel.maps.rodata_data.as_deref_mut();
    let rodata = rodata.ok_or_else(|| LoadError::Config("the object has no constants".into()))?;
    let control = config.control.iter().map(|control| control.ip());
    let addresses = control.chain(config.copies.iter().copied());
    for (slot, address) in rodata.control_addrs.iter_mut().zip(addresses) {
        *slot = ip_addr(address);
    }
    if let Some(control) = config.control.first() {
        rodata.control_port = control.port().to_be();
    }
    rodata.freshness_ns = FRESHNESS_NS;
    rodata.max_epoch_ahead_ns = MAX_EPOCH_AHEAD_NS;
    rodata.max_epoch_step = MAX_EPOCH_STEP;
    rodata.max_epoch = MAX_EPOCH;
    rodata.host_mode = config.host_mode.is_some();
    rodata.accepts_clients = config.has_frontend_here();
    rodata.frozen_marks = prism_sys::tcp::FROZEN_MARKS;
    rodata.tunnel_mtu_bytes = config.tunnel_mtu_bytes;
    for own in config.host_mode.iter().flatten() {
        if let Some(slot) = rodata.own_addrs.get_mut(usize::from(own.is_ipv6())) {
            *slot = ip_addr(*own);
        }
    }
    rodata.has_ordered_memory = cfg!(target_arch = "x86_64");
    rodata.idle_ns = nanos(config.idle);
    rodata.blocked_ns = nanos(config.blocked);
    rodata.tombstone_ns = nanos(config.tombstone);
    rodata.died_ns = nanos(config.died);
    rodata.left_ns = nanos(config.left);
    rodata.copied_ns = nanos(config.copied);
    rodata.nexthop_confirm_ns = nanos(config.confirm);
    let sized = skel.maps.flows.set_max_entries(config.max_flows);
    sized.map_err(kernel("size the tables"))?;
    // Tenants, senders and their nodes are not pinned, because the size of the first two is not
    // that of release 0.2.0. Each load fills the maps before its programs replace those that run.
    for map in [
        &mut skel.maps.flows,
        &mut skel.maps.collected,
        &mut skel.maps.term_state,
        &mut skel.maps.services,
        &mut skel.maps.service_ports,
        &mut skel.maps.nodes,
        &mut skel.maps.ended_runs,
    ] {
        pin(map, dir)?;
    }
    pin_counters(&mut skel.maps.counters, dir)?;
    Ok(skel.load().map_err(kernel("load the programs"))?)
}

/// Compares the version of the control protocol that a pinned switch speaks. Returns whether the
/// version is pinned.
fn check_control_version(dir: &Path) -> Result<bool, LoadError> {
    let known = pinned(&dir.join(CONTROL_VERSION))?;
    let running = match &known {
        Some(map) => map
            .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(kernel("read the version of the control protocol"))?
            .and_then(|value| value.first().copied()),
        None if dir.join("flows").exists() => Some(UNPINNED_CONTROL_VERSION),
        None => None,
    };
    match running {
        Some(running) if running != VERSION => Err(LoadError::ControlVersion {
            running,
            own: VERSION,
        }),
        _ => Ok(known.is_some()),
    }
}

fn pin_control_version(dir: &Path) -> Result<(), LoadError> {
    let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as u64,
        ..Default::default()
    };
    let name = Some(CONTROL_VERSION);
    let map = MapHandle::create(MapType::Array, name, 4, 4, 1, &options);
    let mut map = map.map_err(kernel("make a map"))?;
    let value = u32::from(VERSION).to_le_bytes();
    map.update(&0u32.to_ne_bytes(), &value, MapFlags::ANY)
        .and_then(|()| map.pin(dir.join(CONTROL_VERSION)))
        .map_err(kernel("pin the version of the control protocol"))?;
    Ok(())
}

/// Has `map` pinned when it is loaded, or taken over if it is pinned already.
fn pin(map: &mut OpenMapMut<'_>, dir: &Path) -> Result<(), LoadError> {
    let name = map.name().to_string_lossy().into_owned();
    let path = dir.join(&name);
    if let Some(old) = pinned(&path)? {
        if old.key_size() != map.key_size()
            || old.value_size() != map.value_size()
            || old.map_type() != map.map_type()
        {
            return Err(LoadError::Incompatible(name));
        }
        if old.max_entries() != map.max_entries() {
            let size = old.max_entries();
            let wanted = map.max_entries();
            tracing::warn!(
                map = name,
                size,
                wanted,
                "size stays until the switch is unloaded"
            );
            map.set_max_entries(size)
                .map_err(kernel("size the tables"))?;
        }
    }
    Ok(map.set_pin_path(path).map_err(kernel("pin a map"))?)
}

/// Pins the counters. Counters of another version are dropped, as it may count other things.
fn pin_counters(map: &mut OpenMapMut<'_>, dir: &Path) -> Result<(), LoadError> {
    let path = dir.join(map.name());
    let old = pinned(&path)?;
    if old.is_some_and(|old| old.max_entries() != map.max_entries()) {
        tracing::warn!("counters start from zero: they were of another version");
        bpffs::remove(&path).map_err(|e| bpffs::cannot_use(&path, e))?;
    }
    Ok(map.set_pin_path(path).map_err(kernel("pin a map"))?)
}

fn pinned(path: &Path) -> Result<Option<MapHandle>, LoadError> {
    if !path.exists() {
        return Ok(None);
    }
    let map = MapHandle::from_pinned_path(path).map_err(kernel("open a pinned map"))?;
    Ok(Some(map))
}
