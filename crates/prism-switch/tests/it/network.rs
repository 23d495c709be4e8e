//! Four hosts and real TCP through the attached programs: a connection moves to a backend, and
//! bulk data (GSO packets, checksums of the device) goes both ways, also during reloads of the
//! switch.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::common::*;
use prism_netns::NetNs;
use prism_proto::control::{Answer, FlowKey, Ops, Request, Status};
use prism_switch::{Agent, Switch, SwitchConfig, SwitchView};
use prism_sys::tcp::{Paused, restore};

/// Interfaces of the switch to the client, the frontend and the backend.
const LINKS: [&str; 3] = ["s0", "s1", "s2"];
const BULK_BYTES: usize = 1 << 30;
/// Least number of replacements of the programs under traffic.
const REPLACEMENTS: u32 = 100;
/// The period in which the kernel checks a neighbour.
const CONFIRM: Duration = Duration::from_secs(1);
/// Bytes that an emulated processor moves within seconds.
const EMULATED_BULK_BYTES: usize = 64 << 20;

struct Net {
    switch: NetNs,
    client: NetNs,
    frontend: NetNs,
    backend: NetNs,
    config: SwitchConfig,
}

impl Drop for Net {
    fn drop(&mut self) {
        let name = self.config.pin_dir.clone();
        self.switch.run(|| Switch::unload(&name).unwrap()).unwrap();
    }
}

/// The switch's address in the network of `address`.
fn gateway_of(address: IpAddr) -> IpAddr {
    let [a, b, c, _] = numbers(address);
    host([a, b, c, 254])
}

/// A host at `address`, and the interface `link` of the switch to it.
fn attached(switch: &NetNs, link: &str, address: IpAddr) -> NetNs {
    let gateway = gateway_of(address);
    let ns = NetNs::anonymous().unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), ns.as_fd().as_raw_fd());
    switch
        .run(|| {
            sh(&format!(
                "ip link add {link} type veth peer name e0 netns {path}
                 ip link set {link} up && ip addr add {gateway}{ON_LINK} dev {link}"
            ));
        })
        .unwrap();
    ns.run(|| {
        sh(&format!(
            "ip link set lo up && ip link set e0 up && ip addr add {address}{ON_LINK} dev e0
             ip route add default via {gateway}"
        ));
    })
    .unwrap();
    ns
}

impl Net {
    fn new(name: &str) -> Self {
        let switch = NetNs::anonymous().unwrap();
        switch
            .run(|| {
                sh(&format!(
                    "ip link set lo up && ip addr add {}{ALONE} dev lo
                     echo 1 > {FORWARDING}",
                    CONTROL.ip()
                ));
            })
            .unwrap();
        let client = attached(&switch, LINKS[0], CLIENT.ip());
        let frontend = attached(&switch, LINKS[1], FRONTEND);
        let backend = attached(&switch, LINKS[2], BACKEND.ip());
        frontend
            .run(|| sh(&format!("ip addr add {}{ALONE} dev lo", VIP.ip())))
            .unwrap();
        let mut config = config(name);
        config.confirm = CONFIRM;
        config.nodes.iter_mut().for_each(|n| n.link = None);
        config.interfaces = LINKS.map(String::from).into();
        let net = Self {
            switch,
            client,
            frontend,
            backend,
            config,
        };
        net.load();
        net
    }

    fn load(&self) {
        self.switch
            .run(|| drop(Switch::load(&self.config).unwrap()))
            .unwrap();
    }

