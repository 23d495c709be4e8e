//! Checksums: of bodies, of objects in parts, of objects whose client gives none, and in listings.

use prism_s3::{Algorithm, BodyDigest, ChecksumType, Expected};

use crate::support::{Answer, Server};

/// The parts of every upload, with the least bytes that the first may have.
static PARTS: [&[u8]; 2] = [&[7; 5 << 20], b"the end"];

const MODE: (&str, &str) = ("x-amz-checksum-mode", "ENABLED");
const TYPE: &str = "x-amz-checksum-type";
const INVALID: u16 = 400;

fn with_bucket() -> Server {
    let server = Server::alone();
    assert_eq!(server.send("PUT /bkt", &[], &[]).status, 200);
    server
}

fn sum(algorithm: Algorithm, bytes: &[u8]) -> String {
    let mut digest = BodyDigest::new(Expected::default().or_computed(algorithm));
    digest.update(bytes);
    digest.finish().unwrap().checksum.unwrap().1
}

/// The checksum of the object that has all [`PARTS`].
fn sum_of_parts(algorithm: Algorithm, kind: ChecksumType) -> String {
    match kind {
        ChecksumType::FullObject => sum(algorithm, &PARTS.concat()),
        ChecksumType::Composite => {
            let sums = PARTS.map(|part| algorithm.decode(&sum(algorithm, part)).unwrap());
            format!("{}-2", sum(algorithm, &sums.concat()))
        }
    }
}

/// An upload of `bkt/k` with all its parts.
struct Upload<'s> {
    server: &'s Server,
    start: String,
    parts: Vec<Answer>,
}

impl<'s> Upload<'s> {
    /// Begins an upload with these fields, and stores its parts with those of `part`.
    fn new(server: &'s Server, fields: &[(&str, &str)], part: &[(&str, &str)]) -> Self {
        let begun = server.send("POST /bkt/k?uploads", fields, &[]);
        assert_eq!(begun.status, 200, "{}", begun.text());
        let id = begun.elements("UploadId")[0].to_owned();
        let put = |(n, bytes): (usize, &&[u8])| {
            let start = format!("PUT /bkt/k?partNumber={}&uploadId={id}", n + 1);
            let put = server.send(&start, part, bytes);
            assert_eq!(put.status, 200, "{}", put.text());
            put
        };
        Self {
            server,
            parts: PARTS.iter().enumerate().map(put).collect(),
            start: format!("POST /bkt/k?uploadId={id}"),
        }
    }

    fn complete(&self, fields: &[(&str, &str)]) -> Answer {
        let parts = self.parts.iter().enumerate().map(|(n, part)| {
            let number = n + 1;
            let etag = part.header("etag");
            format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>")
        });
        let list: String = parts.collect();
        let list = format!("<CompleteMultipartUpload>{list}</CompleteMultipartUpload>");
        self.server.send(&self.start, fields, list.as_bytes())
    }

    /// Completes the upload in vain.
    fn refuse(&self, fields: &[(&str, &str)], code: &str) {
        let refused = self.complete(fields);
        assert_eq!(refused.status, INVALID, "{fields:?}");
        assert_eq!(refused.elements("Code"), [code], "{fields:?}");
    }
}

#[test]
fn a_completion_announces_the_checksum_of_the_object_in_every_form() {
    let server = with_bucket();
    let kinds = [ChecksumType::Composite, ChecksumType::FullObject];
    let all = Algorithm::ALL
        .into_iter()
        .flat_map(|algorithm| kinds.map(|kind| (algorithm, kind)));
    for (algorithm, kind) in all.filter(|(algorithm, kind)| algorithm.allows(*kind)) {
        let value = sum_of_parts(algorithm, kind);
        let bare = value.trim_end_matches("-2");
        for announced in [value.as_str(), bare] {
            for typed in [false, true] {
                complete_announced(&server, (algorithm, kind), announced, typed);
            }
        }
    }
}

