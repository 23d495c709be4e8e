//! Configurations of buckets that no bucket has, and the ones that are refused.

use crate::support::Server;

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
