//! The digests that a body must have, and their verification.

use aws_lc_rs::constant_time;
use data_encoding::{BASE64, HEXLOWER};
use prism_http::Headers;

use crate::auth::Payload;
pub use crate::checksum::TYPE_HEADER;
use crate::checksum::{Algorithm, Running, base64, in_headers, more_than_one};
use crate::fields::single;
use crate::hashes::Hashes;
use crate::streaming::announced_trailer;
use crate::{Code, S3Error};

/// The digests that a request declares for its body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expected {
    md5: Option<Vec<u8>>,
    sha256: Option<[u8; 32]>,
    checksum: Option<(Algorithm, Checksum)>,
}

/// The source of a checksum's value.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Checksum {
    /// The head has it.
    Known(Vec<u8>),
    /// It comes behind the body.
    InTrailer,
    /// The client asked for it without a value.
    Wanted,
}

impl Expected {
    /// Reads `Content-MD5`, `x-amz-checksum-*` and `x-amz-trailer`, and the signed hash.
    ///
    /// # Errors
    /// `InvalidDigest` or `InvalidRequest` for malformed or repeated headers,
    /// `NotImplemented` for an unknown algorithm.
    pub fn from_request(headers: &Headers, payload: &Payload) -> Result<Self, S3Error> {
        let mut expected = Self::without_checksum(headers, payload)?;
        let in_head = in_headers(headers)?.map(|(a, value)| (a, Checksum::Known(value)));
        let in_trailer = announced_trailer(headers)?.map(|a| (a, Checksum::InTrailer));
        let has_trailer = matches!(payload, Payload::Streaming(s) if s.trailer);
        if in_trailer.is_some() && !has_trailer {
            return Err(Code::InvalidRequest
                .with_message("x-amz-trailer is for bodies in chunks with a trailer."));
        }
        if in_head.is_some() && in_trailer.is_some() {
            return Err(more_than_one());
        }
        expected.checksum = in_head.or(in_trailer);
        Ok(expected)
    }

    /// Reads `Content-MD5` and the signed hash only, for a request whose checksum is about an
    /// object and not about the body.
    ///
    /// # Errors
    /// `InvalidDigest`, or `InvalidRequest` for a repeated header.
    pub fn without_checksum(headers: &Headers, payload: &Payload) -> Result<Self, S3Error> {
        let md5 = single(headers, "content-md5")?;
        let md5 = md5.map(|text| base64(text, 16).ok_or(Code::InvalidDigest));
        let sha256 = match payload {
            Payload::Sha256(hash) => Some(*hash),
            Payload::Unsigned | Payload::Streaming(_) => None,
        };
        Ok(Self {
            md5: md5.transpose()?,
            sha256,
            checksum: None,
        })
    }

    /// Has this checksum computed if the client gave none.
    pub fn or_computed(mut self, algorithm: Algorithm) -> Self {
        self.checksum.get_or_insert((algorithm, Checksum::Wanted));
        self
    }

    /// Has this checksum computed if the client gave none.
    ///
    /// # Errors
    /// `InvalidRequest` if the client gave another.
    pub fn want(self, wanted: Algorithm) -> Result<Self, S3Error> {
        match &self.checksum {
            Some((given, _)) if *given != wanted => {
                let wanted = wanted.name();
                let given = given.name();
                let message = format!("Expecting a checksum of type {wanted}, not {given}.");
                Err(Code::InvalidRequest.with_message(message))
            }
            _ => Ok(self.or_computed(wanted)),
        }
    }

    /// Whether the client gave another digest of the body than the signed one.
    pub fn is_checked(&self) -> bool {
        self.md5.is_some() || self.checksum.is_some()
    }
}

/// The ETag of an object in parts, without quotes: the MD5 of the parts' MD5s
/// and their number. `None` if one of the parts' ETags is no MD5.
pub fn etag_of_parts<'a>(etags: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut hashes = Hashes::new(false);
    let mut count = 0_usize;
    for etag in etags {
        hashes.update(&HEXLOWER.decode(etag.as_bytes()).ok()?);
        count += 1;
    }
    let (md5, _) = hashes.finish();
    Some(format!("{}-{count}", HEXLOWER.encode(&md5)))
}

/// Hashes a body as it comes in: always by MD5 for the ETag, otherwise as the request asks.
pub struct BodyDigest {
    hashes: Hashes,
    checksum: Option<Running>,
    expected: Expected,
}

/// The digests of a body that was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digests {
    /// MD5 of the body.
    pub md5: [u8; 16],
    /// The checksum that the client gave or wanted: header name and value, for the answer and
    /// for the object.
    pub checksum: Option<(&'static str, String)>,
}

impl Digests {
    /// The ETag of an object uploaded in one piece, without quotes.
    pub fn etag(&self) -> String {
        HEXLOWER.encode(&self.md5)
    }
}

