//! Requests to operations, and listings to XML.

use prism_http::{Limits, RequestHead};
use prism_s3::list::{Item, Page};
use prism_s3::xml;
use prism_s3::{
    BucketName, BucketOperation, Code, ListBuckets, ListObjects, ListVersion, ObjectOperation,
    Operation, Outcome, RangeSpec, S3Error,
};

use super::names::name;

fn parse(line: &str, fields: &str) -> Result<Operation, S3Error> {
    let text = format!("{line} HTTP/1.1\r\nHost: s3.test:9000\r\n{fields}\r\n");
    let (head, _) = RequestHead::parse(text.as_bytes(), &Limits::DEFAULT)
        .unwrap()
        .unwrap();
    Operation::parse(&head)
}

fn describe(operation: &Operation) -> String {
    let place = match operation {
        Operation::Unsupported { what } => what.clone(),
        other => other
            .object()
            .map(|object| format!("{}|{}", object.bucket, object.key))
            .or_else(|| other.bucket().map(ToString::to_string))
            .unwrap_or_default(),
    };
    format!("{} {place}", name(operation)).trim_end().to_owned()
}

#[test]
fn requests_become_operations() {
    let rows = [
        ("GET /", "", "ListBuckets"),
        ("OPTIONS /", "", "Preflight of the service"),
        ("OPTIONS /?x-id=a&acl", "", "Preflight of the service"),
        ("GET /?x-id=ListBuckets", "", "ListBuckets"),
        ("PUT /bkt", "", "CreateBucket bkt"),
        ("PUT /bkt/", "", "CreateBucket bkt"),
        ("DELETE /bkt", "", "DeleteBucket bkt"),
        ("HEAD /bkt", "", "HeadBucket bkt"),
        ("GET /bkt?location", "", "GetBucketLocation bkt"),
        ("GET /bkt", "", "ListObjects bkt"),
        (
            "GET /bkt/?list-type=2&prefix=a%2F&delimiter=%2F&encoding-type=url",
            "",
            "ListObjects bkt",
        ),
        ("PUT /bkt/k", "Content-Length: 3\r\n", "PutObject bkt|k"),
        (
            "PUT /bkt/k?x-id=PutObject",
            "Transfer-Encoding: chunked\r\n",
            "PutObject bkt|k",
        ),
        ("GET /bkt/a/b//c", "", "GetObject bkt|a/b//c"),
        ("GET /bkt//k", "", "GetObject bkt|/k"),
        ("GET /bkt/a%2520b%2Fc+d", "", "GetObject bkt|a%20b/c+d"),
        ("GET /bkt%2Fk", "", "GetObject bkt|k"),
        ("GET /bkt/..%2f..%2fetc", "", "GetObject bkt|../../etc"),
        ("HEAD /bkt/%C3%A9", "", "HeadObject bkt|\u{e9}"),
        ("DELETE /bkt/k", "", "DeleteObject bkt|k"),
        ("POST /", "", "Unsupported POST of the service"),
        ("POST /bkt?delete", "", "DeleteObjects bkt"),
        ("GET /bkt?cors", "", "GetBucketCors bkt"),
        ("PUT /bkt?cors", "", "PutBucketCors bkt"),
        ("PUT /bkt?policy", "", "PutBucketPolicy bkt"),
        ("DELETE /bkt?cors", "", "DeleteBucketCors bkt"),
        ("GET /bkt?versioning", "", "GetBucketVersioning bkt"),
        (
            "POST /bkt?delete&tagging",
            "",
            "Unsupported POST of a bucket with ?tagging",
        ),
        ("POST /bkt", "", "Unsupported PostObject"),
        ("GET /bkt?acl", "", "GetBucketAcl bkt"),
        ("GET /bkt?policyStatus", "", "GetBucketPolicyStatus bkt"),
        ("DELETE /bkt?lifecycle", "", "DeleteBucketLifecycle bkt"),
        (
            "PUT /bkt?lifecycle",
            "",
            "Unsupported PUT of a bucket with ?lifecycle",
        ),
        (
            "GET /bkt?metrics&x-id=a",
            "",
            "ListBucketMetricsConfigurations bkt",
        ),
        (
            "GET /bkt?metrics&id=a",
            "",
            "GetBucketMetricsConfiguration bkt",
        ),
        ("GET /bkt?versions&prefix=a", "", "ListObjectVersions bkt"),
        (
            "GET /bkt?uploads&prefix=a&max-uploads=3",
            "",
            "ListMultipartUploads bkt",
        ),
        (
            "GET /bkt?uploads&max-keys=3",
            "",
            "ListMultipartUploads bkt",
        ),
        (
            "GET /bkt?location&acl",
            "",
            "Unsupported GET of a bucket with ?location",
        ),
        (
            "GET /?unheard-of",
            "",
            "Unsupported GET of the service with ?unheard-of",
        ),
        ("PUT /bkt?versioning", "", "PutBucketVersioning bkt"),
        (
            "PUT /bkt?versioning",
            "x-amz-mfa: 1 2\r\n",
            "Unsupported the header x-amz-mfa",
        ),
        (
            "PUT /bkt?prefix=a",
            "",
            "Unsupported PUT of a bucket with ?prefix",
        ),
        ("POST /bkt/k?uploads", "", "CreateMultipartUpload bkt|k"),
        (
            "PUT /bkt/k?partNumber=1&uploadId=u",
            "Content-Length: 3\r\n",
            "UploadPart bkt|k",
        ),
        (
            "PUT /bkt/k?uploadId=u",
            "Content-Length: 3\r\n",
            "Unsupported PUT of an object with ?uploadId",
        ),
        (
            "PUT /bkt/k?partNumber=3",
            "Content-Length: 3\r\n",
            "Unsupported PUT of an object with ?partNumber",
        ),
        (
            "PUT /bkt/k?partNumber=1&uploadId=u",
            "x-amz-copy-source: /src/k\r\nx-amz-copy-source-range: bytes=0-4\r\n",
            "UploadPartCopy bkt|k",
        ),
        ("GET /bkt/k?uploadId=u&max-parts=3", "", "ListParts bkt|k"),
        (
            "POST /bkt/k?uploadId=u",
            "",
            "CompleteMultipartUpload bkt|k",
        ),
        ("DELETE /bkt/k?uploadId=u", "", "AbortMultipartUpload bkt|k"),
        ("GET /bkt/k?partNumber=2", "", "GetObject bkt|k"),
        (
            "HEAD /bkt/k?response-content-type=a%2Fb",
            "",
            "HeadObject bkt|k",
        ),
        (
            "DELETE /bkt/k?partNumber=2",
            "",
            "Unsupported DELETE of an object with ?partNumber",
        ),
        ("GET /bkt/k?tagging", "", "GetObjectTagging bkt|k"),
        ("DELETE /bkt/k?tagging", "", "DeleteObjectTagging bkt|k"),
        (
            "PUT /bkt/k?tagging",
            "Content-Length: 3\r\n",
            "PutObjectTagging bkt|k",
        ),
        (
            "GET /bkt/k?attributes",
            "x-amz-object-attributes: ETag,ObjectSize\r\n",
            "GetObjectAttributes bkt|k",
        ),
        ("GET /bkt/k?versionId=1", "", "GetObject bkt|k"),
        ("DELETE /bkt/k?versionId=1", "", "DeleteObject bkt|k"),
        (
            "PUT /bkt/k?versionId=1",
            "Content-Length: 3\r\n",
            "Unsupported PUT of an object with ?versionId",
        ),
        (
            "PUT /bkt/k?tagging&versionId=1",
            "Content-Length: 3\r\n",
            "PutObjectTagging bkt|k",
        ),
        ("GET /bkt/k?acl&versionId=1", "", "GetObjectAcl bkt|k"),
        (
            "PUT /bkt/k",
            "x-amz-copy-source: /src/b\r\nx-amz-source-expected-bucket-owner: 1\r\n",
            "Unsupported the header x-amz-source-expected-bucket-owner",
        ),
        (
            "POST /bkt/k?uploads",
            "x-amz-metadata-directive: REPLACE\r\n",
            "CreateMultipartUpload bkt|k",
        ),
        (
            "POST /bkt/k?uploads",
            "x-amz-tagging-directive: REPLACE\r\n",
            "Unsupported the header x-amz-tagging-directive",
        ),
        (
            "PUT /bkt/k",
            "x-amz-metadata-directive: REPLACE\r\n",
            "Unsupported the header x-amz-metadata-directive",
        ),
        (
            "PUT /bkt/k",
            "x-amz-copy-source: /src/b\r\nx-amz-metadata-directive: REPLACE\r\n",
            "CopyObject bkt|k",
        ),
        (
            "PUT /bkt/k",
            "x-amz-copy-source: /src/b?versionId=3\r\n",
            "CopyObject bkt|k",
        ),
        (
            "GET /bkt/k",
            "x-amz-copy-source: /src/b\r\n",
            "Unsupported the header x-amz-copy-source",
        ),
        (
            "PUT /bkt/k",
            "x-amz-server-side-encryption: AES256\r\n",
            "Unsupported the header x-amz-server-side-encryption",
        ),
        (
            "PUT /bkt/k",
            "x-amz-acl: public-read\r\n",
            "Unsupported the header x-amz-acl",
        ),
        (
            "PUT /bkt/k",
            "x-amz-acl: private\r\nContent-Length: 0\r\n",
            "PutObject bkt|k",
        ),
        ("DELETE /bkt/k", "If-Match: e\r\n", "DeleteObject bkt|k"),
        ("OPTIONS /bkt/k", "", "Preflight bkt"),
    ];
    for (line, fields, expected) in rows {
        assert_eq!(
            describe(&parse(line, fields).unwrap()),
            expected,
            "{line} {fields}"
        );
    }
}

