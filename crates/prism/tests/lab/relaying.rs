//! Short answers are relayed, and long ones move the connection to their owner.

use std::sync::Arc;
use std::time::{Duration, Instant};

use prism_config::RelayUpTo;
use prism_lab::Rate;
use prism_s3::{Algorithm, BodyDigest, Expected};
use prism_signer::Body;

use crate::support::client::{Answer, Request};
use crate::support::objects::Object;
use crate::support::tls::{self, Version};
use crate::support::{BUCKET, Cluster, eventually, say, turn};

/// The threshold.
const UP_TO_BYTES: u32 = 4096;

/// The counts so far: requests relayed, connections moved, and hand-offs in vain.
fn counted(cluster: &Cluster) -> [u64; 3] {
    [
        cluster.sum("requests", "relayed"),
        cluster.sum("handoff", "exports_moved"),
        cluster.sum("requests", "asked_in_vain"),
    ]
}

/// Asserts that `work` adds this to the counts.
fn adds(cluster: &Cluster, more: [u64; 3], work: impl FnOnce()) {
    let before = counted(cluster);
    work();
    let now = counted(cluster);
    let added = [0, 1, 2].map(|n| now[n] - before[n]);
    assert_eq!(added, more, "relayed, moved, asked in vain");
}

/// A short and a long object on each of two backends.
fn objects(cluster: &Cluster) -> [[Object; 2]; 2] {
    let objects = ["be0", "be1"].map(|host| {
        let object = |label, len| Object::new(cluster.key_on(host, label), len);
        [
            object("short", UP_TO_BYTES.into()),
            object("long", u64::from(UP_TO_BYTES) + 1),
        ]
    });
    cluster.put_all(objects.as_flattened());
    objects
}

#[test]
fn an_answer_is_relayed_up_to_the_length_that_is_configured() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up_with(2, |spec| spec.relay_up_to = RelayUpTo::Bytes(UP_TO_BYTES));
    let [[short, long], [other_short, other_long]] = objects(&cluster);

    let mut client = cluster.connect();
    adds(&cluster, [2, 0, 0], || {
        client.get(&cluster, &short);
        client.get(&cluster, &other_short);
    });
    // After the first request it is known to be long.
    adds(&cluster, [1, 1, 1], || client.get(&cluster, &long));
    adds(&cluster, [0, 0, 0], || client.get(&cluster, &short));
    adds(&cluster, [1, 0, 0], || client.get(&cluster, &other_short));
    adds(&cluster, [1, 1, 1], || client.get(&cluster, &other_long));
    adds(&cluster, [1, 1, 1], || client.get(&cluster, &long));
    adds(&cluster, [0, 1, 0], || client.get(&cluster, &other_long));
    drop(client);

    // A short range of a long object, and an answer without an object.
    let mut client = cluster.connect();
    let range = Request::get(&other_long).header("range", "bytes=4000-4095");
    adds(&cluster, [1, 0, 0], || {
        let answer = client.call(&range.encode(&cluster));
        assert_eq!(answer.status(), 206, "{}", answer.text());
        other_long.check(4000, &answer.body);
    });
    let missing = cluster.request("GET", &format!("/{}", cluster.key_on("be1", "missing")));
    adds(&cluster, [1, 0, 0], || {
        let answer = client.call(&missing);
        assert_eq!(answer.status(), 404, "{}", answer.text());
    });

    // All come at once: none is lost or out of order.
    let mixed = [&short, &long, &other_short, &other_long, &short, &long];
    let requests = mixed.map(|object| Request::get(object).encode(&cluster));
    client.send(&requests.concat());
    for object in mixed {
        client.expect(object);
    }
    drop(client);
    cluster.assert_no_flows();
}

#[test]
fn what_becomes_long_or_short_is_noticed() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up_with(2, |spec| spec.relay_up_to = RelayUpTo::Bytes(UP_TO_BYTES));
    let object = Object::new(cluster.key_on("be1", "object"), 10);
    cluster.put_all(std::slice::from_ref(&object));
    let get = |object: &Object| cluster.connect().get(&cluster, object);
    adds(&cluster, [1, 0, 0], || get(&object));
    let long = object.other(100_000);
    cluster.put_all(std::slice::from_ref(&long));
    adds(&cluster, [1, 1, 1], || get(&long));
    adds(&cluster, [0, 1, 0], || get(&long));
}

