//! Objects: written, read, read in part, under conditions, tagged, copied, deleted.

use crate::support::Server;

fn with_bucket() -> Server {
    let server = Server::alone();
    assert_eq!(server.send("PUT /bkt", &[], &[]).status, 200);
    server
}

#[test]
fn an_object_is_read_as_it_was_written_whatever_its_length() {
    let server = with_bucket();
    for len in [0, 1, 1000, 70_000, 700_000, 3_000_000] {
        let body: Vec<u8> = (0..len).map(|n| (n * 31 % 251) as u8).collect();
        let fields = [("Content-Type", "a/b"), ("x-amz-meta-of", "me")];
        let put = server.send("PUT /bkt/k", &fields, &body);
        assert_eq!((put.status, put.keep_alive), (200, true), "{}", put.text());
        // The next request is found behind the body.
        assert_eq!(put.unread, b"GET /next");
        let got = server.send("GET /bkt/k", &[], &[]);
        assert_eq!((got.status, got.body.len()), (200, len));
        assert!(got.body == body, "{len}");
        assert_eq!(got.header("etag"), put.header("etag"));
        assert_eq!(got.header("content-type"), "a/b");
        assert_eq!(got.header("x-amz-meta-of"), "me");
        let head = server.send("HEAD /bkt/k", &[], &[]);
        assert_eq!((head.status, head.body.len()), (200, 0));
        assert_eq!(head.header("content-length"), len.to_string());
    }
}

#[test]
fn a_range_gives_its_bytes_and_says_which() {
    let server = with_bucket();
    server.send("PUT /bkt/k", &[], b"0123456789");
    for (range, bytes, said) in [
        ("bytes=0-3", "0123", "bytes 0-3/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=-2", "89", "bytes 8-9/10"),
        ("bytes=3-99", "3456789", "bytes 3-9/10"),
    ] {
        let got = server.send("GET /bkt/k", &[("Range", range)], &[]);
        assert_eq!((got.status, got.text()), (206, bytes));
        assert_eq!(got.header("content-range"), said);
    }
    let beyond = server.send("GET /bkt/k", &[("Range", "bytes=10-")], &[]);
    assert_eq!(beyond.status, 416);
    assert_eq!(beyond.header("content-range"), "bytes */10");
    assert_eq!(beyond.elements("RangeRequested"), ["bytes=10-"]);
    assert_eq!(beyond.elements("ActualObjectSize"), ["10"]);
}

#[test]
fn a_suffix_of_an_empty_object_is_all_of_it() {
    let server = with_bucket();
    server.send("PUT /bkt/k", &[], &[]);
    for method in ["GET", "HEAD"] {
        let suffix = server.send(&format!("{method} /bkt/k"), &[("Range", "bytes=-8")], &[]);
        assert_eq!((suffix.status, suffix.body.len()), (200, 0), "{method}");
        assert_eq!(suffix.header("content-range"), "");
    }
    let first = server.send("GET /bkt/k", &[("Range", "bytes=0-8")], &[]);
    assert_eq!(first.status, 416);
    assert_eq!(first.elements("ActualObjectSize"), ["0"]);
}

#[test]
fn conditions_are_asked_before_anything_is_read_or_written() {
    let server = with_bucket();
    let first = server.send("PUT /bkt/k", &[("If-None-Match", "*")], b"first");
    assert_eq!(first.status, 200);
    let etag = first.header("etag").to_owned();
    let again = server.send("PUT /bkt/k", &[("If-None-Match", "*")], b"again");
    assert_eq!((again.status, again.keep_alive), (412, true));
    assert_eq!(again.unread, b"GET /next");
    let other = server.send("PUT /bkt/k", &[("If-Match", "\"0\"")], b"other");
    assert_eq!(other.status, 412);
    let next = server.send("PUT /bkt/k", &[("If-Match", &etag)], b"next");
    assert_eq!(next.status, 200);
    assert_eq!(
        server
            .send("GET /bkt/k", &[("If-Match", &etag)], &[])
            .status,
        412
    );
    let same = server.send("GET /bkt/k", &[("If-None-Match", next.header("etag"))], &[]);
    assert_eq!((same.status, same.body.len()), (304, 0));
    assert_eq!(server.send("GET /bkt/k", &[], &[]).text(), "next");
}