    /// Sends a command from the frontend with the present time. Returns the answer.
    fn command(&self, mut request: Request) -> Answer {
        let socket = self
            .frontend
            .run(|| UdpSocket::bind((FRONTEND, 0)).unwrap());
        let socket = socket.unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(2)))
            .unwrap();
        socket.connect(CONTROL).unwrap();
        let exchange = |request: Request| {
            socket.send(&request.encode(&key())).unwrap();
            let mut buffer = [0; 200];
            let n = socket.recv(&mut buffer).unwrap();
            Answer::decode(&buffer[..n], KEY_ID, &key()).unwrap()
        };
        request.time_ns = exchange(request).time_ns;
        if request.epoch == 0 {
            request.epoch = request.time_ns;
        }
        exchange(request)
    }

    /// A connection from the client to the VIP that has moved to the backend.
    fn moved_connection(&self) -> (TcpStream, TcpStream) {
        let listener = self.frontend.run(|| TcpListener::bind(VIP).unwrap());
        let listener = listener.unwrap();
        let client = self
            .client
            .run(|| TcpStream::connect(VIP).unwrap())
            .unwrap();
        let (accepted, peer) = listener.accept().unwrap();
        assert_eq!(
            peer,
            client.local_addr().unwrap(),
            "the client keeps its address"
        );
        let flow = FlowKey {
            client: peer,
            vip: VIP,
        };
        let state = self.frontend.run(|| {
            let paused = Paused::pause(OwnedFd::from(accepted)).unwrap();
            let state = paused.save(VIP).unwrap();
            paused.close_silently();
            state
        });
        let state = state.unwrap();
        let live = self.backend.run(|| {
            let restored = restore(&state, BACKEND).unwrap();
            let mut own = request(Ops::OWN.and(Ops::UNBLOCK), 0, flow, 0);
            own.owner = owned(BACKEND);
            assert_eq!(self.command(own).status, Status::Ok);
            restored.go_live().unwrap()
        });
        let server = TcpStream::from(live.unwrap().fd);
        server.set_nonblocking(false).unwrap();
        (client, server)
    }

    /// Replaces the programs of all interfaces repeatedly. Returns how often.
    fn replace_for(&self, time: Duration) -> u32 {
        let replace = || {
            let switch = Switch::load(&self.config).unwrap();
            let start = Instant::now();
            let mut times = 0;
            while start.elapsed() < time {
                for link in LINKS {
                    switch.attach(link, false).unwrap();
                }
                times += 1;
            }
            times
        };
        self.switch.run(replace).unwrap()
    }

    /// Segments that were sent again because they were lost. The receiver of one that was not
    /// lost says so (RFC 2883); a machine that stands still causes these.
    fn losses(&self) -> i64 {
        let count = |file: &'static str, kind: &'static str, name: &'static str| -> i64 {
            let ends = [&self.client, &self.backend];
            let counts = ends.map(|ns| ns.run(move || kernel_count(file, kind, name)).unwrap());
            counts.iter().sum()
        };
        let again = count("snmp", "Tcp:", "RetransSegs");
        again - count("netstat", "TcpExt:", "TCPDSACKOldSent")
    }
}

/// A counter of the network namespace of this thread.
fn kernel_count(file: &str, kind: &str, name: &str) -> i64 {
    let table = std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap();
    let mut lines = table.lines().filter(|line| line.starts_with(kind));
    let names = lines.next().unwrap().split_whitespace();
    let mut values = names.zip(lines.next().unwrap().split_whitespace());
    let value = values.find(|(known, _)| *known == name);
    value.unwrap().1.parse().unwrap()
}

/// A block with a prime length, so that a shift of the stream by a packet is noticed.
fn block() -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(1);
    (0..1_048_573).map(|_| random.u8(..)).collect()
}

fn send(mut to: &TcpStream, until: impl Fn(usize) -> bool) -> usize {
    let block = block();
    let mut sent = 0;
    while !until(sent) {
        to.write_all(&block).unwrap();
        sent += block.len();
    }
    to.shutdown(std::net::Shutdown::Write).unwrap();
    sent
}

fn receive(mut from: &TcpStream) -> usize {
    let block = block();
    let mut buffer = vec![0; block.len()];
    let mut received = 0;
    loop {
        let mut filled = 0;
        while filled < buffer.len() {
            match from.read(&mut buffer[filled..]).unwrap() {
                0 if filled == 0 => return received,
                0 => panic!("the stream ends within a block"),
                n => filled += n,
            }
        }
        assert!(buffer == block, "block at {received} differs");
        received += filled;
    }
}

/// Bits per second from one end to the other.
fn transfer(from: &TcpStream, to: &TcpStream, until: impl Fn(usize) -> bool + Sync) -> f64 {
    let start = Instant::now();
    let bytes = std::thread::scope(|s| {
        let sent = s.spawn(|| send(from, &until));
        let received = receive(to);
        assert_eq!(sent.join().unwrap(), received);
        received
    });
    bytes as f64 * 8.0 / start.elapsed().as_secs_f64()
}

