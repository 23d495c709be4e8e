//! Decisions about callers: the table of operations by right, and policies.

mod random;
mod refused;

use std::collections::BTreeMap;
use std::net::IpAddr;

use prism_http::{Limits, RequestHead};
use prism_s3::access::{Caller, Circumstances, KeyRights, Rights, decide, depends_on_policy};
use prism_s3::{BucketName, Code, ObjectKey, ObjectRef, Operation, Policy, S3Error};

const READ: Rights = Rights::READ;
const WRITE: Rights = Rights::WRITE;
const OWNER: Rights = Rights::OWNER;
const READ_OWNER: Rights = READ.union(OWNER);

/// Every operation on the bucket `bkt`: the request, the rights of which one is needed, and the
/// actions of which all are.
const TABLE: &[(&str, Rights, &[&str])] = &[
    ("PUT /bkt", OWNER, &["CreateBucket"]),
    ("DELETE /bkt", OWNER, &["DeleteBucket"]),
    ("HEAD /bkt", Rights::all(), &["ListBucket"]),
    ("GET /bkt?location", Rights::all(), &["GetBucketLocation"]),
    ("GET /bkt?versioning", READ_OWNER, &["GetBucketVersioning"]),
    ("PUT /bkt?versioning", OWNER, &["PutBucketVersioning"]),
    ("GET /bkt?cors", OWNER, &["GetBucketCORS"]),
    ("PUT /bkt?cors", OWNER, &["PutBucketCORS"]),
    ("DELETE /bkt?cors", OWNER, &["PutBucketCORS"]),
    ("GET /bkt?acl", READ_OWNER, &["GetBucketAcl"]),
    (
        "GET /bkt?lifecycle",
        READ_OWNER,
        &["GetLifecycleConfiguration"],
    ),
    ("DELETE /bkt?tagging", OWNER, &["PutBucketTagging"]),
    (
        "GET /bkt?policyStatus",
        READ_OWNER,
        &["GetBucketPolicyStatus"],
    ),
    ("GET /bkt?policy", OWNER, &["GetBucketPolicy"]),
    ("PUT /bkt?policy", OWNER, &["PutBucketPolicy"]),
    ("DELETE /bkt?policy", OWNER, &["DeleteBucketPolicy"]),
    ("GET /bkt", READ, &["ListBucket"]),
    ("GET /bkt?list-type=2", READ, &["ListBucket"]),
    ("GET /bkt?versions", READ, &["ListBucketVersions"]),
    ("GET /bkt?uploads", WRITE, &["ListBucketMultipartUploads"]),
    ("GET /bkt/k", READ, &["GetObject"]),
    ("HEAD /bkt/k", READ, &["GetObject"]),
    ("GET /bkt/k?partNumber=1", READ, &["GetObject"]),
    ("GET /bkt/k?versionId=v", READ, &["GetObjectVersion"]),
    ("HEAD /bkt/k?versionId=v", READ, &["GetObjectVersion"]),
    (
        "GET /bkt/k?attributes",
        READ,
        &["GetObject", "GetObjectAttributes"],
    ),
    (
        "GET /bkt/k?attributes&versionId=v",
        READ,
        &["GetObjectVersion", "GetObjectVersionAttributes"],
    ),
    ("GET /bkt/k?acl", READ, &["GetObjectAcl"]),
    ("GET /bkt/k?acl&versionId=v", READ, &["GetObjectVersionAcl"]),
    ("GET /bkt/k?tagging", READ, &["GetObjectTagging"]),
    ("PUT /bkt/k?tagging", WRITE, &["PutObjectTagging"]),
    ("DELETE /bkt/k?tagging", WRITE, &["DeleteObjectTagging"]),
    (
        "GET /bkt/k?tagging&versionId=v",
        READ,
        &["GetObjectVersionTagging"],
    ),
    (
        "PUT /bkt/k?tagging&versionId=v",
        WRITE,
        &["PutObjectVersionTagging"],
    ),
    (
        "DELETE /bkt/k?tagging&versionId=v",
        WRITE,
        &["DeleteObjectVersionTagging"],
    ),
    ("PUT /bkt/k", WRITE, &["PutObject"]),
    (
        "PUT /bkt/k\nx-amz-tagging: a=b",
        WRITE,
        &["PutObject", "PutObjectTagging"],
    ),
    (
        "PUT /bkt/k\nx-amz-copy-source: /other/k",
        WRITE,
        &["PutObject"],
    ),
    ("DELETE /bkt/k", WRITE, &["DeleteObject"]),
    ("DELETE /bkt/k?versionId=v", WRITE, &["DeleteObjectVersion"]),
    ("POST /bkt/k?uploads", WRITE, &["PutObject"]),
    (
        "POST /bkt/k?uploads\nx-amz-tagging: a=b",
        WRITE,
        &["PutObject", "PutObjectTagging"],
    ),
    ("PUT /bkt/k?partNumber=1&uploadId=u", WRITE, &["PutObject"]),
    (
        "PUT /bkt/k?partNumber=1&uploadId=u\nx-amz-copy-source: /other/k",
        WRITE,
        &["PutObject"],
    ),
    (
        "GET /bkt/k?uploadId=u",
        WRITE,
        &["ListMultipartUploadParts"],
    ),
    ("POST /bkt/k?uploadId=u", WRITE, &["PutObject"]),
    ("DELETE /bkt/k?uploadId=u", WRITE, &["AbortMultipartUpload"]),
];

