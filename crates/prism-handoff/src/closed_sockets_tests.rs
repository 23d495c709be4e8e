#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use prism_proto::control::{ControlKey, FlowState, MESSAGE_BYTES, Request, RunId};
use prism_proto::lease::NO_DIGEST;
use prism_reference::FlowTable;
use tokio::task::LocalSet;

use super::*;
use crate::SwitchAddress;
use crate::counters::Counters;
use crate::identity::WorkerIdentity;
use crate::process::Process;

const KEY: [u8; 16] = [7; 16];
const KEY_ID: u32 = 1;
const FLOWS: u16 = 20_000;
const EPOCH: u64 = 5;
/// The length of the simulated outages.
const OUTAGE: Duration = Duration::from_secs(4);

/// The reference flow table behind a real socket.
struct Switch {
    table: Mutex<FlowTable>,
    address: SocketAddr,
    is_out: AtomicBool,
    heard_in_vain: AtomicU64,
}

impl Switch {
    fn start() -> Arc<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let switch = Arc::new(Self {
            table: Mutex::new(FlowTable::new(usize::MAX)),
            address: socket.local_addr().unwrap(),
            is_out: AtomicBool::new(false),
            heard_in_vain: AtomicU64::new(0),
        });
        let here = switch.clone();
        std::thread::spawn(move || here.answer(&socket));
        switch
    }

    fn answer(&self, socket: &UdpSocket) {
        let mut buffer = [0; MESSAGE_BYTES];
        loop {
            let (len, from) = socket.recv_from(&mut buffer).unwrap();
            if self.is_out.load(Ordering::Relaxed) {
                self.heard_in_vain.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let request = Request::decode(&buffer[..len], KEY_ID, &ControlKey::new(KEY)).unwrap();
            let answer = self.table.lock().apply(&request, monotonic_ns());
            let answer = answer.encode(&ControlKey::new(KEY));
            socket.send_to(&answer, from).unwrap();
        }
    }

    /// The flow of a client's port, owned at [`EPOCH`].
    fn add(&self, flow: FlowKey, owner: Owner) {
        let request = Request {
            key_id: KEY_ID,
            request_id: 0,
            time_ns: monotonic_ns(),
            ops: Ops::OWN.and(Ops::UNBLOCK),
            epoch: EPOCH,
            flow,
            owner,
            run: RunId::NONE,
        };
        let answer = self.table.lock().apply(&request, monotonic_ns());
        assert_eq!(
            (answer.status, answer.state),
            (Status::Ok, FlowState::Forward)
        );
    }
}

fn flow(port: u16) -> FlowKey {
    FlowKey {
        client: (Ipv4Addr::new(192, 0, 2, 1), port).into(),
        vip: "198.51.100.1:80".parse().unwrap(),
    }
}

/// The owner record of a node with this address.
fn owner_at(via: Ipv4Addr) -> Owner {
    let (addr, via) = ((Ipv4Addr::LOCALHOST, 9).into(), via.into());
    Owner { addr, via }
}

/// Runs `work` with a worker's client of a switch.
fn run<F: Future>(work: impl FnOnce(Arc<Switch>, Rc<Control>, Arc<Counters>) -> F) -> F::Output {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let (switch, process) = (Switch::start(), Arc::new(Process::default()));
        let address = SwitchAddress::new(switch.address, KEY_ID, KEY);
        let here = [Ipv4Addr::LOCALHOST.into()];
        let identity = WorkerIdentity::new(&here, NO_DIGEST, &address).unwrap();
        let control = Control::open(identity, &process).unwrap();
        let (running, clock) = (control.clone(), control.clone());
        tokio::task::spawn_local(async move { running.run().await });
        tokio::task::spawn_local(async move { clock.refresh_clock().await });
        while control.switch_clock_ns().is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        work(switch, control, process.counters.clone()).await
    })
}

async fn eventually(within: Duration, holds: impl Fn() -> bool) -> bool {
    let looking = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(within, looking).await.is_ok()
}

