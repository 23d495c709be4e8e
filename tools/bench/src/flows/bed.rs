//! A switch with a table of flows, and a host that sends it commands.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use prism_proto::control::{Answer, ControlKey, FlowKey, Ops, Owner, Request, Status};
use prism_switch::bench::{Hook, Verdict};
use prism_switch::{
    InterfaceConfig, Link, NodeConfig, Roles, SenderConfig, ServiceConfig, Switch, SwitchConfig,
};
use prism_sys::netns::NetNs;

use crate::frames::{HEADERS_UDP, foreign_frame, frame, udp};
use crate::memory::kernel_bytes;

/// Most flows of a table here: 67 hosts of clients.
pub(super) const MAX_FLOWS: usize = 4_000_000;
/// The size of the switch's tables by default, which those here have too.
const TABLE: u32 = 1 << 20;
/// Clients' ports on one host.
const PORTS: u32 = 60_000;
const CLIENTS: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 0);
const VIP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 1), 80);
const OWNER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 1, 1), 9000);
const OTHER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 1, 2), 9000);
const KEY_ID: u32 = 1;
const CONTROL_PORT: u16 = 7171;
/// Of a frame without payload.
const FRAME_BYTES: usize = 60;
/// Flows made before somebody is asked whether to go on.
const BATCH: u32 = 4096;
/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Names of switches here begin so; the number of the process follows.
const PIN_PREFIX: &str = "prism-bench-flows-";

/// How many packets and commands one turn has of each kind.
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

/// What many of a kind took.
pub(super) struct Times {
    pub(super) p50_ns: f64,
    pub(super) p99_ns: f64,
}

/// Of one switch, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Memory {
    /// Both tables of flows, filled, as the kernel accounts for them.
    pub(super) accounted: u64,
    /// By which the kernel's memory grew when the empty switch was loaded.
    pub(super) taken_empty: u64,
    /// The same when it was full.
    pub(super) taken_full: u64,
}

/// One switch, removed when dropped.
pub(super) struct Bed {
    switch: Switch,
    config: SwitchConfig,
    key: ControlKey,
    flows: u32,
    host: UdpSocket,
    /// The switch's clock, and when it was asked.
    clock: (u64, Instant),
    epoch: u64,
    memory: Memory,
    random: fastrand::Rng,
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Err(e) = Switch::unload(&self.config.pin_dir) {
            tracing::warn!("{e}");
        }
    }
}