/// The operation of `METHOD TARGET`, with header fields in further lines.
fn operation(request: &str) -> Operation {
    let (start, fields) = request.split_once('\n').unwrap_or((request, ""));
    let end = if fields.is_empty() { "" } else { "\r\n" };
    let body = if start.starts_with('P') {
        "Content-Length: 0\r\n"
    } else {
        ""
    };
    let attributes = if start.contains("?attributes") {
        "x-amz-object-attributes: ETag\r\n"
    } else {
        ""
    };
    let text = format!("{start} HTTP/1.1\r\nHost: h\r\n{body}{attributes}{fields}{end}\r\n");
    let (head, _) = RequestHead::parse(text.as_bytes(), &Limits::DEFAULT)
        .unwrap()
        .unwrap();
    Operation::parse(&head).unwrap_or_else(|error| panic!("{request}: {error}"))
}

fn bucket() -> BucketName {
    BucketName::parse("bkt").unwrap()
}

fn rights(of: &[(&str, Rights)]) -> KeyRights {
    let buckets = of
        .iter()
        .map(|(name, rights)| ((*name).to_owned(), *rights));
    KeyRights::Buckets(buckets.collect())
}

fn circumstances(address: &str, is_tls: bool) -> Circumstances {
    Circumstances {
        address: address.parse::<IpAddr>().unwrap(),
        is_tls,
    }
}

fn parse(statements: &str) -> Result<Policy, S3Error> {
    let body = format!("{{\"Version\":\"2012-10-17\",\"Statement\":[{statements}]}}");
    Policy::parse(&bucket(), body.as_bytes())
}

fn statement(effect: &str, principal: &str, action: &str, resource: &str) -> String {
    format!(
        "{{\"Effect\":\"{effect}\",\"Principal\":{principal},\"Action\":{action},\
         \"Resource\":{resource}}}"
    )
}

const EVERYTHING: &str = "[\"arn:aws:s3:::bkt\",\"arn:aws:s3:::bkt/*\"]";

/// Whether the holder of `key` with these rights on `bkt` may do it.
fn may(request: &str, of: Rights, policy: Option<&Policy>) -> bool {
    let rights = rights(&[("bkt", of), ("other", Rights::all())]);
    let caller = Caller::Key {
        access_key: "key",
        rights: &rights,
    };
    is_allowed(request, &caller, policy)
}

