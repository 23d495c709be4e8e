//! A switch with a table of flows, and a host that sends it commands.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use prism_netns::NetNs;
use prism_packets::Verdict;
use prism_proto::control::{Answer, FlowKey, Ops, Owner, Request, Term};
use prism_proto::registry::{OwnedFlow, Registry};
use prism_switch::{Roles, Switch, SwitchConfig};

use crate::family::{Family, on_link};
use crate::frames::{foreign_frame, frame};
use crate::memory::{kernel_bytes, own_bytes};
use crate::stats::{ascending, rank};
use crate::test_switch::{KEY_ID, TestSwitch, host, is_ok, key, node, own, senders, service, sh};

/// Most flows of a table here: 67 hosts of clients.
pub(super) const MAX_FLOWS: usize = 4_000_000;
/// Most flows of one worker's registry.
const MOST_REGISTERED: u32 = 1 << 20;
/// Clients' ports on one host.
const PORTS: u32 = 60_000;
/// Numbers of the addresses; see [`Family::host`].
const CLIENTS: u32 = u32::from_be_bytes([100, 64, 0, 0]);
const VIP: ([u8; 4], u16) = ([198, 51, 100, 1], 80);
const OWNER: ([u8; 4], u16) = ([10, 0, 1, 1], 9000);
const OTHER: ([u8; 4], u16) = ([10, 0, 1, 2], 9000);
const CONTROL_PORT: u16 = 7171;
/// Size of a frame without payload.
const FRAME_BYTES: usize = 60;
/// Flows made between two looks at `cancel`.
const BATCH: u32 = 4096;
/// Longest wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The beginning of the names of these switches, before the process id.
const PIN_PREFIX: &str = "prism-bench-flows-";

/// Numbers of packets and commands in one turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Samples {
    pub(super) packets: usize,
    pub(super) rules: usize,
    pub(super) round_trips: usize,
}

impl Samples {
    pub(super) const MANY: Self = Self {
        packets: 50_000,
        rules: 10_000,
        round_trips: 5_000,
    };
    pub(super) const FEW: Self = Self {
        packets: 5_000,
        rules: 1_000,
        round_trips: 500,
    };
}

/// Times of packets or commands of one kind.
pub(super) struct Times {
    pub(super) p50_ns: f64,
    pub(super) p99_ns: f64,
}

/// Memory of one switch, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Memory {
    /// Both filled tables of flows, by the kernel's account.
    pub(super) accounted: u64,
    /// Growth of the kernel's memory when the empty switch was loaded.
    pub(super) taken_empty: u64,
    /// Its growth until the table was full.
    pub(super) taken_full: u64,
    /// Growth of this process when it registered the flows as one worker does.
    pub(super) registry: u64,
}

/// The table of one switch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table {
    pub(super) family: Family,
    pub(super) flows: u32,
    /// The most flows that it has room for.
    pub(super) room: u32,
}

/// One switch, removed when dropped.
pub(super) struct Bed {
    bed: TestSwitch,
    family: Family,
    flows: u32,
    host: UdpSocket,
    /// The switch's clock, and the time of its answer.
    clock: (u64, Instant),
    epoch: u64,
    memory: Memory,
    /// Kept, so that each registry is in memory of its own.
    registry: Registry,
    random: fastrand::Rng,
}

impl Bed {
    /// Loads and fills the `n`th switch in `network`, the namespace of the calling thread.
    pub(super) fn filled(
        network: &NetNs,
        table: Table,
        n: usize,
        cancel: &AtomicBool,
    ) -> Result<Self> {
        let Table { family, flows, .. } = table;
        let number = u8::try_from(n).context("too many switches")?;
        let control = family.host([10, 8, number, 1]);
        let config = config(table, n, control);
        let host = host(network, &format!("f{n}"), family.host([10, 8, number, 2]))?;
        let address = on_link(control);
        sh(
            network,
            &format!("ip link set lo up; ip addr add {address} dev f{n}"),
        )?;
        let before = kernel_bytes()?;
        let mut bed = Self {
            bed: TestSwitch::load(config)?,
            family,
            flows,
            host: host.run(|| UdpSocket::bind((family.host([10, 8, number, 2]), 0)))??,
            clock: (0, Instant::now()),
            epoch: 0,
            memory: Memory {
                accounted: 0,
                taken_empty: 0,
                taken_full: 0,
                registry: 0,
            },
            registry: Registry::default(),
            random: fastrand::Rng::with_seed(u64::from(flows)),
        };
        bed.host.connect((control, CONTROL_PORT))?;
        bed.host.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        bed.memory.taken_empty = kernel_bytes()?.saturating_sub(before);
        bed.fill(cancel)?;
        bed.memory.taken_full = kernel_bytes()?.saturating_sub(before);
        bed.memory.accounted = prism_packets::table_bytes(&bed.bed.switch)?;
        bed.register()?;
        Ok(bed)
    }

