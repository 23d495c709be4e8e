//! Clients do with a connection what they may while it moves between hosts. Each test compares
//! every byte. The client's packets hold no reset that the client did not mean.

use std::time::Duration;

use prism_config::HandOffMode;
use prism_http::Method;

use crate::support::client::{Client, Request};
use crate::support::objects::Object;
use crate::support::packets::{ClientResets, Watch};
use crate::support::{Cluster, eventually, turn};

const MIB: u64 = 1 << 20;
/// A client port that the kernel does not give out by itself.
const PORT: u16 = 9123;

/// A cluster with one object on each of three backends.
fn cluster_with(label: &str, len: u64) -> (Cluster, Vec<Object>) {
    let cluster = Cluster::up(3);
    let objects = cluster.one_on_each(label, |n| len + n as u64);
    cluster.put_all(&objects);
    cluster.assert_no_flows();
    (cluster, objects)
}

/// Requests for objects in this order, as one piece of bytes.
fn gets<'o>(cluster: &Cluster, objects: impl Iterator<Item = &'o Object>) -> Vec<u8> {
    objects
        .flat_map(|object| Request::get(object).encode(cluster))
        .collect()
}

/// Checks the end of the client's work: no flow of it is left at the switch, and it saw nothing
/// unexpected.
fn end(cluster: &Cluster, client: Client, watch: Watch) {
    drop(client);
    cluster.assert_no_flows();
    watch.finish(ClientResets::None);
}

#[test]
fn pipelined_requests_to_different_backends_are_answered_in_order() {
    let Some(_turn) = turn() else { return };
    let (cluster, objects) = cluster_with("pipelined", 40_000);
    let watch = Watch::all(&cluster, "pipelined");
    end(&cluster, pipeline(&cluster, &objects), watch);
}

fn pipeline(cluster: &Cluster, objects: &[Object]) -> Client {
    let mut client = cluster.connect();
    let order: Vec<&Object> = objects.iter().cycle().take(20).collect();
    for _ in 0..10 {
        client.send(&gets(cluster, order.iter().copied()));
        for object in &order {
            client.expect(object);
        }
    }
    client
}

#[test]
fn pipelined_puts_and_gets_keep_their_order() {
    let Some(_turn) = turn() else { return };
    let (cluster, objects) = cluster_with("mixed", 10_000);
    let watch = Watch::all(&cluster, "mixed-pipeline");
    let mut client = cluster.connect();
    let newer: Vec<Object> = objects.iter().map(|object| object.other(70_000)).collect();
    let mut bytes = Vec::new();
    for (older, newer) in objects.iter().zip(&newer) {
        bytes.extend(Request::get(older).encode(&cluster));
        bytes.extend(Request::put_signed(newer).encode(&cluster));
        bytes.extend_from_slice(newer.bytes());
        bytes.extend(Request::get(newer).encode(&cluster));
    }
    client.send(&bytes);
    for (older, newer) in objects.iter().zip(&newer) {
        client.expect(older);
        assert_eq!(client.answer(&Method::PUT).status(), 200);
        client.expect(newer);
    }
    end(&cluster, client, watch);
}

#[test]
fn a_request_sent_before_the_answer_has_ended_waits_its_turn() {
    let Some(_turn) = turn() else { return };
    let (cluster, objects) = cluster_with("early", 2 * MIB);
    let watch = Watch::all(&cluster, "early");
    end(&cluster, ask_early(&cluster, &objects), watch);
}

/// Asks for the next object while the present one is on its way.
fn ask_early(cluster: &Cluster, objects: &[Object]) -> Client {
    let mut client = cluster.connect();
    client.send(&Request::get(&objects[0]).encode(cluster));
    for turn in 0..12 {
        let now = &objects[turn % 3];
        let next = Request::get(&objects[(turn + 1) % 3]).encode(cluster);
        let head = client.head();
        assert_eq!(head.status(), 200);
        // The answer has begun, and far from all of it fits into the queues.
        client.send(&next);
        client.expect_body(&head, now);
    }
    client.expect(&objects[0]);
    client
}

