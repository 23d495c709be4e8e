//! A body in `aws-chunked`: any bytes, or valid chunks and trailers, with or without signatures, and
//! then damaged. There is no panic, the same result whole and in pieces, and never more data than
//! announced. Valid bodies are read. A damaged signed body is refused, unless its data and checksum
//! are still the same.
#![no_main]

use std::ops::Range;
use std::sync::LazyLock;

use aws_lc_rs::{digest, hmac};
use libfuzzer_sys::fuzz_target;
use prism_http::Headers;
use prism_s3::time::parse_iso_basic;
use prism_s3::{Algorithm, Authenticator, S3Error, Seed, StreamDecoder, Streaming};

const TIME: &str = "20130524T000000Z";
const SCOPE: &str = "20130524/r/s3/aws4_request";
const SEED: [u8; 32] = [0x5a; 32];
const FORMS: [&str; 3] = [
    "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
];
/// The header of a checksum, and a value of its length.
const CHECKSUMS: [Option<(&str, &str)>; 3] = [
    None,
    Some(("x-amz-checksum-crc32c", "sOO8/Q==")),
    Some(("x-amz-checksum-sha1", "AAECAwQFBgcICQoLDA0ODxAREhM=")),
];

static AUTHENTICATOR: LazyLock<Authenticator> =
    LazyLock::new(|| Authenticator::new([("key", "secret")], "r"));
static KEY: LazyLock<hmac::Key> = LazyLock::new(|| {
    let parts = ["20130524", "r", "s3", "aws4_request"];
    let key = parts.iter().fold(b"AWS4secret".to_vec(), |key, part| {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
        hmac::sign(&key, part.as_bytes()).as_ref().to_vec()
    });
    hmac::Key::new(hmac::HMAC_SHA256, &key)
});

/// The head's declaration about the body.
struct Announced {
    form: &'static str,
    checksum: Option<(&'static str, &'static str)>,
    length: u64,
}

impl Announced {
    fn signed(&self) -> bool {
        self.form != FORMS[0]
    }

    /// The form of the body for a node that reads it. Another node has verified the request.
    fn payload(&self) -> (Streaming, Headers) {
        let mut headers = Headers::new();
        let mut add = |name, value: &str| headers.append(name, value).expect("a good field");
        add("x-amz-decoded-content-length", &self.length.to_string());
        if let Some((name, _)) = self.checksum {
            add("x-amz-trailer", name);
        }
        let chain = || {
            let time = parse_iso_basic(TIME).expect("a good time");
            let signature = SEED;
            let time_s = time.unix_timestamp().cast_unsigned();
            let chain = AUTHENTICATOR.chain("key", Seed { signature, time_s });
            Box::new(chain.expect("a known key"))
        };
        let streaming = Streaming {
            trailer: self.form != FORMS[1],
            chain: self.signed().then(chain),
        };
        (streaming, headers)
    }
}

/// Makes a body, and signs it if the form has signatures.
struct Writer {
    signed: bool,
    previous: String,
    body: Vec<u8>,
}

impl Writer {
    fn sign(&mut self, kind: &str, hashes: &str) -> String {
        let previous = &self.previous;
        let text = format!("AWS4-HMAC-SHA256-{kind}\n{TIME}\n{SCOPE}\n{previous}\n{hashes}");
        self.previous = hex(hmac::sign(&KEY, text.as_bytes()).as_ref());
        self.previous.clone()
    }

    fn chunk(&mut self, data: &[u8]) {
        self.body.extend(format!("{:x}", data.len()).bytes());
        if self.signed {
            let hashes = format!("{}\n{}", sha256(b""), sha256(data));
            let signature = self.sign("PAYLOAD", &hashes);
            self.body
                .extend(format!(";chunk-signature={signature}").bytes());
        }
        self.body.extend(b"\r\n");
        if !data.is_empty() {
            self.body.extend(data);
            self.body.extend(b"\r\n");
        }
    }

    fn trailers(&mut self, announced: &Announced) {
        let mut signed = String::new();
        if let Some((name, value)) = announced.checksum {
            self.body.extend(format!("{name}:{value}\r\n").bytes());
            signed = format!("{name}:{value}\n");
        }
        if announced.form == FORMS[2] {
            let signature = self.sign("TRAILER", &sha256(signed.as_bytes()));
            self.body
                .extend(format!("x-amz-trailer-signature:{signature}\r\n").bytes());
        }
        self.body.extend(b"\r\n");
    }
}

fn sha256(data: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, data).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The whole body that `chunks` make.
fn well_made(announced: &Announced, chunks: &[Vec<u8>]) -> Vec<u8> {
    let mut writer = Writer {
        signed: announced.signed(),
        previous: hex(&SEED),
        body: Vec::new(),
    };
    chunks
        .iter()
        .filter(|chunk| !chunk.is_empty())
        .for_each(|chunk| writer.chunk(chunk));
    writer.chunk(b"");
    writer.trailers(announced);
    writer.body
}

type Read = (Vec<u8>, Option<(Algorithm, Vec<u8>)>);

fn read(announced: &Announced, body: &[u8], piece: usize) -> Result<Read, S3Error> {
    let (streaming, headers) = announced.payload();
    let mut decoder = StreamDecoder::new(streaming, &headers)?;
    let mut data = Vec::new();
    for mut rest in body.chunks(piece) {
        while !rest.is_empty() {
            let Range { start, end } = decoder.consume(rest)?;
            assert!(end > 0 && start <= end);
            assert!(end > start || end == rest.len());
            data.extend_from_slice(&rest[start..end]);
            assert!(data.len() as u64 <= announced.length);
            rest = &rest[end..];
        }
    }
    let checksum = decoder.finish()?;
    assert_eq!(data.len() as u64, announced.length);
    Ok((data, checksum))
}

fuzz_target!(|input: (u8, u8, u16, u8, Vec<Vec<u8>>)| {
    let (choice, piece, place, value, chunks) = input;
    let data = chunks.concat();
    let mut announced = Announced {
        form: FORMS[usize::from(choice & 15) % FORMS.len()],
        checksum: CHECKSUMS[usize::from(choice >> 4 & 7) % CHECKSUMS.len()],
        length: data.len() as u64,
    };
    let piece = usize::from(piece).max(1);
    if choice & 128 != 0 {
        announced.length = u64::from(place & 63);
        let whole = read(&announced, &data, data.len().max(1));
        assert_eq!(whole, read(&announced, &data, piece));
        return;
    }
    let mut body = well_made(&announced, &chunks);
    let good = read(&announced, &body, piece).expect("it is well made");
    assert_eq!(good.0, data);
    let place = usize::from(place) % body.len();
    body[place] = value;
    let whole = read(&announced, &body, body.len());
    assert_eq!(whole, read(&announced, &body, piece));
    match whole {
        // A checksum that is not signed, here or in the head, may have changed.
        Ok(damaged) if announced.form == FORMS[2] => assert_eq!(damaged, good),
        Ok(damaged) if announced.signed() => assert_eq!(damaged.0, good.0),
        _ => {}
    }
});