impl Bed {
    /// The `n`th switch in `network`, which the calling thread is in.
    pub(super) fn filled(
        network: &NetNs,
        n: usize,
        flows: u32,
        cancel: &AtomicBool,
    ) -> Result<Self> {
        let key = ControlKey::new(*b"not a secret key");
        let config = config(n, flows, &key)?;
        let host = join(network, n, *config.control.ip())?;
        let before = kernel_bytes()?;
        let switch = Switch::load(&config)?;
        let mut bed = Self {
            switch,
            config,
            key,
            flows,
            host: host.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))??,
            clock: (0, Instant::now()),
            epoch: 0,
            memory: Memory {
                accounted: 0,
                taken_empty: 0,
                taken_full: 0,
            },
            random: fastrand::Rng::with_seed(u64::from(flows)),
        };
        bed.host.connect(bed.config.control)?;
        bed.host.set_read_timeout(Some(PATIENCE))?;
        bed.memory.taken_empty = kernel_bytes()?.saturating_sub(before);
        bed.fill(cancel)?;
        bed.memory.taken_full = kernel_bytes()?.saturating_sub(before);
        bed.memory.accounted = bed.switch.table_bytes()?;
        Ok(bed)
    }

    fn fill(&mut self, cancel: &AtomicBool) -> Result<()> {
        let query = request(0, Ops::QUERY, Owner::NONE, 0, 0);
        self.clock = (self.answer(&query)?.0.time_ns, Instant::now());
        for i in 0..self.flows {
            if i % BATCH == 0 {
                ensure!(!cancel.load(Ordering::Relaxed), "interrupted");
            }
            self.own(i, OWNER)?;
        }
        Ok(())
    }

    pub(super) fn flows(&self) -> u32 {
        self.flows
    }

    pub(super) fn memory(&self) -> Memory {
        self.memory
    }

    /// Times of frames that are not for the switch.
    pub(super) fn glances(&self, count: usize) -> Result<Times> {
        let frame = foreign_frame(FRAME_BYTES);
        times(count, || self.run(&frame, Verdict::Pass))
    }

    /// Times of clients' packets.
    pub(super) fn packets_to_owner(&mut self, count: usize) -> Result<Times> {
        times(count, || {
            let client = client(self.random.u32(0..self.flows));
            self.run(&frame(client, VIP, FRAME_BYTES), Verdict::Send)
        })
    }

    /// Times of packets to clients.
    pub(super) fn packets_to_client(&mut self, count: usize) -> Result<Times> {
        times(count, || {
            let client = client(self.random.u32(0..self.flows));
            self.run(&frame(OWNER, client, FRAME_BYTES), Verdict::Send)
        })
    }

    /// Times of commands, in the program. Half of them give flows away, the others
    /// take them back.
    pub(super) fn rules(&mut self, count: usize) -> Result<Times> {
        let flows = self.some(count / 2);
        let mut taken = Vec::with_capacity(count);
        for owner in [OTHER, OWNER] {
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
        for owner in [OTHER, OWNER] {
            for flow in &flows {
                let request = self.owning(*flow, owner).encode(&self.key);
                let start = Instant::now();
                self.host.send(&request)?;
                let length = self.host.recv(&mut answer).context("no answer")?;
                taken.push(start.elapsed());
                let answer = answer.get(..length).unwrap_or_default();
                is_ok(&Answer::decode(answer, KEY_ID, &self.key)?)?;
            }
        }
        Ok(Times::of(taken))
    }

    fn some(&mut self, count: usize) -> Vec<u32> {
        let flows = self.flows;
        let random = &mut self.random;
        (0..count).map(|_| random.u32(0..flows)).collect()
    }

    /// Gives a flow to `owner`; the time of the program.
    fn own(&mut self, flow: u32, owner: SocketAddrV4) -> Result<Duration> {
        let request = self.owning(flow, owner);
        let (answer, time) = self.answer(&request)?;
        is_ok(&answer)?;
        Ok(time)
    }

    /// A command of a new epoch.
    fn owning(&mut self, flow: u32, owner: SocketAddrV4) -> Request {
        let (then_ns, then) = self.clock;
        let now_ns = then_ns + u64::try_from(then.elapsed().as_nanos()).unwrap_or(0);
        self.epoch = now_ns.max(self.epoch + 1);
        let owner = Owner {
            addr: SocketAddr::V4(owner),
            via: IpAddr::V4(*owner.ip()),
        };
        request(flow, Ops::OWN.and(Ops::UNBLOCK), owner, now_ns, self.epoch)
    }

    fn answer(&self, request: &Request) -> Result<(Answer, Duration)> {
        let from = SocketAddrV4::new(*OWNER.ip(), 1);
        let datagram = udp(from, self.config.control, &request.encode(&self.key));
        let run = self.switch.run_packet(Hook::Tc, &datagram, 1)?;
        let payload = run.packet.get(HEADERS_UDP..).context("no answer")?;
        let answer = Answer::decode(payload, KEY_ID, &self.key)?;
        Ok((answer, run.time))
    }

    fn run(&self, frame: &[u8], expected: Verdict) -> Result<Duration> {
        let run = self.switch.run_packet(Hook::Tc, frame, 1)?;
        if run.verdict != expected {
            bail!("the program answered {:?}", run.verdict);
        }
        Ok(run.time)
    }
}

impl Times {
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52 ns")]
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |percent: usize| {
            let rank = (times.len() * percent).div_ceil(100).saturating_sub(1);
            let time = times.get(rank).copied().unwrap_or_default();
            time.as_nanos() as f64
        };
        Self {
            p50_ns: at(50),
            p99_ns: at(99),
        }
    }
}