#[test]
fn continue_is_sent_by_the_holder_and_a_refusal_comes_before_the_body() {
    let Some(_turn) = turn() else { return };
    let (cluster, objects) = cluster_with("expect", 600_000);
    let watch = Watch::all(&cluster, "expect");
    let mut client = cluster.connect();
    for object in objects.iter().chain(&objects) {
        let put = Request::put_unsigned(object).header("Expect", "100-continue");
        client.send(&put.encode(&cluster));
        assert_eq!(client.head().status(), 100);
        client.send_object(object);
        assert_eq!(client.answer(&Method::PUT).status(), 200);
        client.get(&cluster, object);
    }
    // The owner refuses it: there is no such bucket.
    let port = client.port();
    let put = Request::put_unsigned(&objects[0]).header("Expect", "100-continue");
    let put = put.bucket("absent").encode(&cluster);
    let refused = client.call(&put);
    assert_eq!(refused.status(), 404, "{}", refused.text());
    assert!(
        refused.text().contains("NoSuchBucket"),
        "{}",
        refused.text()
    );
    // Whether a body follows is unknown, so the connection ends.
    client.expect_end();
    drop(client);
    // The frontend refuses it: the signature is wrong.
    let mut client = cluster.connect();
    let put = Request::put_unsigned(&objects[0]).header("Expect", "100-continue");
    let put = String::from_utf8(put.encode(&cluster)).unwrap();
    let forged = put.replace("Signature=", "Signature=0");
    let refused = client.call(forged.as_bytes());
    assert_eq!(refused.status() / 100, 4, "{}", refused.text());
    client.expect_end();
    cluster.assert_flows(&[port, client.port()]);
    drop(client);
    cluster.connect().get(&cluster, &objects[0]);
    watch.finish(ClientResets::None);
}

#[test]
fn a_client_that_half_closes_gets_the_whole_answer() {
    let Some(_turn) = turn() else { return };
    let (cluster, objects) = cluster_with("half", 4 * MIB);
    let watch = Watch::all(&cluster, "half-close");
    end(&cluster, half_close(&cluster, &objects), watch);
}

fn half_close(cluster: &Cluster, objects: &[Object]) -> Client {
    for moved_before in [false, true] {
        for (object, other) in objects.iter().zip(objects.iter().cycle().skip(1)) {
            let mut client = cluster.connect();
            if moved_before {
                client.get(cluster, other);
            }
            client.send(&Request::get(object).encode(cluster));
            client.half_close();
            client.expect(object);
            client.expect_end();
        }
    }
    // Several requests may be on their way when the client is done.
    let mut client = cluster.connect();
    client.send(&gets(cluster, objects.iter()));
    client.half_close();
    for object in objects {
        client.expect(object);
    }
    client.expect_end();
    client
}

#[test]
fn a_client_that_half_closes_after_a_put_gets_its_answer() {
    let Some(_turn) = turn() else { return };
    let (cluster, objects) = cluster_with("half-put", 3 * MIB);
    let watch = Watch::all(&cluster, "half-close-put");
    for object in &objects {
        let object = object.other(3 * MIB + 5);
        let mut client = cluster.connect();
        client.send(&Request::put_signed(&object).encode(&cluster));
        client.send_object(&object);
        client.half_close();
        assert_eq!(client.answer(&Method::PUT).status(), 200);
        client.expect_end();
        drop(client);
        cluster.connect().get(&cluster, &object);
    }
    cluster.assert_no_flows();
    watch.finish(ClientResets::None);
}

#[test]
fn a_reset_in_the_middle_of_an_answer_leaves_nothing_behind() {
    let Some(_turn) = turn() else { return };
    let (cluster, objects) = cluster_with("reset", 8 * MIB);
    let watch = Watch::all(&cluster, "reset");
    for turn in 0..6 {
        let mut client = cluster.connect_from(PORT);
        client.get(&cluster, &objects[(turn + 1) % 3]);
        client.send(&Request::get(&objects[turn % 3]).encode(&cluster));
        assert_eq!(client.head().status(), 200);
        client.reset();
        if turn % 2 == 0 {
            // Otherwise the next connection meets the rest of this one.
            cluster.assert_no_flows();
        }
    }
    let mut client = cluster.connect_from(PORT);
    client.get(&cluster, &objects[0]);
    drop(client);
    cluster.assert_no_flows();
    eventually("no connection is left", Duration::from_secs(5), || {
        cluster.sum("handoff", "connections_open") == 0
    });
    watch.finish(ClientResets::Meant);
}

