//! Throughput of one TCP connection between two hosts: through a switch that
//! rewrites both directions, and through a plain Linux bridge.

use std::io::{Read, Write};
use std::net::UdpSocket;
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use prism_netns::NetNs;
use prism_proto::control::{Answer, Request};
use prism_switch::{NodeConfig, Roles, ServiceConfig, Switch, SwitchConfig};
use prism_sys::tcp::{Paused, restore};

use super::{CONTROL, row};
use crate::family::{Families, Family, alone, on_link};
use crate::rows::{Case, Row};
use crate::test_switch::{KEY_ID, host, is_ok, key, own, senders, sh};

/// Numbers of the addresses; see [`Family::host`].
const CLIENT: [u8; 4] = [192, 0, 2, 1];
const BRIDGED: [u8; 4] = [192, 0, 2, 2];
const VIP: [u8; 4] = [198, 51, 100, 1];
const FRONTEND: [u8; 4] = [10, 0, 0, 1];
const BACKEND: [u8; 4] = [10, 0, 1, 1];
const PORT: u16 = 80;
const BACKEND_PORT: u16 = 9000;
/// Time of one transfer.
const TRANSFER: Duration = Duration::from_secs(1);
/// Longest wait for a connection or an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
const CHUNK_BYTES: usize = 1 << 20;

/// Measures both paths alternately, for each family.
pub(crate) fn measure(families: Families, rounds: u32) -> Result<Vec<Row>> {
    let mut all = Vec::new();
    for family in families.list() {
        all.extend(measure_family(*family, rounds)?);
    }
    Ok(all)
}

fn measure_family(family: Family, rounds: u32) -> Result<Vec<Row>> {
    let switched = Switched::new(family)?;
    let bridged = Bridged::new(family)?;
    let paths = [
        ("switch", &switched.client, &switched.server),
        ("bridge", &bridged.client, &bridged.server),
    ];
    let mut rates = [const { [const { Vec::new() }; 2] }; 2];
    for _ in 0..rounds {
        for ((_, client, server), [down, up]) in paths.iter().zip(&mut rates) {
            down.push(transfer(server, client)?);
            up.push(transfer(client, server)?);
        }
    }
    let mut report = Vec::new();
    for ((path, ..), both) in paths.iter().zip(rates) {
        for (direction, values) in ["to the client", "to the server"].into_iter().zip(both) {
            let case = Case::default()
                .with("family", family.name())
                .with("path", *path)
                .with("direction", direction);
            report.push(row(case, &[("gbit", values)]));
        }
    }
    Ok(report)
}

/// Sends data for a second. Gives Gbit/s.
fn transfer(mut from: &TcpStream, mut to: &TcpStream) -> Result<f64> {
    let start = Instant::now();
    let received = std::thread::scope(|s| -> Result<u64> {
        let sender = s.spawn(move || -> std::io::Result<()> {
            let mut chunk = vec![0; CHUNK_BYTES];
            while start.elapsed() < TRANSFER {
                from.write_all(&chunk)?;
            }
            if let Some(last) = chunk.last_mut() {
                *last = 1;
            }
            from.write_all(&chunk)
        });
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut received = 0;
        loop {
            to.read_exact(&mut chunk)?;
            received += CHUNK_BYTES as u64;
            if chunk.last() == Some(&1) {
                break;
            }
        }
        sender.join().ok().context("the sender failed")??;
        Ok(received)
    })?;
    Ok(received as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e9)
}

struct Bridged {
    client: TcpStream,
    server: TcpStream,
    _hosts: [NetNs; 3],
}

impl Bridged {
    fn new(family: Family) -> Result<Self> {
        let bridged = family.at(BRIDGED, PORT);
        let middle = NetNs::anonymous()?;
        sh(&middle, "ip link add br0 type bridge; ip link set br0 up")?;
        let a = host(&middle, "s0", family.host(CLIENT))?;
        let b = host(&middle, "s1", bridged.ip())?;
        sh(
            &middle,
            "ip link set s0 master br0; ip link set s1 master br0",
        )?;
        let listener = b.run(|| TcpListener::bind(bridged))??;
        let client = a.run(|| TcpStream::connect_timeout(&bridged, TIMEOUT))??;
        let (server, _) = listener.accept()?;
        Ok(Self {
            client,
            server,
            _hosts: [middle, a, b],
        })
    }
}

/// A connection that was accepted at a frontend and moved to a backend.
struct Switched {
    client: TcpStream,
    server: TcpStream,
    middle: NetNs,
    pin_dir: String,
    _hosts: [NetNs; 3],
}