/// The operation of a request without header fields but a length, or its code.
fn outcome(line: &str) -> String {
    match parse(line, "Content-Length: 0\r\n") {
        Ok(operation) => describe(&operation),
        Err(error) => error.code().as_str().to_owned(),
    }
}

#[test]
fn parameters_that_s3_does_not_know_change_nothing() {
    for parameter in [
        "ver=6.5",
        "_=1700000000",
        "utm_source=x",
        "v",
        "list-type=2",
    ] {
        for (line, expected) in [
            ("GET /bkt/k", "GetObject bkt|k"),
            ("HEAD /bkt/k", "HeadObject bkt|k"),
            ("PUT /bkt/k", "PutObject bkt|k"),
            ("DELETE /bkt/k", "DeleteObject bkt|k"),
            ("HEAD /bkt", "HeadBucket bkt"),
        ] {
            let line = format!("{line}?{parameter}");
            assert_eq!(outcome(&line), expected, "{line}");
        }
    }
    assert_eq!(outcome("GET /bkt?ver=6.5"), "ListObjects bkt");
    assert_eq!(outcome("GET /bkt/k?tagging&ver"), "GetObjectTagging bkt|k");
    // S3 may have given it a meaning since.
    for method in ["PUT", "DELETE"] {
        let of_bucket = outcome(&format!("{method} /bkt?ver=6.5"));
        assert!(of_bucket.starts_with("Unsupported "), "{of_bucket}");
    }
}