    /// Registers the flows, in no order.
    fn register(&mut self) -> Result<()> {
        let mut flows: Vec<u32> = (0..self.flows.min(MOST_REGISTERED)).collect();
        self.random.shuffle(&mut flows);
        let (vip, owner) = (self.end(VIP), self.end(OWNER));
        let before = own_bytes()?;
        for flow in flows {
            self.registry.hold(OwnedFlow {
                flow: FlowKey {
                    client: self.client(flow),
                    vip,
                },
                owner: Owner {
                    addr: owner,
                    via: owner.ip(),
                },
                epoch: 1,
                is_blocked: false,
                is_confirmed: true,
                term: Term(1),
            })?;
        }
        self.memory.registry = own_bytes()?.saturating_sub(before);
        Ok(())
    }

    fn fill(&mut self, cancel: &AtomicBool) -> Result<()> {
        let query = Request {
            ops: Ops::QUERY,
            owner: Owner::NONE,
            ..own(self.client(0), self.end(VIP), self.end(OWNER), 0)
        };
        self.clock = (self.bed.command(&query)?.0.time_ns, Instant::now());
        for i in 0..self.flows {
            if i % BATCH == 0 {
                ensure!(!cancel.load(Ordering::Relaxed), "interrupted");
            }
            self.own(i, self.end(OWNER))?;
        }
        Ok(())
    }

    fn end(&self, (numbers, port): ([u8; 4], u16)) -> SocketAddr {
        self.family.at(numbers, port)
    }

    fn client(&self, flow: u32) -> SocketAddr {
        client(self.family, flow)
    }

    pub(super) fn flows(&self) -> u32 {
        self.flows
    }

    pub(super) fn memory(&self) -> Memory {
        self.memory
    }

    /// The number of flows in the registry.
    pub(super) fn registered(&self) -> usize {
        self.registry.len()
    }

    /// Times of frames that are not for the switch.
    pub(super) fn glances(&self, count: usize) -> Result<Times> {
        let frame = foreign_frame(FRAME_BYTES);
        times(count, || self.bed.time(&frame, 1, Verdict::Pass))
    }

    /// Times of clients' packets.
    pub(super) fn packets_to_owner(&mut self, count: usize) -> Result<Times> {
        times(count, || {
            let flow = self.random.u32(0..self.flows);
            let frame = frame(self.client(flow), self.end(VIP), FRAME_BYTES);
            self.bed.time(&frame, 1, Verdict::Send)
        })
    }

    /// Times of packets to clients.
    pub(super) fn packets_to_client(&mut self, count: usize) -> Result<Times> {
        times(count, || {
            let flow = self.random.u32(0..self.flows);
            let frame = frame(self.end(OWNER), self.client(flow), FRAME_BYTES);
            self.bed.time(&frame, 1, Verdict::Send)
        })
    }

    /// Times of clients' packets while all flows are blocked. The program drops such a packet when
    /// it has found its flow.
    pub(super) fn lookups(&mut self, count: usize) -> Result<Times> {
        self.command_all(Ops::BLOCK)?;
        let dropped = times(count, || {
            let flow = self.random.u32(0..self.flows);
            let frame = frame(self.client(flow), self.end(VIP), FRAME_BYTES);
            self.bed.time(&frame, 1, Verdict::Drop)
        })?;
        self.command_all(Ops::UNBLOCK)?;
        Ok(dropped)
    }

    fn command_all(&mut self, ops: Ops) -> Result<()> {
        for flow in 0..self.flows {
            let request = Request {
                ops,
                owner: Owner::NONE,
                ..self.owning(flow, self.end(OWNER))
            };
            is_ok(&self.bed.command(&request)?.0)?;
        }
        Ok(())
    }