fn is_allowed(request: &str, caller: &Caller<'_>, policy: Option<&Policy>) -> bool {
    let decision = decide(
        &operation(request),
        caller,
        policy,
        &circumstances("10.0.0.1", false),
    );
    match decision {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.code(), Code::AccessDenied, "{request}");
            false
        }
    }
}

#[test]
fn each_operation_needs_one_of_its_rights() {
    for (request, wanted, _) in TABLE {
        for right in Rights::all() {
            let expected = wanted.contains(right);
            assert_eq!(may(request, right, None), expected, "{request} {right:?}");
        }
        assert!(!may(request, Rights::empty(), None), "{request}");
        let admin = Caller::Key {
            access_key: "admin",
            rights: &KeyRights::Admin,
        };
        assert!(is_allowed(request, &admin, None), "{request}");
        let nobody = Caller::Anonymous {
            rights: Rights::empty(),
        };
        assert!(!is_allowed(request, &nobody, None), "{request}");
        let everybody = Caller::Anonymous { rights: READ };
        assert_eq!(
            is_allowed(request, &everybody, None),
            wanted.contains(Rights::READ),
            "{request}"
        );
    }
}

#[test]
fn a_policy_has_to_allow_all_actions_of_an_operation_and_can_deny_each() {
    for (request, wanted, actions) in TABLE {
        let names: Vec<_> = actions
            .iter()
            .map(|name| format!("\"s3:{name}\""))
            .collect();
        let all = format!("[{}]", names.join(","));
        let allow = |list: &str| parse(&statement("Allow", "\"*\"", list, EVERYTHING)).unwrap();
        assert!(
            may(request, Rights::empty(), Some(&allow(&all))),
            "{request}"
        );
        let nobody = Caller::Anonymous {
            rights: Rights::empty(),
        };
        assert!(
            is_allowed(request, &nobody, Some(&allow(&all))),
            "{request}"
        );
        for name in &names {
            assert_eq!(
                may(request, Rights::empty(), Some(&allow(name))),
                names.len() == 1,
                "{request}"
            );
            let deny = statement("Deny", "\"*\"", name, EVERYTHING);
            let both = format!(
                "{deny},{}",
                statement("Allow", "\"*\"", "\"s3:*\"", EVERYTHING)
            );
            let both = parse(&both).unwrap();
            assert!(
                !may(request, Rights::empty(), Some(&both)),
                "{request} {name}"
            );
            // Nobody is locked out.
            let is_policy = request.ends_with("?policy");
            assert_eq!(
                may(request, *wanted, Some(&both)),
                is_policy,
                "{request} {name}"
            );
            let admin = Caller::Key {
                access_key: "admin",
                rights: &KeyRights::Admin,
            };
            assert_eq!(
                is_allowed(request, &admin, Some(&both)),
                is_policy,
                "{request}"
            );
            let depends = depends_on_policy(&operation(request), &admin);
            assert_eq!(depends, !is_policy, "{request}");
        }
        // Actions of others change nothing.
        let others = TABLE.iter().flat_map(|(_, _, actions)| actions.iter());
        let others: Vec<_> = others
            .filter(|other| !actions.contains(other))
            .map(|other| format!("\"s3:{other}\""))
            .collect();
        let others = format!("[{}]", others.join(","));
        assert!(
            !may(request, Rights::empty(), Some(&allow(&others))),
            "{request}"
        );
        let deny = parse(&statement("Deny", "\"*\"", &others, EVERYTHING)).unwrap();
        assert!(may(request, *wanted, Some(&deny)), "{request}");
    }
}

#[test]
fn operations_without_a_bucket_need_a_known_caller_at_most() {
    let nobody = Caller::Anonymous { rights: READ };
    let none = rights(&[]);
    let key = Caller::Key {
        access_key: "key",
        rights: &none,
    };
    for (request, for_nobody) in [
        ("GET /", false),
        ("GET /bkt?torrent", true),
        ("POST /bkt", true),
        ("OPTIONS /bkt", true),
    ] {
        assert_eq!(is_allowed(request, &nobody, None), for_nobody, "{request}");
        assert!(is_allowed(request, &key, None), "{request}");
        assert!(!depends_on_policy(&operation(request), &key), "{request}");
    }
}

