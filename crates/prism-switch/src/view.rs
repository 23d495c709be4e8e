//! Reads a switch from any process, through its pins.

use std::mem::offset_of;
use std::sync::OnceLock;
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use prism_proto::control::{FlowKey, FlowState, Owner};
use prism_sys::clock::monotonic_ns;

use crate::bpffs;
use crate::error::{KernelError, ViewError, kernel};
use crate::layout::{
    FLOW_BYTES, FLOW_KEY_BYTES, array_at, flow_key, read_flow_key, read_owner, read_state, u64_at,
};
use crate::load;
use crate::skel::types;
use crate::walk::BATCH_KEYS;

/// One flow that the switch knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    /// The flow's addresses and ports.
    pub flow: FlowKey,
    /// Its state; [`FlowState::Absent`] for a tombstone.
    pub state: FlowState,
    /// Epoch of its last change.
    pub epoch: u64,
    /// The owner, which gets its packets.
    pub owner: Owner,
    /// Time since its last packet or command, to about 10 ms.
    pub idle: Duration,
    /// From the client to the owner.
    pub to_owner: Direction,
    /// From the owner to the client.
    pub to_client: Direction,
}

/// The traffic in one direction since the first command for the flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Direction {
    /// Packets. One that the network card will segment counts once.
    pub packets: u64,
    /// Bytes, Ethernet headers included.
    pub bytes: u64,
}

/// A counter, summed over all CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Its name: `forward_`, `punt_` (left to the kernel), `drop_`, `flow_`,
    /// `control_` and a reason.
    pub name: String,
    /// Since the switch was first loaded.
    pub value: u64,
}

/// A pinned switch, seen from outside.
pub struct SwitchView {
    flows: MapHandle,
    counters: MapHandle,
}

impl SwitchView {
    /// Opens the switch called `pin_dir`.
    pub fn open(pin_dir: &str) -> Result<Self, ViewError> {
        let dir = bpffs::dir(pin_dir).unwrap_or_default();
        let open = |name: &str| {
            let path = dir.join(name);
            MapHandle::from_pinned_path(&path)
                .map_err(|source| ViewError::NoSwitch { path, source })
        };
        let view = Self {
            flows: open("flows")?,
            counters: open("counters")?,
        };
        if view.flows.value_size() as usize != FLOW_BYTES
            || view.counters.max_entries() != types::counter::COUNTER_COUNT.0
        {
            return Err(ViewError::Version);
        }
        Ok(view)
    }

    /// All flows, tombstones included, in no order. Each record is of one moment. A flow that
    /// changes during the walk is seen before or after its change.
    ///
    /// # Errors
    /// [`KernelError`]. The iterator ends after one.
    pub fn flows(
        &self,
    ) -> Result<impl Iterator<Item = Result<FlowRecord, KernelError>> + '_, KernelError> {
        let keys = self
            .flows
            .lookup_batch(BATCH_KEYS, MapFlags::ANY, MapFlags::ANY)
            .map_err(kernel("read the list of flows"))?;
        // Read again under its lock, so that each record is of one moment.
        Ok(keys.filter_map(|(key, _)| self.flow(&array_at(&key, 0)).transpose()))
    }

    /// One flow.
    pub fn flow_of(&self, flow: &FlowKey) -> Result<Option<FlowRecord>, KernelError> {
        self.flow(&flow_key(flow))
    }

    fn flow(&self, key: &[u8; FLOW_KEY_BYTES]) -> Result<Option<FlowRecord>, KernelError> {
        let value = self.flows.lookup(key, MapFlags::LOCK);
        let value = value.map_err(kernel("read a flow"))?;
        Ok(value.map(|value| record(key, &value)))
    }

    /// Every counter.
    pub fn counters(&self) -> Result<Vec<Counter>, ViewError> {
        let names = counter_names()?;
        let read = |(index, name): (u32, &String)| {
            let name = name.clone();
            let values = self
                .counters
                .lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY);
            let values = values.map_err(kernel("read a counter"))?;
            let value = values.iter().flatten().map(|v| u64_at(v, 0)).sum();
            Ok(Counter { name, value })
        };
        (0..).zip(names).map(read).collect()
    }
}

/// Names of all counters, in the order of their map, from the object file, which is opened once.
fn counter_names() -> Result<&'static [String], ViewError> {
    static NAMES: OnceLock<Vec<String>> = OnceLock::new();
    if let Some(names) = NAMES.get() {
        return Ok(names);
    }
    let names = read_counter_names()?;
    Ok(NAMES.get_or_init(|| names))
}

fn read_counter_names() -> Result<Vec<String>, ViewError> {
    let object = load::open().map_err(|_| ViewError::Version)?;
    let rodata = object.maps.rodata_data.as_deref();
    let names = rodata.ok_or(ViewError::Version)?.counter_names;
    let text = |name: &[i8]| {
        let bytes = name.iter().map(|c| c.cast_unsigned());
        let bytes: Vec<u8> = bytes.take_while(|b| *b != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Ok(names.iter().map(|name| text(name)).collect())
}

fn record(key: &[u8], value: &[u8]) -> FlowRecord {
    let seen_ns = u64_at(value, offset_of!(types::flow, last_seen_ns));
    let direction = |i: usize| Direction {
        packets: u64_at(value, offset_of!(types::flow, packets) + i * 8),
        bytes: u64_at(value, offset_of!(types::flow, bytes) + i * 8),
    };
    FlowRecord {
        flow: read_flow_key(key),
        state: read_state(value),
        epoch: u64_at(value, offset_of!(types::flow, epoch)),
        owner: read_owner(value),
        idle: Duration::from_nanos(monotonic_ns().saturating_sub(seen_ns)),
        to_owner: direction(0),
        to_client: direction(1),
    }
}