    /// Times of commands in the program. Half of them give flows to another owner, the others
    /// give them back.
    pub(super) fn rules(&mut self, count: usize) -> Result<Times> {
        let flows = self.some(count / 2);
        let mut taken = Vec::with_capacity(count);
        for owner in [OTHER, OWNER].map(|owner| self.end(owner)) {
            for flow in &flows {
                taken.push(self.own(*flow, owner)?);
            }
        }
        Ok(Times::of(taken))
    }

    /// Times of the same commands as datagrams, from sending to the answer.
    pub(super) fn round_trips(&mut self, count: usize) -> Result<Times> {
        let flows = self.some(count / 2);
        let mut taken = Vec::with_capacity(count);
        let mut answer = [0; 256];
        for owner in [OTHER, OWNER].map(|owner| self.end(owner)) {
            for flow in &flows {
                let request = self.owning(*flow, owner).encode(&key());
                let start = Instant::now();
                self.host.send(&request)?;
                let length = self.host.recv(&mut answer).context("no answer")?;
                taken.push(start.elapsed());
                let answer = answer.get(..length).unwrap_or_default();
                is_ok(&Answer::decode(answer, KEY_ID, &key())?)?;
            }
        }
        Ok(Times::of(taken))
    }

    fn some(&mut self, count: usize) -> Vec<u32> {
        let flows = self.flows;
        let random = &mut self.random;
        (0..count).map(|_| random.u32(0..flows)).collect()
    }

    /// Gives a flow to `owner`. Returns the time of the program.
    fn own(&mut self, flow: u32, owner: SocketAddr) -> Result<Duration> {
        let request = self.owning(flow, owner);
        let (answer, time) = self.bed.command(&request)?;
        is_ok(&answer)?;
        Ok(time)
    }

    /// A command of a new epoch.
    fn owning(&mut self, flow: u32, owner: SocketAddr) -> Request {
        let (then_ns, then) = self.clock;
        let now_ns = then_ns + u64::try_from(then.elapsed().as_nanos()).unwrap_or(0);
        self.epoch = now_ns.max(self.epoch + 1);
        Request {
            request_id: self.epoch,
            epoch: self.epoch,
            ..own(self.client(flow), self.end(VIP), owner, now_ns)
        }
    }
}

impl Times {
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52 ns")]
    fn of(times: Vec<Duration>) -> Self {
        let times = ascending(times.into_iter().map(|time| time.as_nanos() as f64));
        Self {
            p50_ns: rank(&times, 50),
            p99_ns: rank(&times, 99),
        }
    }
}

fn times(count: usize, mut one: impl FnMut() -> Result<Duration>) -> Result<Times> {
    let times = (0..count).map(|_| one()).collect::<Result<Vec<_>>>()?;
    Ok(Times::of(times))
}

/// Removes the switches of killed processes.
pub(super) fn remove_abandoned() {
    let pins = std::fs::read_dir("/sys/fs/bpf");
    for entry in pins.into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let rest = name.strip_prefix(PIN_PREFIX);
        let pid = rest.and_then(|rest| rest.split('-').next());
        let is_dead = |pid: &str| !std::path::Path::new("/proc").join(pid).exists();
        if pid.is_some_and(is_dead)
            && let Err(e) = Switch::unload(&name)
        {
            tracing::warn!("{name}: {e}");
        }
    }
}

fn config(table: Table, n: usize, control: IpAddr) -> SwitchConfig {
    let Table { family, flows, .. } = table;
    let roles = |backend: bool| Roles {
        frontend: false,
        backend,
    };
    let owners = [OWNER, OTHER].map(|(owner, _)| node(family.host(owner), roles(true)));
    // Clients are nodes too, for next hops without neighbours.
    let clients = (0..flows.div_ceil(PORTS))
        .map(|host| node(client(family, host * PORTS).ip(), roles(false)));
    SwitchConfig {
        pin_dir: format!("{PIN_PREFIX}{}-{n}", std::process::id()),
        interfaces: vec![format!("f{n}")],
        control: vec![SocketAddr::new(control, CONTROL_PORT)],
        services: vec![service(family.at(VIP.0, VIP.1))],
        nodes: owners.into_iter().chain(clients).collect(),
        senders: senders(),
        max_flows: table.room,
        ..SwitchConfig::default()
    }
}

fn client(family: Family, flow: u32) -> SocketAddr {
    let port = u16::try_from(flow % PORTS + 1).unwrap_or(1);
    let host = CLIENTS + flow / PORTS + 1;
    family.at(host.to_be_bytes(), port)
}
