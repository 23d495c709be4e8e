//! Loads a switch, takes it over, and removes it.

use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapHandle, OpenMapMut, OpenObject, PrintLevel};

use prism_proto::control::{FRESHNESS_NS, MAX_EPOCH_AHEAD_NS, MAX_EPOCH_STEP};

use crate::attach;
use crate::bpffs;
use crate::config::SwitchConfig;
use crate::error::{KernelError, LoadError, kernel};
use crate::layout::nanos;
use crate::skel::{OpenSwitchSkel, SwitchSkel, SwitchSkelBuilder};
use crate::tables;

/// Pin of a link that earlier releases made.
const FORMER_FLOW_LIST: &str = "flow_list";

/// A loaded switch. Programs, maps and links stay when it is dropped.
pub struct Switch {
    pub(crate) skel: SwitchSkel<'static>,
    dir: PathBuf,
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
        let skel = load_programs(config, &dir)?;
        let mut tables = config.clone();
        tables.services = tables::with_present_frontends(&skel.maps, &config.services)
            .map_err(kernel("read the frontends"))?;
        tables::sync(&skel.maps, &tables).map_err(kernel("fill the tables"))?;
        let switch = Self {
            skel,
            dir,
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
        let index = attach::interface_index(interface)?;
        attach::tc(&self.skel.progs.prism_tc, interface, index)?;
        let pin = attach::xdp_pin(&self.dir, interface);
        match xdp {
            true => attach::xdp(&self.skel.progs.prism_xdp, interface, index, &pin)?,
            false => attach::no_xdp(interface, &pin)?,
        }
        Ok(())
    }

    /// Replaces services, nodes and senders by those of `config`, and ignores its other fields.
    ///
    /// # Errors
    /// [`LoadError`]. Entries that were written before the error stay.
    pub fn update_tables(&self, config: &SwitchConfig) -> Result<(), LoadError> {
        if let Some(problem) = config.problem() {
            return Err(LoadError::Config(problem));
        }
        Ok(tables::sync(&self.skel.maps, config).map_err(kernel("fill the tables"))?)
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
        attach::detach_all()?;
        for pin in pins {
            bpffs::remove(&pin).map_err(|e| failed(&pin, e))?;
        }
        std::fs::remove_dir(&dir).map_err(|e| failed(&dir, e))
    }
}

/// Sends libbpf's messages to the log instead of to standard error.
fn quiet() {
    fn print(level: PrintLevel, text: String) {
        match level {
            PrintLevel::Warn => tracing::warn!(target: "libbpf", "{}", text.trim_end()),
            _ => tracing::debug!(target: "libbpf", "{}", text.trim_end()),
        }
    }
    libbpf_rs::set_print(Some((PrintLevel::Debug, print)));
}

/// Opens the object. Its few bytes of bookkeeping are never freed: the skeleton borrows them
/// forever, and a process loads a switch once.
pub(crate) fn open() -> Result<OpenSwitchSkel<'static>, LoadError> {
    quiet();
    let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
    let opened = SwitchSkelBuilder::default().open(object);
    Ok(opened.map_err(kernel("open the object"))?)
}

fn load_programs(config: &SwitchConfig, dir: &Path) -> Result<SwitchSkel<'static>, LoadError> {
    let mut skel = open()?;
    let rodata = skel.maps.rodata_data.as_deref_mut();
    let rodata = rodata.ok_or_else(|| LoadError::Config("the object has no constants".into()))?;
    rodata.control_addr = u32::from_ne_bytes(config.control.ip().octets());
    rodata.control_port = config.control.port().to_be();
    rodata.freshness_ns = FRESHNESS_NS;
    rodata.max_epoch_ahead_ns = MAX_EPOCH_AHEAD_NS;
    rodata.max_epoch_step = MAX_EPOCH_STEP;
    rodata.has_ordered_memory = cfg!(target_arch = "x86_64");
    rodata.idle_ns = nanos(config.idle);
    rodata.blocked_ns = nanos(config.blocked);
    rodata.tombstone_ns = nanos(config.tombstone);
    rodata.died_ns = nanos(config.died);
    rodata.left_ns = nanos(config.left);
    rodata.nexthop_confirm_ns = nanos(config.confirm);
    let sized = skel.maps.flows.set_max_entries(config.max_flows);
    sized.map_err(kernel("size the tables"))?;
    for map in [
        &mut skel.maps.flows,
        &mut skel.maps.collected,
        &mut skel.maps.tenants,
        &mut skel.maps.services,
        &mut skel.maps.service_ports,
        &mut skel.maps.nodes,
        &mut skel.maps.senders,
        &mut skel.maps.ended_runs,
    ] {
        pin(map, dir)?;
    }
    pin_counters(&mut skel.maps.counters, dir)?;
    Ok(skel.load().map_err(kernel("load the programs"))?)
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
            let (size, wanted) = (old.max_entries(), map.max_entries());
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
