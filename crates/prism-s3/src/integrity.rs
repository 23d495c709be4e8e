//! What a body must hash to, and whether it did.

use aws_lc_rs::{constant_time, digest};
use data_encoding::{BASE64, HEXLOWER};
use md5::{Digest as _, Md5};
use prism_http::Headers;

use crate::auth::{Payload, single};
use crate::streaming::announced_trailer;
use crate::{Code, S3Error};

const CHECKSUM_PREFIX: &str = "x-amz-checksum-";

/// A checksum algorithm of `x-amz-checksum-*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// CRC-32 (ISO-HDLC).
    Crc32,
    /// CRC-32C (Castagnoli).
    Crc32c,
    /// CRC-64/NVME.
    Crc64Nvme,
    /// SHA-1.
    Sha1,
    /// SHA-256.
    Sha256,
}

impl Algorithm {
    const ALL: [Self; 5] = [
        Self::Crc32,
        Self::Crc32c,
        Self::Crc64Nvme,
        Self::Sha1,
        Self::Sha256,
    ];

    /// The header that carries it, in requests and answers.
    #[must_use]
    pub const fn header(self) -> &'static str {
        match self {
            Self::Crc32 => "x-amz-checksum-crc32",
            Self::Crc32c => "x-amz-checksum-crc32c",
            Self::Crc64Nvme => "x-amz-checksum-crc64nvme",
            Self::Sha1 => "x-amz-checksum-sha1",
            Self::Sha256 => "x-amz-checksum-sha256",
        }
    }

    /// The algorithm of a header's name, in lower case.
    pub(crate) fn from_header(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.header() == name)
    }

    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::Crc32 | Self::Crc32c => 4,
            Self::Crc64Nvme => 8,
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }
}

/// What the request says the body must be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expected {
    md5: Option<Vec<u8>>,
    sha256: Option<[u8; 32]>,
    checksum: Option<(Algorithm, Checksum)>,
}

/// Where the value of a checksum is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Checksum {
    /// It came with the head.
    Known(Vec<u8>),
    /// It comes behind the body.
    InTrailer,
}

impl Expected {
    /// Reads `Content-MD5`, `x-amz-checksum-*` and `x-amz-trailer`, and takes
    /// the hash that was signed.
    ///
    /// # Errors
    /// `InvalidDigest` or `InvalidRequest` for malformed or repeated headers,
    /// `NotImplemented` for an algorithm we lack.
    pub fn from_request(headers: &Headers, payload: &Payload) -> Result<Self, S3Error> {
        let md5 = single(headers, "content-md5")?
            .map(|v| base64(v, 16))
            .transpose()?;
        let sha256 = match payload {
            Payload::Sha256(hash) => Some(*hash),
            Payload::Unsigned | Payload::Streaming(_) => None,
        };
        let in_head = checksum(headers)?.map(|(a, value)| (a, Checksum::Known(value)));
        let in_trailer = announced_trailer(headers)?.map(|a| (a, Checksum::InTrailer));
        let has_trailer = matches!(payload, Payload::Streaming(s) if s.trailer);
        if in_trailer.is_some() && !has_trailer {
            let message = "x-amz-trailer is for bodies in chunks with a trailer.";
            return Err(S3Error::with_message(Code::InvalidRequest, message));
        }
        if in_head.is_some() && in_trailer.is_some() {
            return Err(more_than_one());
        }
        Ok(Self {
            md5,
            sha256,
            checksum: in_head.or(in_trailer),
        })
    }
}

fn more_than_one() -> S3Error {
    let message = "Expecting a single x-amz-checksum- header.";
    S3Error::with_message(Code::InvalidRequest, message)
}

fn checksum(headers: &Headers) -> Result<Option<(Algorithm, Vec<u8>)>, S3Error> {
    let mut found = None;
    for (name, _) in headers.iter() {
        let name = name.to_ascii_lowercase();
        let Some(kind) = name.strip_prefix(CHECKSUM_PREFIX) else {
            continue;
        };
        if matches!(kind, "mode" | "type" | "algorithm") {
            continue;
        }
        let algorithm = Algorithm::from_header(&name).ok_or_else(|| {
            S3Error::with_message(Code::NotImplemented, format!("{name} is not implemented."))
        })?;
        let value = single(headers, algorithm.header())?.unwrap_or_default();
        if found
            .replace((algorithm, base64(value, algorithm.bytes())?))
            .is_some()
        {
            return Err(more_than_one());
        }
    }
    Ok(found)
}

