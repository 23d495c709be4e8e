//! Policies that are refused, because Prism would not apply them in full or in time.

use prism_s3::{Code, Policy};

use super::{EVERYTHING, bucket, parse, statement};

#[test]
fn a_policy_that_says_more_is_refused() {
    let (all, get) = (EVERYTHING, "\"s3:GetObject\"");
    let code = |text: &str| parse(text).unwrap_err().code();
    for text in [
        statement("Allow", "\"a\"", get, all),
        statement("Allow", "{\"AWS\":\"arn:aws:iam::1:root\"}", get, all),
        statement("Allow", "{\"AWS\":\"a*\"}", get, all),
        statement("Allow", "{\"AWS\":\"\"}", get, all),
        statement("Allow", "\"*\"", "\"s3:PutObjectAcl\"", all),
        statement("Allow", "\"*\"", "[\"s3:GetObject\",\"sqs:*\"]", all),
    ] {
        assert_eq!(code(&text), Code::NotImplemented, "{text}");
    }
    let with = |condition: &str| {
        let condition = format!("\"Condition\":{condition},\"Effect\"");
        statement("Allow", "\"*\"", get, all).replace("\"Effect\"", &condition)
    };
    for text in [
        statement("Perhaps", "\"*\"", get, all),
        statement("Allow", "{\"Federated\":\"a\"}", get, all),
        statement("Allow", "{\"AWS\":[]}", get, all),
        statement("Allow", "\"*\"", "[]", all),
        statement("Allow", "\"*\"", get, "[]"),
        statement("Allow", "\"*\"", get, "\"arn:aws:s3:::other/*\""),
        statement("Allow", "\"*\"", get, "\"arn:aws:s3:::bkt2/*\""),
        statement("Allow", "\"*\"", get, "\"*\""),
        statement("Allow", "\"*\"", get, all).replace("\"Action\"", "\"NotAction\""),
        with("{\"IpAddress\":{\"aws:SourceIp\":\"10.0.0.0/40\"}}"),
        with("{\"IpAddress\":{\"aws:VpcSourceIp\":\"10.0.0.0/8\"}}"),
        with("{\"IpAddress\":{\"aws:SourceIp\":[]}}"),
        with("{\"IpAddressIfExists\":{\"aws:SourceIp\":\"10.0.0.0/8\"}}"),
        with("{\"StringEquals\":{\"s3:delimiter\":\"/\"}}"),
        with("{\"Bool\":{\"aws:SecureTransport\":\"maybe\"}}"),
        with("{\"Bool\":{\"aws:SecureTransport\":[true,false]}}"),
        with("{\"Bool\":{\"aws:SecureTransport\":true},\"Bool\":{\"aws:SecureTransport\":false}}"),
        "1".to_owned(),
    ] {
        assert_eq!(code(&text), Code::MalformedPolicy, "{text}");
    }
    assert!(parse(&with("{}")).is_ok());
}

#[test]
fn a_policy_with_two_meanings_is_refused() {
    let good = statement("Allow", "\"*\"", "\"s3:GetObject\"", EVERYTHING);
    let whole = |body: &str| Policy::parse(&bucket(), body.as_bytes()).map_err(|e| e.code());
    let with = |field: &str| good.replace("\"Effect\"", &format!("{field},\"Effect\""));
    let in_condition = |test: &str| with(&format!("\"Condition\":{test}"));
    for bad in [
        in_condition("null"),
        in_condition("[null,null,null,null,null,null,null]"),
        in_condition("{\"IpAddress\":null}"),
        in_condition("{\"IpAddress\":[\"10.0.0.0/8\"]}"),
        in_condition("{\"IpAddress\":{}}"),
        in_condition("{\"IpAddress\":{\"aws:SourceIp\":null}}"),
        in_condition("{\"IpAddress\":{\"aws:SourceIp\":[[\"10.0.0.0/8\"]]}}"),
        in_condition("{\"IpAddress\":{\"aws:SourceIp\":\"::ffff:10.0.0.0/104\"}}"),
        in_condition(
            "{\"IpAddress\":{\"aws:SourceIp\":\"10.0.0.0/8\",\"aws:SourceIp\":\"0.0.0.0/0\"}}",
        ),
        in_condition("{\"Bool\":null}"),
        in_condition("{\"StringLike\":{\"s3:prefix\":\"${aws:username}/*\"}}"),
        in_condition("{\"StringEquals\":{\"s3:prefix\":[\"a\",\"${aws:username}\"]}}"),
        in_condition("{},\"Condition\":{}"),
        with("\"Sid\":null"),
        with("\"Effect\":\"Deny\""),
        good.replace("\"Allow\"", "{\"Allow\":null}"),
        good.replace("bkt/*", "bkt/${aws:username}/*"),
        good.replace("bkt/*", "bkt/${*}"),
        good.replace("\"Principal\":\"*\"", "\"Principal\":[\"*\"]"),
        good.replace(
            "\"Principal\":\"*\"",
            "\"Principal\":{\"AWS\":\"a\",\"AWS\":\"*\"}",
        ),
        "[null,\"Allow\",\"*\",\"s3:*\",\"arn:aws:s3:::bkt/*\",{}]".to_owned(),
    ] {
        assert_ne!(bad, good);
        assert_eq!(
            parse(&bad).map_err(|e| e.code()),
            Err(Code::MalformedPolicy),
            "{bad}"
        );
    }
    for bad in [
        format!("{{\"Version\":null,\"Statement\":{good}}}"),
        format!("{{\"Version\":\"2030-01-01\",\"Statement\":{good}}}"),
        format!("{{\"Id\":null,\"Statement\":{good}}}"),
        format!("{{\"Statement\":[],\"Statement\":{good}}}"),
        format!("[null,null,{good}]"),
        format!("{{\"Statement\":{good}}} x"),
    ] {
        assert_eq!(whole(&bad), Err(Code::MalformedPolicy), "{bad}");
    }
    assert!(whole(&format!("{{\"Id\":\"i\",\"Statement\":{good}}}")).is_ok());
    let error = parse(&in_condition("{\"IpAddress\":null}")).unwrap_err();
    assert!(error.message().contains("null"), "{error}");
}

#[test]
fn the_patterns_of_a_policy_are_bounded_wherever_they_are() {
    let behind = "a".repeat(400);
    let actions = format!("[\"s3:GetObject*{}\"]", "*".repeat(400));
    let text = |more: &str| {
        let condition = format!(
            "\"Condition\":{{\"StringLike\":{{\"s3:prefix\":\"*{}\"}}}},\"Effect\"",
            "a".repeat(224)
        );
        let resource = format!("[\"arn:aws:s3:::bkt/*{behind}{more}\",\"arn:aws:s3:::bkt/a*\"]");
        let text = statement("Deny", "\"*\"", &actions, &resource);
        text.replace("\"Effect\"", &condition)
    };
    assert!(parse(&text("")).is_ok());
    let error = parse(&text("a")).unwrap_err();
    assert_eq!(error.code(), Code::MalformedPolicy);
}