#[test]
fn a_reset_in_the_middle_of_a_put_leaves_no_object() {
    let Some(_turn) = turn() else { return };
    let (cluster, objects) = cluster_with("reset-put", 1000);
    let watch = Watch::all(&cluster, "reset-put");
    for object in &objects {
        let mut client = cluster.connect();
        let absent = Object::new(
            cluster.key_on(cluster.owner(&object.key), "absent"),
            8 * MIB,
        );
        client.send(&Request::put_unsigned(&absent).encode(&cluster));
        client.send(&absent.bytes()[..3 << 20]);
        client.reset();
        let mut client = cluster.connect();
        let head = client.call(&cluster.request("HEAD", &format!("/{}", absent.key)));
        assert_eq!(head.status(), 404);
        client.get(&cluster, object);
    }
    cluster.assert_no_flows();
    watch.finish(ClientResets::Meant);
}

#[test]
fn a_client_that_stalls_in_the_middle_of_an_answer_gets_the_rest() {
    let Some(_turn) = turn() else { return };
    let (cluster, objects) = cluster_with("stall", 8 * MIB);
    let watch = Watch::all(&cluster, "stall");
    end(&cluster, stall(&cluster, &objects), watch);
}

fn stall(cluster: &Cluster, objects: &[Object]) -> Client {
    let small_buffer = |socket: &socket2::Socket| {
        socket.set_recv_buffer_size(16 << 10).unwrap();
    };
    let mut clients: Vec<Client> = (0..3).map(|_| cluster.connect_with(small_buffer)).collect();
    // The first has been handed over once, the second twice; the third sends the
    // next request, to another backend, before it stalls.
    clients[1].get(cluster, &objects[2]);
    for client in &mut clients {
        client.send(&Request::get(&objects[0]).encode(cluster));
    }
    clients[2].send(&Request::get(&objects[1]).encode(cluster));
    std::thread::sleep(Duration::from_secs(3));
    for client in &mut clients {
        client.expect(&objects[0]);
    }
    clients[2].expect(&objects[1]);
    // It stalls while the connection has to move with the end of an answer unsent.
    let mut client = clients.swap_remove(0);
    let small = objects[1].other(300_000);
    client.put(cluster, &small);
    client.send(&gets(cluster, [&small, &objects[2], &small].into_iter()));
    std::thread::sleep(Duration::from_secs(2));
    client.expect(&small);
    std::thread::sleep(Duration::from_secs(1));
    client.expect(&objects[2]);
    client.expect(&small);
    client
}

#[test]
fn connections_that_go_back_to_the_frontend_bear_the_same() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up_with(3, |spec| {
        spec.configure = Some(Box::new(|config| {
            config.service.first_mut().hand_off = HandOffMode::Return;
        }));
    });
    let objects = cluster.one_on_each("return", |n| 2 * MIB + n as u64);
    cluster.put_all(&objects);
    cluster.assert_no_flows();
    let watch = Watch::all(&cluster, "return");
    drop(pipeline(&cluster, &objects));
    drop(ask_early(&cluster, &objects));
    drop(half_close(&cluster, &objects));
    end(&cluster, stall(&cluster, &objects), watch);
}

#[test]
fn a_head_may_arrive_byte_by_byte() {
    let Some(_turn) = turn() else { return };
    let (cluster, objects) = cluster_with("bytewise", 5_000);
    let watch = Watch::all(&cluster, "bytewise");
    let mut client = cluster.connect();
    for object in &objects {
        for byte in Request::get(object).encode(&cluster) {
            client.send(&[byte]);
            std::thread::sleep(Duration::from_micros(200));
        }
        client.expect(object);
    }
    // The first half of a head moves with the connection, the rest follows.
    for turn in 0..30 {
        let (now, next) = (&objects[turn % 3], &objects[(turn + 1) % 3]);
        let mut bytes = gets(&cluster, [now, next].into_iter());
        let rest = bytes.split_off(bytes.len() - 200);
        client.send(&bytes);
        for byte in rest {
            client.send(&[byte]);
        }
        client.expect(now);
        client.expect(next);
    }
    end(&cluster, client, watch);
}

