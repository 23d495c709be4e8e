//! Bodies in chunks: the published examples, every cut, and every damage.

use data_encoding::BASE64;
use prism_http::{Headers, Limits, RequestHead};
use prism_s3::query::Query;
use prism_s3::time::parse_iso_basic;
use prism_s3::{
    Authenticator, BodyDigest, Code, Expected, ObjectOperation, Operation, Payload, S3Error,
    StreamDecoder,
};

use super::names::name;

const UNSIGNED: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";
const SIGNED: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD";
const SIGNED_TRAILER: &str = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER";

fn headers(fields: &[(&str, &str)]) -> Headers {
    let mut headers = Headers::new();
    fields
        .iter()
        .for_each(|(n, v)| headers.append(n, v).unwrap());
    headers
}

fn head(method: &str, target: &str, fields: &[(&str, &str)]) -> RequestHead {
    let mut bytes = format!("{method} {target} HTTP/1.1\r\n").into_bytes();
    headers(fields).write_to(&mut bytes);
    bytes.extend_from_slice(b"\r\n");
    let parsed = RequestHead::parse(&bytes, &Limits::DEFAULT).unwrap();
    parsed.unwrap().0
}

/// One upload, as a node receives it.
#[derive(Clone)]
struct Upload {
    payload: Payload,
    headers: Headers,
    body: Vec<u8>,
}

impl Upload {
    /// An unsigned upload: `trailer` is the announced name, `body` is framed.
    fn unsigned(len: usize, trailer: Option<&str>, body: impl Into<Vec<u8>>) -> Self {
        let len = len.to_string();
        let mut headers = headers(&[("x-amz-decoded-content-length", &len)]);
        if let Some(name) = trailer {
            headers.append("x-amz-trailer", name).unwrap();
        }
        let streaming = prism_s3::Streaming {
            trailer: true,
            chain: None,
        };
        Self {
            payload: Payload::Streaming(streaming),
            headers,
            body: body.into(),
        }
    }

    /// The data and the verified checksum, with the body in these pieces.
    fn read_in<'a>(
        &self,
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(Vec<u8>, Option<String>), S3Error> {
        let Payload::Streaming(streaming) = self.payload.clone() else {
            panic!("not in chunks");
        };
        let mut digest = BodyDigest::new(Expected::from_request(&self.headers, &self.payload)?);
        let mut decoder = StreamDecoder::new(streaming, &self.headers)?;
        let mut data = Vec::new();
        for mut rest in pieces {
            while !rest.is_empty() {
                let range = decoder.consume(rest)?;
                assert!(range.end > 0);
                data.extend_from_slice(&rest[range.clone()]);
                rest = &rest[range.end..];
            }
        }
        digest.update(&data);
        if let Some((algorithm, value)) = decoder.finish()? {
            digest.take_trailer(algorithm, value);
        }
        let digests = digest.finish()?;
        Ok((data, digests.checksum.map(|(_, value)| value)))
    }

    fn read(&self) -> Result<(Vec<u8>, Option<String>), S3Error> {
        self.read_in([self.body.as_slice()])
    }

    fn code(&self) -> Code {
        self.read().unwrap_err().code()
    }
}

/// The examples of the Amazon S3 API reference: 65 KiB of `a`, in chunks of 64
/// KiB, with and without a trailer.
fn published(kind: &str, seed: &str, chunks: [&str; 3], trailer: Option<&str>) -> Upload {
    let signed_headers = match trailer {
        None => {
            "content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;\
                 x-amz-decoded-content-length;x-amz-storage-class"
        }
        Some(_) => {
            "content-encoding;host;x-amz-content-sha256;x-amz-date;\
                    x-amz-decoded-content-length;x-amz-storage-class;x-amz-trailer"
        }
    };
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
         SignedHeaders={signed_headers},Signature={seed}"
    );
    let mut fields = vec![
        ("Host", "s3.amazonaws.com"),
        ("x-amz-date", "20130524T000000Z"),
        ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        ("Authorization", &authorization),
        ("x-amz-content-sha256", kind),
        ("Content-Encoding", "aws-chunked"),
        ("x-amz-decoded-content-length", "66560"),
    ];
    match trailer {
        None => fields.push(("Content-Length", "66824")),
        Some(_) => fields.push(("x-amz-trailer", "x-amz-checksum-crc32c")),
    }
    let head = head("PUT", "/examplebucket/chunkObject.txt", &fields);
    let credentials = [(
        "AKIAIOSFODNN7EXAMPLE",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    )];
    let authenticator = Authenticator::new(credentials, "us-east-1");
    let now = parse_iso_basic("20130524T000000Z").unwrap();
    let query = Query::parse(head.query()).unwrap();
    let known = authenticator.authenticate(&head, &query, now).unwrap();
    let Payload::Streaming(streaming) = &known.payload else {
        panic!("{:?}", known.payload);
    };
    // Another node verifies with the seed.
    let seed = streaming.chain.as_ref().unwrap().seed();
    let chain = authenticator.chain("AKIAIOSFODNN7EXAMPLE", seed).unwrap();
    let again = Payload::Streaming(prism_s3::Streaming {
        trailer: streaming.trailer,
        chain: Some(Box::new(chain)),
    });
    assert_eq!(again, known.payload);
    let mut body = Vec::new();
    for (len, signature) in [65536, 1024, 0].into_iter().zip(chunks) {
        body.extend_from_slice(format!("{len:x};chunk-signature={signature}\r\n").as_bytes());
        if len > 0 {
            body.resize(body.len() + len, b'a');
            body.extend_from_slice(b"\r\n");
        }
    }
    if let Some(signature) = trailer {
        let lines =
            format!("x-amz-checksum-crc32c:sOO8/Q==\r\nx-amz-trailer-signature:{signature}\r\n");
        body.extend_from_slice(lines.as_bytes());
    }
    body.extend_from_slice(b"\r\n");
    Upload {
        payload: again,
        headers: head.headers().clone(),
        body,
    }
}