#[test]
fn a_connection_lives_on_when_the_owner_of_a_short_object_is_dead() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::up_with(2, |spec| spec.relay_up_to = RelayUpTo::Bytes(UP_TO_BYTES));
    let [[short, _], [other_short, _]] = objects(&cluster);
    let mut client = cluster.connect();
    client.get(&cluster, &short);
    cluster.lab.kill("be1").unwrap();
    let answer = client.call(&Request::get(&other_short).encode(&cluster));
    assert_eq!(answer.status(), 503, "{}", answer.text());
    client.get(&cluster, &short);
}

/// A request for the tags of `object`, and its body, which a node passes on.
fn put_tags(cluster: &Cluster, object: &Object, is_chunked: bool) -> (Vec<u8>, Vec<u8>) {
    let tag = "<Tag><Key>k</Key><Value>v</Value></Tag>";
    let body = format!("<Tagging><TagSet>{tag}</TagSet></Tagging>").into_bytes();
    let request = Request::new("PUT", &format!("/{}?tagging", object.key)).unsigned();
    if !is_chunked {
        let request = request.header("Content-Length", body.len().to_string());
        return (request.encode(cluster), body);
    }
    let chunks = body.chunks(30).map(|data| {
        let size = format!("{:x}\r\n", data.len()).into_bytes();
        [&size, data, b"\r\n"].concat()
    });
    let mut chunked = chunks.collect::<Vec<_>>().concat();
    chunked.extend_from_slice(b"0\r\n\r\n");
    let request = request.header("Transfer-Encoding", "chunked");
    (request.encode(cluster), chunked)
}

#[test]
fn a_relay_that_breaks_within_a_body_is_told_at_once_and_the_next_request_is_found() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::up_with(2, |spec| spec.relay_up_to = RelayUpTo::Bytes(UP_TO_BYTES));
    let [[short, _], [other_short, _]] = objects(&cluster);
    for is_chunked in [false, true] {
        let (head, body) = put_tags(&cluster, &other_short, is_chunked);
        let (first, rest) = body.split_at(40);
        let mut client = cluster.connect();
        let whole = client.call(&[head.clone(), body.clone()].concat());
        assert_eq!(whole.status(), 200, "{}", whole.text());
        let served = cluster.counter("be1", "requests", "served_relayed");
        client.send(&[&head, first].concat());
        eventually("it is relayed", Duration::from_secs(5), || {
            cluster.counter("be1", "requests", "served_relayed") > served
        });
        cluster.lab.kill("be1").unwrap();
        let killed = Instant::now();
        let answer = client.answer(&prism_http::Method::PUT);
        assert_eq!(answer.status(), 503, "{}", answer.text());
        let waited = killed.elapsed();
        assert!(waited < Duration::from_secs(2), "{waited:?}");
        // The connection stays, with a second request behind.
        let next = Request::get(&short).encode(&cluster);
        client.send(&[rest, &next].concat());
        client.expect(&short);
        client.get(&cluster, &short);
        cluster.lab.restart("be1").unwrap();
        eventually("it is back", Duration::from_secs(10), || {
            let request = Request::get(&other_short).encode(&cluster);
            cluster.connect().call(&request).status() == 200
        });
    }
}

#[test]
fn a_client_that_reads_nothing_for_long_gets_all_of_a_relayed_answer() {
    let Some(_turn) = turn() else { return };
    const LEN: u32 = 32 << 20;
    let cluster = Cluster::up_with(2, |spec| spec.relay_up_to = RelayUpTo::Bytes(LEN));
    let object = Object::new(cluster.key_on("be1", "object"), LEN.into());
    cluster.put_all(std::slice::from_ref(&object));
    let mut client = cluster.connect();
    adds(&cluster, [1, 0, 0], || {
        client.send(&Request::get(&object).encode(&cluster));
        let head = client.head();
        // Longer than the wait for a dead node.
        std::thread::sleep(Duration::from_secs(9));
        client.expect_body(&head, &object);
    });
}