fn times(count: usize, mut one: impl FnMut() -> Result<Duration>) -> Result<Times> {
    let times = (0..count).map(|_| one()).collect::<Result<Vec<_>>>()?;
    Ok(Times::of(times))
}

fn is_ok(answer: &Answer) -> Result<()> {
    ensure!(answer.status == Status::Ok, "{answer:?}");
    Ok(())
}

/// Removes switches of processes that were killed.
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

fn config(n: usize, flows: u32, key: &ControlKey) -> Result<SwitchConfig> {
    let node = |addr: Ipv4Addr, is_owner: bool| NodeConfig {
        addr: addr.into(),
        tenant: 1,
        roles: Roles {
            frontend: false,
            backend: is_owner,
        },
        link: Some(Link {
            ifindex: 1,
            node_mac: [2, 0, 0, 0, 0, 1],
            own_mac: [2, 0, 0, 0, 0, 2],
            mtu_bytes: 1500,
        }),
    };
    // Clients are nodes too, for next hops without neighbours.
    let clients = (0..flows.div_ceil(PORTS)).map(|host| node(*client(host * PORTS).ip(), false));
    Ok(SwitchConfig {
        pin_dir: format!("{PIN_PREFIX}{}-{n}", std::process::id()),
        interfaces: vec![InterfaceConfig {
            name: format!("f{n}"),
            xdp: false,
        }],
        control: SocketAddrV4::new(control_ip(n)?, CONTROL_PORT),
        services: vec![ServiceConfig {
            addr: VIP.into(),
            tenant: 1,
            frontends: Vec::new(),
        }],
        nodes: [OWNER, OTHER]
            .map(|owner| node(*owner.ip(), true))
            .into_iter()
            .chain(clients)
            .collect(),
        senders: vec![SenderConfig {
            key_id: KEY_ID,
            key: key.clone(),
            tenant: 1,
        }],
        max_flows: flows.max(TABLE),
        ..SwitchConfig::default()
    })
}

/// Where the `n`th switch hears commands.
fn control_ip(n: usize) -> Result<Ipv4Addr> {
    let n = u8::try_from(n).context("too many switches")?;
    Ok(Ipv4Addr::new(10, 8, n, 1))
}

/// A host that is joined to the `n`th switch.
fn join(network: &NetNs, n: usize, control: Ipv4Addr) -> Result<NetNs> {
    let host = NetNs::anonymous()?;
    let [a, b, c, _] = control.octets();
    let address = Ipv4Addr::new(a, b, c, 2);
    let fd = host.as_fd().as_raw_fd();
    let path = format!("/proc/{}/fd/{fd}", std::process::id());
    sh(
        network,
        &format!(
            "ip link set lo up; ip link add f{n} type veth peer name e0 netns {path}
             ip addr add {control}/24 dev f{n}; ip link set f{n} up"
        ),
    )?;
    sh(
        &host,
        &format!("ip addr add {address}/24 dev e0; ip link set e0 up"),
    )?;
    Ok(host)
}

/// Runs shell commands in a network.
fn sh(network: &NetNs, commands: &str) -> Result<()> {
    let out = network.run(|| Command::new("sh").args(["-ec", commands]).output())??;
    let stderr = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "{commands}: {stderr}");
    Ok(())
}

fn client(flow: u32) -> SocketAddrV4 {
    let port = u16::try_from(flow % PORTS + 1).unwrap_or(1);
    let host = u32::from(CLIENTS) + flow / PORTS + 1;
    SocketAddrV4::new(host.into(), port)
}

fn request(flow: u32, ops: Ops, owner: Owner, time_ns: u64, epoch: u64) -> Request {
    Request {
        key_id: KEY_ID,
        request_id: epoch,
        time_ns,
        ops,
        epoch,
        flow: FlowKey {
            client: SocketAddr::V4(client(flow)),
            vip: SocketAddr::V4(VIP),
        },
        owner,
    }
}