fn published_plain() -> Upload {
    published(
        SIGNED,
        "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
        [
            "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
            "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
            "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
        ],
        None,
    )
}

fn published_trailer() -> Upload {
    published(
        SIGNED_TRAILER,
        "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
        [
            "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
            "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
            "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
        ],
        Some("d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435"),
    )
}

#[test]
fn published_examples_verify() {
    let plain = published_plain();
    assert_eq!(plain.body.len(), 66824);
    assert_eq!(plain.read().unwrap(), (vec![b'a'; 66560], None));
    let trailer = published_trailer();
    let checksum = Some("sOO8/Q==".to_owned());
    assert_eq!(trailer.read().unwrap(), (vec![b'a'; 66560], checksum));
}

#[test]
fn signed_chunks_do_not_verify_with_any_byte_changed() {
    for upload in [published_plain(), published_trailer()] {
        let len = upload.body.len();
        // The samples are all framing, and some of the data.
        let framing = (0..95).chain(65610..65730).chain(66740..len);
        for at in framing.chain((0..len).step_by(4001)) {
            let mut damaged = upload.clone();
            damaged.body[at] ^= 1;
            let Ok((data, _)) = damaged.read() else {
                continue;
            };
            panic!("byte {at} of {len} changed, and {} read", data.len());
        }
    }
}

#[test]
fn chunks_that_are_swapped_dropped_or_not_signed_are_refused() {
    let upload = published_plain();
    // `;chunk-signature=`, 64 digits, CR LF; and CR LF behind the data.
    let (first, second) = (5 + 83 + 65536 + 2, 3 + 83 + 1024 + 2);
    let mut dropped = upload.clone();
    dropped.body.drain(first..first + second);
    assert_eq!(dropped.code(), Code::IncompleteBody);
    let mut swapped = upload.clone();
    swapped.body[..first + second].rotate_left(first);
    assert_eq!(swapped.code(), Code::SignatureDoesNotMatch);
    let mut bare = upload.clone();
    bare.body.drain(5..5 + 81);
    assert_eq!(bare.code(), Code::InvalidRequest);
    let mut other_seed = upload;
    other_seed.payload = published_trailer().payload;
    assert_eq!(other_seed.code(), Code::SignatureDoesNotMatch);
}

const CRC: (&str, &str) = ("x-amz-checksum-crc32", "y/Q5Jg==");

fn digits() -> Upload {
    let body = "4\r\n1234\r\n05\r\n56789\r\n0\r\nx-amz-checksum-crc32:y/Q5Jg==\r\n\r\n";
    Upload::unsigned(9, Some(CRC.0), body)
}

#[test]
fn every_algorithm_is_verified_behind_the_body() {
    let rows = [
        ("x-amz-checksum-crc32", "cbf43926"),
        ("x-amz-checksum-crc32c", "e3069283"),
        ("x-amz-checksum-crc64nvme", "ae8b14860a799888"),
        (
            "x-amz-checksum-sha1",
            "f7c3bc1d808e04732adf679965ccc34ca7ae3441",
        ),
        (
            "X-Amz-Checksum-Sha256",
            "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
        ),
    ];
    for (name, hex) in rows {
        let value = data_encoding::HEXLOWER.decode(hex.as_bytes()).unwrap();
        let text = BASE64.encode(&value);
        let of = |digits: &str, text: &str| {
            let body = format!("9\r\n{digits}\r\n0\r\n{name}:{text}\r\n\r\n");
            Upload::unsigned(9, Some(name), body)
        };
        let (data, checksum) = of("123456789", &text).read().unwrap();
        assert_eq!(
            (data.as_slice(), checksum),
            (&b"123456789"[..], Some(text.clone()))
        );
        assert_eq!(of("123456780", &text).code(), Code::BadDigest, "{name}");
        for junk in ["", "junk", "AAAA", "AAAAAAAAAAAAAAAAAAAA"] {
            let code = of("123456789", junk).code();
            assert_eq!(code, Code::MalformedTrailerError, "{name} {junk}");
        }
    }
}