fn base64(text: &str, bytes: usize) -> Result<Vec<u8>, S3Error> {
    match BASE64.decode(text.as_bytes()) {
        Ok(value) if value.len() == bytes => Ok(value),
        _ => Err(Code::InvalidDigest.into()),
    }
}

/// Hashes a body as it comes in. MD5 always, since it becomes the ETag; the
/// rest only as far as the request asked for it.
pub struct BodyDigest {
    expected: Expected,
    md5: Md5,
    sha256: Option<digest::Context>,
    checksum: Option<Running>,
}

/// A body that was what it had to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digests {
    /// MD5 of the body.
    pub md5: [u8; 16],
    /// The checksum that the client gave, verified: header name and value, for
    /// the answer and to be kept with the object.
    pub checksum: Option<(&'static str, String)>,
}

impl Digests {
    /// The ETag of an object uploaded in one piece, with its quotes.
    #[must_use]
    pub fn etag(&self) -> String {
        format!("\"{}\"", HEXLOWER.encode(&self.md5))
    }
}

enum Running {
    Crc32(crc32fast::Hasher),
    Crc32c(u32),
    Crc64Nvme(crc64fast_nvme::Digest),
    Sha(digest::Context),
}

impl Running {
    fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Crc32 => Self::Crc32(crc32fast::Hasher::new()),
            Algorithm::Crc32c => Self::Crc32c(0),
            Algorithm::Crc64Nvme => Self::Crc64Nvme(crc64fast_nvme::Digest::new()),
            Algorithm::Sha1 => Self::Sha(digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY)),
            Algorithm::Sha256 => Self::Sha(digest::Context::new(&digest::SHA256)),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Crc32(hasher) => hasher.update(bytes),
            Self::Crc32c(crc) => *crc = crc32c::crc32c_append(*crc, bytes),
            Self::Crc64Nvme(crc) => crc.write(bytes),
            Self::Sha(context) => context.update(bytes),
        }
    }

    fn finish(self) -> Vec<u8> {
        match self {
            Self::Crc32(hasher) => hasher.finalize().to_be_bytes().to_vec(),
            Self::Crc32c(crc) => crc.to_be_bytes().to_vec(),
            Self::Crc64Nvme(crc) => crc.sum64().to_be_bytes().to_vec(),
            Self::Sha(context) => context.finish().as_ref().to_vec(),
        }
    }
}

impl BodyDigest {
    /// At the first byte of a body.
    #[must_use]
    pub fn new(expected: Expected) -> Self {
        Self {
            md5: Md5::new(),
            sha256: expected
                .sha256
                .map(|_| digest::Context::new(&digest::SHA256)),
            checksum: expected
                .checksum
                .as_ref()
                .map(|(algorithm, _)| Running::new(*algorithm)),
            expected,
        }
    }

    /// Takes the next bytes of the body, without any framing.
    pub fn update(&mut self, bytes: &[u8]) {
        self.md5.update(bytes);
        if let Some(context) = &mut self.sha256 {
            context.update(bytes);
        }
        if let Some(running) = &mut self.checksum {
            running.update(bytes);
        }
    }

    /// Takes the checksum that came behind the body, from
    /// [`crate::StreamDecoder::finish`]. One that was not announced counts for
    /// nothing.
    pub fn take_trailer(&mut self, got: Algorithm, value: Vec<u8>) {
        if let Some((algorithm, checksum @ Checksum::InTrailer)) = &mut self.expected.checksum
            && *algorithm == got
        {
            *checksum = Checksum::Known(value);
        }
    }