#[test]
fn parameters_that_s3_knows_are_never_ignored() {
    let parameters = "Tagging acl cors encryption legal-hold lifecycle object-lock partNumber \
        policy renameObject restore retention select session torrent versioning versions website \
        x-amz-acl X-Amz-Tagging";
    for parameter in parameters.split_ascii_whitespace() {
        for start in [
            "PUT /bkt/k",
            "HEAD /bkt/k",
            "PUT /bkt/k?tagging&versionId=1",
        ] {
            let mark = if start.contains('?') { '&' } else { '?' };
            let got = outcome(&format!("{start}{mark}{parameter}=1"));
            let is_read = start.starts_with("HEAD") && parameter == "partNumber";
            assert_eq!(
                got.starts_with("Unsupported "),
                !is_read,
                "{start} {parameter}"
            );
        }
    }
    assert_eq!(outcome("PUT /bkt/k?tagging"), "PutObjectTagging bkt|k");
}

#[test]
fn malformed_requests_get_the_errors_of_s3() {
    let long = format!("GET /bkt/{}", "k".repeat(1025));
    let rows = [
        ("GET /B", "", Code::InvalidBucketName),
        ("GET //k", "", Code::InvalidBucketName),
        ("GET /..", "", Code::InvalidBucketName),
        ("GET /bkt/%", "", Code::InvalidURI),
        ("GET /bkt/%ff", "", Code::InvalidURI),
        ("GET /bkt?prefix=%zz", "", Code::InvalidURI),
        (&long, "", Code::KeyTooLongError),
        ("PATCH /bkt/k", "", Code::MethodNotAllowed),
        ("FOO /bkt", "", Code::MethodNotAllowed),
        ("PUT /bkt/k", "", Code::MissingContentLength),
        (
            "PUT /bkt/k",
            "Content-Length: 5368709121\r\n",
            Code::EntityTooLarge,
        ),
        (
            "PUT /bkt/k",
            "x-amz-acl: public\r\nContent-Length: 0\r\n",
            Code::InvalidArgument,
        ),
        ("PUT /bkt", "x-amz-acl: Private\r\n", Code::InvalidArgument),
        ("GET /?max-buckets=0", "", Code::InvalidArgument),
        ("GET /?max-buckets=10001", "", Code::InvalidArgument),
        ("GET /?continuation-token=%21", "", Code::InvalidArgument),
        ("GET /bkt?max-keys=x", "", Code::InvalidArgument),
        ("GET /bkt?max-keys=-1", "", Code::InvalidArgument),
        ("GET /bkt?list-type=1", "", Code::InvalidArgument),
        ("GET /bkt?encoding-type=xml", "", Code::InvalidArgument),
        ("GET /bkt?uploads&max-uploads=x", "", Code::InvalidArgument),
        ("GET /bkt/k?partNumber=0", "", Code::InvalidArgument),
        ("GET /bkt/k?partNumber=10001", "", Code::InvalidArgument),
        (
            "GET /bkt/k?partNumber=1",
            "Range: bytes=0-1\r\n",
            Code::InvalidRequest,
        ),
        (
            "GET /bkt/k?response-expires=a%0D%0Ab",
            "",
            Code::InvalidArgument,
        ),
        ("GET /bkt/k?attributes", "", Code::InvalidArgument),
        (
            "PUT /bkt/k",
            "x-amz-copy-source: junk\r\n",
            Code::InvalidArgument,
        ),
        (
            "PUT /bkt/k",
            "x-amz-copy-source: /src/k\r\nx-amz-metadata-directive: MOVE\r\n",
            Code::InvalidArgument,
        ),
        (
            "PUT /bkt/k?partNumber=1&uploadId=u",
            "x-amz-copy-source: /src/k\r\nx-amz-copy-source-range: bytes=5-\r\n",
            Code::InvalidArgument,
        ),
        (
            "PUT /bkt/k?partNumber=1&uploadId=u",
            "",
            Code::MissingContentLength,
        ),
        (
            "POST /bkt/k?uploads",
            "x-amz-checksum-algorithm: SHA256\r\nx-amz-checksum-type: FULL_OBJECT\r\n",
            Code::InvalidRequest,
        ),
        (
            "POST /bkt/k?uploads",
            "x-amz-checksum-algorithm: MD6\r\n",
            Code::InvalidRequest,
        ),
        (
            "GET /bkt?list-type=2&continuation-token=%21",
            "",
            Code::InvalidArgument,
        ),
    ];
    for (line, fields, code) in rows {
        assert_eq!(parse(line, fields).unwrap_err().code(), code, "{line}");
    }
    let big = format!(
        "x-amz-meta-a: {}\r\nContent-Length: 0\r\n",
        "v".repeat(2048)
    );
    assert_eq!(
        parse("PUT /bkt/k", &big).unwrap_err().code(),
        Code::MetadataTooLarge
    );
}

