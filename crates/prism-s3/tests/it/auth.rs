//! Signatures: the published examples, and damaged requests.

mod presigned;

use prism_http::{Headers, Limits, RequestHead};
use prism_s3::query::Query;
use prism_s3::time::{http_date, iso_basic, parse_iso_basic};
use prism_s3::{Authenticated, Authenticator, Code, Payload, Principal, S3Error};
use prism_signer::{Body, Signer};
use time::{Duration, OffsetDateTime};

const ACCESS_KEY: &str = "AKIAIOSFODNN7EXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn now() -> OffsetDateTime {
    parse_iso_basic("20130524T000000Z").unwrap()
}

fn authenticator() -> Authenticator {
    let credentials = [(ACCESS_KEY, SECRET), ("other/key", "other secret")];
    Authenticator::new(credentials, "us-east-1")
}

fn head(method: &str, target: &str, headers: &Headers) -> RequestHead {
    let mut bytes = format!("{method} {target} HTTP/1.1\r\n").into_bytes();
    headers.write_to(&mut bytes);
    bytes.extend_from_slice(b"\r\n");
    RequestHead::parse(&bytes, &Limits::DEFAULT)
        .unwrap()
        .unwrap()
        .0
}

fn headers(fields: &[(&str, &str)]) -> Headers {
    let mut headers = Headers::new();
    fields
        .iter()
        .for_each(|(n, v)| headers.append(n, v).unwrap());
    headers
}

fn check(method: &str, target: &str, headers: &Headers) -> Result<Authenticated, S3Error> {
    authenticate(&head(method, target, headers), now())
}

fn authenticate(head: &RequestHead, time: OffsetDateTime) -> Result<Authenticated, S3Error> {
    let query = Query::parse(head.query())?;
    authenticator().authenticate(head, &query, time)
}

fn code(result: Result<Authenticated, S3Error>) -> Code {
    result.unwrap_err().code()
}