#[test]
fn a_moved_connection_carries_bulk_data_both_ways_intact() {
    if !is_root() {
        return;
    }
    let net = Net::new("bulk");
    let (client, server) = net.moved_connection();
    // The speed of an emulated processor (scripts/kernels.py) has no meaning.
    let is_emulated = std::env::var_os("PRISM_TEST_EMULATED").is_some();
    let bulk = if is_emulated {
        EMULATED_BULK_BYTES
    } else {
        BULK_BYTES
    };
    let down = transfer(&server, &client, |sent| sent >= bulk);
    let up = transfer(&client, &server, |sent| sent >= bulk);
    println!(
        "to the client {:.1} Gbit/s, to the owner {:.1} Gbit/s",
        down / 1e9,
        up / 1e9
    );
    assert!(is_emulated || (down > 1e9 && up > 1e9));
    let view = SwitchView::open(&net.config.pin_dir).unwrap();
    let f = view.flows().unwrap().next().unwrap().unwrap();
    assert!(f.to_client.bytes as usize > bulk && f.to_owner.bytes as usize > bulk);
    assert!(
        f.to_client.bytes / f.to_client.packets > 1514,
        "GSO packets go through whole: {f:?}"
    );
}

/// Sends messages back and forth until `stop`. Only one packet is on its way at a time, so only
/// the switch can lose it.
fn ping_pong(client: &TcpStream, server: &TcpStream, stop: impl Fn() -> bool) -> u64 {
    let mut rounds = 0u64;
    let mut buffer = [0; 8];
    for end in [client, server] {
        end.set_nodelay(true).unwrap();
        end.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    }
    while !stop() {
        rounds += 1;
        for (mut from, mut to) in [(client, server), (server, client)] {
            from.write_all(&rounds.to_le_bytes()).unwrap();
            to.read_exact(&mut buffer).unwrap();
            assert_eq!(u64::from_le_bytes(buffer), rounds);
        }
    }
    rounds
}

#[test]
fn loading_the_switch_again_loses_no_packet() {
    if !is_root() {
        return;
    }
    let net = Net::new("restart");
    let connections = [(); 3].map(|()| net.moved_connection());
    let before = net.losses();
    let done = AtomicBool::new(false);
    let (loads, replaced, rounds) = std::thread::scope(|s| {
        let running: Vec<_> = connections
            .iter()
            .map(|(client, server)| {
                s.spawn(|| ping_pong(client, server, || done.load(Ordering::Relaxed)))
            })
            .collect();
        let start = Instant::now();
        let (mut loads, mut replaced) = (0, 0);
        // A slow processor may need longer.
        while start.elapsed() < Duration::from_secs(4)
            || (replaced < REPLACEMENTS && start.elapsed() < Duration::from_secs(60))
        {
            net.load();
            loads += 1;
            replaced += net.replace_for(Duration::from_millis(500));
        }
        done.store(true, Ordering::Relaxed);
        let rounds: u64 = running.into_iter().map(|r| r.join().unwrap()).sum();
        (loads, replaced, rounds)
    });
    println!("{loads} loads, {replaced} replacements, {rounds} rounds");
    assert!(replaced >= REPLACEMENTS && rounds > 1000);
    assert_eq!(net.losses() - before, 0);
}