#[test]
fn unsupported_operations_are_named_in_the_answer() {
    let Operation::Unsupported { what } = parse("POST /bkt/k?select", "").unwrap() else {
        panic!("supported");
    };
    let error = Operation::not_implemented(&what);
    assert_eq!(
        (error.status(), error.message()),
        (501, "SelectObjectContent is not implemented.")
    );
}

#[test]
fn what_comes_with_a_put_or_get_is_kept() {
    let fields =
        "Content-Type: a/b\r\nx-amz-meta-c: d\r\nIf-None-Match: *\r\nContent-Length: 7\r\n";
    let Operation::Object(_, ObjectOperation::Put(put)) = parse("PUT /bkt/k", fields).unwrap()
    else {
        panic!("no put");
    };
    assert_eq!(put.length, Some(7));
    assert_eq!(put.headers.iter().count(), 2);
    assert_eq!(put.conditions.for_write(Some("e")), Outcome::Failed);
    let get = parse("GET /bkt/k", "Range: bytes=1-\r\n").unwrap();
    let Operation::Object(_, ObjectOperation::Get(read)) = get else {
        panic!("no get");
    };
    assert_eq!(
        read.range,
        Some(RangeSpec::From {
            first: 1,
            last: None
        })
    );
}

fn list(line: &str) -> ListObjects {
    match parse(line, "").unwrap() {
        Operation::Bucket(_, BucketOperation::ListObjects(list)) => list,
        other => panic!("{other:?}"),
    }
}

