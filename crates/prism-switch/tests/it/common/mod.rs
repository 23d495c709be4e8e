//! A switch in a namespace of its own, and packets made and checked byte by byte.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use prism_netns::NetNs;
use prism_packets::{Hook, Run};
use prism_proto::control::{
    Answer, ControlKey, FlowKey, Ops, Owner, Request, RunId, Stamped, Term,
};
use prism_switch::{
    Agent, Link, NodeConfig, Roles, SenderConfig, ServiceConfig, Switch, SwitchConfig, SwitchView,
};

mod leases;
mod members;
pub mod packet;
mod steered;

pub use leases::*;
pub use members::*;
pub use steered::*;

pub use super::family::*;

pub const CLIENT: SocketAddr = SocketAddr::new(host([192, 0, 2, 1]), 40_000);
/// The switch's address on the link to clients.
pub const GATEWAY: IpAddr = host([192, 0, 2, 254]);
pub const VIP: SocketAddr = SocketAddr::new(host([198, 51, 100, 1]), 80);
pub const OTHER_VIP: SocketAddr = SocketAddr::new(host([198, 51, 100, 2]), 80);
pub const FRONTEND: IpAddr = host([10, 0, 0, 1]);
pub const BACKEND: SocketAddr = SocketAddr::new(host([10, 0, 1, 1]), 9000);
pub const BACKEND2: SocketAddr = SocketAddr::new(host([10, 0, 1, 2]), 80);
pub const FOREIGN: SocketAddr = SocketAddr::new(host([10, 0, 2, 1]), 80);
pub const CONTROL: SocketAddr = SocketAddr::new(host([10, 9, 9, 9]), 7171);
pub const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xc1];
pub const KEY_ID: u32 = 7;

pub fn key() -> ControlKey {
    ControlKey::new(*b"0123456789abcdef")
}

/// Whether the test runs: without root it is skipped, except in CI.
pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    assert!(
        root || std::env::var_os("CI").is_none(),
        "CI must run as root"
    );
    if !root {
        eprintln!("SKIPPED: needs root");
    }
    root
}

pub fn sh(command: &str) {
    let out = Command::new("sh").args(["-ec", command]).output().unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command}: {stderr}");
}

pub fn mac_of(ip: IpAddr) -> [u8; 6] {
    let [a, b, c, d] = numbers(ip);
    [2, 0xaa, a, b, c, d]
}

pub fn node(ip: IpAddr, tenant: u32, frontend: bool, backend: bool) -> NodeConfig {
    NodeConfig {
        addr: ip,
        tenant,
        roles: Roles { frontend, backend },
        link: Some(Link {
            ifindex: 1,
            node_mac: mac_of(ip),
            own_mac: [2, 0xbb, 0, 0, 0, 1],
            mtu_bytes: 9000,
        }),
    }
}

pub fn config(name: &str) -> SwitchConfig {
    SwitchConfig {
        pin_dir: format!("prismtest-{}-{name}-{IP_BYTES}", std::process::id()),
        control: vec![CONTROL],
        services: vec![
            ServiceConfig {
                addr: VIP,
                tenant: 1,
                frontends: vec![FRONTEND],
            },
            ServiceConfig {
                addr: OTHER_VIP,
                tenant: 2,
                frontends: vec![],
            },
        ],
        nodes: vec![
            node(FRONTEND, 1, true, false),
            node(BACKEND.ip(), 1, false, true),
            node(BACKEND2.ip(), 1, false, true),
            node(FOREIGN.ip(), 2, false, true),
        ],
        senders: vec![SenderConfig {
            key_id: KEY_ID,
            key: key(),
            tenant: 1,
            node: Vec::new(),
        }],
        max_flows: 4096,
        // Each packet gets its verdict at the first hook.
        confirm: Duration::from_hours(1),
        ..SwitchConfig::default()
    }
}

/// A loaded switch without interfaces, which is removed when dropped.
pub struct Lab {
    pub switch: Switch,
    pub view: SwitchView,
    pub config: SwitchConfig,
}

impl Drop for Lab {
    fn drop(&mut self) {
        Switch::unload(&self.config.pin_dir).unwrap();
    }
}

/// Runs `test` with a switch in a new namespace, with a neighbour entry for the way to clients.
pub fn in_lab(
    name: &str,
    adjust: impl FnOnce(&mut SwitchConfig) + Send,
    test: impl FnOnce(&Lab) + Send,
) {
    if !is_root() {
        return;
    }
    let mut config = config(name);
    adjust(&mut config);
    let ns = NetNs::anonymous().unwrap();
    ns.run(|| {
        let client = CLIENT.ip();
        sh(&format!(
            "ip link set lo up
             ip link add c0 type veth peer name c1
             ip link set c0 up && ip link set c1 up
             ip addr add {GATEWAY}{ON_LINK} dev c0
             ip neigh replace {client} lladdr 02:00:00:00:00:c1 dev c0 nud permanent
             echo 1 > {FORWARDING}"
        ));
        let switch = Switch::load(&config).unwrap();
        let view = SwitchView::open(&config.pin_dir).unwrap();
        let lab = Lab {
            switch,
            view,
            config,
        };
        test(&lab);
    })
    .unwrap();
}

