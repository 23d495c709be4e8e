//! Presigned URLs: the published example, their time and parameters, and the body's hash.

use prism_http::RequestHead;
use prism_s3::auth::with_hoisted;
use prism_s3::query::Query;
use prism_s3::{Code, Expected, Payload, Principal, S3Error};
use prism_signer::{Body, Signer};
use time::Duration;

use super::{ACCESS_KEY, EMPTY, SECRET, authenticate, check, code, head, headers, now, signed};

const PRESIGNED: &str = "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256\
    &X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request\
    &X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host\
    &X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404";
const EXAMPLE_HOST: &str = "examplebucket.s3.amazonaws.com";

/// The example of "Authenticating Requests: Using Query Parameters" in the
/// Amazon S3 API reference.
#[test]
fn the_published_presigned_url_verifies_and_is_reproduced() {
    let fields = headers(&[("Host", EXAMPLE_HOST)]);
    let known = check("GET", PRESIGNED, &fields).unwrap();
    assert_eq!(known.principal, Principal::AccessKey(ACCESS_KEY.into()));
    assert_eq!(known.payload, Payload::Unsigned);
    let signer = Signer::new(ACCESS_KEY, SECRET, "us-east-1");
    let made = signer.presign(
        "GET",
        "/test.txt",
        EXAMPLE_HOST,
        Body::Unsigned,
        86_400,
        now(),
    );
    assert_eq!(made.unwrap(), PRESIGNED);
}

#[test]
fn a_presigned_url_counts_for_its_time_its_method_and_its_parameters_only() {
    let fields = headers(&[("Host", EXAMPLE_HOST)]);
    let at = |seconds| {
        let head = head("GET", PRESIGNED, &fields);
        let known = authenticate(&head, now() + Duration::seconds(seconds));
        known.map(|_| ()).map_err(|e| e.code())
    };
    assert_eq!(at(86_400), Ok(()));
    assert_eq!(at(86_401), Err(Code::AccessDenied));
    assert_eq!(at(-15 * 60), Ok(()));
    assert_eq!(at(-15 * 60 - 1), Err(Code::AccessDenied));
    let wrong = Code::SignatureDoesNotMatch;
    assert_eq!(code(check("PUT", PRESIGNED, &fields)), wrong);
    for (from, to) in [
        ("test.txt", "test.txT"),
        ("Expires=86400", "Expires=86401"),
        ("Signature=a", "Signature=b"),
        ("&X-Amz-Date", "&x=&X-Amz-Date"),
    ] {
        let target = PRESIGNED.replace(from, to);
        assert_eq!(code(check("GET", &target, &fields)), wrong, "{to}");
    }
    let other_host = headers(&[("Host", "other")]);
    assert_eq!(code(check("GET", PRESIGNED, &other_host)), wrong);
    let unsigned = headers(&[("Host", EXAMPLE_HOST), ("x-amz-meta-a", "b")]);
    assert_eq!(code(check("GET", PRESIGNED, &unsigned)), Code::AccessDenied);
}

#[test]
fn the_signature_in_the_url_of_a_preflight_is_not_looked_at() {
    let fields = headers(&[("Host", "other")]);
    for target in [
        format!("{PRESIGNED}&x-amz-meta-a=%0a"),
        PRESIGNED.replace("=86400", "=x"),
        "/test.txt?Signature=s&AWSAccessKeyId=k".to_owned(),
    ] {
        let known = check("OPTIONS", &target, &fields).unwrap();
        assert_eq!(known.principal, Principal::Anonymous, "{target}");
        let head = head("OPTIONS", &target, &fields);
        let query = Query::parse(head.query()).unwrap();
        assert_eq!(with_hoisted(&head, &query), Ok(None), "{target}");
    }
}

#[test]
fn malformed_presigned_urls_are_refused() {
    let fields = headers(&[("Host", EXAMPLE_HOST)]);
    let malformed = Code::AuthorizationQueryParametersError;
    for (from, to, expected) in [
        ("&X-Amz-Expires=86400", "", malformed),
        ("=86400", "=604801", malformed),
        ("=86400", "=0", malformed),
        ("=86400", "=x", malformed),
        ("=86400", "=86400&X-Amz-Expires=9", malformed),
        ("&X-Amz-Date=20130524T000000Z", "", malformed),
        ("20130524T000000Z", "20130524", malformed),
        ("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256", malformed),
        ("%2Faws4_request", "", malformed),
        ("us-east-1", "eu-west-1", Code::AuthorizationHeaderMalformed),
        ("IOSFODNN7", "IOSFODNN8", Code::InvalidAccessKeyId),
        ("=host", "=date", Code::AccessDenied),
        ("=aeee", "=AEEE", malformed),
        ("=host", "=host&X-Amz-Security-Token=t", Code::InvalidToken),
    ] {
        let target = PRESIGNED.replace(from, to);
        assert_eq!(code(check("GET", &target, &fields)), expected, "{to}");
    }
    let version_2 = check(
        "GET",
        "/b/k?AWSAccessKeyId=a&Signature=b&Expires=1",
        &fields,
    );
    assert_eq!(code(version_2), Code::InvalidRequest);
    let both = check("PUT", "/b/k?X-Amz-Signature=00", &signed(Body::Unsigned));
    assert_eq!(code(both), Code::InvalidArgument);
}