#[test]
fn a_node_that_is_cut_off_is_noticed_by_all_who_wait_for_it() {
    let Some(_turn) = turn() else { return };
    const NOTICED_WITHIN: Duration = Duration::from_secs(8);
    let cluster = Cluster::up_with(2, |spec| spec.relay_up_to = RelayUpTo::Bytes(UP_TO_BYTES));
    let [[short, _], [other_short, _]] = objects(&cluster);
    let (head, body) = put_tags(&cluster, &other_short, false);
    let (mut sends, mut asks) = (cluster.connect(), cluster.connect());
    let served = cluster.counter("be1", "requests", "served_relayed");
    sends.send(&[&head, &body[..40]].concat());
    eventually("it is relayed", Duration::from_secs(5), || {
        cluster.counter("be1", "requests", "served_relayed") > served
    });
    // It leaves another stream in the pool, which is used again.
    asks.get(&cluster, &other_short);
    let frontend = cluster.lab.address("fe0").unwrap().to_string();
    let mut ip = cluster.lab.command("be1", "ip").unwrap();
    let cut = ip.args(["route", "add", "blackhole", &frontend]).status();
    assert!(cut.unwrap().success());
    let begun = Instant::now();
    asks.send(&Request::get(&other_short).encode(&cluster));
    for client in [&mut asks, &mut sends] {
        let answer = client.answer(&prism_http::Method::GET);
        assert_eq!(answer.status(), 503, "{}", answer.text());
        let waited = begun.elapsed();
        say(&format!("noticed after {waited:?}"));
        assert!(waited < NOTICED_WITHIN, "{waited:?}");
    }
    asks.get(&cluster, &short);
}

#[test]
fn with_several_replicas_another_one_answers() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::up_with(2, |spec| {
        spec.relay_up_to = RelayUpTo::Bytes(UP_TO_BYTES);
        spec.configure = Some(Box::new(|config| config.cluster.replicas = 2));
    });
    let objects = objects(&cluster);
    // A change can be read without its primary once the primary has told the others its
    // outcome.
    eventually("all is decided", Duration::from_secs(5), || {
        let open = |host| cluster.counter(host, "store", "open_changes");
        open("be0") + open("be1") == 0
    });
    cluster.lab.kill("be1").unwrap();
    let mut client = cluster.connect();
    for object in objects.as_flattened() {
        client.get(&cluster, object);
    }
}

#[test]
fn a_node_that_is_to_find_out_relays_what_is_tiny_and_nothing_large() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up_with(2, |spec| spec.relay_up_to = RelayUpTo::Auto);
    let tiny = Object::new(cluster.key_on("be0", "tiny"), 64);
    let large = Object::new(cluster.key_on("be1", "large"), 1 << 20);
    cluster.put_all(&[tiny.clone(), large.clone()]);
    let mut client = cluster.connect();
    adds(&cluster, [1_000, 0, 0], || {
        (0..1_000).for_each(|_| client.get(&cluster, &tiny));
    });
    // Trials of hand-offs are refused, and their connections move all the same.
    let before = counted(&cluster);
    for _ in 0..500 {
        client.get(&cluster, &large);
        client.get(&cluster, &tiny);
    }
    let now = counted(&cluster);
    assert_eq!(now[0] - before[0], 500 + now[2] - before[2], "relayed");
    assert_eq!(now[1] - before[1], 1, "it stays where what is large is");
    for host in ["fe0", "be0", "be1"] {
        let up_to = cluster.counter(host, "requests", "relay_up_to_bytes");
        assert!((512..=32_768).contains(&up_to), "{host}: {up_to}");
    }
}

#[test]
fn a_connection_moves_from_a_link_that_is_half_full() {
    let Some(_turn) = turn() else { return };
    // The slowest link: the answer takes 37 ms on it, far longer than all else here.
    let slow = Rate::new(1_000_000).unwrap();
    let cluster = Cluster::up_with(2, |spec| {
        spec.relay_up_to = RelayUpTo::Auto;
        spec.link = Some(slow);
    });
    let object = Object::new(cluster.key_on("be1", "object"), 4_000);
    cluster.put_all(std::slice::from_ref(&object));
    let before = counted(&cluster);
    let mut client = cluster.connect();
    let request = Request::get(&object).encode(&cluster);
    client.send(&request.repeat(20));
    (0..20).for_each(|_| client.expect(&object));
    let now = counted(&cluster);
    assert!((1..20).contains(&(now[0] - before[0])), "relayed");
    assert_eq!(now[1] - before[1], 1, "it stays with the object's owner");
}

