//! Reads a switch from any process, through its pins.

use std::sync::OnceLock;
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use prism_proto::control::{FlowKey, FlowState, Owner, Term};
use prism_sys::clock::monotonic_ns;
use zerocopy::IntoBytes;

use crate::bpffs;
use crate::error::{KernelError, ViewError, kernel};
use crate::layout::{flow_key, flow_of, from_bytes, owner_of, state_of};
use crate::load;
use crate::skel::types;
use crate::terms::{TermPhase, TermState};
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
    term_state: MapHandle,
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
            term_state: open("term_state")?,
        };
        if view.flows.value_size() as usize != size_of::<types::flow>()
            || view.counters.max_entries() != types::counter::COUNTER_COUNT.0
        {
            return Err(ViewError::Version);
        }
        Ok(view)
    }

    /// The switch's term, and its phase.
    pub fn term(&self) -> Result<(Term, TermPhase), KernelError> {
        let state = TermState::read(&self.term_state)?;
        Ok((state.term, state.phase))
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
        Ok(keys.filter_map(|(key, _)| self.flow(from_bytes(&key)).transpose()))
    }

    /// One flow.
    pub fn flow_of(&self, flow: &FlowKey) -> Result<Option<FlowRecord>, KernelError> {
        self.flow(flow_key(flow))
    }

    fn flow(&self, key: types::flow_key) -> Result<Option<FlowRecord>, KernelError> {
        let value = self.flows.lookup(key.as_bytes(), MapFlags::LOCK);
        let value = value.map_err(kernel("read a flow"))?;
        Ok(value.map(|value| record(key, &from_bytes(&value))))
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
            let value = values.iter().flatten().map(|v| from_bytes::<u64>(v)).sum();
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

fn record(key: types::flow_key, flow: &types::flow) -> FlowRecord {
    let [packets_in, packets_out] = flow.packets;
    let [bytes_in, bytes_out] = flow.bytes;
    FlowRecord {
        flow: flow_of(key),
        state: state_of(flow),
        epoch: flow.epoch,
        owner: owner_of(flow),
        idle: Duration::from_nanos(monotonic_ns().saturating_sub(flow.last_seen_ns)),
        to_owner: Direction {
            packets: packets_in,
            bytes: bytes_in,
        },
        to_client: Direction {
            packets: packets_out,
            bytes: bytes_out,
        },
    }
}