impl Lab {
    /// An agent that no node has a lease from.
    pub fn agent(&self) -> Agent<'_> {
        let leases = Arc::new(leases_of([]));
        Agent::new(&self.switch, leases, &self.config.services).unwrap()
    }

    pub fn run(&self, hook: Hook, packet: &[u8]) -> Run {
        prism_packets::run_packet(&self.switch, hook, packet, 1).unwrap()
    }

    pub fn counter(&self, name: &str) -> u64 {
        let counters = self.view.counters().unwrap();
        counters
            .iter()
            .find(|c| c.name == name)
            .unwrap_or_else(|| panic!("no counter {name}"))
            .value
    }

    /// All counters that are not zero.
    pub fn counters(&self) -> Vec<(String, u64)> {
        let counters = self.view.counters().unwrap().into_iter();
        counters
            .filter(|c| c.value > 0)
            .map(|c| (c.name, c.value))
            .collect()
    }

    /// Sends a request unchanged. Returns the checked answer, if there is one.
    pub fn raw_command(&self, hook: Hook, datagram: &[u8]) -> Option<Answer> {
        Some(self.stamped_command(hook, datagram)?.message)
    }

    /// As `raw_command`, with the answer's term.
    pub fn stamped_command(&self, hook: Hook, datagram: &[u8]) -> Option<Stamped<Answer>> {
        self.command_under(CONTROL, hook, datagram, KEY_ID, &key())
    }

    /// The same at another address of the switch.
    pub fn command_at(
        &self,
        control: SocketAddr,
        hook: Hook,
        datagram: &[u8],
    ) -> Option<Stamped<Answer>> {
        self.command_under(control, hook, datagram, KEY_ID, &key())
    }

    /// As `command_at`, under another key.
    pub fn command_under(
        &self,
        control: SocketAddr,
        hook: Hook,
        datagram: &[u8],
        key_id: u32,
        key: &ControlKey,
    ) -> Option<Stamped<Answer>> {
        let source = SocketAddr::new(FRONTEND, 5555);
        let run = self.run(hook, &packet::udp(source, control, datagram));
        if run.verdict != prism_packets::Verdict::Send {
            return None;
        }
        packet::verify(&run.packet);
        let p = packet::Parsed::new(&run.packet);
        assert_eq!((p.source, p.dest), (control, source), "answer goes back");
        assert_eq!(&run.packet[..6], &packet::SENDER_MAC);
        Some(Stamped::<Answer>::decode(p.payload, key_id, key).unwrap())
    }

    pub fn clock(&self) -> u64 {
        let query = request(Ops::QUERY, 0, flow(CLIENT), 0);
        self.patient_command(Hook::Tc, &query.encode(&key()))
            .time_ns
    }

    /// Sends a request of a term with the present time, and returns the answer.
    pub fn in_term(&self, hook: Hook, term: u32, mut request: Request) -> Option<Stamped<Answer>> {
        request.time_ns = tai_ns();
        let datagram = request.in_term(Term(term)).encode(&key());
        self.stamped_command(hook, &datagram)
    }

    /// Sends a request with the present time.
    pub fn command(&self, hook: Hook, mut request: Request) -> Answer {
        request.time_ns = self.clock();
        self.patient_command(hook, &request.encode(&key()))
    }

    /// Repeats a request until it is answered, as senders do: there is no answer while an entry
    /// is collected.
    fn patient_command(&self, hook: Hook, datagram: &[u8]) -> Answer {
        for _ in 0..1000 {
            if let Some(answer) = self.raw_command(hook, datagram) {
                return answer;
            }
            pause(1);
        }
        panic!("no answer: {:?}", self.counters());
    }

    /// Makes `owner` the owner of the flow of `client`.
    pub fn own(&self, client: SocketAddr, owner: SocketAddr, epoch: u64) -> Answer {
        let ops = Ops::OWN.and(Ops::UNBLOCK);
        let mut request = request(ops, epoch, flow(client), 0);
        request.owner = owned(owner);
        self.command(Hook::Tc, request)
    }

    pub fn plain(&self, ops: Ops, client: SocketAddr, epoch: u64) -> Answer {
        self.command(Hook::Tc, request(ops, epoch, flow(client), 0))
    }

    pub fn flows(&self) -> Vec<prism_switch::FlowRecord> {
        self.view.flows().unwrap().map(Result::unwrap).collect()
    }

    /// The flows without the tombstones.
    pub fn live(&self) -> usize {
        let absent = prism_proto::control::FlowState::Absent;
        self.flows().iter().filter(|f| f.state != absent).count()
    }
}

pub fn flow(client: SocketAddr) -> FlowKey {
    FlowKey { client, vip: VIP }
}

/// An owner that is its own next hop; the VIP is reached through the frontend.
pub fn owned(addr: SocketAddr) -> Owner {
    let via = if addr == VIP { FRONTEND } else { addr.ip() };
    Owner { addr, via }
}

pub fn request(ops: Ops, epoch: u64, flow: FlowKey, time_ns: u64) -> Request {
    Request {
        key_id: KEY_ID,
        request_id: 0xabcd,
        time_ns,
        ops,
        epoch,
        flow,
        owner: Owner::NONE,
        run: RunId::NONE,
    }
}

/// The time by the switch's clock.
pub fn tai_ns() -> u64 {
    use rustix::time::{DynamicClockId, clock_gettime_dynamic};
    let time = clock_gettime_dynamic(DynamicClockId::Tai).unwrap();
    let seconds = u64::try_from(time.tv_sec).unwrap();
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap()
}

pub const OWN: Ops = Ops::OWN.and(Ops::UNBLOCK);
/// An announcement.
pub const FACT: Ops = OWN.and(Ops::ANNOUNCE);

/// A request that names `owner` if it has `OWN`.
pub fn stating(ops: Ops, client: SocketAddr, owner: SocketAddr, epoch: u64) -> Request {
    let mut stating = request(ops, epoch, flow(client), 0);
    if ops.has(Ops::OWN) {
        stating.owner = owned(owner);
    }
    stating
}

pub fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}