fn hoist(head: &RequestHead) -> Result<Option<RequestHead>, S3Error> {
    with_hoisted(head, &Query::parse(head.query())?)
}

#[test]
fn headers_in_a_presigned_query_count_as_headers() {
    let fields = headers(&[("Host", "h"), ("x-amz-acl", "private")]);
    let target = "/b/k?x-amz-meta-a=1&X-Amz-Acl=public-read&x-amz-checksum-algorithm=SHA1";
    let plain = hoist(&head("PUT", target, &fields)).unwrap();
    assert_eq!(plain, None, "not presigned");
    let target = format!("{target}&X-Amz-Signature=00&X-Amz-Date=1");
    let hoisted = hoist(&head("PUT", &target, &fields)).unwrap().unwrap();
    let field = |name| hoisted.headers().get_str(name);
    assert_eq!(field("x-amz-meta-a"), Some("1"));
    assert_eq!(field("x-amz-acl"), Some("private"));
    assert_eq!(field("x-amz-checksum-algorithm"), Some("SHA1"));
    assert_eq!(field("x-amz-signature"), None);
    assert_eq!(hoist(&hoisted).unwrap(), None, "twice is once");
    let split = "/b/k?x-amz-meta-a=b%0D%0Ac&X-Amz-Signature=00";
    assert!(hoist(&head("PUT", split, &fields)).is_err());
    let many = |count: usize| {
        let names = (0..count).map(|n| format!("x-amz-meta-{n}=v&"));
        let target = format!("/b/k?{}X-Amz-Signature=00", names.collect::<String>());
        hoist(&head("PUT", &target, &fields)).map_err(|e| e.code())
    };
    assert!(many(98).unwrap().is_some());
    assert_eq!(many(99), Err(Code::MetadataTooLarge));
}

#[test]
fn a_checksum_in_a_presigned_query_is_not_that_of_the_body() {
    let fields = headers(&[("Host", "h"), ("x-amz-checksum-crc32c", "AAAAAA==")]);
    let target = "/b/k?x-amz-checksum-crc32=AAAAAA%3D%3D&X-Amz-Checksum-SHA1=x\
                  &x-amz-checksum-md6=x&X-Amz-Signature=00";
    assert_eq!(hoist(&head("PUT", target, &fields)).unwrap(), None);
    // The algorithm alone demands no checksum.
    let target = format!("{target}&x-amz-sdk-checksum-algorithm=CRC32");
    let hoisted = hoist(&head("PUT", &target, &fields)).unwrap().unwrap();
    let checksums = hoisted.headers().iter();
    let checksums = checksums.filter(|(name, _)| name.contains("-checksum-crc"));
    assert_eq!(checksums.count(), 1);
    let hoisted = hoist(&head("PUT", &target, &headers(&[("Host", "h")])));
    let hoisted = hoisted.unwrap().unwrap();
    let expected = Expected::from_request(hoisted.headers(), &Payload::Unsigned);
    assert!(!expected.unwrap().is_checked());
}

#[test]
fn the_hash_in_a_presigned_query_is_that_of_the_body() {
    let host = headers(&[("Host", "h")]);
    let signer = Signer::new(ACCESS_KEY, SECRET, "us-east-1");
    let read = |target: &str, body: Body<'_>| {
        let url = signer.presign("PUT", target, "h", body, 60, now());
        check("PUT", &url.unwrap(), &host).map(|known| known.payload)
    };
    let signed = read("/bkt/k", Body::Bytes(b"")).unwrap();
    assert!(matches!(signed, Payload::Sha256([0xe3, ..])), "{signed:?}");
    assert_eq!(read("/bkt/k", Body::Unsigned), Ok(Payload::Unsigned));
    // The parameter counts in any case, so that none is ignored.
    for name in ["x-amz-content-sha256", "X-Amz-Content-SHA256"] {
        let other = read(&format!("/bkt/k?{name}={EMPTY}"), Body::Unsigned);
        assert_eq!(other.unwrap_err().code(), Code::SignatureDoesNotMatch);
    }
    let twice = read(
        &format!("/bkt/k?x-amz-content-sha256={EMPTY}"),
        Body::Bytes(b""),
    );
    let code = twice.unwrap_err().code();
    assert_eq!(code, Code::AuthorizationQueryParametersError);
    // The hash is among the other headers.
    let url = signer.presign("PUT", "/bkt/k", "h", Body::Bytes(b""), 60, now());
    let hoisted = hoist(&head("PUT", &url.unwrap(), &host));
    let hoisted = hoisted.unwrap().unwrap();
    assert_eq!(
        hoisted.headers().get_str("x-amz-content-sha256"),
        Some(EMPTY)
    );
}
