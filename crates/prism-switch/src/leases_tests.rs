#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]
use std::net::{Ipv4Addr, SocketAddr};

use prism_proto::control::{Answer, ControlKey, MESSAGE_BYTES, Status};
use prism_proto::lease::{
    CHALLENGE_BYTES, LEAVING, LeaseRequest, NO_DIGEST, PlacementVerdict, TAKES_NO_MORE,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::connection::HANDSHAKE;
use super::parting::OUT_OF_REACH_GRACE;
use super::table::MAX_NODE_CONNECTIONS;
use super::*;

const NODE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 7));
const RUN: RunId = RunId(99);
const KEY_ID: u32 = 3;

fn key() -> ControlKey {
    ControlKey::new([7; 16])
}

/// Leases for these nodes, which share one key.
fn leases_of(nodes: impl IntoIterator<Item = Vec<IpAddr>>) -> Leases {
    let nodes: Vec<_> = nodes.into_iter().collect();
    let shared = LeaseKey {
        key_id: KEY_ID,
        key: key(),
        nodes: nodes.iter().flatten().copied().collect(),
    };
    Leases::new(nodes, [shared])
}

/// Runs `test` with leases, and with the address where they are granted.
fn with_leases<F: Future<Output = ()>>(test: impl FnOnce(Arc<Leases>, SocketAddr) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let leases = Arc::new(leases_of([vec![NODE]]));
        let serving = tokio::spawn(leases.clone().serve(listener));
        let limit = Duration::from_secs(10);
        tokio::time::timeout(limit, test(leases, address))
            .await
            .unwrap();
        serving.abort();
    });
}

/// Asks for a lease. Returns the connection and the answer's status.
async fn ask(
    address: SocketAddr,
    node: IpAddr,
    run: RunId,
    key: ControlKey,
) -> Option<(TcpStream, Status)> {
    ask_with(address, node, run, NO_DIGEST, key).await
}

/// As `ask`, for a node whose placement has this digest.
async fn ask_with(
    address: SocketAddr,
    node: IpAddr,
    run: RunId,
    digest: u64,
    key: ControlKey,
) -> Option<(TcpStream, Status)> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut challenge = [0; CHALLENGE_BYTES];
    stream.read_exact(&mut challenge).await.unwrap();
    let request = LeaseRequest {
        challenge,
        node,
        run,
        digest,
        term: None,
    };
    let request = request.encode(KEY_ID, &key);
    stream.write_all(&request).await.unwrap();
    let mut answer = [0; MESSAGE_BYTES];
    stream.read_exact(&mut answer).await.ok()?;
    let answer = Answer::decode(&answer, KEY_ID, &key).unwrap();
    Some((stream, answer.status))
}

fn greeting(run: Run, digest: u64) -> Greeting {
    Greeting {
        run,
        digest,
        key_id: KEY_ID,
        term: None,
    }
}