impl BodyDigest {
    /// The digest at the first byte of a body.
    pub fn new(expected: Expected) -> Self {
        Self {
            hashes: Hashes::new(expected.sha256.is_some()),
            checksum: expected
                .checksum
                .as_ref()
                .map(|(algorithm, _)| Running::new(*algorithm)),
            expected,
        }
    }

    /// Takes the next bytes of the body, without any framing.
    pub fn update(&mut self, bytes: &[u8]) {
        self.hashes.update(bytes);
        self.update_checksum(bytes);
    }

    /// MD5 and SHA-256, for a caller that hashes several bodies together. It must also call
    /// [`BodyDigest::update_checksum`].
    pub fn hashes_mut(&mut self) -> &mut Hashes {
        &mut self.hashes
    }

    /// Adds bytes to the checksum only; see [`BodyDigest::hashes_mut`].
    pub fn update_checksum(&mut self, bytes: &[u8]) {
        if let Some(running) = &mut self.checksum {
            running.update(bytes);
        }
    }

    /// Takes the checksum behind the body, from [`crate::StreamDecoder::finish`]. One that was
    /// not announced is ignored.
    pub fn take_trailer(&mut self, got: Algorithm, value: Vec<u8>) {
        if let Some((algorithm, checksum @ Checksum::InTrailer)) = &mut self.expected.checksum
            && *algorithm == got
        {
            *checksum = Checksum::Known(value);
        }
    }

    /// Ends the body, and verifies its digests.
    ///
    /// # Errors
    /// `XAmzContentSHA256Mismatch` or `BadDigest`, also if an announced checksum did not come.
    /// The object must then not be stored.
    pub fn finish(self) -> Result<Digests, S3Error> {
        let (md5, sha256) = self.hashes.finish();
        if let Some(expected) = self.expected.sha256 {
            // An expected hash is always computed.
            let got = sha256.ok_or(Code::InternalError)?;
            constant_time::verify_slices_are_equal(&got, &expected)
                .map_err(|_| Code::XAmzContentSHA256Mismatch)?;
        }
        if self.expected.md5.is_some_and(|expected| expected != md5) {
            return Err(Code::BadDigest.into());
        }
        let mut checksum = None;
        if let (Some(running), Some((algorithm, expected))) =
            (self.checksum, self.expected.checksum)
        {
            let got = running.finish();
            if expected != Checksum::Wanted && expected != Checksum::Known(got.clone()) {
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
    use aws_lc_rs::digest;

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
            assert_eq!(good.etag(), "25f9e794323b453885f5181f1b624d0b");
            if name != "Content-MD5" {
                let (header, text) = good.checksum.unwrap();
                assert!(header.eq_ignore_ascii_case(name) && text == value, "{name}");
            }
            let bad = digest_of(name, &value, &[b"123456780"]);
            assert_eq!(bad.unwrap_err().code(), Code::BadDigest, "{name}");
            let malformed = match name {
                "Content-MD5" => Code::InvalidDigest,
                _ => Code::InvalidRequest,
            };
            for junk in ["", "junk", "AAAAAA", "AAAAAAAAAAAA"] {
                let got = digest_of(name, junk, &[]);
                assert_eq!(got.unwrap_err().code(), malformed, "{name} {junk}");
            }
        }
    }

    #[test]
    fn a_wanted_checksum_is_computed_and_another_is_refused() {
        let mut headers = Headers::new();
        let expected = Expected::from_request(&headers, &Payload::Unsigned).unwrap();
        assert!(!expected.is_checked());
        let mut digest = BodyDigest::new(expected.want(Algorithm::Crc32).unwrap());
        digest.update(b"123456789");
        let (name, value) = digest.finish().unwrap().checksum.unwrap();
        assert_eq!((name, value.as_str()), ("x-amz-checksum-crc32", "y/Q5Jg=="));
        headers.append("x-amz-checksum-crc32", "y/Q5Jg==").unwrap();
        let given = Expected::from_request(&headers, &Payload::Unsigned).unwrap();
        assert!(given.is_checked() && given.clone().want(Algorithm::Sha1).is_err());
        let kept = given.clone().or_computed(Algorithm::DEFAULT);
        assert_eq!(kept, given);
        let mut digest = BodyDigest::new(given.want(Algorithm::Crc32).unwrap());
        digest.update(b"else");
        assert_eq!(digest.finish().unwrap_err().code(), Code::BadDigest);
        let of_object = Expected::without_checksum(&headers, &Payload::Unsigned).unwrap();
        let mut digest = BodyDigest::new(of_object);
        digest.update(b"else");
        assert_eq!(digest.finish().unwrap().checksum, None);
    }

    #[test]
    fn the_etag_of_parts_is_the_md5_of_their_md5s() {
        let part = "25f9e794323b453885f5181f1b624d0b";
        let etag = etag_of_parts([part, part].into_iter()).unwrap();
        assert_eq!(etag, "4f2908c19b573e50b194e208c928de17-2");
        assert_eq!(etag_of_parts(["x"].into_iter()), None);
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
