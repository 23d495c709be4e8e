//! The fields of a hand-off, with what a node in wrong hands could write into each.

use prism_proto::TcpState;
use prism_proto::control::Pass;
use prism_proto::facts::{Caller, ClientFacts, Facts, Form, Progress};
use prism_proto::node::{HandOff, Permit, TlsState};

use super::Trial;
use crate::support::{BUCKET, Known};

/// A field of [`HandOff`]. The epoch is tried with each of the others.
#[derive(Clone, Copy, Debug)]
pub enum Field {
    Id,
    Moves,
    Origin,
    Context,
    Input,
    Output,
    Tls,
    Tcp,
    Proxied,
    Permit,
}

impl Field {
    pub const ALL: [Self; 10] = [
        Self::Id,
        Self::Moves,
        Self::Origin,
        Self::Context,
        Self::Input,
        Self::Output,
        Self::Tls,
        Self::Tcp,
        Self::Proxied,
        Self::Permit,
    ];

    /// Hand-offs of the flow that are honest but for this field.
    pub fn variants(
        self,
        trial: &Trial<'_>,
        known: &Known,
        epoch: u64,
        target: &str,
    ) -> Vec<HandOff> {
        let honest = || HandOff {
            permit: trial.permit(known, epoch, target),
            ..trial.honest(known, epoch)
        };
        // A new field does not compile before it has a row.
        let HandOff {
            id: _,
            epoch: _,
            moves: _,
            origin: _,
            context: _,
            input: _,
            output: _,
            tls: _,
            tcp: _,
            proxied: _,
            permit: _,
        } = honest();
        let each = |change: &dyn Fn(&mut HandOff)| {
            let mut hand_off = honest();
            change(&mut hand_off);
            hand_off
        };
        match self {
            Self::Id => [0, 1, u64::MAX].map(|id| each(&|h| h.id = id)).into(),
            Self::Moves => [0, 8, u8::MAX].map(|n| each(&|h| h.moves = n)).into(),
            Self::Origin => ["fe0", "fe1", "be0", "be1", "be2", "nobody", ""]
                .map(|name| each(&|h| h.origin = name.to_owned()))
                .into(),
            Self::Context => vec![
                each(&|h| h.context = vec![0; 4 << 10]),
                each(&|h| h.context = of_another("AKIANOBODY", Progress::First)),
                each(&|h| h.context = of_another("AKIANOBODY", Progress::AnswerWaits)),
            ],
            // The node that accepted the connection would pass it on to the object's.
            Self::Input => ["fe0", "fe1"]
                .into_iter()
                .flat_map(|origin| ["be0", "be1", "be2"].map(|node| (origin, node)))
                .map(|(origin, node)| {
                    let key = trial.object_of(node);
                    let head = format!("GET /{BUCKET}/{key} HTTP/1.1\r\nHost: x\r\n\r\n");
                    each(&|h| {
                        h.origin = origin.to_owned();
                        h.input = head.clone().into_bytes();
                        h.context = of_another("AKIANOBODY", Progress::First);
                    })
                })
                .collect(),
            Self::Output => vec![each(&|h| h.output = vec![7; 100_000])],
            Self::Tls => vec![each(&|h| h.tls = no_session())],
            Self::Tcp => tcp_states(&honest().tcp)
                .into_iter()
                .map(|tcp| each(&|h| h.tcp = tcp.clone()))
                .collect(),
            Self::Proxied => vec![each(&|h| {
                h.proxied = Some(ClientFacts {
                    address: h.tcp.service,
                    service: h.tcp.remote,
                    is_tls: true,
                });
            })],
            Self::Permit => permits(trial, known, epoch)
                .into_iter()
                .map(|permit| each(&|h| h.permit = permit))
                .collect(),
        }
    }
}

/// The word that `key` has signed the request.
fn of_another(key: &str, progress: Progress) -> Vec<u8> {
    let facts = Facts {
        caller: Caller::AccessKey(key.to_owned()),
        progress,
        ..Facts::of_anonymous(fastrand::u64(..))
    };
    facts.encode(Form::Entries)
}

/// The same connection with other sequence numbers, queues and services.
fn tcp_states(honest: &TcpState) -> Vec<TcpState> {
    let mut all = vec![honest.clone(); 5];
    (all[0].write_seq, all[0].receive_seq) = (u32::MAX, u32::MAX);
    all[1].received = vec![7; 100_000];
    all[2].sent = vec![7; 100_000];
    all[3].peer_closed = true;
    all[4].service.set_port(9);
    all
}

/// No pass, void and forged ones, and ones for other nodes, also with another node as the source.
fn permits(trial: &Trial<'_>, known: &Known, epoch: u64) -> Vec<Option<Permit>> {
    let mut all = vec![None];
    for node in ["fe0", "fe1", "be0", "be1", "be2"] {
        let forged = trial.permit(known, epoch, node);
        all.push(forged);
        let source = trial.address_of(node, known);
        all.push(forged.map(|permit| Permit { source, ..permit }));
        let pass = Pass::VOID;
        all.push(Some(Permit { pass, source }));
    }
    all
}

/// A saved session that is none.
fn no_session() -> Option<TlsState> {
    let session = vec![7; 100].into();
    Some(TlsState {
        session,
        sealed: vec![7; 100],
    })
}