/// The examples of "Signature Calculations for the Authorization Header" in
/// the Amazon S3 API reference.
#[test]
fn published_examples_verify_and_are_reproduced() {
    let put_hash = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
    type Row<'a> = (
        &'a str,
        &'a str,
        &'a [(&'a str, &'a str)],
        &'a [u8],
        &'a str,
        &'a str,
        &'a str,
    );
    let rows: [Row<'_>; 4] = [
        (
            "GET",
            "/test.txt",
            &[("Range", "bytes=0-9")],
            b"",
            EMPTY,
            "host;range;x-amz-content-sha256;x-amz-date",
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "PUT",
            "/test$file.text",
            &[
                ("Date", "Fri, 24 May 2013 00:00:00 GMT"),
                ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
            ],
            b"Welcome to Amazon S3.",
            put_hash,
            "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
        (
            "GET",
            "/?lifecycle",
            &[],
            b"",
            EMPTY,
            "host;x-amz-content-sha256;x-amz-date",
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        ),
        (
            "GET",
            "/?max-keys=2&prefix=J",
            &[],
            b"",
            EMPTY,
            "host;x-amz-content-sha256;x-amz-date",
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ];
    for (method, target, extra, body, hash, signed, signature) in rows {
        let mut fields = headers(extra);
        fields
            .append("Host", "examplebucket.s3.amazonaws.com")
            .unwrap();
        let signer = Signer::new(ACCESS_KEY, SECRET, "us-east-1");
        signer
            .sign(method, target, &mut fields, Body::Bytes(body), now())
            .unwrap();
        assert_eq!(fields.get_str("x-amz-content-sha256"), Some(hash));
        let expected = format!(
            "AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20130524/us-east-1/s3/aws4_request,\
             SignedHeaders={signed},Signature={signature}"
        );
        assert_eq!(
            fields.get_str("authorization"),
            Some(expected.as_str()),
            "{target}"
        );

        let got = check(method, target, &fields).unwrap();
        assert_eq!(got.principal, Principal::AccessKey(ACCESS_KEY.to_owned()));
        assert!(matches!(got.payload, Payload::Sha256(_)));
        // The reference has blanks behind the commas.
        fields
            .set("Authorization", expected.replace(',', ", "))
            .unwrap();
        assert!(check(method, target, &fields).is_ok());
    }
}

const TARGET: &str = "/bucket/a%20key+%C3%A9/x?prefix=a%2Fb&list-type=2&flag";

fn signed(body: Body<'_>) -> Headers {
    let mut fields = headers(&[
        ("Host", "s3.test:9000"),
        ("Content-Type", "text/plain"),
        ("x-amz-meta-a", "two  spaces"),
        ("X-Amz-Meta-A", "again"),
    ]);
    Signer::new(ACCESS_KEY, SECRET, "us-east-1")
        .sign("PUT", TARGET, &mut fields, body, now())
        .unwrap();
    fields
}

#[test]
fn what_is_signed_is_verified() {
    let got = check("PUT", TARGET, &signed(Body::Unsigned)).unwrap();
    assert_eq!(got.payload, Payload::Unsigned);
    assert!(matches!(
        check("PUT", TARGET, &signed(Body::Bytes(b"x")))
            .unwrap()
            .payload,
        Payload::Sha256(_)
    ));
}

#[test]
fn equivalent_spellings_of_a_request_verify() {
    let fields = signed(Body::Unsigned);
    for target in [
        "/bucket/a%20key%2B%c3%a9/x?flag=&list-type=2&prefix=a%2fb",
        "/%62ucket/a%20key+%C3%A9/x?prefix=a/b&list-type=2&flag",
    ] {
        assert!(check("PUT", target, &fields).is_ok(), "{target}");
    }
    let mut more = fields.clone();
    more.append("User-Agent", "unsigned").unwrap();
    more.append("Connection", "close").unwrap();
    assert!(check("PUT", TARGET, &more).is_ok());
}

#[test]
fn every_damaged_part_is_noticed() {
    let good = signed(Body::Bytes(b"body"));
    assert!(check("PUT", TARGET, &good).is_ok());
    let no_match = |r| assert_eq!(code(r), Code::SignatureDoesNotMatch);

    no_match(check("POST", TARGET, &good));
    for target in [
        "/bucket/a%20key+%C3%A9/y?prefix=a%2Fb&list-type=2&flag",
        "/bucket/a%20key+%C3%A9/x/?prefix=a%2Fb&list-type=2&flag",
        "/bucket//a%20key+%C3%A9/x?prefix=a%2Fb&list-type=2&flag",
        "/bucket/../bucket/a%20key+%C3%A9/x?prefix=a%2Fb&list-type=2&flag",
        "/bucket/a%2520key+%C3%A9/x?prefix=a%2Fb&list-type=2&flag",
        "/bucket/a%20key+%C3%A9/x?prefix=a%2Fc&list-type=2&flag",
        "/bucket/a%20key+%C3%A9/x?prefix=a%2Fb&list-type=2",
        "/bucket/a%20key+%C3%A9/x?prefix=a%2Fb&list-type=2&flag&flag",
        "/bucket/a%20key+%C3%A9/x?prefix=a%2Fb&list-type=2&flag=1",
        "/bucket/a%20key+%C3%A9/x",
    ] {
        no_match(check("PUT", target, &good));
    }
    for (name, value) in [
        ("Host", "s3.test:9001"),
        ("Content-Type", "text/html"),
        ("x-amz-meta-a", "two  spaces"),
        ("x-amz-content-sha256", EMPTY),
        ("x-amz-content-sha256", "UNSIGNED-PAYLOAD"),
        ("x-amz-date", "20130524T000001Z"),
    ] {
        let mut bad = good.clone();
        bad.set(name, value).unwrap();
        no_match(check("PUT", TARGET, &bad));
    }
    for name in ["Content-Type", "x-amz-meta-a"] {
        let mut bad = good.clone();
        bad.remove(name);
        assert_eq!(
            code(check("PUT", TARGET, &bad)),
            Code::AccessDenied,
            "{name}"
        );
    }
    let mut added = good.clone();
    added.append("x-amz-meta-b", "unsigned").unwrap();
    assert_eq!(code(check("PUT", TARGET, &added)), Code::AccessDenied);
}

#[test]
fn each_digit_of_the_signature_counts() {
    let good = signed(Body::Unsigned);
    let text = good.get_str("authorization").unwrap().to_owned();
    let start = text.find("Signature=").unwrap() + "Signature=".len();
    for at in start..text.len() {
        let mut bytes = text.clone().into_bytes();
        bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
        let mut bad = good.clone();
        bad.set("Authorization", bytes).unwrap();
        assert_eq!(
            code(check("PUT", TARGET, &bad)),
            Code::SignatureDoesNotMatch,
            "{at}"
        );
    }
}

#[test]
fn malformed_authorization_is_named_as_such() {
    let good = signed(Body::Unsigned);
    let text = good.get_str("authorization").unwrap().to_owned();
    let long = format!("SignedHeaders={}", "a;".repeat(200));
    let rows: &[(&str, &str, Code)] = &[
        (
            "AWS4-HMAC-SHA256 ",
            "AWS4-ECDSA-P256-SHA256 ",
            Code::NotImplemented,
        ),
        ("AWS4-HMAC-SHA256 ", "AWS key:sig", Code::InvalidRequest),
        ("AWS4-HMAC-SHA256 ", "Basic ", Code::InvalidRequest),
        ("AWS4-HMAC-SHA256 ", "Bearer ", Code::InvalidRequest),
        (
            "AWS4-HMAC-SHA256 ",
            "aws4-hmac-sha256 ",
            Code::InvalidRequest,
        ),
        (
            "/us-east-1/",
            "/eu-west-1/",
            Code::AuthorizationHeaderMalformed,
        ),
        ("/s3/", "/ec2/", Code::AuthorizationHeaderMalformed),
        (
            "/20130524/",
            "/20130525/",
            Code::AuthorizationHeaderMalformed,
        ),
        ("/20130524/", "//", Code::AuthorizationHeaderMalformed),
        ("/20130524/", "/2013/", Code::AuthorizationHeaderMalformed),
        ("/aws4_request", "/aws4", Code::AuthorizationHeaderMalformed),
        ("/aws4_request", "", Code::AuthorizationHeaderMalformed),
        (ACCESS_KEY, "", Code::AuthorizationHeaderMalformed),
        (ACCESS_KEY, "AKIAUNKNOWN", Code::InvalidAccessKeyId),
        (ACCESS_KEY, "other/key", Code::SignatureDoesNotMatch),
        (
            "Signature=",
            "Signature=0",
            Code::AuthorizationHeaderMalformed,
        ),
        (
            "Signature=",
            "Signature=G",
            Code::AuthorizationHeaderMalformed,
        ),
        ("Signature=", "Sig=", Code::AuthorizationHeaderMalformed),
        (
            "Signature=",
            "Signature",
            Code::AuthorizationHeaderMalformed,
        ),
        (
            "Signature=",
            "Credential=",
            Code::AuthorizationHeaderMalformed,
        ),
        (",Signature=", ",", Code::AuthorizationHeaderMalformed),
        (
            "content-type;host",
            "host;content-type",
            Code::AuthorizationHeaderMalformed,
        ),
        (
            "content-type;host",
            "Content-Type;host",
            Code::AuthorizationHeaderMalformed,
        ),
        (
            "content-type;host",
            "content-type;host;host",
            Code::AuthorizationHeaderMalformed,
        ),
        ("SignedHeaders=", &long, Code::AuthorizationHeaderMalformed),
        ("content-type;host", "content-type", Code::AccessDenied),
        ("content-type;host", "host", Code::SignatureDoesNotMatch),
        ("x-amz-date;", "", Code::AccessDenied),
        (";x-amz-date", "", Code::AccessDenied),
        ("content-type;", "absent;content-type;", Code::AccessDenied),
    ];
    for (from, to, expected) in rows {
        assert!(text.contains(from), "{from}");
        let mut bad = good.clone();
        bad.set("Authorization", text.replacen(from, to, 1))
            .unwrap();
        let got = check("PUT", TARGET, &bad).unwrap_err();
        assert_eq!(got.code(), *expected, "{from} -> {to}: {got}");
    }
    let mut twice = good.clone();
    twice.append("Authorization", text).unwrap();
    assert_eq!(code(check("PUT", TARGET, &twice)), Code::InvalidRequest);
    let mut token = good.clone();
    token.append("x-amz-security-token", "t").unwrap();
    assert_eq!(code(check("PUT", TARGET, &token)), Code::InvalidToken);
}

#[test]
fn time_may_differ_by_fifteen_minutes_and_no_more() {
    let request = head("PUT", TARGET, &signed(Body::Unsigned));
    for (seconds, fine) in [(900, true), (-900, true), (901, false), (-901, false)] {
        let got = authenticate(&request, now() + Duration::seconds(seconds));
        assert_eq!(got.is_ok(), fine, "{seconds}");
        if let Err(error) = got {
            assert_eq!(error.code(), Code::RequestTimeTooSkewed);
        }
    }
    let far = now() + Duration::days(400);
    assert_eq!(
        code(authenticate(&request, far)),
        Code::RequestTimeTooSkewed
    );
}

#[test]
fn keys_of_two_days_verify_around_midnight() {
    let auth = authenticator();
    let signer = Signer::new("other/key", "other secret", "us-east-1");
    for offset in [-60, 60, -30, 30] {
        let time = now() + Duration::seconds(offset);
        let mut fields = headers(&[("Host", "h")]);
        signer
            .sign("GET", "/", &mut fields, Body::Unsigned, time)
            .unwrap();
        let known = auth.authenticate(&head("GET", "/", &fields), &Query::default(), now());
        assert!(known.is_ok(), "{offset}");
    }
}

#[test]
fn a_request_needs_a_date_and_a_payload_hash() {
    let mut fields = signed(Body::Unsigned);
    let text = fields
        .get_str("authorization")
        .unwrap()
        .replace(";x-amz-date", "");
    fields.set("Authorization", &text).unwrap();
    fields.remove("x-amz-date");
    assert_eq!(code(check("PUT", TARGET, &fields)), Code::AccessDenied);
    fields.set("Date", http_date(now())).unwrap();
    assert_eq!(
        code(check("PUT", TARGET, &fields)),
        Code::SignatureDoesNotMatch
    );
    fields.set("Date", iso_basic(now())).unwrap();
    assert_eq!(
        code(check("PUT", TARGET, &fields)),
        Code::SignatureDoesNotMatch
    );

    let mut fields = signed(Body::Unsigned);
    for (value, expected) in [
        (
            "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD",
            Code::NotImplemented,
        ),
        (
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
            Code::SignatureDoesNotMatch,
        ),
        (
            "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
            Code::SignatureDoesNotMatch,
        ),
        ("unsigned-payload", Code::InvalidArgument),
        ("", Code::InvalidArgument),
        (
            "E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855",
            Code::InvalidArgument,
        ),
    ] {
        fields.set("x-amz-content-sha256", value).unwrap();
        assert_eq!(code(check("PUT", TARGET, &fields)), expected, "{value}");
    }
    // A signed field is missing.
    fields.remove("x-amz-content-sha256");
    assert_eq!(code(check("PUT", TARGET, &fields)), Code::AccessDenied);
}

/// Requests of Debian 12's curl, which sends no `x-amz-content-sha256`.
#[test]
fn without_a_header_for_the_body_a_request_must_have_no_body() {
    let time = parse_iso_basic("20261125T062229Z").unwrap();
    let ask = |method, signature: &str, more: &[(&str, &str)]| {
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20261125/us-east-1/s3/aws4_request, \
             SignedHeaders=host;x-amz-date, Signature={signature}"
        );
        let fields = [
            ("Host", "127.0.0.1:9000"),
            ("Authorization", &authorization),
            ("X-Amz-Date", "20261125T062229Z"),
        ];
        let head = head(method, "/first/file", &headers(&[&fields, more].concat()));
        authenticate(&head, time)
    };
    let put = "d08f7e8bf1f54af5ee35b28fe150a8ec1a76b7b7529f503e273e79dc565a64bb";
    for (method, signature) in [
        (
            "GET",
            "18c9808c83ee69054b169c74c35d71449a0ea34eeafd0eb5f4d5c09dcd1734db",
        ),
        (
            "HEAD",
            "f44937acf26257dea5d4a8a6f4348c3580d4ec901bed55bb7b36d8d213cc96ad",
        ),
        (
            "DELETE",
            "9068be696072ac1a7176016f003c5ef75e4e1b2b6869c63dabf20ef8a8fa34d2",
        ),
        ("PUT", put),
    ] {
        let known = ask(method, signature, &[]).unwrap();
        assert_eq!(known.principal, Principal::AccessKey(ACCESS_KEY.into()));
        // No bytes may follow after all.
        assert!(matches!(known.payload, Payload::Sha256(hash) if hash[..2] == [0xe3, 0xb0]));
    }
    assert!(ask("PUT", put, &[("Content-Length", "0")]).is_ok());
    assert_eq!(code(ask("GET", put, &[])), Code::SignatureDoesNotMatch);
    for body in [("Content-Length", "267"), ("Transfer-Encoding", "chunked")] {
        let error = ask("PUT", put, &[body]).unwrap_err();
        assert_eq!(error.code(), Code::MissingSecurityHeader);
        let remedy = "-H 'x-amz-content-sha256: UNSIGNED-PAYLOAD'";
        assert!(error.message().contains(remedy), "{}", error.message());
    }
}

