//! The operations that the tests of rights try, and the keys that may do each.

/// The source of copies.
pub const SOURCE: &str = "source";
const COPY: &str = "/bucket/source";

/// One operation.
pub struct Case {
    pub method: &'static str,
    /// Follows the bucket's name; `KEY` stands for a key.
    pub target: &'static str,
    pub fields: &'static [(&'static str, &'static str)],
    pub body: &'static [u8],
    /// The keys that may do it.
    pub needs: &'static [&'static str],
}

const fn case(method: &'static str, target: &'static str, needs: &'static [&'static str]) -> Case {
    Case {
        method,
        target,
        fields: &[],
        body: b"",
        needs,
    }
}

const fn sending(case: Case, body: &'static [u8]) -> Case {
    Case { body, ..case }
}

const READ: &[&str] = &["read", "both"];
const WRITE: &[&str] = &["write", "both"];
const OWNER: &[&str] = &["owner"];
const READ_OR_OWNER: &[&str] = &["read", "owner", "both"];
const ANY: &[&str] = &["read", "write", "owner", "both"];

const VERSIONING: &[u8] = b"<VersioningConfiguration><Status>Suspended</Status>\
    </VersioningConfiguration>";
const TAGS: &[u8] = b"<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";
const CORS: &[u8] = b"<CORSConfiguration><CORSRule><AllowedOrigin>https://a.test</AllowedOrigin>\
    <AllowedMethod>GET</AllowedMethod></CORSRule></CORSConfiguration>";
const POLICY: &[u8] = br#"{"Version":"2012-10-17","Statement":[{"Effect":"Deny",
    "Principal":{"AWS":"somebody"},"Action":"s3:*","Resource":"arn:aws:s3:::bucket/*"}]}"#;
const DELETE: &[u8] = b"<Delete><Object><Key>gone</Key></Object></Delete>";

pub const GET: Case = case("GET", "/KEY", READ);
pub const HEAD: Case = case("HEAD", "/KEY", READ);

/// Every operation, but those that the tests try apart.
pub const CASES: &[Case] = &[
    GET,
    HEAD,
    case("GET", "/KEY?tagging", READ),
    case("GET", "", READ),
    case("GET", "?list-type=2&prefix=a", READ),
    case("GET", "?versions", READ),
    case("HEAD", "", ANY),
    case("GET", "?location", ANY),
    case("GET", "?versioning", READ_OR_OWNER),
    case("GET", "?acl", READ_OR_OWNER),
    case("GET", "?lifecycle", READ_OR_OWNER),
    case("GET", "?policyStatus", READ_OR_OWNER),
    case("DELETE", "?lifecycle", OWNER),
    case("GET", "/KEY?acl", READ),
    case("GET", "?uploads", WRITE),
    case("PUT", "/KEY", WRITE),
    sending(case("PUT", "/KEY?tagging", WRITE), TAGS),
    case("DELETE", "/KEY?tagging", WRITE),
    case("DELETE", "/KEY-gone", WRITE),
    Case {
        fields: &[("Content-MD5", "huHypdSrravATozENYdOuw==")],
        ..sending(case("POST", "?delete", WRITE), DELETE)
    },
    Case {
        fields: &[("x-amz-copy-source", COPY)],
        ..case("PUT", "/KEY-copy", &["both"])
    },
    Case {
        fields: &[("x-amz-copy-source", COPY)],
        ..case("PUT", "/KEY?partNumber=1&uploadId=none", &["both"])
    },
    case("POST", "/KEY?uploads", WRITE),
    case("PUT", "/KEY?partNumber=1&uploadId=none", WRITE),
    case("GET", "/KEY?uploadId=none", WRITE),
    case("DELETE", "/KEY?uploadId=none", WRITE),
    case("GET", "?policy", OWNER),
    sending(case("PUT", "?policy", OWNER), POLICY),
    case("DELETE", "?policy", OWNER),
    case("GET", "?cors", OWNER),
    sending(case("PUT", "?cors", OWNER), CORS),
    case("DELETE", "?cors", OWNER),
    sending(case("PUT", "?versioning", OWNER), VERSIONING),
    case("PUT", "", OWNER),
    case("DELETE", "", OWNER),
];