#[test]
fn listings_know_where_they_start() {
    assert_eq!(list("GET /bkt").after(), None);
    assert_eq!(list("GET /bkt?marker=m").after(), Some("m"));
    assert_eq!(list("GET /bkt?marker=").after(), None);
    let l = list("GET /bkt?list-type=2&start-after=s");
    assert_eq!((l.after(), l.listing.max), (Some("s"), 1000));
    let token = ListObjects::token("a/\u{e9}&");
    let l = list(&format!(
        "GET /bkt?list-type=2&start-after=s&continuation-token={token}&max-keys=5000"
    ));
    assert_eq!((l.after(), l.listing.max), (Some("a/\u{e9}&"), 1000));
    assert_eq!(list("GET /bkt?max-keys=0").listing.max, 0);
    assert!(matches!(list("GET /bkt").version, ListVersion::V1 { .. }));
}

/// 2013-05-24.
const CREATED_MS: u64 = 1_369_353_600_000;

fn page(request: &ListObjects) -> String {
    let bucket = BucketName::parse("bkt").unwrap();
    let item = Item::Key {
        len: 7,
        etag: "e".to_owned(),
        created_ms: CREATED_MS,
        checksum: Some(("SHA1".to_owned(), "FULL_OBJECT".to_owned())),
    };
    let page = Page {
        lines: vec![
            ("a&<b>\r c\u{e9}".to_owned(), item),
            ("p q/".to_owned(), Item::Prefix),
        ],
        is_truncated: true,
    };
    String::from_utf8(xml::list_objects(&bucket, request, &page)).unwrap()
}

const PROLOG: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
const NS: &str = "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"";
const CHECKSUM: &str = "<ChecksumAlgorithm>SHA1</ChecksumAlgorithm>\
    <ChecksumType>FULL_OBJECT</ChecksumType>";

#[test]
fn version_1_listing() {
    assert_eq!(
        page(&list("GET /bkt?prefix=a%26&delimiter=%2F&marker=%3C")),
        format!(
            "{PROLOG}<ListBucketResult {NS}><Name>bkt</Name><Prefix>a&amp;</Prefix>\
             <Delimiter>/</Delimiter><MaxKeys>1000</MaxKeys><Marker>&lt;</Marker>\
             <NextMarker>p q/</NextMarker><IsTruncated>true</IsTruncated><Contents>\
             <Key>a&amp;&lt;b&gt;&#xd; c\u{e9}</Key><LastModified>2013-05-24T00:00:00.000Z</LastModified>\
             <ETag>&quot;e&quot;</ETag>{CHECKSUM}<Size>7</Size><Owner><ID>prism</ID>\
             <DisplayName>prism</DisplayName></Owner><StorageClass>STANDARD</StorageClass></Contents>\
             <CommonPrefixes><Prefix>p q/</Prefix></CommonPrefixes></ListBucketResult>"
        )
    );
}