#[test]
fn an_idle_connection_lives_on() {
    let Some(_turn) = turn() else { return };
    let (cluster, objects) = cluster_with("idle", 100_000);
    let watch = Watch::all(&cluster, "idle");
    let mut client = cluster.connect();
    for object in &objects {
        client.get(&cluster, object);
        std::thread::sleep(Duration::from_millis(1500));
    }
    client.get(&cluster, &objects[0]);
    end(&cluster, client, watch);
}

#[test]
fn a_client_port_may_be_used_again_at_once() {
    let Some(_turn) = turn() else { return };
    let (cluster, objects) = cluster_with("port", 200_000);
    let watch = Watch::all(&cluster, "port");
    for turn in 0..40 {
        let mut client = cluster.connect_from(PORT);
        for n in 0..=turn % 3 {
            client.get(&cluster, &objects[(turn + n) % 3]);
        }
        // A RST leaves no TIME_WAIT here. The server may still have a part of the connection
        // when the next one comes.
        client.reset();
    }
    cluster.assert_no_flows();
    watch.finish(ClientResets::Meant);
}

#[test]
fn a_connection_that_the_server_closes_first_may_be_followed_from_the_same_port() {
    let Some(_turn) = turn() else { return };
    let (cluster, objects) = cluster_with("close", 500_000);
    let watch = Watch::all(&cluster, "close");
    for object in objects.iter().chain(&objects) {
        // The server's TIME_WAIT is on the host that answered; the next
        // connection purges the flow, and may be handed to the same host.
        let mut client = cluster.connect_from(PORT);
        let close = Request::get(object).header("Connection", "close");
        client.send(&close.encode(&cluster));
        let head = client.head();
        assert!(!head.keep_alive());
        client.expect_body(&head, object);
        client.expect_end();
    }
    for object in &objects {
        let mut client = cluster.connect_from(PORT);
        let old = Request::get(object).version("HTTP/1.0");
        client.send(&old.encode(&cluster));
        let head = client.head();
        assert!(!head.keep_alive());
        client.expect_body(&head, object);
        client.expect_end();
    }
    cluster.assert_flows(&[PORT]);
    watch.finish(ClientResets::None);
}

#[test]
fn http_1_0_keeps_a_connection_that_asks_for_it() {
    let Some(_turn) = turn() else { return };
    let (cluster, objects) = cluster_with("http10", 50_000);
    let watch = Watch::all(&cluster, "http10");
    let mut client = cluster.connect();
    for object in objects.iter().chain(&objects) {
        let old = Request::get(object)
            .version("HTTP/1.0")
            .header("Connection", "keep-alive");
        client.send(&old.encode(&cluster));
        let head = client.head();
        assert!(head.keep_alive());
        client.expect_body(&head, object);
    }
    end(&cluster, client, watch);
}

#[test]
fn all_kinds_of_requests_share_one_connection() {
    let Some(_turn) = turn() else { return };
    let (cluster, objects) = cluster_with("kinds", 30_000);
    let watch = Watch::all(&cluster, "kinds");
    let mut client = cluster.connect();
    for object in objects.iter().chain(&objects) {
        client.get(&cluster, object);
        head_and_ranges(&cluster, &mut client, object);
        absent(&cluster, &mut client, object);
        let list = client.call(&cluster.request("GET", "?list-type=2&prefix=kinds"));
        assert_eq!(list.status(), 200, "{}", list.text());
        let text = String::from_utf8(list.body).unwrap();
        for object in &objects {
            assert!(
                text.contains(&format!("<Key>{}</Key>", object.key)),
                "{text}"
            );
        }
        let short_lived = Object::new(cluster.key_on(cluster.owner(&object.key), "short"), 20_000);
        client.put(&cluster, &short_lived);
        client.get(&cluster, &short_lived);
        let target = format!("/{}", short_lived.key);
        assert_eq!(
            client.call(&cluster.request("DELETE", &target)).status(),
            204
        );
        assert_eq!(client.call(&cluster.request("GET", &target)).status(), 404);
    }
    end(&cluster, client, watch);
}

