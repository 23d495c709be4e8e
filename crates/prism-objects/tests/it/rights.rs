//! Keys with rights on buckets, and policies of buckets.

use prism_s3::access::Rights;

use crate::support::{ADMIN, Server};

const READ: Rights = Rights::READ;
const WRITE: Rights = Rights::WRITE;
const OWNER: Rights = Rights::OWNER;

fn policy(statements: &str) -> String {
    format!("{{\"Version\":\"2012-10-17\",\"Statement\":[{statements}]}}")
}

fn statement(effect: &str, principal: &str, action: &str) -> String {
    format!(
        "{{\"Effect\":\"{effect}\",\"Principal\":{principal},\"Action\":\"{action}\",\
         \"Resource\":[\"arn:aws:s3:::bkt\",\"arn:aws:s3:::bkt/*\"]}}"
    )
}

/// A server with the buckets `bkt` and `other`, and an object in each.
fn server() -> Server {
    let server = Server::alone();
    for bucket in ["bkt", "other"] {
        server.send(&format!("PUT /{bucket}"), &[], &[]);
        server.send(&format!("PUT /{bucket}/k"), &[], b"open");
    }
    server
}

fn put_policy(server: &Server, statements: &str) {
    let put = server.send("PUT /bkt?policy", &[], policy(statements).as_bytes());
    assert_eq!(put.status, 204, "{}", put.text());
}

#[test]
fn what_everybody_may_read_is_the_policys_to_say() {
    let server = server();
    assert_eq!(server.send_unsigned("GET /bkt/k").status, 403);
    put_policy(&server, &statement("Allow", "\"*\"", "s3:GetObject"));
    assert_eq!(server.send_unsigned("GET /bkt/k").text(), "open");
    assert_eq!(server.send_unsigned("GET /bkt").status, 403);
    assert_eq!(server.send_unsigned("DELETE /bkt/k").status, 403);
    put_policy(&server, &statement("Allow", "\"*\"", "s3:*"));
    assert_eq!(server.send_unsigned("PUT /bkt/new").status, 200);
    assert_eq!(server.send_unsigned("DELETE /bkt/new").status, 204);
    assert_eq!(server.send("DELETE /bkt?policy", &[], &[]).status, 204);
    assert_eq!(server.send_unsigned("GET /bkt/k").status, 403);
}

#[test]
fn a_missing_key_is_404_only_for_those_who_may_list_the_bucket() {
    let server = server();
    server.set_rights(&[("reader", "bkt", READ), ("writer", "other", WRITE)]);
    let reads = [
        "GET /bkt/none",
        "HEAD /bkt/none",
        "GET /bkt/none?tagging",
        "GET /bkt/none?attributes",
        "GET /bkt/none?versionId=null",
    ];
    let check = |key: Option<&str>, expected: u16| {
        for start in reads {
            let wanted = [("x-amz-object-attributes", "ETag")];
            let fields = if start.ends_with("attributes") {
                &wanted[..]
            } else {
                &[]
            };
            let answer = server.send_by(key, start, fields, &[]);
            assert_eq!(answer.status, expected, "{key:?} {start} {}", answer.text());
        }
    };
    let copy = || {
        let source = [("x-amz-copy-source", "/bkt/none")];
        let copied = server.send_by(Some("writer"), "PUT /other/copy", &source, &[]);
        copied.status
    };
    check(Some("reader"), 404);
    let reading = statement("Allow", "\"*\"", "s3:Get*");
    put_policy(&server, &reading);
    check(None, 403);
    check(Some("writer"), 403);
    check(Some("reader"), 404);
    check(Some(ADMIN), 404);
    assert_eq!(copy(), 403);
    let listing = statement("Allow", "\"*\"", "s3:ListBucket");
    put_policy(&server, &format!("{reading},{listing}"));
    check(None, 404);
    assert_eq!(copy(), 404);
    let denial = statement("Deny", "\"*\"", "s3:ListBucket");
    put_policy(&server, &format!("{reading},{denial}"));
    check(Some("reader"), 403);
}

#[test]
fn a_stranger_learns_that_a_bucket_is_missing_and_cannot_create_it() {
    let server = server();
    for start in [
        "GET /missing",
        "HEAD /missing",
        "GET /missing/k",
        "PUT /missing/k",
    ] {
        assert_eq!(server.send_unsigned(start).status, 404, "{start}");
    }
    let missing = server.send_unsigned("GET /missing/k");
    assert_eq!(missing.elements("Code"), ["NoSuchBucket"]);
    assert_eq!(server.send_unsigned("PUT /missing").status, 403);
    assert_eq!(server.send_unsigned("GET /bkt").status, 403);
}

#[test]
fn a_key_does_what_its_rights_say_from_the_next_request_on() {
    let server = server();
    let status = |start: &str| server.send_by(Some("key"), start, &[], &[]).status;
    assert_eq!(status("GET /bkt/k"), 403, "not known");
    server.set_rights(&[("key", "bkt", READ)]);
    assert_eq!(status("GET /bkt/k"), 200);
    assert_eq!(status("PUT /bkt/k"), 403);
    assert_eq!(status("GET /other/k"), 403);
    assert_eq!(status("GET /missing/k"), 403);
    server.set_rights(&[("key", "bkt", WRITE)]);
    assert_eq!((status("GET /bkt/k"), status("PUT /bkt/k")), (403, 200));
    server.set_rights(&[("key", "made", OWNER)]);
    assert_eq!((status("PUT /made"), status("PUT /made2")), (200, 403));
    assert_eq!((status("PUT /made/k"), status("DELETE /made")), (403, 204));
}