#[test]
fn the_input_may_be_cut_anywhere() {
    let upload = digits();
    let whole = upload.read().unwrap();
    assert_eq!(whole.0, b"123456789");
    for at in 0..=upload.body.len() {
        let (a, b) = upload.body.split_at(at);
        assert_eq!(upload.read_in([a, b]).unwrap(), whole, "cut at {at}");
    }
    assert_eq!(upload.read_in(upload.body.chunks(1)).unwrap(), whole);
    let signed = published_trailer();
    let whole = signed.read().unwrap();
    assert_eq!(signed.read_in(signed.body.chunks(1)).unwrap(), whole);
    let mut rng = fastrand::Rng::with_seed(7);
    for _ in 0..100 {
        let piece = rng.usize(1..3000);
        assert_eq!(signed.read_in(signed.body.chunks(piece)).unwrap(), whole);
    }
}

#[test]
fn a_body_that_ends_early_is_incomplete() {
    for upload in [digits(), published_plain(), published_trailer()] {
        let len = upload.body.len();
        for keep in (0..len).filter(|n| *n < 200 || *n > len - 300) {
            let mut cut = upload.clone();
            cut.body.truncate(keep);
            // A whole trailer lacks the empty line only.
            if let Err(error) = cut.read() {
                let expected = [Code::IncompleteBody, Code::MalformedTrailerError];
                assert!(expected.contains(&error.code()), "{keep}: {error}");
            } else {
                assert_eq!(keep, len - 2);
            }
        }
    }
}

#[test]
fn malformed_chunks_are_refused() {
    let rows: &[(&str, Code)] = &[
        ("", Code::IncompleteBody),
        ("0\r\n\r\n", Code::IncompleteBody),
        ("8\r\n12345678\r\n0\r\n\r\n", Code::IncompleteBody),
        ("a\r\n1234567890\r\n0\r\n\r\n", Code::IncompleteBody),
        (
            "9\r\n123456789\r\n1\r\n0\r\n0\r\n\r\n",
            Code::IncompleteBody,
        ),
        ("ffffffffffffffff\r\n", Code::IncompleteBody),
        ("9\n123456789\r\n0\r\n\r\n", Code::InvalidRequest),
        ("9\r\n1234567890\r\n0\r\n\r\n", Code::InvalidRequest),
        ("9\r\n123456789\n0\r\n\r\n", Code::InvalidRequest),
        ("9 \r\n123456789\r\n0\r\n\r\n", Code::InvalidRequest),
        ("+9\r\n123456789\r\n0\r\n\r\n", Code::InvalidRequest),
        ("0x9\r\n123456789\r\n0\r\n\r\n", Code::InvalidRequest),
        ("\r\n", Code::InvalidRequest),
        ("-1\r\n", Code::InvalidRequest),
        ("fffffffffffffffff\r\n", Code::InvalidRequest),
        ("9;x=y\r\n123456789\r\n0\r\n\r\n", Code::InvalidRequest),
        ("9;chunk-signature=00\r\n", Code::InvalidRequest),
        ("9\r\n123456789\r\n0\r\n", Code::IncompleteBody),
    ];
    for (body, code) in rows {
        assert_eq!(Upload::unsigned(9, None, *body).code(), *code, "{body:?}");
    }
    let long = vec![b'0'; 1000];
    assert_eq!(Upload::unsigned(9, None, long).code(), Code::InvalidRequest);
    let signed = format!("9;chunk-signature={}\r\n123456789\r\n", "0".repeat(64));
    assert_eq!(
        Upload::unsigned(9, None, signed).code(),
        Code::InvalidRequest
    );
    let fine = Upload::unsigned(9, None, "9\r\n123456789\r\n0\r\n\r\n");
    assert_eq!(fine.read().unwrap().0, b"123456789");
    let empty = Upload::unsigned(0, None, "0\r\n\r\n");
    assert_eq!(empty.read().unwrap().0, b"");
}