#[test]
fn version_2_listing_with_encoded_names() {
    let token = ListObjects::token("p q/");
    assert_eq!(
        page(&list(
            "GET /bkt?list-type=2&encoding-type=url&start-after=a%20b&max-keys=2"
        )),
        format!(
            "{PROLOG}<ListBucketResult {NS}><Name>bkt</Name><Prefix></Prefix><MaxKeys>2</MaxKeys>\
             <EncodingType>url</EncodingType><KeyCount>2</KeyCount><StartAfter>a%20b</StartAfter>\
             <NextContinuationToken>{token}</NextContinuationToken><IsTruncated>true</IsTruncated>\
             <Contents><Key>a%26%3Cb%3E%0D%20c%C3%A9</Key>\
             <LastModified>2013-05-24T00:00:00.000Z</LastModified><ETag>&quot;e&quot;</ETag>\
             {CHECKSUM}<Size>7</Size><StorageClass>STANDARD</StorageClass></Contents>\
             <CommonPrefixes><Prefix>p%20q/</Prefix></CommonPrefixes></ListBucketResult>"
        )
    );
}

#[test]
fn bucket_listing_and_location() {
    let bucket = BucketName::parse("bkt").unwrap();
    let listed = |line: &str| {
        let Operation::ListBuckets(request) = parse(line, "").unwrap() else {
            panic!("{line}");
        };
        let buckets = [(bucket.clone(), CREATED_MS)];
        String::from_utf8(xml::list_buckets(&request, "here", &buckets, true)).unwrap()
    };
    let token = ListObjects::token("bkt");
    assert!(listed("GET /?prefix=b").ends_with(&format!(
        "<BucketRegion>here</BucketRegion></Bucket></Buckets><ContinuationToken>{token}\
             </ContinuationToken><Prefix>b</Prefix></ListAllMyBucketsResult>"
    )));
    let all = ListBuckets::default();
    let buckets = [(bucket, CREATED_MS)];
    assert_eq!(
        String::from_utf8(xml::list_buckets(&all, "here", &buckets, false)).unwrap(),
        format!(
            "{PROLOG}<ListAllMyBucketsResult {NS}><Owner><ID>prism</ID><DisplayName>prism</DisplayName>\
             </Owner><Buckets><Bucket><Name>bkt</Name>\
             <CreationDate>2013-05-24T00:00:00.000Z</CreationDate></Bucket></Buckets>\
             </ListAllMyBucketsResult>"
        )
    );
    let location = |region| String::from_utf8(xml::location(region)).unwrap();
    assert_eq!(
        location("us-east-1"),
        format!("{PROLOG}<LocationConstraint {NS}></LocationConstraint>")
    );
    assert!(location("eu-west-1").contains(">eu-west-1<"));
}

#[test]
fn location_constraints_are_read_strictly() {
    let read = |body: &str| xml::parse_location_constraint(body.as_bytes());
    let wrap = |inner: &str| {
        format!("<CreateBucketConfiguration {NS}>{inner}</CreateBucketConfiguration>")
    };
    assert_eq!(read("").unwrap(), None);
    assert_eq!(read(&wrap("")).unwrap(), None);
    let inner = "\n <LocationConstraint>eu-west-1</LocationConstraint>\n";
    assert_eq!(read(&wrap(inner)).unwrap().as_deref(), Some("eu-west-1"));
    let doctype = format!("<!DOCTYPE x [<!ENTITY a \"b\">]>{}", wrap(inner));
    for bad in [
        "<Other/>x<",
        "<Other></Other>",
        "<CreateBucketConfiguration>",
        "<a></b>",
        doctype.as_str(),
        &wrap("<LocationConstraint>&a;</LocationConstraint>"),
        &wrap(&"<a>".repeat(100)),
        &wrap("<Zone>a</Zone>"),
        &wrap("<LocationConstraint><a>b</a></LocationConstraint>"),
    ] {
        assert_eq!(read(bad).unwrap_err().code(), Code::MalformedXML, "{bad}");
    }
    for not_served in [
        "<Tags><Tag><Key>a</Key><Value>b</Value></Tag></Tags>",
        "<Location><Type>AvailabilityZone</Type><Name>z</Name></Location>",
        "<Bucket><Type>Directory</Type></Bucket>",
    ] {
        let error = read(&wrap(not_served)).unwrap_err();
        assert_eq!(error.code(), Code::NotImplemented, "{not_served}");
    }
    assert!(xml::parse_location_constraint(b"\xff").is_err());
}