#[test]
fn over_https_it_is_the_same() {
    let Some(_turn) = turn() else { return };
    let cluster = tls::up(2, |spec| spec.relay_up_to = RelayUpTo::Bytes(UP_TO_BYTES));
    let [[short, long], [other_short, other_long]] = objects(&cluster);
    for version in Version::ALL {
        let config = Arc::new(tls::config(&cluster, &[version.rustls()]));
        let mut client = tls::connect(&cluster, &config);
        adds(&cluster, [2, 0, 0], || {
            client.get(&cluster, &short);
            client.get(&cluster, &other_short);
        });
        for object in [&long, &other_short, &other_long, &short, &long] {
            client.get(&cluster, object);
        }
    }
}

fn crc32(bytes: &[u8]) -> String {
    let expected = Expected::default().want(Algorithm::Crc32).unwrap();
    let mut digest = BodyDigest::new(expected);
    digest.update(bytes);
    digest.finish().unwrap().checksum.unwrap().1
}

/// The nodes' configuration, in which `host` keeps no objects.
fn without_backend(config: &str, host: &str) -> String {
    let (before, node) = config.split_once(&format!("name = \"{host}\"")).unwrap();
    let node = node.replacen("roles = [\"backend\"]", "roles = [\"frontend\"]", 1);
    format!("{before}name = \"{host}\"{node}")
}

#[test]
fn nodes_whose_configurations_differ_refuse_what_would_not_be_found() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::relaying(2);
    let kept = Object::new(cluster.key_on("be1", "kept"), 10);
    let mine = Object::new(cluster.key_on("be0", "mine"), 10);
    let lost = Object::new(cluster.key_on("be1", "lost"), 10);
    cluster.put_all(std::slice::from_ref(&kept));

    // Only the frontend's configuration gives every key to be0.
    let path = cluster.lab.config_path().with_file_name("nodes.toml");
    let config = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, without_backend(&config, "be1")).unwrap();
    cluster.lab.restart("fe0").unwrap();
    std::fs::write(&path, &config).unwrap();
    let mut client = cluster.connect();
    client.put(&cluster, &mine);
    let refused = |answer: Answer| {
        assert_eq!(answer.status(), 503, "{}", answer.text());
        assert!(
            answer.text().contains("configurations differ"),
            "{}",
            answer.text()
        );
    };
    refused(client.try_to_put(&cluster, &lost));
    refused(client.call(&Request::get(&kept).encode(&cluster)));
    let key = &lost.key;
    for (method, target) in [
        ("DELETE", format!("/{key}")),
        ("POST", format!("/{key}?uploads=")),
    ] {
        refused(client.call(&cluster.request(method, &target)));
    }
    let source = format!("/{BUCKET}/{}", mine.key);
    let copy = Request::new("PUT", &format!("/{key}"));
    let copy = copy.signed_header("x-amz-copy-source", source);
    refused(client.call(&copy.encode(&cluster)));
    let xml = format!("<Delete><Object><Key>{}</Key></Object></Delete>", kept.key);
    let delete = Request::new("POST", "?delete=").signing(xml.as_bytes());
    let delete = delete
        .header("Content-Length", xml.len().to_string())
        .signed_header("x-amz-checksum-crc32", crc32(xml.as_bytes()));
    let mut request = delete.encode(&cluster);
    request.extend_from_slice(xml.as_bytes());
    let answer = client.call(&request);
    let text = String::from_utf8(answer.body).unwrap();
    assert!(
        text.contains("<Error>") && text.contains("configurations differ"),
        "{text}"
    );
    let log = std::fs::read_to_string(cluster.lab.log_path("be0")).unwrap();
    assert!(log.contains("configurations differ"), "it says so");

    // Only answered writes are there.
    cluster.lab.restart("fe0").unwrap();
    let mut client = cluster.connect();
    eventually("be1 is in reach", Duration::from_secs(5), || {
        client.call(&Request::get(&kept).encode(&cluster)).status() == 200
    });
    client.get(&cluster, &kept);
    client.get(&cluster, &mine);
    let missing = client.call(&Request::get(&lost).encode(&cluster));
    assert_eq!(missing.status(), 404, "{}", missing.text());
    let listed = client.call(&cluster.request("GET", "?list-type=2"));
    let listed = String::from_utf8(listed.body).unwrap();
    assert!(!listed.contains(&lost.key), "{listed}");
    assert!(
        listed.contains(&kept.key) && listed.contains(&mine.key),
        "{listed}"
    );
}