#[test]
fn interfaces_that_appear_later_are_added_and_unloading_leaves_nothing() {
    if !is_root() {
        return;
    }
    let net = Net::new("late");
    let filters = |link: &str| {
        let out = std::process::Command::new("tc")
            .args(["filter", "show", "dev", link, "ingress"])
            .output()
            .unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    net.switch
        .run(|| {
            sh("ip link add d0.5 type veth peer name d1");
            let mut config = net.config.clone();
            config.interfaces.clear();
            let switch = Switch::load(&config).unwrap();
            assert!(switch.attach("no-such", false).is_err());
            for _ in 0..2 {
                switch.attach("d0.5", true).unwrap();
                assert!(filters("d0.5").contains("prism_tc"));
            }
            // The interface is removed, and made again under the same name.
            sh("ip link del d0.5; ip link add d0.5 type veth peer name d1");
            switch.attach("d0.5", true).unwrap();
            Switch::unload(&config.pin_dir).unwrap();
            for link in LINKS.into_iter().chain(["d0.5"]) {
                assert_eq!(filters(link), "", "{link}");
            }
            assert!(SwitchView::open(&config.pin_dir).is_err());
            Switch::unload(&config.pin_dir).unwrap();
        })
        .unwrap();
}

#[test]
fn flows_survive_and_another_size_is_not_forced_on_them() {
    in_lab(
        "reload",
        |_| {},
        |lab| {
            let client = SocketAddr::new(CLIENT.ip(), 5);
            lab.own(client, BACKEND, 5);
            let mut config = lab.config.clone();
            config.max_flows = 99;
            config.services.pop();
            drop(Switch::load(&config).unwrap());
            let f = lab.view.flow_of(&flow(client)).unwrap().unwrap();
            assert_eq!((f.epoch, f.owner), (5, owned(BACKEND)));
            assert!(lab.counter("control_ok") > 0, "counters go on");
        },
    );
}

#[test]
fn a_client_whose_flow_nobody_owns_any_more_is_reset() {
    if !is_root() {
        return;
    }
    let mut net = Net::new("reset");
    net.config.blocked = Duration::from_millis(100);
    net.load();
    let (client, server) = net.moved_connection();
    assert!(passes(&server, &client, Duration::from_secs(5)));
    let of = flow(client.local_addr().unwrap());
    assert_eq!(net.command(request(Ops::BLOCK, 0, of, 0)).status, Status::Ok);
    pause(200);
    let age = || {
        let switch = Switch::load(&net.config).unwrap();
        let leases = Arc::new(leases_of([]));
        let mut agent = Agent::new(&switch, leases, &net.config.services).unwrap();
        agent.step(Instant::now()).unwrap().reset
    };
    assert_eq!(net.switch.run(age).unwrap(), 1);
    client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let end = (&client).read(&mut [0]).unwrap_err();
    assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset);
}

/// Sends one byte from end to end. Returns whether it arrives within `limit`.
fn passes(mut from: &TcpStream, mut to: &TcpStream, limit: Duration) -> bool {
    to.set_read_timeout(Some(limit)).unwrap();
    from.write_all(&[1]).unwrap();
    to.read_exact(&mut [0]).is_ok()
}

#[test]
fn a_neighbour_that_is_stale_is_looked_for_again_while_packets_go_to_it() {
    if !is_root() {
        return;
    }
    let net = Net::new("stale");
    // A neighbour is stale after half a second instead of half a minute, and is asked sooner.
    let hurry = || {
        let family = if IS_V6 { "ipv6" } else { "ipv4" };
        sh(&format!(
            "ip link set s2 address 02:00:00:00:00:10
            cd /proc/sys/net/{family}/neigh/s2
            echo 500 > base_reachable_time_ms
            echo 0 > delay_first_probe_time
            echo 100 > retrans_time_ms"
        ));
    };
    net.switch.run(hurry).unwrap();
    // The backend does not ask for the switch, which would tell the switch its address.
    let gateway = gateway_of(BACKEND.ip());
    let know =
        format!("ip neigh replace {gateway} lladdr 02:00:00:00:00:10 nud permanent dev e0");
    net.backend.run(|| sh(&know)).unwrap();
    let (client, server) = net.moved_connection();
    assert!(passes(&client, &server, Duration::from_secs(5)));
    // The kernel asks on its own while it has recently sent a packet there.
    let is_stale = || {
        let shown = Command::new("ip")
            .args(["neigh", "show", "dev", "s2"])
            .output();
        String::from_utf8_lossy(&shown.unwrap().stdout).contains("STALE")
    };
    let mut looks = (0..100).map(|_| {
        std::thread::sleep(Duration::from_millis(100));
        net.switch.run(is_stale).unwrap()
    });
    assert!(
        looks.any(|is_stale| is_stale),
        "the neighbour is never stale"
    );
    // The host gets another card.
    let change = || sh(&format!("ip link set e0 address 02:00:00:00:00:77\n{know}"));
    net.backend.run(change).unwrap();
    client.set_nodelay(true).unwrap();
    // TCP repeats one segment rarely, so each byte is a packet of its own.
    let found = (0..150).any(|_| passes(&client, &server, Duration::from_millis(100)));
    assert!(found, "nobody has looked for the neighbour");
}
