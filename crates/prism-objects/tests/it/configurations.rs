//! Configurations of buckets that no bucket has, and the ones that are refused.

use prism_s3::access::Rights;

use crate::support::Server;

fn with_bucket() -> Server {
    let server = Server::alone();
    assert_eq!(server.send("PUT /bkt", &[], &[]).status, 200);
    server
}

#[test]
fn a_configuration_that_was_never_set_is_answered_as_in_s3() {
    let server = with_bucket();
    for (parameter, code) in [
        ("tagging", "NoSuchTagSet"),
        ("lifecycle", "NoSuchLifecycleConfiguration"),
        ("website", "NoSuchWebsiteConfiguration"),
        ("replication", "ReplicationConfigurationNotFoundError"),
        ("object-lock", "ObjectLockConfigurationNotFoundError"),
        ("publicAccessBlock", "NoSuchPublicAccessBlockConfiguration"),
        (
            "encryption",
            "ServerSideEncryptionConfigurationNotFoundError",
        ),
        ("policyStatus", "NoSuchBucketPolicy"),
        ("analytics&id=a", "NoSuchConfiguration"),
    ] {
        let missing = server.send(&format!("GET /bkt?{parameter}"), &[], &[]);
        assert_eq!(missing.status, 404, "{parameter}");
        assert_eq!(missing.elements("Code"), [code]);
    }
    for (parameter, content) in [
        ("acl", "<Permission>FULL_CONTROL</Permission>"),
        ("notification", "<NotificationConfiguration "),
        ("logging", "<BucketLoggingStatus "),
        ("accelerate", "<AccelerateConfiguration "),
        ("requestPayment", "<Payer>BucketOwner</Payer>"),
        (
            "ownershipControls",
            "<ObjectOwnership>BucketOwnerEnforced</ObjectOwnership>",
        ),
        ("inventory", "<IsTruncated>false</IsTruncated>"),
    ] {
        let found = server.send(&format!("GET /bkt?{parameter}"), &[], &[]);
        assert_eq!(found.status, 200, "{parameter}: {}", found.text());
        assert!(found.text().contains(content), "{}", found.text());
        let none = server.send(&format!("GET /none?{parameter}"), &[], &[]);
        assert_eq!(none.elements("Code"), ["NoSuchBucket"], "{parameter}");
        let set = server.send(&format!("PUT /bkt?{parameter}"), &[], b"<x/>");
        assert_eq!(set.elements("Code"), ["NotImplemented"], "{parameter}");
    }
    for parameter in [
        "tagging",
        "lifecycle",
        "website",
        "replication",
        "encryption",
        "publicAccessBlock",
        "ownershipControls",
    ] {
        let deleted = server.send(&format!("DELETE /bkt?{parameter}"), &[], &[]);
        assert_eq!(deleted.status, 204, "{parameter}: {}", deleted.text());
    }
    assert_eq!(server.send("HEAD /bkt", &[], &[]).status, 200);
}

#[test]
fn configurations_are_for_readers_and_owners_and_deletions_for_owners() {
    let server = with_bucket();
    server.send("PUT /bkt/k", &[], b"x");
    let rights = [
        ("reader", "bkt", Rights::READ),
        ("writer", "bkt", Rights::WRITE),
        ("owner", "bkt", Rights::OWNER),
    ];
    server.set_rights(&rights);
    for (key, reads, deletes, reads_object) in [
        (Some("reader"), 200, 403, 200),
        (Some("writer"), 403, 403, 403),
        (Some("owner"), 200, 204, 403),
        (None, 403, 403, 403),
    ] {
        let status = |start| server.send_by(key, start, &[], &[]).status;
        assert_eq!(status("GET /bkt?acl"), reads, "{key:?}");
        assert_eq!(status("DELETE /bkt?lifecycle"), deletes, "{key:?}");
        assert_eq!(status("GET /bkt/k?acl"), reads_object, "{key:?}");
    }
}

#[test]
fn an_object_has_the_acl_of_every_object() {
    let server = with_bucket();
    server.send("PUT /bkt/k", &[], b"x");
    let acl = server.send("GET /bkt/k?acl", &[], &[]);
    assert_eq!(acl.elements("Permission"), ["FULL_CONTROL"]);
    assert_eq!(acl.elements("ID"), ["prism", "prism"]);
    let missing = server.send("GET /bkt/none?acl", &[], &[]);
    assert_eq!(missing.elements("Code"), ["NoSuchKey"]);
    let public = [("x-amz-acl", "public-read")];
    let put = server.send("PUT /bkt/k", &public, b"x");
    assert_eq!(put.elements("Code"), ["NotImplemented"]);
    let put = server.send("PUT /bkt/k", &[("x-amz-acl", "public")], b"x");
    assert_eq!(put.elements("Code"), ["InvalidArgument"]);
}

