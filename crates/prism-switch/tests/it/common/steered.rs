//! The state of the flow of `CLIENT`, and its packets behind the switch.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use libbpf_rs::{MapCore, MapFlags};
use prism_packets::{Hook, Run, Verdict};
use prism_proto::control::{Ops, Owner, Status};
use prism_switch::TermPhase;
use prism_sys::tcp::Paused;

use super::packet::{Parsed, Tcp, verify};
use super::{ALONE, BACKEND, CLIENT, Lab, VIP, flow, request, sh};

pub const BOTH: [Hook; 2] = [Hook::Tc, Hook::Xdp];

/// The state of the flow of `CLIENT`.
#[derive(Clone, Copy, Debug)]
pub enum Flow {
    None,
    OwnedBy(SocketAddr),
    BlockedAt(SocketAddr),
    Released,
}

/// Sets the state of the flow, with epochs above all before.
pub fn set(lab: &Lab, state: Flow) {
    let known = lab.view.flow_of(&flow(CLIENT)).unwrap();
    let epoch = known.map_or(0, |f| f.epoch).max(lab.clock());
    let ok = |answer: prism_proto::control::Answer| assert_eq!(answer.status, Status::Ok);
    match state {
        Flow::None if lab.live() == 0 => {}
        Flow::None => ok(lab.plain(Ops::RELEASE, CLIENT, epoch + 1)),
        Flow::OwnedBy(owner) => ok(lab.own(CLIENT, owner, epoch + 1)),
        Flow::BlockedAt(owner) => {
            ok(lab.own(CLIENT, owner, epoch + 1));
            ok(lab.plain(Ops::BLOCK, CLIENT, epoch + 2));
        }
        Flow::Released => {
            ok(lab.own(CLIENT, BACKEND, epoch + 1));
            ok(lab.plain(Ops::RELEASE, CLIENT, epoch + 2));
        }
    }
}

/// Expected packet: next hop, source and destination.
pub type Out = ([u8; 6], SocketAddr, SocketAddr);

pub fn check_sent(run: &Run, before: &Tcp, (mac, source, dest): Out, name: &str) {
    assert_eq!(run.verdict, Verdict::Send, "{name}");
    verify(&run.packet);
    let p = Parsed::new(&run.packet);
    assert_eq!((p.source, p.dest), (source, dest), "{name}");
    assert_eq!(p.dest_mac, mac, "{name}");
    assert_eq!(p.ttl, before.ttl - 1, "{name}");
    assert_eq!(p.payload, before.payload, "{name}");
}

/// Has the programs go by a term, as an agent does.
pub fn set_term(lab: &Lab, term: u32, phase: TermPhase, generation: u8) {
    let settled_ns = match phase {
        TermPhase::Settled => prism_sys::clock::monotonic_ns(),
        _ => 0,
    };
    let mut value = term.to_ne_bytes().to_vec();
    value.extend([phase as u8, generation, 0, 0]);
    value.extend(settled_ns.to_ne_bytes());
    let map = &lab.switch.skeleton().maps.term_state;
    map.update(&[0; 4], &value, MapFlags::ANY).unwrap();
}

/// Makes `via` the owner of the flow in host mode, by a socket with the service's address.
pub fn own_at(lab: &Lab, via: IpAddr) {
    own_flow_at(lab, CLIENT, via);
}

/// The same for the flow of another client.
pub fn own_flow_at(lab: &Lab, client: SocketAddr, via: IpAddr) {
    let mut owned = request(Ops::OWN, lab.clock() + 1, flow(client), 0);
    owned.owner = Owner { addr: VIP, via };
    assert_eq!(lab.command(Hook::Tc, owned).status, Status::Ok);
}

/// A connection of a client on this host to the service. Returns the client's end.
pub fn connect() -> (SocketAddr, (TcpListener, TcpStream)) {
    let vip = VIP.ip();
    sh(&format!("ip addr add {vip}{ALONE} dev lo nodad"));
    let listener = TcpListener::bind(VIP).unwrap();
    // The kernel may know the way to a new address of IPv6 a moment later.
    let mut tries = (0..100).map(|_| {
        let stream = TcpStream::connect(VIP);
        if stream.is_err() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        stream
    });
    let stream = tries.find_map(Result::ok).expect("a way to the service");
    (stream.local_addr().unwrap(), (listener, stream))
}

/// A client's acknowledgement of a SYN cookie of this host. The connection was accepted, and its
/// socket is gone silently, as that of a moved connection is.
pub fn cookie() -> (Tcp, (TcpListener, TcpStream)) {
    sh("echo 2 > /proc/sys/net/ipv4/tcp_syncookies");
    let (client, (listener, stream)) = connect();
    let (accepted, _) = listener.accept().unwrap();
    let paused = Paused::pause(OwnedFd::from(accepted)).unwrap();
    let state = paused.save(VIP).unwrap();
    paused.close_silently();
    let mut ack = Tcp::new(client, VIP);
    (ack.seq, ack.ack) = (state.receive_seq, state.write_seq);
    (ack, (listener, stream))
}
