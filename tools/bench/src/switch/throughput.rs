//! Throughput of one TCP connection between two hosts: through a switch that
//! rewrites both directions, and through a plain Linux bridge.

use std::io::{Read, Write};
use std::net::UdpSocket;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use prism_netns::NetNs;
use prism_proto::control::{Answer, Request};
use prism_switch::{NodeConfig, Roles, ServiceConfig, Switch, SwitchConfig};
use prism_sys::tcp::{Paused, restore};
use serde::Serialize;

use super::{CONTROL, spread};
use crate::test_switch::{KEY_ID, host, is_ok, key, own, senders, sh};

const VIP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 1), 80);
const FRONTEND: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const BACKEND: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 1, 1), 9000);
const BRIDGED: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 2), 80);
/// Time of one transfer.
const TRANSFER: Duration = Duration::from_secs(1);
/// Longest wait for a connection or an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
const CHUNK_BYTES: usize = 1 << 20;

/// Throughput of one path, Gbit/s of payload, over all rounds.
#[derive(Debug, Serialize)]
pub(crate) struct Throughput {
    pub(crate) path: &'static str,
    pub(crate) direction: &'static str,
    pub(crate) gbit_median: f64,
    pub(crate) gbit_min: f64,
    pub(crate) gbit_max: f64,
}

/// Measures both paths alternately.
pub(crate) fn measure(rounds: u32) -> Result<Vec<Throughput>> {
    let switched = Switched::new()?;
    let bridged = Bridged::new()?;
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
            let (gbit_median, gbit_min, gbit_max) = spread(values);
            report.push(Throughput {
                path,
                direction,
                gbit_median,
                gbit_min,
                gbit_max,
            });
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
    fn new() -> Result<Self> {
        let middle = NetNs::anonymous()?;
        sh(&middle, "ip link add br0 type bridge; ip link set br0 up")?;
        let a = host(&middle, "s0", Ipv4Addr::new(192, 0, 2, 1))?;
        let b = host(&middle, "s1", *BRIDGED.ip())?;
        sh(
            &middle,
            "ip link set s0 master br0; ip link set s1 master br0",
        )?;
        let listener = b.run(|| TcpListener::bind(BRIDGED))??;
        let client = a.run(|| TcpStream::connect_timeout(&BRIDGED.into(), TIMEOUT))??;
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
    fn new() -> Result<Self> {
        let middle = NetNs::anonymous()?;
        let gateways = "ip link set lo up; echo 1 > /proc/sys/net/ipv4/ip_forward";
        sh(
            &middle,
            &format!("{gateways}; ip addr add {}/32 dev lo", CONTROL.ip()),
        )?;
        let client_ip = Ipv4Addr::new(192, 0, 2, 1);
        let a = host(&middle, "s0", client_ip)?;
        let f = host(&middle, "s1", FRONTEND)?;
        let b = host(&middle, "s2", *BACKEND.ip())?;
        for (ns, link, net) in [
            (&a, "s0", "192.0.2"),
            (&f, "s1", "10.0.0"),
            (&b, "s2", "10.0.1"),
        ] {
            sh(&middle, &format!("ip addr add {net}.254/24 dev {link}"))?;
            sh(ns, &format!("ip route add default via {net}.254"))?;
        }
        sh(&f, &format!("ip addr add {}/32 dev lo", VIP.ip()))?;
        let config = config();
        middle.run(|| Switch::load(&config).map(drop))??;
        let (client, server) = moved(&a, &f, &b)?;
        Ok(Self {
            client,
            server,
            middle,
            pin_dir: config.pin_dir,
            _hosts: [a, f, b],
        })
    }
}

fn config() -> SwitchConfig {
    let node = |addr: Ipv4Addr, frontend| NodeConfig {
        addr: addr.into(),
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
        control: CONTROL,
        services: vec![ServiceConfig {
            addr: VIP.into(),
            tenant: 1,
            frontends: vec![FRONTEND.into()],
        }],
        nodes: vec![node(FRONTEND, true), node(*BACKEND.ip(), false)],
        senders: senders(),
        max_flows: 1024,
        ..SwitchConfig::default()
    }
}

/// Connects to the VIP, and moves the accepted end to the backend.
fn moved(client: &NetNs, frontend: &NetNs, backend: &NetNs) -> Result<(TcpStream, TcpStream)> {
    let listener = frontend.run(|| TcpListener::bind(VIP))??;
    let stream = client.run(|| TcpStream::connect_timeout(&VIP.into(), TIMEOUT))??;
    let (accepted, peer) = listener.accept()?;
    let SocketAddr::V4(peer) = peer else {
        bail!("the client is {peer}");
    };
    let paused = Paused::pause(OwnedFd::from(accepted)).map_err(|e| anyhow::anyhow!("{e}"))?;
    let state = paused.save(VIP.into())?;
    paused.close_silently();
    let restored = backend.run(|| restore(&state, BACKEND.into()))??;
    let control = frontend.run(|| UdpSocket::bind((FRONTEND, 0)))??;
    give(&control, peer)?;
    let server = TcpStream::from(restored.go_live()?.fd);
    server.set_nonblocking(false)?;
    Ok((stream, server))
}

/// Gives the flow of `client` to the backend.
fn give(control: &UdpSocket, client: SocketAddrV4) -> Result<()> {
    control.connect(CONTROL)?;
    control.set_read_timeout(Some(TIMEOUT))?;
    let exchange = |request: &Request| -> Result<Answer> {
        control.send(&request.encode(&key()))?;
        let mut buffer = [0; 256];
        let length = control.recv(&mut buffer)?;
        let datagram = buffer.get(..length).unwrap_or_default();
        Ok(Answer::decode(datagram, KEY_ID, &key())?)
    };
    let clock = exchange(&own(client, VIP, BACKEND, 0))?.time_ns;
    is_ok(&exchange(&own(client, VIP, BACKEND, clock))?)
}