#[test]
fn a_copy_reads_its_source_and_many_deletions_are_judged_one_by_one() {
    for request in [
        "PUT /bkt/k\nx-amz-copy-source: /other/s%20t?versionId=v",
        "PUT /bkt/k?partNumber=1&uploadId=u\nx-amz-copy-source: /other/s%20t?versionId=v",
    ] {
        let read = operation(request).read_of_source().unwrap();
        assert_eq!(read, operation("GET /other/s%20t?versionId=v"));
    }
    assert_eq!(operation("PUT /bkt/k").read_of_source(), None);
    let object = ObjectRef {
        bucket: bucket(),
        key: ObjectKey::parse("k").unwrap(),
    };
    let deletion = Operation::deletion_of(object, Some("v".into()));
    assert_eq!(deletion, operation("DELETE /bkt/k?versionId=v"));

    let many = "POST /bkt?delete";
    assert!(may(many, WRITE, None) && !may(many, READ.union(OWNER), None));
    let only = |key: &str, effect| {
        let resource = format!("\"arn:aws:s3:::bkt/{key}\"");
        parse(&statement(
            effect,
            "{\"AWS\":\"key\"}",
            "\"s3:DeleteObject\"",
            &resource,
        ))
        .unwrap()
    };
    assert!(may(many, Rights::empty(), Some(&only("a*", "Allow"))));
    assert!(!may(many, Rights::empty(), Some(&only("a*", "Deny"))));
    assert!(may(many, WRITE, Some(&only("a*", "Deny"))));
    assert!(may(
        "DELETE /bkt/ab",
        Rights::empty(),
        Some(&only("a*", "Allow"))
    ));
    assert!(!may(
        "DELETE /bkt/b",
        Rights::empty(),
        Some(&only("a*", "Allow"))
    ));
    assert!(!may("DELETE /bkt/ab", WRITE, Some(&only("a*", "Deny"))));
}

#[test]
fn only_callers_who_are_known_set_headers_of_the_answer() {
    let request = "GET /bkt/k?response-content-type=a";
    assert!(may(request, READ, None));
    let everybody = Caller::Anonymous { rights: READ };
    let decision = decide(
        &operation(request),
        &everybody,
        None,
        &circumstances("::1", true),
    );
    assert_eq!(decision.unwrap_err().code(), Code::InvalidRequest);
}

#[test]
fn a_statement_is_about_its_principals() {
    let reads = |principal: &str, key: &str| {
        let text = statement("Allow", principal, "\"s3:GetObject\"", EVERYTHING);
        let policy = parse(&text).unwrap();
        let caller = match key {
            "" => Caller::Anonymous {
                rights: Rights::empty(),
            },
            access_key => Caller::Key {
                access_key,
                rights: &KeyRights::Buckets(BTreeMap::new()),
            },
        };
        is_allowed("GET /bkt/k", &caller, Some(&policy))
    };
    for everybody in ["\"*\"", "{\"AWS\":\"*\"}", "{\"AWS\":[\"a\",\"*\"]}"] {
        assert!(reads(everybody, "") && reads(everybody, "b"), "{everybody}");
    }
    for one in [
        "{\"AWS\":\"a\"}",
        "{\"AWS\":[\"x\",\"arn:aws:iam:::user/a\"]}",
    ] {
        assert!(
            reads(one, "a") && !reads(one, "b") && !reads(one, ""),
            "{one}"
        );
    }
}

#[test]
fn a_policy_of_another_bucket_allows_nothing() {
    let text = statement("Allow", "\"*\"", "\"s3:*\"", EVERYTHING);
    let policy = parse(&text).unwrap();
    let caller = Caller::Key {
        access_key: "admin",
        rights: &KeyRights::Admin,
    };
    assert!(!is_allowed("GET /other/k", &caller, Some(&policy)));
}