fn head_and_ranges(cluster: &Cluster, client: &mut Client, object: &Object) {
    let target = format!("/{}", object.key);
    let head = client.call(&cluster.request("HEAD", &target));
    assert_eq!(head.status(), 200);
    assert_eq!(head.header("content-length"), object.len.to_string());
    let last = object.len - 1;
    let ranges = [
        ("bytes=0-0".to_owned(), 0, 1),
        ("bytes=1000-2999".to_owned(), 1000, 2000),
        (format!("bytes={last}-"), last, 1),
        ("bytes=-500".to_owned(), object.len - 500, 500),
    ];
    for (range, offset, len) in ranges {
        let get = Request::get(object).header("Range", &range);
        let part = client.call(&get.encode(cluster));
        assert_eq!(part.status(), 206, "{range}");
        assert_eq!(part.body.len(), len, "{range}");
        let last = offset + len as u64 - 1;
        let sent = format!("bytes {offset}-{last}/{}", object.len);
        assert_eq!(part.header("content-range"), sent);
        object.check(offset, &part.body);
    }
    let beyond = Request::get(object).header("Range", format!("bytes={}-", object.len));
    let refused = client.call(&beyond.encode(cluster));
    assert_eq!(refused.status(), 416);
    assert_eq!(
        refused.header("content-range"),
        format!("bytes */{}", object.len)
    );
}

/// Asks the owner of `object` for what it does not have.
fn absent(cluster: &Cluster, client: &mut Client, object: &Object) {
    let target = format!("/{}", cluster.key_on(cluster.owner(&object.key), "never"));
    let missing = client.call(&cluster.request("GET", &target));
    assert_eq!(missing.status(), 404);
    assert!(
        missing.text().contains("<Code>NoSuchKey</Code>"),
        "{}",
        missing.text()
    );
    assert_eq!(client.call(&cluster.request("HEAD", &target)).status(), 404);
    assert_eq!(
        client.call(&cluster.request("DELETE", &target)).status(),
        204
    );
}

#[test]
fn chunked_bodies_are_stored() {
    let Some(_turn) = turn() else { return };
    let (cluster, objects) = cluster_with("chunked", 1000);
    let watch = Watch::all(&cluster, "chunked");
    let mut client = cluster.connect();
    for object in &objects {
        let object = object.other(700_000);
        let put = Request::new("PUT", &format!("/{}", object.key))
            .unsigned()
            .header("Transfer-Encoding", "chunked");
        client.send(&put.encode(&cluster));
        let mut rng = fastrand::Rng::with_seed(3);
        let mut rest = object.bytes();
        while !rest.is_empty() {
            let (piece, later) = rest.split_at(rng.usize(1..=rest.len().min(100_000)));
            client.send(format!("{:x}\r\n", piece.len()).as_bytes());
            client.send(piece);
            client.send(b"\r\n");
            rest = later;
        }
        client.send(b"0\r\n\r\n");
        let answer = client.answer(&Method::PUT);
        assert_eq!(answer.status(), 200, "{}", answer.text());
        client.get(&cluster, &object);
    }
    end(&cluster, client, watch);
}

#[test]
fn a_body_that_is_not_what_was_signed_is_not_stored() {
    let Some(_turn) = turn() else { return };
    let (cluster, objects) = cluster_with("digest", 400_000);
    let watch = Watch::all(&cluster, "digest");
    let mut client = cluster.connect();
    for object in &objects {
        let owner = cluster.owner(&object.key);
        let absent = Object::new(cluster.key_on(owner, "forged"), 300_000);
        client.send(&Request::put_signed(&absent).encode(&cluster));
        let mut body = absent.bytes().to_vec();
        body[299_999] ^= 1;
        client.send(&body);
        let answer = client.answer(&Method::PUT);
        assert_eq!(answer.status(), 400, "{}", answer.text());
        assert!(
            answer.text().contains("XAmzContentSHA256Mismatch"),
            "{}",
            answer.text()
        );
        let target = format!("/{}", absent.key);
        assert_eq!(client.call(&cluster.request("HEAD", &target)).status(), 404);
        // An existing object stays as it was.
        let newer = object.other(object.len);
        client.send(&Request::put_signed(&newer).encode(&cluster));
        client.send_object(object);
        assert_eq!(client.answer(&Method::PUT).status(), 400);
        client.get(&cluster, object);
    }
    end(&cluster, client, watch);
}