    /// The body has ended.
    ///
    /// # Errors
    /// `XAmzContentSHA256Mismatch` or `BadDigest`, also where a checksum was
    /// announced and did not come: the object must not come into being.
    pub fn finish(self) -> Result<Digests, S3Error> {
        if let (Some(context), Some(expected)) = (self.sha256, self.expected.sha256) {
            let got = context.finish();
            constant_time::verify_slices_are_equal(got.as_ref(), &expected)
                .map_err(|_| Code::XAmzContentSHA256Mismatch)?;
        }
        let md5: [u8; 16] = self.md5.finalize().into();
        if self.expected.md5.is_some_and(|expected| expected != md5) {
            return Err(Code::BadDigest.into());
        }
        let mut checksum = None;
        if let (Some(running), Some((algorithm, expected))) =
            (self.checksum, self.expected.checksum)
        {
            let got = running.finish();
            if expected != Checksum::Known(got.clone()) {
                return Err(Code::BadDigest.into());
            }
            checksum = Some((algorithm.header(), BASE64.encode(&got)));
        }
        Ok(Digests { md5, checksum })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Check values of "123456789", from the CRC catalogue and RFC 1321, FIPS 180.
    const ROWS: [(&str, &str); 6] = [
        ("Content-MD5", "25f9e794323b453885f5181f1b624d0b"),
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

    fn digest_of(name: &str, value: &str, body: &[&[u8]]) -> Result<Digests, S3Error> {
        let mut headers = Headers::new();
        headers.append(name, value).unwrap();
        let mut digest = BodyDigest::new(Expected::from_request(&headers, &Payload::Unsigned)?);
        body.iter().for_each(|part| digest.update(part));
        digest.finish()
    }

    #[test]
    fn each_algorithm_accepts_its_check_value_and_nothing_else() {
        for (name, hex) in ROWS {
            let value = BASE64.encode(&HEXLOWER.decode(hex.as_bytes()).unwrap());
            let good = digest_of(name, &value, &[b"1234", b"", b"56789"]).unwrap();
            assert_eq!(good.etag(), "\"25f9e794323b453885f5181f1b624d0b\"");
            if name != "Content-MD5" {
                let (header, text) = good.checksum.unwrap();
                assert!(header.eq_ignore_ascii_case(name) && text == value, "{name}");
            }
            let bad = digest_of(name, &value, &[b"123456780"]);
            assert_eq!(bad.unwrap_err().code(), Code::BadDigest, "{name}");
            for junk in ["", "junk", "AAAAAA", "AAAAAAAAAAAA"] {
                let got = digest_of(name, junk, &[]);
                assert_eq!(
                    got.unwrap_err().code(),
                    Code::InvalidDigest,
                    "{name} {junk}"
                );
            }
        }
    }

    #[test]
    fn the_signed_hash_is_verified() {
        let hash = digest::digest(&digest::SHA256, b"body");
        let payload = Payload::Sha256(hash.as_ref().try_into().unwrap());
        let run = |body: &[u8]| {
            let expected = Expected::from_request(&Headers::new(), &payload).unwrap();
            let mut digest = BodyDigest::new(expected);
            digest.update(body);
            digest.finish()
        };
        assert!(run(b"body").is_ok());
        assert_eq!(
            run(b"b0dy").unwrap_err().code(),
            Code::XAmzContentSHA256Mismatch
        );
        assert_eq!(
            run(b"").unwrap_err().code(),
            Code::XAmzContentSHA256Mismatch
        );
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let code = |fields: &[(&str, &str)]| {
            let mut headers = Headers::new();
            fields
                .iter()
                .for_each(|(n, v)| headers.append(n, v).unwrap());
            Expected::from_request(&headers, &Payload::Unsigned).map_err(|e| e.code())
        };
        let crc = ("x-amz-checksum-crc32", "AAAAAA==");
        assert!(code(&[crc, ("x-amz-checksum-mode", "ENABLED")]).is_ok());
        assert_eq!(code(&[crc, crc]), Err(Code::InvalidRequest));
        assert_eq!(
            code(&[crc, ("x-amz-checksum-crc32c", "AAAAAA==")]),
            Err(Code::InvalidRequest)
        );
        assert_eq!(
            code(&[("x-amz-checksum-md6", "AAAA")]),
            Err(Code::NotImplemented)
        );
        assert_eq!(
            code(&[("x-amz-trailer", "x-amz-checksum-crc32")]),
            Err(Code::InvalidRequest)
        );
    }
}