#[test]
fn flows_that_close_in_an_outage_of_the_switch_are_all_released_when_it_is_back() {
    run(async |switch, control, counters| {
        let gone = ClosedSockets::new(control).unwrap();
        let releasing = gone.clone();
        tokio::task::spawn_local(async move { releasing.release_all().await });
        let here = owner_at(Ipv4Addr::LOCALHOST);
        for port in 0..FLOWS {
            switch.add(flow(port), here);
        }
        switch.is_out.store(true, Ordering::Relaxed);
        for port in 0..FLOWS {
            gone.watch(here, flow(port), EPOCH, None);
        }
        tokio::time::sleep(OUTAGE).await;
        assert_eq!(counters.flows_released.read(), 0);
        // Some 17 datagrams for each release under way, and 12 each second for the clock.
        let in_vain = switch.heard_in_vain.load(Ordering::Relaxed);
        assert!(in_vain < 20 * MAX_RELEASES as u64, "{in_vain} datagrams");
        switch.is_out.store(false, Ordering::Relaxed);
        let all = u64::from(FLOWS);
        let are_released = || counters.flows_released.read() == all;
        let released = eventually(Duration::from_secs(10), are_released).await;
        let named = counters.figures();
        assert!(released, "{named:?}");
        assert_eq!(counters.releases_failed.read(), 0);
        assert_eq!(counters.releases_waiting.read(), 0);
        let table = switch.table.lock();
        let left = (0..FLOWS).filter(|port| table.entry(&flow(*port)).is_some());
        assert_eq!(left.count(), 0);
    });
}

#[test]
fn a_late_release_ends_no_flow_of_another_node_with_the_same_service_address() {
    run(async |_, control, _| {
        let closed_sockets = ClosedSockets::new(control).unwrap();
        let here = owner_at(Ipv4Addr::LOCALHOST);
        let release = Release {
            flow: flow(1),
            owner: here,
            epoch: EPOCH + 1,
            term: None,
            rounds_left: 1,
        };
        for (owner, expected) in [(here, true), (owner_at([10, 0, 0, 2].into()), false)] {
            let answer = Answer {
                status: Status::OldTerm,
                state: FlowState::Forward,
                time_ns: 1,
                epoch: EPOCH,
                owner,
                key_id: KEY_ID,
                request_id: 1,
                ops: Ops::RELEASE,
                flow: flow(1),
            };
            assert_eq!(closed_sockets.is_left(&release, &answer), expected);
        }
    });
}

#[test]
fn the_flow_of_a_given_up_hand_off_is_released_only_if_it_is_left_here() {
    run(async |switch, control, counters| {
        let gone = ClosedSockets::new(control).unwrap();
        let releasing = gone.clone();
        tokio::task::spawn_local(async move { releasing.release_all().await });
        let here = owner_at(Ipv4Addr::LOCALHOST);
        let left = |port, epoch| Remains {
            flow: flow(port),
            owner: here,
            epoch,
        };
        switch.add(flow(1), here);
        switch.add(flow(2), owner_at([10, 0, 0, 2].into()));
        switch.add(flow(3), here);
        gone.release_remains(left(1, EPOCH)).await;
        gone.release_remains(left(2, EPOCH)).await;
        gone.release_remains(left(3, EPOCH - 2)).await;
        gone.release_remains(left(4, EPOCH)).await;
        let is_released = || counters.flows_released.read() > 0;
        assert!(eventually(Duration::from_secs(5), is_released).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(counters.flows_released.read(), 1);
        let table = switch.table.lock();
        let is_there = [1, 2, 3].map(|port| table.entry(&flow(port)).is_some());
        assert_eq!(is_there, [false, true, true]);
    });
}

#[test]
fn commands_beyond_those_under_way_wait_for_their_turn_and_none_is_lost() {
    run(async |switch, control, counters| {
        switch.is_out.store(true, Ordering::Relaxed);
        let mut calls = JoinSet::new();
        for port in 0..FLOWS {
            let command = Command {
                ops: Ops::QUERY,
                epoch: 0,
                flow: flow(port),
                owner: Owner::NONE,
            };
            let control = control.clone();
            calls.spawn_local(async move { control.call(None, command, 60_000_000_000).await });
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        switch.is_out.store(false, Ordering::Relaxed);
        let mut answered = 0;
        while let Some(ended) = calls.join_next().await {
            assert!(matches!(ended.unwrap(), CommandOutcome::Answered(_)));
            answered += 1;
        }
        assert_eq!(answered, FLOWS);
        assert!(
            counters.control_unanswered.read() < 10,
            "those of the clock"
        );
    });
}