/// Waits for the news that a run has ended.
async fn ended(leases: &Leases) -> Vec<LeaseChange> {
    loop {
        let mut changes = leases.take_changes(Instant::now());
        changes.retain(|change| matches!(change, LeaseChange::Ended { .. }));
        if !changes.is_empty() {
            return changes;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn end(end: RunEnd) -> Vec<LeaseChange> {
    vec![LeaseChange::Ended {
        node: NODE,
        run: RUN,
        end,
    }]
}

#[test]
fn a_connection_that_breaks_off_is_a_death_after_the_grace_and_not_before() {
    with_leases(|leases, address| async move {
        let (stream, status) = ask(address, NODE, RUN, key()).await.unwrap();
        assert_eq!(status, Status::Ok);
        let now = Instant::now();
        assert_eq!(
            leases.take_changes(now + LEASE_GRACE * 2),
            [LeaseChange::Returned {
                node: NODE,
                run: RUN
            }]
        );
        drop(stream);
        let gone = Instant::now();
        assert_eq!(ended(&leases).await, end(RunEnd::Died));
        assert!(gone.elapsed() >= LEASE_GRACE - Duration::from_millis(20));
        assert_eq!(leases.take_changes(Instant::now() + LEASE_GRACE * 2), []);
    });
}

#[test]
fn a_host_that_was_out_of_reach_has_longer_to_come_back() {
    let leases = leases_of([vec![NODE]]);
    let (run, now) = ((NODE, RUN), Instant::now());
    let silence = Parting::after_error(&std::io::ErrorKind::HostUnreachable.into());
    leases.begin(&greeting(run, NO_DIGEST), now);
    leases.end(run, Some(silence), now);
    let almost = now + OUT_OF_REACH_GRACE - Duration::from_millis(1);
    let returned = LeaseChange::Returned {
        node: NODE,
        run: RUN,
    };
    assert_eq!(leases.take_changes(almost), [returned]);
    assert!(leases.alive().nodes.contains(&NODE));
    assert_eq!(
        leases.take_changes(now + OUT_OF_REACH_GRACE),
        end(RunEnd::Died)
    );
}

#[test]
fn a_run_that_says_so_has_left() {
    with_leases(|leases, address| async move {
        let (mut stream, _) = ask(address, NODE, RUN, key()).await.unwrap();
        stream.write_all(&[LEAVING]).await.unwrap();
        drop(stream);
        assert_eq!(ended(&leases).await, end(RunEnd::Left));
    });
}

#[test]
fn a_run_that_takes_no_more_is_answered_when_no_run_of_its_node_takes_clients() {
    with_leases(|leases, address| async move {
        let answer_all = || {
            let decide = |node: &[IpAddr], _| (node == [NODE]).then_some(NewClients::GoElsewhere);
            leases.answer_all(&leases.alive(), decide);
        };
        let (mut first, _) = ask(address, NODE, RUN, key()).await.unwrap();
        let (mut second, _) = ask(address, NODE, RunId(100), key()).await.unwrap();
        let withdrawn = |count| {
            let leases = leases.clone();
            async move {
                let told = || {
                    let table = leases.table();
                    table
                        .leases
                        .values()
                        .filter(|h| h.withdrawn.is_some())
                        .count()
                };
                while told() < count {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        };
        leases.wait_for_news(Duration::ZERO);
        first.write_all(&[TAKES_NO_MORE]).await.unwrap();
        withdrawn(1).await;
        let begun = Instant::now();
        leases.wait_for_news(Duration::from_secs(5));
        assert!(
            begun.elapsed() < Duration::from_secs(4),
            "news wakes the agent"
        );
        answer_all();
        let mut byte = [0; 1];
        let early = tokio::time::timeout(Duration::from_millis(100), first.read(&mut byte)).await;
        assert!(early.is_err(), "another run of the node takes clients");
        // The run repeats it on a new connection, and is answered there.
        drop(first);
        let (mut first, _) = ask(address, NODE, RUN, key()).await.unwrap();
        first.write_all(&[TAKES_NO_MORE]).await.unwrap();
        second.write_all(&[TAKES_NO_MORE]).await.unwrap();
        withdrawn(2).await;
        answer_all();
        for stream in [&mut first, &mut second] {
            stream.read_exact(&mut byte).await.unwrap();
            assert_eq!(
                NewClients::from_byte(byte[0]),
                Some(NewClients::GoElsewhere)
            );
        }
    });
}

#[test]
fn a_run_that_comes_back_within_the_grace_is_not_dead() {
    with_leases(|leases, address| async move {
        let (first, _) = ask(address, NODE, RUN, key()).await.unwrap();
        drop(first);
        let (second, _) = ask(address, NODE, RUN, key()).await.unwrap();
        tokio::time::sleep(LEASE_GRACE * 2).await;
        let changes = leases.take_changes(Instant::now());
        assert!(
            changes
                .iter()
                .all(|c| matches!(c, LeaseChange::Returned { .. })),
            "{changes:?}"
        );
        drop(second);
        assert_eq!(ended(&leases).await, end(RunEnd::Died));
    });
}

#[test]
fn a_run_dies_with_its_last_connection() {
    with_leases(|leases, address| async move {
        let (first, _) = ask(address, NODE, RUN, key()).await.unwrap();
        let (second, _) = ask(address, NODE, RUN, key()).await.unwrap();
        drop(first);
        tokio::time::sleep(LEASE_GRACE * 2).await;
        let changes = leases.take_changes(Instant::now());
        assert!(
            !changes
                .iter()
                .any(|c| matches!(c, LeaseChange::Ended { .. }))
        );
        drop(second);
        assert_eq!(ended(&leases).await, end(RunEnd::Died));
    });
}

#[test]
fn nobody_else_gets_a_lease_and_their_going_is_no_news() {
    with_leases(|leases, address| async move {
        let forged = ask(address, NODE, RUN, ControlKey::new([8; 16])).await;
        assert!(forged.is_none(), "no answer under a wrong key");
        let stranger = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 8));
        let (_, status) = ask(address, stranger, RUN, key()).await.unwrap();
        assert_eq!(status, Status::Denied);
        let (_, status) = ask(address, NODE, RunId::NONE, key()).await.unwrap();
        assert_eq!(status, Status::BadRequest);

        // A recorded request, with its old challenge.
        let mut stream = TcpStream::connect(address).await.unwrap();
        let old = LeaseRequest {
            challenge: [1; CHALLENGE_BYTES],
            node: NODE,
            run: RUN,
            digest: NO_DIGEST,
            term: None,
        };
        let old = old.encode(KEY_ID, &key());
        stream.write_all(&old).await.unwrap();
        let mut answer = vec![0; CHALLENGE_BYTES + MESSAGE_BYTES];
        stream.read_exact(&mut answer).await.unwrap();
        let answer = Answer::decode(&answer[CHALLENGE_BYTES..], KEY_ID, &key()).unwrap();
        assert_eq!(answer.status, Status::BadRequest);
        drop(stream);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(leases.take_changes(Instant::now() + LEASE_GRACE * 2), []);
    });
}

#[test]
fn a_crowd_that_says_nothing_keeps_no_node_out() {
    with_leases(|leases, address| async move {
        let mut silent = Vec::new();
        for _ in 0..HANDSHAKE_BOUNDS.per_address {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // A connection is counted when it has its challenge.
            stream.read_exact(&mut [0; CHALLENGE_BYTES]).await.unwrap();
            silent.push(stream);
        }
        let mut refused = TcpStream::connect(address).await.unwrap();
        assert_eq!(refused.read(&mut [0; 1]).await.unwrap_or(0), 0);
        // More come from many addresses: the oldest give way, and a node gets in.
        let mut oldest = silent.remove(0);
        for n in 0..HANDSHAKE_BOUNDS.in_all {
            let from = IpAddr::from(u128::try_from(n).unwrap().to_be_bytes());
            leases.enter(from, &Arc::new(Notify::new()));
        }
        let (_stream, status) = ask(address, NODE, RUN, key()).await.unwrap();
        assert_eq!(status, Status::Ok);
        let mut end = [0; 1];
        let ended = tokio::time::timeout(HANDSHAKE / 2, oldest.read(&mut end));
        assert_eq!(ended.await.unwrap().unwrap_or(0), 0);
    });
}

/// The leases of an agent that has run for a while.
fn settled(nodes: impl IntoIterator<Item = IpAddr>) -> Leases {
    let nodes = nodes.into_iter().map(|node| vec![node]);
    let leases = leases_of(nodes);
    leases.table().placements = Placements::new(Instant::now() - SETTLING);
    leases
}

fn node(last: u8) -> IpAddr {
    [10, 0, 0, last].into()
}

/// The nodes that differ by the agent's judgement, and the nodes that get new clients.
fn differing(leases: &Leases, nodes: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let differs = |n: &u8| leases.table().placements.differs(node(*n));
    let taking = leases.alive().taking;
    let takes = |n: &u8| taking.contains(&node(*n));
    let select = |wanted: &dyn Fn(&u8) -> bool| nodes.iter().copied().filter(wanted).collect();
    (select(&differs), select(&takes))
}

#[test]
fn who_places_objects_differently_from_most_nodes_gets_no_new_clients() {
    let (leases, now) = (settled([]), Instant::now());
    let begin = |n, run, digest| leases.begin(&greeting((node(n), RunId(run)), digest), now);
    // Nodes count, not their runs.
    (1..9).for_each(|run| assert!(begin(1, run, 7)));
    assert_eq!(differing(&leases, &[1]), (vec![], vec![1]));
    begin(2, 1, 8);
    assert!(leases.has_placement_tie());
    assert_eq!(differing(&leases, &[1, 2]), (vec![], vec![1, 2]), "a tie");
    begin(3, 1, 8);
    assert!(!leases.has_placement_tie());
    assert_eq!(differing(&leases, &[1, 2, 3]), (vec![1], vec![2, 3]));
    // With a third placement, the most common one need be no majority.
    begin(4, 1, 9);
    assert_eq!(differing(&leases, &[1, 2, 3, 4]), (vec![1, 4], vec![2, 3]));
    begin(5, 1, NO_DIGEST);
    assert_eq!(
        differing(&leases, &[5]),
        (vec![], vec![5]),
        "it says nothing"
    );
}

#[test]
fn of_a_node_the_newest_run_says_how_it_places_objects() {
    let (leases, now) = (settled([]), Instant::now());
    let begin = |n, run, digest| leases.begin(&greeting((node(n), RunId(run)), digest), now);
    begin(1, 1, 7);
    begin(2, 1, 7);
    begin(3, 1, 8);
    assert_eq!(differing(&leases, &[1, 2, 3]), (vec![3], vec![1, 2]));
    // The node is restarted with the file of the others. Then its new runs end first.
    begin(3, 2, 7);
    assert_eq!(differing(&leases, &[1, 2, 3]), (vec![], vec![1, 2, 3]));
    begin(3, 3, 9);
    for (run, differs) in [(3, vec![]), (2, vec![3])] {
        leases.end((node(3), RunId(run)), Some(Parting::LEFT), now);
        leases.take_changes(now + LEASE_GRACE);
        assert_eq!(differing(&leases, &[1, 2, 3]).0, differs);
    }
    // The old run asks again.
    begin(1, 1, 7);
    leases.end((node(1), RunId(1)), Some(Parting::CLOSED), now);
    assert_eq!(differing(&leases, &[1, 2, 3]), (vec![3], vec![1, 2]));
}

#[test]
fn a_node_that_leaves_does_not_count_and_one_that_has_died_does() {
    let (leases, now) = (settled([]), Instant::now());
    let begin = |n, run, digest| leases.begin(&greeting((node(n), RunId(run)), digest), now);
    (1..4).for_each(|n| assert!(begin(n, 1, 7)));
    (4..6).for_each(|n| assert!(begin(n, 1, 8)));
    let all = [1, 2, 3, 4, 5];
    assert_eq!(differing(&leases, &all).0, [4, 5]);
    // The nodes with the wrong file do not become the majority when others die.
    for n in 1..4 {
        leases.end((node(n), RunId(1)), Some(Parting::CLOSED), now);
    }
    leases.take_changes(now + LEASE_GRACE);
    assert_eq!(differing(&leases, &all), (vec![4, 5], vec![]));
    // One node is restarted with another file, and another node is stopped: a tie.
    begin(1, 2, 9);
    begin(2, 2, 7);
    assert_eq!(differing(&leases, &all).0, []);
    leases.end((node(5), RunId(1)), Some(Parting::LEFT), now);
    assert_eq!(differing(&leases, &all).0, [], "it may come back");
    leases.take_changes(now + LEASE_GRACE);
    assert_eq!(differing(&leases, &[1, 2, 3, 4]), (vec![1, 4], vec![2]));
    // A former node does not count.
    leases.set_nodes([1, 2, 4].map(|n| vec![node(n)]));
    leases.take_changes(now + LEASE_GRACE);
    assert_eq!(differing(&leases, &[1, 2, 4]).0, []);
}

#[test]
fn a_second_lease_of_a_node_votes_for_that_node_alone() {
    for (nodes, tie) in [(2, true), (3, false), (5, false)] {
        let (leases, now) = (settled([]), Instant::now());
        let begin = |n, run, digest| leases.begin(&greeting((node(n), RunId(run)), digest), now);
        (1..=nodes).for_each(|n| assert!(begin(n, 1, 7)));
        // The key of the first node is in wrong hands, and holds many leases.
        (2..50).for_each(|run| assert!(begin(1, run, 8)));
        let others: Vec<u8> = (2..=nodes).collect();
        assert_eq!(differing(&leases, &others), (vec![], others.clone()));
        assert_eq!(leases.has_placement_tie(), tie);
        let verdict = leases.table().placements.verdict(7);
        assert_eq!(verdict, Some(PlacementVerdict::Agrees), "of {nodes}");
    }
}

/// A lease of a run that knows `term`.
fn knowing(n: u8, run: u16, term: u32) -> Greeting {
    let term = Some(Term(term));
    Greeting {
        term,
        ..greeting((node(n), RunId(run)), NO_DIGEST)
    }
}

#[test]
fn each_living_node_has_one_word_about_terms() {
    let (leases, now) = (settled([]), Instant::now());
    let told = || {
        let told = leases.told(0).known.into_iter();
        let mut told: Vec<u32> = told.map(|(_, term)| term.0).collect();
        told.sort_unstable();
        told
    };
    leases.begin(&knowing(1, 1, 5), now);
    leases.begin(&knowing(2, 1, 0), now);
    leases.begin(&greeting((node(3), RUN), NO_DIGEST), now);
    assert_eq!(told(), [5], "the others know of none");
    // The newest lease of a node counts, whatever its others say.
    (2..50).for_each(|run| assert!(leases.begin(&knowing(1, run, 900), now)));
    assert_eq!(told(), [900]);
    leases.begin(&knowing(1, 1, 6), now);
    assert_eq!(told(), [6]);
    // A node also knows the term that it has announced flows to.
    let (run, done) = ((node(2), RunId(1)), |term| Done {
        term: Term(term),
        runs: 1,
    });
    leases.note_done(run, done(7));
    assert_eq!(told(), [6, 7]);
    leases.note_done(run, done(6));
    assert_eq!(told(), [6, 7]);
    leases.end(run, Some(Parting::CLOSED), now);
    assert_eq!(told(), [6, 7], "it may come back");
    leases.take_changes(now + LEASE_GRACE);
    assert_eq!(told(), [6]);
    leases.set_nodes([]);
    assert_eq!(told(), []);
}

#[test]
fn a_node_with_many_leases_leaves_room_for_the_others() {
    let leases = settled([]);
    let count = |n| leases.table().count_connection(node(n));
    const { assert!(2 * MAX_NODE_CONNECTIONS < MAX_CONNECTIONS) };
    (0..MAX_NODE_CONNECTIONS).for_each(|_| assert!(count(1)));
    assert!(!count(1) && count(2));
    leases.table().uncount_connection(node(1));
    assert!(count(1) && !count(1));
}

#[test]
fn an_agent_that_has_started_judges_nobody_for_a_while() {
    let leases = leases_of([]);
    let now = Instant::now();
    leases.begin(&greeting((node(1), RUN), 7), now);
    leases.begin(&greeting((node(2), RUN), 8), now);
    leases.begin(&greeting((node(3), RUN), 8), now);
    leases.take_changes(now + SETTLING / 2);
    assert_eq!(differing(&leases, &[1, 2, 3]), (vec![], vec![1, 2, 3]));
    leases.take_changes(now + SETTLING);
    assert_eq!(differing(&leases, &[1, 2, 3]), (vec![1], vec![2, 3]));
}

#[test]
fn a_node_hears_the_verdict_at_once_and_whenever_it_changes() {
    with_leases(|leases, address| async move {
        leases.table().placements = Placements::new(Instant::now() - SETTLING);
        let nodes: Vec<IpAddr> = (1..4).map(node).collect();
        leases.set_nodes(nodes.iter().map(|node| vec![*node]));
        leases.set_keys([LeaseKey {
            key_id: KEY_ID,
            key: key(),
            nodes: nodes.into_iter().collect(),
        }]);
        let ask = async |n, digest| {
            let asked = ask_with(address, node(n), RUN, digest, key()).await;
            asked.unwrap().0
        };
        let hear = async |stream: &mut TcpStream| {
            let mut byte = [0; 1];
            stream.read_exact(&mut byte).await.unwrap();
            PlacementVerdict::from_byte(byte[0]).unwrap()
        };
        use PlacementVerdict::{Agrees, Differs};
        let mut first = ask(1, 7).await;
        assert_eq!(hear(&mut first).await, Agrees);
        let mut second = ask(2, 8).await;
        assert_eq!(hear(&mut second).await, Agrees, "a tie");
        let mut third = ask(3, 8).await;
        assert_eq!(hear(&mut third).await, Agrees);
        assert_eq!(hear(&mut first).await, Differs);
        // The second hears nothing: its verdict is the same.
        let mut byte = [0; 1];
        let more = tokio::time::timeout(Duration::from_millis(100), second.read(&mut byte)).await;
        assert!(more.is_err(), "{more:?}");
    });
}

#[test]
fn a_node_with_two_addresses_lives_and_dies_as_one() {
    let both = ["10.0.0.1", "fd00::1"].map(|address| address.parse::<IpAddr>().unwrap());
    let leases = leases_of([both.to_vec(), vec![node(2)]]);
    let now = Instant::now();
    for by in both {
        let known = leases.hosts.lock().node_of(by);
        assert_eq!(known, Some(both[0]), "the lease may be by {by}");
    }
    leases.begin(&greeting((both[0], RUN), 7), now);
    assert_eq!(leases.living(), HashSet::from(both));
    assert_eq!(leases.alive().taking, HashSet::from(both));
    let returned = leases.take_changes(now);
    assert_eq!(
        returned,
        both.map(|node| LeaseChange::Returned { node, run: RUN })
    );
    leases.end((both[0], RUN), Some(Parting::CLOSED), now);
    let end = RunEnd::Died;
    let ended = both.map(|node| LeaseChange::Ended {
        node,
        run: RUN,
        end,
    });
    assert_eq!(leases.take_changes(now + LEASE_GRACE), ended);
    assert!(leases.living().is_empty());
}

#[test]
fn a_node_is_lost_after_the_grace_of_its_last_run_until_it_returns_or_the_switch_takes_over() {
    let both = ["10.0.0.1", "fd00::1"].map(|address| address.parse::<IpAddr>().unwrap());
    let leases = leases_of([both.to_vec(), vec![node(2)]]);
    let now = Instant::now();
    let (run, second) = ((both[0], RUN), (both[0], RunId(7)));
    let lost = || leases.alive().lost;
    assert!(lost().is_empty(), "nobody has been heard of");
    leases.begin(&greeting(run, NO_DIGEST), now);
    leases.begin(&greeting(second, NO_DIGEST), now);
    leases.end(second, Some(Parting::LEFT), now);
    leases.take_changes(now + LEASE_GRACE);
    leases.end(run, Some(Parting::CLOSED), now);
    assert!(lost().is_empty(), "it may return");
    leases.take_changes(now + LEASE_GRACE);
    assert_eq!(lost(), HashSet::from(both));
    leases.begin(&greeting(run, NO_DIGEST), now);
    assert!(lost().is_empty());
    leases.end(run, Some(Parting::CLOSED), now);
    leases.take_changes(now + LEASE_GRACE);
    assert_eq!(lost(), HashSet::from(both));
    leases.close();
    leases.open(now);
    assert!(lost().is_empty(), "it may have had leases elsewhere");
    leases.begin(&greeting(run, NO_DIGEST), now);
    leases.end(run, Some(Parting::CLOSED), now);
    leases.take_changes(now + LEASE_GRACE);
    leases.set_nodes([vec![node(2)]]);
    assert!(lost().is_empty(), "it is no node any more");
}

#[test]
fn a_key_is_for_leases_of_its_nodes() {
    with_leases(async |leases, address| {
        let status = async || ask(address, NODE, RUN, key()).await.unwrap().1;
        let only_for = |node| LeaseKey {
            key_id: KEY_ID,
            key: key(),
            nodes: HashSet::from([node]),
        };
        leases.set_keys([only_for(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 8)))]);
        assert_eq!(status().await, Status::Denied);
        leases.set_keys([only_for(NODE)]);
        assert_eq!(status().await, Status::Ok);
        assert_eq!(leases.keys_in_use(), HashSet::from([(NODE, KEY_ID)]));
    });
}