#[test]
fn malformed_trailers_are_refused() {
    let crc = format!("{}:{}\r\n", CRC.0, CRC.1);
    let signature = format!("x-amz-trailer-signature:{}\r\n", "0".repeat(64));
    for tail in [
        "\r\n".to_owned(),
        format!("{crc}{crc}\r\n"),
        format!("{crc}x-amz-meta-a:b\r\n\r\n"),
        format!("{crc}{signature}\r\n"),
        "x-amz-checksum-crc32c:AAAAAA==\r\n\r\n".to_owned(),
        "x-amz-checksum-crc32\r\n\r\n".to_owned(),
        format!("x-amz-checksum-crc32 :{}\r\n\r\n", CRC.1),
        format!("{crc}\r\n9\r\n123456789\r\n"),
        format!("{}\r\n", "a".repeat(10_000)),
        "\u{ff}\r\n".to_owned(),
    ] {
        let body = format!("9\r\n123456789\r\n0\r\n{tail}");
        let upload = Upload::unsigned(9, Some(CRC.0), body);
        assert_eq!(upload.code(), Code::MalformedTrailerError, "{tail:?}");
    }
    // The AWS SDKs do not do this, but others do.
    for tail in [
        format!("X-Amz-Checksum-CRC32: {} \r\n\r\n", CRC.1),
        format!("{}:{}\n\r\n\r\n", CRC.0, CRC.1),
    ] {
        let body = format!("9\r\n123456789\r\n0\r\n{tail}");
        let upload = Upload::unsigned(9, Some(CRC.0), body);
        assert_eq!(upload.read().unwrap().1.unwrap(), CRC.1, "{tail:?}");
    }
}

#[test]
fn what_the_head_announces_must_make_sense() {
    let code = |fields: &[(&str, &str)]| {
        let mut upload = digits();
        upload.headers = headers(fields);
        upload.read().map(|_| ()).map_err(|e| e.code())
    };
    let nine = ("x-amz-decoded-content-length", "9");
    let trailer = ("x-amz-trailer", CRC.0);
    assert_eq!(code(&[nine, trailer]), Ok(()));
    assert_eq!(code(&[trailer]), Err(Code::MissingContentLength));
    for junk in ["", "-9", "+9", "9 9", "99999999999999999999"] {
        let length = ("x-amz-decoded-content-length", junk);
        assert_eq!(code(&[length, trailer]), Err(Code::InvalidRequest));
    }
    for junk in [
        "",
        "x-amz-checksum-md6",
        "x-amz-meta-a",
        "x-amz-checksum-crc32,x-amz-checksum-sha1",
    ] {
        let trailer = ("x-amz-trailer", junk);
        assert_eq!(code(&[nine, trailer]), Err(Code::InvalidRequest), "{junk}");
    }
    assert_eq!(code(&[nine, trailer, trailer]), Err(Code::InvalidRequest));
    assert_eq!(code(&[nine, trailer, CRC]), Err(Code::InvalidRequest));
    // Only a form with a trailer may announce one.
    let mut plain = published_plain();
    plain.headers.append("x-amz-trailer", CRC.0).unwrap();
    assert_eq!(plain.code(), Code::InvalidRequest);
}

#[test]
fn only_an_object_is_put_in_chunks() {
    let fields = |kind| {
        [
            ("Host", "h"),
            ("Content-Length", "100"),
            ("x-amz-content-sha256", kind),
            ("x-amz-decoded-content-length", "9"),
        ]
    };
    let parse = |method: &str, target: &str, fields: &[(&str, &str)]| {
        Operation::parse(&head(method, target, fields))
    };
    for kind in [UNSIGNED, SIGNED, SIGNED_TRAILER] {
        match parse("PUT", "/bkt/k", &fields(kind)) {
            Ok(Operation::Object(_, ObjectOperation::Put(put))) => assert_eq!(put.length, Some(9)),
            other => panic!("{other:?}"),
        }
        for (method, target) in [("PUT", "/bkt"), ("GET", "/bkt"), ("GET", "/bkt/k")] {
            let got = parse(method, target, &fields(kind)).unwrap();
            assert_eq!(name(&got), "Unsupported", "{method} {target}");
        }
    }
    let got = parse("PUT", "/bkt/k", &fields("UNSIGNED-PAYLOAD")).unwrap();
    assert_eq!(name(&got), "Unsupported");
    let missing = parse("PUT", "/bkt/k", &fields(UNSIGNED)[..3]);
    assert_eq!(missing.unwrap_err().code(), Code::MissingContentLength);
    let mut large = fields(UNSIGNED);
    large[3].1 = "5368709121";
    let large = parse("PUT", "/bkt/k", &large);
    assert_eq!(large.unwrap_err().code(), Code::EntityTooLarge);
}