impl Drop for Switched {
    fn drop(&mut self) {
        let _ = self.client.shutdown(Shutdown::Both);
        let unloaded = self.middle.run(|| Switch::unload(&self.pin_dir));
        if let Ok(Err(e)) = unloaded {
            tracing::warn!("{e}");
        }
    }
}

impl Switched {
    fn new(family: Family) -> Result<Self> {
        let middle = NetNs::anonymous()?;
        let control = alone(family.host(CONTROL.0));
        let forwarding = family.forwarding();
        sh(
            &middle,
            &format!("ip link set lo up; {forwarding}; ip addr add {control} dev lo"),
        )?;
        let hosts = [(CLIENT, "s0"), (FRONTEND, "s1"), (BACKEND, "s2")].map(|(numbers, link)| {
            let [a, b, c, _] = numbers;
            let gateway = family.host([a, b, c, 254]);
            let host = host(&middle, link, family.host(numbers))?;
            let address = on_link(gateway);
            sh(&middle, &format!("ip addr add {address} dev {link}"))?;
            sh(&host, &format!("ip route add default via {gateway}"))?;
            anyhow::Ok(host)
        });
        let [a, f, b] = hosts;
        let a = a?;
        let f = f?;
        let b = b?;
        let vip = alone(family.host(VIP));
        sh(&f, &format!("ip addr add {vip} dev lo"))?;
        let config = config(family);
        middle.run(|| Switch::load(&config).map(drop))??;
        let (client, server) = moved(family, &a, &f, &b)?;
        Ok(Self {
            client,
            server,
            middle,
            pin_dir: config.pin_dir,
            _hosts: [a, f, b],
        })
    }
}

fn config(family: Family) -> SwitchConfig {
    let node = |addr: IpAddr, frontend| NodeConfig {
        addr,
        tenant: 1,
        roles: Roles {
            frontend,
            backend: !frontend,
        },
        link: None,
    };
    SwitchConfig {
        pin_dir: format!("prism-bench-net-{}", std::process::id()),
        interfaces: ["s0", "s1", "s2"].map(String::from).into(),
        control: vec![family.at(CONTROL.0, CONTROL.1)],
        services: vec![ServiceConfig {
            addr: family.at(VIP, PORT),
            tenant: 1,
            frontends: vec![family.host(FRONTEND)],
        }],
        nodes: vec![
            node(family.host(FRONTEND), true),
            node(family.host(BACKEND), false),
        ],
        senders: senders(),
        max_flows: 1024,
        ..SwitchConfig::default()
    }
}

/// Connects to the VIP, and moves the accepted end to the backend.
fn moved(
    family: Family,
    client: &NetNs,
    frontend: &NetNs,
    backend: &NetNs,
) -> Result<(TcpStream, TcpStream)> {
    let vip = family.at(VIP, PORT);
    let owner = family.at(BACKEND, BACKEND_PORT);
    let listener = frontend.run(|| TcpListener::bind(vip))??;
    let stream = client.run(|| TcpStream::connect_timeout(&vip, TIMEOUT))??;
    let (accepted, peer) = listener.accept()?;
    let paused = Paused::pause(OwnedFd::from(accepted)).map_err(|e| anyhow::anyhow!("{e}"))?;
    let state = paused.save(vip)?;
    paused.close_silently();
    let restored = backend.run(|| restore(&state, owner))??;
    let control = frontend.run(|| UdpSocket::bind((family.host(FRONTEND), 0)))??;
    control.connect(family.at(CONTROL.0, CONTROL.1))?;
    give(&control, |clock| own(peer, vip, owner, clock))?;
    let server = TcpStream::from(restored.go_live()?.fd);
    server.set_nonblocking(false)?;
    Ok((stream, server))
}

/// Sends the command that gives the flow to the backend, which `own` makes with a time.
fn give(control: &UdpSocket, own: impl Fn(u64) -> Request) -> Result<()> {
    control.set_read_timeout(Some(TIMEOUT))?;
    let exchange = |request: &Request| -> Result<Answer> {
        control.send(&request.encode(&key()))?;
        let mut buffer = [0; 256];
        let length = control.recv(&mut buffer)?;
        let datagram = buffer.get(..length).unwrap_or_default();
        Ok(Answer::decode(datagram, KEY_ID, &key())?)
    };
    let clock = exchange(&own(0))?.time_ns;
    is_ok(&exchange(&own(clock))?)
}