#[test]
fn the_status_of_a_policy_says_whether_everybody_is_allowed_something() {
    let server = with_bucket();
    let status = |principal: &str, condition: &str| {
        let policy = format!(
            "{{\"Statement\":{{\"Effect\":\"Allow\",\"Principal\":{principal},\
             \"Action\":\"s3:GetObject\",\"Resource\":\"arn:aws:s3:::bkt/*\",\
             \"Condition\":{{{condition}}}}}}}"
        );
        let put = server.send("PUT /bkt?policy", &[], policy.as_bytes());
        assert_eq!(put.status, 204, "{}", put.text());
        let status = server.send("GET /bkt?policyStatus", &[], &[]);
        status.elements("IsPublic").concat()
    };
    let of = |networks: &str| format!("\"IpAddress\":{{\"aws:SourceIp\":{networks}}}");
    let all = "\"*\"";
    assert_eq!(status(all, ""), "true");
    assert_eq!(status("{\"AWS\":\"key\"}", ""), "false");
    assert_eq!(
        status(all, &of("[\"10.0.0.0/8\",\"2001:db8::/32\"]")),
        "false"
    );
    assert_eq!(status(all, &of("[\"10.0.0.0/8\",\"0.0.0.0/1\"]")), "true");
    let not = of("\"10.0.0.0/8\"").replace("\"Ip", "\"NotIp");
    assert_eq!(status(all, &not), "true");
}

#[test]
fn a_bucket_is_made_in_this_region_only_and_without_tags() {
    let server = Server::alone();
    let make = |inner: &str| {
        let body = format!("<CreateBucketConfiguration>{inner}</CreateBucketConfiguration>");
        let made = server.send("PUT /bkt", &[], body.as_bytes());
        made.elements("Code").concat()
    };
    let region = |name: &str| format!("<LocationConstraint>{name}</LocationConstraint>");
    let tag = "<Tags><Tag><Key>a</Key><Value>b</Value></Tag></Tags>";
    for (inner, code) in [
        (region("eu-west-1"), "IllegalLocationConstraintException"),
        (region("EU"), "IllegalLocationConstraintException"),
        (region("nowhere"), "InvalidLocationConstraint"),
        (tag.to_owned(), "NotImplemented"),
        ("<Other/>".to_owned(), "MalformedXML"),
    ] {
        assert_eq!(make(&inner), code, "{inner}");
    }
    assert_eq!(server.send("HEAD /bkt", &[], &[]).status, 404);
    assert_eq!(make(&region("us-east-1")), "");
}

#[test]
fn everybody_hears_that_forms_are_not_served() {
    let server = with_bucket();
    let form = [("Content-Type", "multipart/form-data; boundary=b")];
    for key in [None, Some("admin")] {
        let refused = server.send_by(key, "POST /bkt", &form, b"--b--");
        assert_eq!(refused.status, 501, "{key:?}: {}", refused.text());
        assert_eq!(refused.elements("Code"), ["NotImplemented"]);
    }
}

#[test]
fn a_suspended_bucket_names_the_null_version_of_every_write() {
    let server = with_bucket();
    let set = |status: &str| {
        let body =
            format!("<VersioningConfiguration><Status>{status}</Status></VersioningConfiguration>");
        let put = server.send("PUT /bkt?versioning", &[], body.as_bytes());
        assert_eq!(put.status, 200, "{}", put.text());
    };
    let write = |start: &str, fields: &[(&str, &str)]| {
        let made = server.send(start, fields, b"");
        assert_eq!(made.status, 200, "{start}: {}", made.text());
        made.header("x-amz-version-id").to_owned()
    };
    // It may be suspended without ever having been enabled.
    for status in ["Suspended", "Enabled", "Suspended"] {
        set(status);
        let is_null = status == "Suspended";
        assert_eq!(write("PUT /bkt/k", &[]) == "null", is_null, "{status}");
        let copy = write("PUT /bkt/copy", &[("x-amz-copy-source", "/bkt/k")]);
        assert_eq!(copy == "null", is_null, "{status}");
        let read = server.send("GET /bkt/k", &[], &[]);
        assert_eq!(read.header("x-amz-version-id") == "null", is_null);
    }
}

#[test]
fn buckets_are_listed_page_by_page() {
    let server = Server::alone();
    for name in ["a-1", "a-2", "a-3", "b-1"] {
        server.send(&format!("PUT /{name}"), &[], &[]);
    }
    let mut found = Vec::new();
    let mut token = String::new();
    for page in 0.. {
        let listed = server.send(&format!("GET /?max-buckets=1&prefix=a-{token}"), &[], &[]);
        assert_eq!(listed.elements("BucketRegion"), ["us-east-1"]);
        found.extend(listed.elements("Name").into_iter().map(str::to_owned));
        match listed.elements("ContinuationToken").first() {
            Some(next) => token = format!("&continuation-token={next}"),
            None => {
                assert_eq!(page, 2);
                break;
            }
        }
    }
    assert_eq!(found, ["a-1", "a-2", "a-3"]);
    let names = |query: &str| {
        let listed = server.send(&format!("GET /?{query}"), &[], &[]);
        listed.elements("Name").len()
    };
    assert_eq!(names("bucket-region=us-east-1"), 4);
    assert_eq!(names("bucket-region=eu-west-1"), 0);
    assert_eq!(names("max-buckets=9"), 4);
    let all = server.send("GET /", &[], &[]);
    assert!(all.elements("BucketRegion").is_empty());
}