fn complete_announced(
    server: &Server,
    (algorithm, kind): (Algorithm, ChecksumType),
    announced: &str,
    is_typed: bool,
) {
    let value = sum_of_parts(algorithm, kind);
    let name = algorithm.header();
    let wanted = [
        ("x-amz-checksum-algorithm", algorithm.name()),
        (TYPE, kind.as_str()),
    ];
    let upload = Upload::new(server, &wanted, &[]);
    let mut fields = vec![(name, announced), ("x-amz-mp-object-size", "5242887")];
    if is_typed {
        fields.push((TYPE, kind.as_str()));
    }
    let other = sum(algorithm, b"other");
    upload.refuse(&[(name, &other)], "BadDigest");
    upload.refuse(&[(name, &format!("{announced}-3"))], "BadDigest");
    upload.refuse(&[(name, "x")], "InvalidRequest");
    let sha1 = sum(Algorithm::Sha1, b"");
    let crc32 = sum(Algorithm::Crc32, b"");
    let (other_name, other) = match algorithm {
        Algorithm::Sha1 => (Algorithm::Crc32.header(), &crc32),
        _ => (Algorithm::Sha1.header(), &sha1),
    };
    upload.refuse(&[(other_name, other)], "InvalidRequest");
    let other_kind = match kind {
        ChecksumType::Composite => ChecksumType::FullObject,
        ChecksumType::FullObject => ChecksumType::Composite,
    };
    upload.refuse(
        &[(name, announced), (TYPE, other_kind.as_str())],
        "InvalidRequest",
    );
    upload.refuse(
        &[(name, announced), ("x-amz-mp-object-size", "5")],
        "InvalidRequest",
    );
    // The second one is that of a client that did not hear the answer.
    for _ in 0..2 {
        let made = upload.complete(&fields);
        assert_eq!(made.status, 200, "{fields:?}: {}", made.text());
        let element = format!("Checksum{}", algorithm.name());
        assert_eq!(made.elements(&element), [value.as_str()]);
        assert_eq!(made.elements("ChecksumType"), [kind.as_str()]);
    }
    let head = server.send("HEAD /bkt/k", &[MODE], &[]);
    assert_eq!(head.header(name), value);
    assert_eq!(head.header(TYPE), kind.as_str());
    upload.refuse(&[(name, &format!("{announced}-3"))], "BadDigest");
}

#[test]
fn a_new_object_without_a_checksum_gets_the_default_one() {
    let server = with_bucket();
    let name = Algorithm::DEFAULT.header();
    let value = sum(Algorithm::DEFAULT, b"bytes");
    let put = server.send("PUT /bkt/k", &[], b"bytes");
    assert_eq!(put.header(name), value);
    assert_eq!(put.header(TYPE), "FULL_OBJECT");
    for method in ["GET", "HEAD"] {
        let got = server.send(&format!("{method} /bkt/k"), &[MODE], &[]);
        assert_eq!(got.header(name), value);
        assert_eq!(got.header(TYPE), "FULL_OBJECT");
        let unasked = server.send(&format!("{method} /bkt/k"), &[], &[]);
        assert_eq!(unasked.header(name), "");
    }
    // A client's own is the only one, and copies keep its algorithm.
    let crc32 = sum(Algorithm::Crc32, b"bytes");
    let given = [(Algorithm::Crc32.header(), crc32.as_str())];
    assert_eq!(
        server.send("PUT /bkt/own", &given, b"bytes").header(name),
        ""
    );
    for (source, element, value) in [
        ("/bkt/k", "ChecksumCRC64NVME", &value),
        ("/bkt/own", "ChecksumCRC32", &crc32),
    ] {
        let copied = server.send("PUT /bkt/copy", &[("x-amz-copy-source", source)], &[]);
        assert_eq!(copied.elements(element), [value.as_str()]);
        assert_eq!(copied.elements("ChecksumType"), ["FULL_OBJECT"]);
    }
}

#[test]
fn an_upload_without_an_algorithm_gets_the_default_checksum_of_the_whole() {
    let server = with_bucket();
    let name = Algorithm::DEFAULT.header();
    let value = sum_of_parts(Algorithm::DEFAULT, ChecksumType::FullObject);
    let upload = Upload::new(&server, &[], &[]);
    for (part, bytes) in upload.parts.iter().zip(PARTS) {
        assert_eq!(part.header(name), sum(Algorithm::DEFAULT, bytes));
        assert_eq!(part.header(TYPE), "");
    }
    upload.refuse(&[(name, &sum(Algorithm::DEFAULT, b""))], "BadDigest");
    upload.refuse(&[(TYPE, "COMPOSITE")], "InvalidRequest");
    let made = upload.complete(&[(name, &value), (TYPE, "FULL_OBJECT")]);
    assert_eq!(made.elements("ChecksumCRC64NVME"), [value.as_str()]);
    assert_eq!(made.elements("ChecksumType"), ["FULL_OBJECT"]);
    let head = server.send("HEAD /bkt/k", &[MODE], &[]);
    assert_eq!(head.header(name), value);
}