#[test]
fn a_copy_needs_to_read_its_source() {
    let server = server();
    let source = [("x-amz-copy-source", "/other/k")];
    let copy = |key| {
        server
            .send_by(Some(key), "PUT /bkt/copy", &source, &[])
            .status
    };
    server.set_rights(&[("writer", "bkt", WRITE)]);
    assert_eq!((copy("writer"), copy("admin")), (403, 200));
    let within = [("x-amz-copy-source", "/bkt/k")];
    let within = |key| {
        server
            .send_by(Some(key), "PUT /bkt/copy", &within, &[])
            .status
    };
    assert_eq!(within("writer"), 403);
    server.set_rights(&[("writer", "bkt", WRITE | READ)]);
    assert_eq!((copy("writer"), within("writer")), (403, 200));
}

#[test]
fn buckets_are_shown_to_keys_with_a_right_on_them() {
    let server = server();
    let rights = [
        ("reader", "bkt", READ),
        ("owner", "other", OWNER),
        ("none", "bkt", Rights::empty()),
    ];
    server.set_rights(&rights);
    for (key, expected) in [
        ("admin", &["bkt", "other"][..]),
        ("reader", &["bkt"]),
        ("owner", &["other"]),
        ("none", &[]),
    ] {
        let listed = server.send_by(Some(key), "GET /", &[], &[]);
        assert_eq!(listed.elements("Name"), expected, "{key}");
    }
    assert_eq!(server.send_unsigned("GET /").status, 403);
}

#[test]
fn each_key_of_many_deletions_is_judged() {
    let server = server();
    server.send("PUT /bkt/stays", &[], b"x");
    server.set_rights(&[("writer", "bkt", WRITE), ("reader", "bkt", READ)]);
    let body = b"<Delete><Object><Key>k</Key></Object><Object><Key>stays</Key></Object></Delete>";
    let delete = |key: Option<&str>| {
        let md5 = [("Content-MD5", "mE+RbT70gyibKV0VqRH+Fw==")];
        server.send_by(key, "POST /bkt?delete", &md5, body)
    };
    assert_eq!(delete(Some("reader")).status, 403);
    assert_eq!(delete(None).status, 403);
    let deny = statement("Deny", "\"*\"", "s3:DeleteObject").replace("bkt/*", "bkt/s*");
    put_policy(&server, &deny);
    let done = delete(Some("writer"));
    assert_eq!(done.status, 200, "{}", done.text());
    assert_eq!(
        done.elements("Code").first(),
        Some(&"AccessDenied"),
        "{}",
        done.text()
    );
    assert_eq!(server.send("GET /bkt/k", &[], &[]).status, 404);
    assert_eq!(server.send("GET /bkt/stays", &[], &[]).status, 200);
}

#[test]
fn a_denial_counts_for_all_and_locks_nobody_out() {
    let server = server();
    server.set_rights(&[("key", "bkt", READ), ("owner", "bkt", OWNER)]);
    let all = [
        statement("Deny", "\"*\"", "s3:*"),
        statement("Allow", "\"*\"", "s3:*"),
    ];
    put_policy(&server, &all.join(","));
    for key in [Some("admin"), Some("key"), Some("owner"), None] {
        for start in ["GET /bkt/k", "PUT /bkt/k", "GET /bkt", "DELETE /bkt"] {
            assert_eq!(
                server.send_by(key, start, &[], &[]).status,
                403,
                "{key:?} {start}"
            );
        }
    }
    assert_eq!(server.send("GET /other/k", &[], &[]).status, 200);
    for (key, expected) in [("key", 403), ("owner", 200), ("admin", 200)] {
        let told = server.send_by(Some(key), "GET /bkt?policy", &[], &[]);
        assert_eq!(told.status, expected, "{key}");
    }
    let deleted = server.send_by(Some("owner"), "DELETE /bkt?policy", &[], &[]);
    assert_eq!(deleted.status, 204);
    assert_eq!(
        server.send_by(Some("key"), "GET /bkt/k", &[], &[]).status,
        200
    );
}

#[test]
fn a_condition_is_about_the_connection_of_the_client() {
    let server = server();
    for (condition, expected) in [
        ("\"IpAddress\":{\"aws:SourceIp\":\"192.0.2.0/24\"}", 200),
        ("\"NotIpAddress\":{\"aws:SourceIp\":\"192.0.2.7\"}", 403),
        ("\"Bool\":{\"aws:SecureTransport\":\"true\"}", 403),
        ("\"Bool\":{\"aws:SecureTransport\":\"false\"}", 200),
    ] {
        let allow = statement("Allow", "\"*\"", "s3:GetObject");
        let with = format!("\"Condition\":{{{condition}}},\"Effect\"");
        put_policy(&server, &allow.replace("\"Effect\"", &with));
        let answer = server.send_unsigned("GET /bkt/k");
        assert_eq!(answer.status, expected, "{condition}");
    }
}