#[test]
fn a_request_without_a_signature_has_an_anonymous_caller() {
    let run = |method, fields: &[(&str, &str)]| {
        let fields = headers(&[&[("Host", "h")], fields].concat());
        authenticate(&head(method, "/b/k", &fields), now())
    };
    for method in ["GET", "HEAD", "PUT", "DELETE", "POST", "OPTIONS"] {
        let known = run(method, &[]).unwrap();
        assert_eq!(known.principal, Principal::Anonymous, "{method}");
        assert_eq!(known.payload, Payload::Unsigned, "{method}");
    }
    let content = |value| run("PUT", &[("x-amz-content-sha256", value)]);
    let chunks = content("STREAMING-UNSIGNED-PAYLOAD-TRAILER").unwrap();
    assert!(matches!(chunks.payload, Payload::Streaming(_)));
    let hash = "0a".repeat(32);
    let hash = content(&hash).unwrap();
    assert_eq!(hash.payload, Payload::Sha256([10; 32]));
    let signed = content("STREAMING-AWS4-HMAC-SHA256-PAYLOAD");
    assert_eq!(code(signed), Code::AccessDenied);
}

#[test]
fn debug_output_holds_no_secret() {
    let signer = Signer::new(ACCESS_KEY, SECRET, "us-east-1");
    let text = format!("{signer:?}");
    assert!(!text.contains(SECRET));
}

#[test]
fn chunks_are_verified_with_the_key_of_a_caller_that_is_known() {
    let authenticator = authenticator();
    let seed = prism_s3::Seed {
        signature: [7; 32],
        time_s: 1_369_357_323,
    };
    let chain = |key: &str| authenticator.chain(key, seed).map_err(|e| e.code());
    assert_eq!(chain(ACCESS_KEY).unwrap().seed(), seed);
    assert_eq!(chain("somebody"), Err(Code::InvalidAccessKeyId));
}
