//! A worker's lease at an agent that starts again, or that is another one.
#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Instant;

use prism_proto::control::{ControlKey, FlowState, Owner, Request};
use prism_proto::lease::NO_DIGEST;
use prism_sys::clock::monotonic_ns;
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::{LocalSet, spawn_local};

use super::*;
use crate::announcements::announce_all;
use crate::claims::Claims;
use crate::identity::WorkerIdentity;
use crate::signing::SwitchAddress;

const KEY: [u8; 16] = [7; 16];
const KEY_ID: u32 = 1;
const TERM: u32 = 5;

/// A switch and its agent in a settled term, without flows.
struct Switch {
    term: AtomicU32,
    leases: TcpListener,
}

impl Switch {
    /// Answers commands for ever.
    async fn answer(&self, socket: UdpSocket) {
        let (mut buffer, key) = ([0; MESSAGE_BYTES], ControlKey::new(KEY));
        loop {
            let (len, from) = socket.recv_from(&mut buffer).await.unwrap();
            let received = buffer.get(..len).unwrap();
            let request = Request::decode(received, KEY_ID, &key).unwrap();
            let answer = request.answer(
                Status::Ok,
                FlowState::Absent,
                0,
                Owner::NONE,
                monotonic_ns(),
            );
            let term = Term(self.term.load(Ordering::Relaxed));
            let answer = answer.in_term(term).encode(&key);
            socket.send_to(&answer, from).await.unwrap();
        }
    }

    /// Grants the next lease that is requested, and tells the term.
    async fn grant(&self) -> TcpStream {
        self.grant_to().await.0
    }

    /// The same, with the run that asks.
    async fn grant_to(&self) -> (TcpStream, RunId) {
        let mut stream = self.leases.accept().await.unwrap().0;
        stream.write_all(&[1; CHALLENGE_BYTES]).await.unwrap();
        let (mut request, key) = ([0; MESSAGE_BYTES], ControlKey::new(KEY));
        stream.read_exact(&mut request).await.unwrap();
        let request = Request::decode(&request, KEY_ID, &key).unwrap();
        let answer = request.answer(Status::Ok, FlowState::Absent, 0, Owner::NONE, 0);
        stream.write_all(&answer.encode(&key)).await.unwrap();
        let notice = TermNotice {
            term: Term(self.term.load(Ordering::Relaxed)),
            is_settled: true,
        };
        stream.write_all(&notice.encode()).await.unwrap();
        (stream, request.run)
    }
}

/// Runs `work` with a switch, and with a worker that wants a lease.
fn run<F: Future>(work: impl FnOnce(Rc<Switch>, Leaseholder) -> F) -> F::Output {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = socket.local_addr().unwrap();
        let switch = Rc::new(Switch {
            term: AtomicU32::new(TERM),
            leases: TcpListener::bind(address).await.unwrap(),
        });
        let here = [Ipv4Addr::LOCALHOST.into()];
        let known = SwitchAddress::new(address, KEY_ID, KEY);
        let process = Arc::new(Process::default());
        let identity = WorkerIdentity::new(&here, NO_DIGEST, &known).unwrap();
        let control = Control::open(identity, &process).unwrap();
        let holder = Leaseholder {
            control: control.clone(),
            intake: Rc::default(),
            process,
        };
        let answering = switch.clone();
        spawn_local(async move { answering.answer(socket).await });
        let [running, clock, flows] = std::array::from_fn(|_| control.clone());
        spawn_local(async move { running.run().await });
        spawn_local(async move { clock.refresh_clock().await });
        spawn_local(async move { announce_all(&flows, &Claims::default()).await });
        let [lease, again] = std::array::from_fn(|_| holder.clone());
        spawn_local(async move { lease.keep().await });
        spawn_local(async move { again.take_again().await });
        work(switch, holder).await
    })
}

#[test]
fn a_worker_says_again_what_a_settled_term_knows_of_it() {
    run(async |switch, _| {
        for _ in 0..3 {
            let mut stream = switch.grant().await;
            for _ in 0..3 {
                let mut said = [0; Done::BYTES];
                let heard = stream.read_exact(&mut said);
                let heard = tokio::time::timeout(REPEATED * 5, heard).await;
                heard.unwrap().unwrap();
                let term = Term(TERM);
                assert_eq!(Done::decode(said).unwrap(), Done { term, runs: 1 });
            }
        }
    });
}

/// Waits for the message with this code.
async fn hear(stream: &mut TcpStream, wanted: u8) {
    let heard = async {
        let mut code = [0; 1];
        while code != [wanted] {
            stream.read_exact(&mut code).await.unwrap();
            if code == [Done::CODE] {
                let mut rest = [0; Done::BYTES - 1];
                stream.read_exact(&mut rest).await.unwrap();
            }
        }
    };
    tokio::time::timeout(REPEATED * 5, heard).await.unwrap();
}

#[test]
fn a_worker_takes_new_clients_again_by_a_further_run_that_owns_no_flow() {
    run(async |switch, holder| {
        let (mut first, own) = switch.grant_to().await;
        hear(&mut first, Done::CODE).await;
        holder.intake.set(false);
        hear(&mut first, TAKES_NO_MORE).await;
        holder.intake.set(true);
        let (mut present, mut run) = switch.grant_to().await;
        for _ in 0..2 {
            assert_ne!(run, own);
            // The agent waits for it as for every run.
            hear(&mut present, Done::CODE).await;
            holder.intake.set(false);
            hear(&mut present, TAKES_NO_MORE).await;
            holder.intake.set(true);
            hear(&mut present, LEAVING).await;
            let before = run;
            (present, run) = switch.grant_to().await;
            assert_ne!(run, before);
        }
        // The answer to a former run is not that to the present one.
        let ending = holder.intake.clone();
        let ended = spawn_local(async move { ending.end().await });
        hear(&mut present, TAKES_NO_MORE).await;
        let answers = [
            (&mut first, NewClients::HaveNobodyElse),
            (&mut present, NewClients::GoElsewhere),
        ];
        for (stream, answer) in answers {
            stream.write_all(&[answer as u8]).await.unwrap();
            tokio::time::sleep(REPEATED / 4).await;
        }
        assert_eq!(ended.await.unwrap(), NewClients::GoElsewhere);
    });
}

#[test]
fn a_new_term_ends_the_pause_before_the_next_attempt() {
    run(async |switch, holder| {
        drop(switch.grant().await);
        // The longest pause comes after some failures.
        for _ in 0..5 {
            drop(switch.leases.accept().await.unwrap());
        }
        let refused = Instant::now();
        switch.term.store(TERM + 2, Ordering::Relaxed);
        holder.control.ask_clock();
        let _lease = switch.grant().await;
        let pause = refused.elapsed();
        assert!(pause < LATER / 2, "{pause:?}");
    });
}
