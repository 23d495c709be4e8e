//! Buckets: made, listed page by page, versioned, deleted.

use crate::support::Server;

#[test]
fn a_bucket_is_made_once_and_deleted_when_it_is_empty() {
    let server = Server::alone();
    assert_eq!(server.send("PUT /bkt", &[], &[]).status, 200);
    assert_eq!(server.send("HEAD /bkt", &[], &[]).status, 200);
    assert_eq!(server.send("GET /", &[], &[]).elements("Name"), ["bkt"]);
    server.send("PUT /bkt/k", &[], b"x");
    let full = server.send("DELETE /bkt", &[], &[]);
    assert_eq!(full.elements("Code"), ["BucketNotEmpty"]);
    // The refused deletion has changed nothing.
    assert_eq!(server.send("PUT /bkt/k", &[], b"y").status, 200);
    server.send("DELETE /bkt/k", &[], &[]);
    assert_eq!(server.send("DELETE /bkt", &[], &[]).status, 204);
    assert_eq!(server.send("HEAD /bkt", &[], &[]).status, 404);
    let elsewhere = b"<CreateBucketConfiguration><LocationConstraint>eu-1</LocationConstraint></CreateBucketConfiguration>";
    let refused = server.send("PUT /other", &[], elsewhere);
    assert_eq!(refused.status, 400, "{}", refused.text());
}

#[test]
fn a_preflight_is_judged_by_the_rules_of_the_bucket_alone() {
    let server = Server::alone();
    server.send("PUT /bkt", &[], &[]);
    let origin = ("Origin", "http://a.test");
    let put = ("Access-Control-Request-Method", "PUT");
    let signed = "OPTIONS /bkt/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=0";
    let ask = |start: &str, fields: &[(&str, &str)]| server.send_by(None, start, fields, &[]);
    for start in ["OPTIONS /bkt/k", signed] {
        for fields in [&[][..], &[origin], &[put]] {
            let refused = ask(start, fields);
            assert_eq!(refused.status, 400, "{start}");
            assert_eq!(refused.elements("Code"), ["BadRequest"], "{start}");
        }
        let refused = ask(start, &[origin, put]);
        assert_eq!(refused.elements("Code"), ["AccessForbidden"], "{start}");
    }
    let rules = b"<CORSConfiguration><CORSRule><AllowedOrigin>http://a.test</AllowedOrigin>\
        <AllowedMethod>PUT</AllowedMethod></CORSRule></CORSConfiguration>";
    assert_eq!(server.send("PUT /bkt?cors", &[], rules).status, 200);
    for start in ["OPTIONS /bkt/k", signed] {
        let allowed = ask(start, &[origin, put]);
        assert_eq!(allowed.status, 200, "{start}: {}", allowed.text());
        assert_eq!(allowed.header("access-control-allow-origin"), origin.1);
    }
}

#[test]
fn pages_of_a_listing_are_in_order_and_complete() {
    let server = Server::alone();
    server.send("PUT /bkt", &[], &[]);
    let mut keys: Vec<String> = (0..7).map(|n| format!("dir{}/{n}", n % 3)).collect();
    keys.extend((0..7).map(|n| format!("key{n}")));
    for key in &keys {
        server.send(&format!("PUT /bkt/{key}"), &[], b"x");
    }
    keys.sort();
    for page in [1, 2, 5, 100] {
        let (mut found, mut after) = (Vec::new(), String::new());
        loop {
            let start = format!("GET /bkt?list-type=2&max-keys={page}&start-after={after}");
            let listed = server.send(&start, &[], &[]);
            found.extend(listed.elements("Key").into_iter().map(str::to_owned));
            if listed.elements("IsTruncated") == ["false"] {
                break;
            }
            after.clone_from(found.last().unwrap());
        }
        assert_eq!(found, keys, "{page} at a time");
    }
    let folders = server.send("GET /bkt?list-type=2&delimiter=/", &[], &[]);
    let prefixes = folders.elements("Prefix");
    // The first one is the request's own, which is empty.
    assert!(
        prefixes.ends_with(&["dir0/", "dir1/", "dir2/"]),
        "{prefixes:?}"
    );
    assert_eq!(folders.elements("Key").len(), 7);
    let below = server.send("GET /bkt?list-type=2&prefix=dir0/", &[], &[]);
    assert_eq!(below.elements("Key"), ["dir0/0", "dir0/3", "dir0/6"]);
}

#[test]
fn versions_stay_until_they_are_deleted_by_name() {
    let server = Server::alone();
    server.send("PUT /bkt", &[], &[]);
    let on = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    assert_eq!(server.send("PUT /bkt?versioning", &[], on).status, 200);
    let told = server.send("GET /bkt?versioning", &[], &[]);
    assert_eq!(told.elements("Status"), ["Enabled"]);
    let first = server.send("PUT /bkt/k", &[], b"first");
    let second = server.send("PUT /bkt/k", &[], b"second");
    let first = first.header("x-amz-version-id").to_owned();
    assert_ne!(first, second.header("x-amz-version-id"));
    let gone = server.send("DELETE /bkt/k", &[], &[]);
    assert_eq!(gone.header("x-amz-delete-marker"), "true");
    let missing = server.send("GET /bkt/k", &[], &[]);
    assert_eq!(
        (missing.status, missing.header("x-amz-delete-marker")),
        (404, "true")
    );
    let old = server.send(&format!("GET /bkt/k?versionId={first}"), &[], &[]);
    assert_eq!(old.text(), "first");
    let listed = server.send("GET /bkt?versions", &[], &[]);
    assert_eq!(listed.elements("VersionId").len(), 3);
    assert_eq!(listed.elements("IsLatest"), ["true", "false", "false"]);
    let marker = gone.header("x-amz-version-id");
    server.send(&format!("DELETE /bkt/k?versionId={marker}"), &[], &[]);
    assert_eq!(server.send("GET /bkt/k", &[], &[]).text(), "second");
}