#[test]
fn an_object_without_a_checksum_is_listed_without_one_and_its_copy_gets_the_default() {
    let server = with_bucket();
    // The client's checksums of these parts are no base for that of the whole.
    let upload = Upload::new(&server, &[], &[]);
    let crc32 = sum(Algorithm::Crc32, PARTS[1]);
    let again = upload.start.replace("POST", "PUT") + "&partNumber=2";
    let given = [(Algorithm::Crc32.header(), crc32.as_str())];
    assert_eq!(server.send(&again, &given, PARTS[1]).status, 200);
    let made = upload.complete(&[]);
    assert_eq!(made.status, 200, "{}", made.text());
    assert!(made.elements("ChecksumType").is_empty());
    for listing in ["GET /bkt", "GET /bkt?list-type=2", "GET /bkt?versions"] {
        let listed = server.send(listing, &[], &[]);
        assert_eq!(listed.elements("Key"), ["k"]);
        assert!(listed.elements("ChecksumAlgorithm").is_empty());
    }
    let source = [("x-amz-copy-source", "/bkt/k")];
    let copied = server.send("PUT /bkt/copy", &source, &[]);
    let value = sum(Algorithm::DEFAULT, &PARTS.concat());
    assert_eq!(copied.elements("ChecksumCRC64NVME"), [value.as_str()]);
}

#[test]
fn listings_have_the_algorithm_and_the_type_of_each_checksum() {
    let server = with_bucket();
    let wanted = [("x-amz-checksum-algorithm", "CRC32C")];
    let upload = Upload::new(&server, &wanted, &[]);
    let (_, id) = upload.start.split_once('?').unwrap();
    for listing in [format!("GET /bkt/k?{id}"), "GET /bkt?uploads".to_owned()] {
        let listed = server.send(&listing, &[], &[]);
        assert_eq!(listed.elements("ChecksumAlgorithm"), ["CRC32C"]);
        assert_eq!(listed.elements("ChecksumType"), ["COMPOSITE"]);
    }
    assert_eq!(upload.complete(&[]).status, 200);
    server.send("PUT /bkt/l", &[], b"bytes");
    let sha256 = sum(Algorithm::Sha256, b"bytes");
    let given = [(Algorithm::Sha256.header(), sha256.as_str())];
    server.send("PUT /bkt/m", &given, b"bytes");
    for listing in ["GET /bkt", "GET /bkt?list-type=2", "GET /bkt?versions"] {
        let listed = server.send(listing, &[], &[]);
        assert_eq!(
            listed.elements("ChecksumAlgorithm"),
            ["CRC32C", "CRC64NVME", "SHA256"]
        );
        assert_eq!(
            listed.elements("ChecksumType"),
            ["COMPOSITE", "FULL_OBJECT", "FULL_OBJECT"]
        );
    }
}

#[test]
fn malformed_digests_have_codes_of_their_own() {
    let server = with_bucket();
    for value in ["x", "AAAA", "AAAAAA==-1"] {
        for (name, code) in [
            ("Content-MD5", "InvalidDigest"),
            ("x-amz-checksum-crc32", "InvalidRequest"),
            ("x-amz-checksum-sha256", "InvalidRequest"),
        ] {
            let refused = server.send("PUT /bkt/k", &[(name, value)], b"bytes");
            assert_eq!(refused.status, INVALID);
            assert_eq!(refused.elements("Code"), [code], "{name}: {value}");
            if code == "InvalidRequest" {
                let message = format!("Value for {name} header is invalid.");
                assert_eq!(refused.elements("Message"), [message]);
            }
        }
    }
    assert_eq!(server.send("GET /bkt/k", &[], &[]).status, 404);
}