#[test]
fn what_is_missing_malformed_or_forbidden_is_said_in_s3s_words() {
    let server = with_bucket();
    for (start, status, code) in [
        ("GET /bkt/none", 404, "NoSuchKey"),
        ("GET /none/k", 404, "NoSuchBucket"),
        ("PUT /none/k", 404, "NoSuchBucket"),
        ("GET /bkt/k?versionId=x", 400, "InvalidArgument"),
        ("GET /bkt?acl=1&torrent", 501, "NotImplemented"),
        ("PUT /bkt/k?acl", 501, "NotImplemented"),
        ("GET /bkt/none?ver=6.5", 404, "NoSuchKey"),
    ] {
        let refused = server.send(start, &[], &[]);
        assert_eq!(refused.status, status, "{start}: {}", refused.text());
        assert_eq!(refused.elements("Code"), [code], "{start}");
        assert!(refused.keep_alive, "{start}");
    }
    let unsigned = server.send_unsigned("GET /bkt/k");
    assert_eq!(
        (unsigned.status, unsigned.elements("Code")),
        (403, vec!["AccessDenied"])
    );
    let digest = [("Content-MD5", "AAAAAAAAAAAAAAAAAAAAAA==")];
    let damaged = server.send("PUT /bkt/k", &digest, b"other bytes");
    assert_eq!(damaged.elements("Code"), ["BadDigest"]);
    assert_eq!(server.send("GET /bkt/k", &[], &[]).status, 404);
}

#[test]
fn tags_attributes_and_copies_follow_their_object() {
    let server = with_bucket();
    server.send("PUT /bkt/k", &[("x-amz-tagging", "a=1")], b"bytes");
    let tags = b"<Tagging><TagSet><Tag><Key>b</Key><Value>2</Value></Tag></TagSet></Tagging>";
    assert_eq!(server.send("PUT /bkt/k?tagging", &[], tags).status, 200);
    let sign = b"<Tagging><TagSet><Tag><Key>b</Key><Value>2*</Value></Tag></TagSet></Tagging>";
    let refused = server.send("PUT /bkt/k?tagging", &[], sign);
    assert_eq!(refused.elements("Code"), ["InvalidTag"]);
    let told = server.send("GET /bkt/k?tagging", &[], &[]);
    assert_eq!(
        (told.elements("Key"), told.elements("Value")),
        (vec!["b"], vec!["2"])
    );
    let copied = server.send("PUT /bkt/copy", &[("x-amz-copy-source", "/bkt/k")], &[]);
    assert_eq!(copied.status, 200, "{}", copied.text());
    assert_eq!(server.send("GET /bkt/copy", &[], &[]).text(), "bytes");
    let told = server.send("GET /bkt/copy?tagging", &[], &[]);
    assert_eq!(told.elements("Value"), ["2"]);
    let asked = [("x-amz-object-attributes", "ObjectSize")];
    let attributes = server.send("GET /bkt/k?attributes", &asked, &[]);
    assert_eq!(attributes.elements("ObjectSize"), ["5"]);
}

#[test]
fn deletions_take_effect_one_by_one_and_many_at_once() {
    let server = with_bucket();
    for n in 0..5 {
        server.send(&format!("PUT /bkt/{n}"), &[], b"x");
    }
    assert_eq!(server.send("DELETE /bkt/0", &[], &[]).status, 204);
    assert_eq!(server.send("DELETE /bkt/0", &[], &[]).status, 204);
    let list = b"<Delete><Object><Key>1</Key></Object><Object><Key>2</Key></Object></Delete>";
    let refused = server.send("POST /bkt?delete", &[], list);
    assert_eq!(refused.elements("Code"), ["InvalidRequest"]);
    let digest = [
        ("x-amz-sdk-checksum-algorithm", "CRC32"),
        ("x-amz-checksum-crc32", "AAAAAA=="),
    ];
    let damaged = server.send("POST /bkt?delete", &digest, list);
    assert_eq!(damaged.elements("Code"), ["BadDigest"]);
    assert_eq!(
        server.send("GET /bkt", &[], &[]).elements("Key"),
        ["1", "2", "3", "4"]
    );
}