#[test]
fn what_an_object_keeps_comes_back_through_every_node_or_is_refused() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::relaying(2);
    let mut client = cluster.connect();
    let target = format!("/{}", cluster.key_on("be1", "object"));
    let names: Vec<String> = (0..95).map(|n| format!("x-amz-meta-{n}")).collect();
    // As many tags as a request has room for beside its signature.
    for count in [92, 95] {
        let named = &names[..count];
        let put = Request::new("PUT", &target).header("Content-Length", "0");
        let put = named
            .iter()
            .fold(put, |put, name| put.signed_header(name, "v"));
        let stored = client.call(&put.encode(&cluster));
        assert_eq!(stored.status(), 200, "{count}: {}", stored.text());
        for method in ["HEAD", "GET"] {
            let answer = client.call(&cluster.request(method, &target));
            assert_eq!(answer.status(), 200, "{method} {count}: {}", answer.text());
            assert!(
                named.iter().all(|name| answer.header(name) == "v"),
                "{method}"
            );
        }
    }
    // A query has room for more.
    let names = (0..101).map(|n| format!("x-amz-meta-{n}=v"));
    let query = names.collect::<Vec<_>>().join("&");
    let host = cluster.service.to_string();
    let target = format!("/{BUCKET}{target}?{query}");
    let now = time::OffsetDateTime::now_utc();
    let signer = &cluster.signer;
    let url = signer.presign("PUT", &target, &host, Body::Unsigned, 60, now);
    let url = url.unwrap();
    let put = format!("PUT {url} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n");
    let refused = client.call(put.as_bytes());
    assert_eq!(refused.status(), 400, "{}", refused.text());
    assert!(
        refused.text().contains("MetadataTooLarge"),
        "{}",
        refused.text()
    );
}

#[test]
fn a_browser_may_see_what_a_frontend_answers_itself() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::relaying(2);
    let rules = "<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin>\
        <AllowedMethod>GET</AllowedMethod><AllowedMethod>POST</AllowedMethod></CORSRule>\
        </CORSConfiguration>";
    let put = Request::new("PUT", "?cors=").signing(rules.as_bytes());
    let put = put.header("Content-Length", rules.len().to_string());
    let mut request = put.encode(&cluster);
    request.extend_from_slice(rules.as_bytes());
    let mut client = cluster.connect();
    assert_eq!(client.call(&request).status(), 200);
    let origin = |request: Request<'_>| request.header("Origin", "http://a.test").encode(&cluster);
    let allows = |answer: &Answer| answer.header("access-control-allow-origin") == "*";
    eventually("the frontend knows", Duration::from_secs(5), || {
        allows(&client.call(&origin(Request::new("GET", "?list-type=2"))))
    });
    let unsigned = format!("GET /{BUCKET}/k HTTP/1.1\r\nHost: h\r\nOrigin: http://a.test\r\n\r\n");
    for (request, status) in [
        (origin(Request::new("GET", "?versions=")), 200),
        (origin(Request::new("POST", "?delete=")), 400),
        (origin(Request::new("GET", "?torrent=")), 501),
        (origin(Request::new("GET", "/missing")), 404),
        (unsigned.into_bytes(), 403),
    ] {
        let answer = client.call(&request);
        assert_eq!(answer.status(), status, "{}", answer.text());
        assert!(allows(&answer), "{status}: {:?}", answer.head);
    }
    let other = client.call(&cluster.request("GET", "?list-type=2"));
    assert_eq!(other.header("access-control-allow-origin"), "");
}
