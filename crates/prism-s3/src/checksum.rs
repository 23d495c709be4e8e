//! The checksums of S3: their names and algorithms, and the checksum of an object from those of
//! its parts.

use aws_lc_rs::digest;
use crc_fast::CrcAlgorithm;
use data_encoding::BASE64;
use prism_http::Headers;

use crate::fields::single;
use crate::{Code, S3Error};

const PREFIX: &str = "x-amz-checksum-";
/// The header, of requests and answers, that tells a [`ChecksumType`].
pub const TYPE_HEADER: &str = "x-amz-checksum-type";

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

/// The way in which the checksum of an object in parts is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChecksumType {
    /// It is the checksum of the parts' checksums.
    Composite,
    /// It is the checksum of the bytes.
    FullObject,
}

impl ChecksumType {
    /// The name in headers and XML.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Composite => "COMPOSITE",
            Self::FullObject => "FULL_OBJECT",
        }
    }

    /// Reads what [`ChecksumType::as_str`] gives.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Composite, Self::FullObject]
            .into_iter()
            .find(|kind| kind.as_str() == text)
    }
}

impl Algorithm {
    /// The checksum of new objects whose client gives none and asks for none. Its type is
    /// [`ChecksumType::FullObject`].
    pub const DEFAULT: Self = Self::Crc64Nvme;

    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Crc32,
        Self::Crc32c,
        Self::Crc64Nvme,
        Self::Sha1,
        Self::Sha256,
    ];

    /// The header that carries it, in requests and answers.
    pub const fn header(self) -> &'static str {
        match self {
            Self::Crc32 => "x-amz-checksum-crc32",
            Self::Crc32c => "x-amz-checksum-crc32c",
            Self::Crc64Nvme => "x-amz-checksum-crc64nvme",
            Self::Sha1 => "x-amz-checksum-sha1",
            Self::Sha256 => "x-amz-checksum-sha256",
        }
    }

    /// Its name in S3's terms.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crc32 => "CRC32",
            Self::Crc32c => "CRC32C",
            Self::Crc64Nvme => "CRC64NVME",
            Self::Sha1 => "SHA1",
            Self::Sha256 => "SHA256",
        }
    }

    /// The algorithm of a header's name, in lower case.
    pub fn from_header(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.header() == name)
    }

    /// The algorithm of a name such as `CRC32`.
    ///
    /// # Errors
    /// `InvalidRequest`.
    pub fn from_name(name: &str) -> Result<Self, S3Error> {
        let found = Self::ALL.into_iter().find(|a| a.name() == name);
        found.ok_or_else(|| {
            let message = "The checksum algorithm must be one of CRC32, CRC32C, CRC64NVME, SHA1 \
                           and SHA256.";
            Code::InvalidRequest.with_message(message)
        })
    }

    /// The type of checksum of an object in parts, if the client names none.
    pub const fn default_type(self) -> ChecksumType {
        match self {
            Self::Crc64Nvme => ChecksumType::FullObject,
            _ => ChecksumType::Composite,
        }
    }

    /// Whether objects in parts can have such a checksum. One of the whole bytes must follow
    /// from those of the parts.
    pub const fn allows(self, kind: ChecksumType) -> bool {
        match kind {
            ChecksumType::Composite => !matches!(self, Self::Crc64Nvme),
            ChecksumType::FullObject => self.crc().is_some(),
        }
    }

    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::Crc32 | Self::Crc32c => 4,
            Self::Crc64Nvme => 8,
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    const fn crc(self) -> Option<CrcAlgorithm> {
        match self {
            Self::Crc32 => Some(CrcAlgorithm::Crc32IsoHdlc),
            Self::Crc32c => Some(CrcAlgorithm::Crc32Iscsi),
            Self::Crc64Nvme => Some(CrcAlgorithm::Crc64Nvme),
            Self::Sha1 | Self::Sha256 => None,
        }
    }

    /// Reads the value of a header or element.
    ///
    /// # Errors
    /// `InvalidRequest`.
    pub fn decode(self, text: &str) -> Result<Vec<u8>, S3Error> {
        base64(text, self.bytes()).ok_or_else(|| {
            let message = format!("Value for {} header is invalid.", self.header());
            Code::InvalidRequest.with_message(message)
        })
    }

    /// The checksum of an object whose parts have these checksums, in the form of headers, and
    /// lengths in bytes. `None` if one of them is no checksum, or if there is no such type.
    pub fn of_parts<'a>(
        self,
        kind: ChecksumType,
        parts: impl Iterator<Item = (&'a str, u64)>,
    ) -> Option<String> {
        match kind {
            ChecksumType::Composite => {
                let mut whole = Running::new(self);
                let mut count = 0_usize;
                for (text, _) in parts {
                    whole.update(&self.decode(text).ok()?);
                    count += 1;
                }
                Some(format!("{}-{count}", BASE64.encode(&whole.finish())))
            }
            ChecksumType::FullObject => {
                let crc = self.crc()?;
                let mut whole = crc_fast::checksum(crc, b"");
                for (text, len) in parts {
                    let part = self.decode(text).ok()?;
                    let part = part.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
                    whole = crc_fast::checksum_combine(crc, whole, part, len);
                }
                Some(BASE64.encode(&crc_bytes(whole, self.bytes())))
            }
        }
    }
}

/// The checksum in the headers of a request, if there is one.
pub(crate) fn in_headers(headers: &Headers) -> Result<Option<(Algorithm, Vec<u8>)>, S3Error> {
    let given = given(headers)?.map(|(algorithm, text)| Ok((algorithm, algorithm.decode(text)?)));
    given.transpose()
}

/// The checksum in the headers of a request for the whole object, as the client writes it. A
/// composite one may end with a hyphen and the number of parts.
///
/// # Errors
/// `InvalidRequest` for several or a malformed one, `NotImplemented` for an unknown algorithm.
pub fn of_object(headers: &Headers) -> Result<Option<(Algorithm, String)>, S3Error> {
    let Some((algorithm, text)) = given(headers)? else {
        return Ok(None);
    };
    let (value, _) = text.split_once('-').unwrap_or((text, ""));
    algorithm.decode(value)?;
    Ok(Some((algorithm, text.to_owned())))
}

/// Whether a header, in lower case, has a checksum's value, of a known algorithm or not.
pub(crate) fn has_value(name: &str) -> bool {
    let kind = name.strip_prefix(PREFIX);
    kind.is_some_and(|kind| !matches!(kind, "mode" | "type" | "algorithm"))
}

fn given(headers: &Headers) -> Result<Option<(Algorithm, &str)>, S3Error> {
    let mut found = None;
    for (name, _) in headers.iter() {
        let name = name.to_ascii_lowercase();
        if !has_value(&name) {
            continue;
        }
        let algorithm = Algorithm::from_header(&name).ok_or_else(|| {
            Code::NotImplemented.with_message(format!("{name} is not implemented."))
        })?;
        let text = single(headers, algorithm.header())?.unwrap_or_default();
        if found.replace((algorithm, text)).is_some() {
            return Err(more_than_one());
        }
    }
    Ok(found)
}

pub(crate) fn more_than_one() -> S3Error {
    Code::InvalidRequest.with_message("Expecting a single x-amz-checksum- header.")
}

/// Reads a digest of so many bytes.
pub(crate) fn base64(text: &str, bytes: usize) -> Option<Vec<u8>> {
    let digest = BASE64.decode(text.as_bytes()).ok();
    digest.filter(|digest| digest.len() == bytes)
}

/// A checksum that is being computed.
pub(crate) enum Running {
    /// With the number of bytes of its result.
    Crc(Box<crc_fast::Digest>, usize),
    Sha(digest::Context),
}

impl Running {
    pub(crate) fn new(algorithm: Algorithm) -> Self {
        match (algorithm.crc(), algorithm) {
            (Some(crc), _) => Self::Crc(Box::new(crc_fast::Digest::new(crc)), algorithm.bytes()),
            (None, Algorithm::Sha1) => {
                Self::Sha(digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY))
            }
            (None, _) => Self::Sha(digest::Context::new(&digest::SHA256)),
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Crc(digest, _) => digest.update(bytes),
            Self::Sha(context) => context.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        match self {
            Self::Crc(digest, bytes) => crc_bytes(digest.finalize(), bytes),
            Self::Sha(context) => context.finish().as_ref().to_vec(),
        }
    }
}

/// The last bytes of a number, as many as the CRC has.
fn crc_bytes(crc: u64, bytes: usize) -> Vec<u8> {
    let all = crc.to_be_bytes();
    all.get(all.len().saturating_sub(bytes)..)
        .unwrap_or_default()
        .to_vec()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn of(algorithm: Algorithm, bytes: &[u8]) -> String {
        let mut running = Running::new(algorithm);
        running.update(bytes);
        BASE64.encode(&running.finish())
    }

    #[test]
    fn a_whole_is_computed_from_its_parts() {
        let parts: [&[u8]; 4] = [b"1234", b"", b"5", b"6789"];
        for algorithm in Algorithm::ALL {
            let sums = parts.map(|part| (of(algorithm, part), part.len() as u64));
            let given = || sums.iter().map(|(text, len)| (text.as_str(), *len));
            let whole = algorithm.of_parts(ChecksumType::FullObject, given());
            let allowed = algorithm.allows(ChecksumType::FullObject);
            assert_eq!(whole, allowed.then(|| of(algorithm, b"123456789")));
            let of_sums: Vec<u8> = sums
                .iter()
                .flat_map(|(text, _)| algorithm.decode(text).unwrap())
                .collect();
            let composite = algorithm.of_parts(ChecksumType::Composite, given());
            let wanted = format!("{}-4", of(algorithm, &of_sums));
            assert_eq!(composite, Some(wanted));
        }
        let none = Algorithm::Crc32.of_parts(ChecksumType::FullObject, [("x", 1)].into_iter());
        assert_eq!(none, None);
    }

    #[test]
    fn names_and_kinds_are_read_back() {
        for algorithm in Algorithm::ALL {
            assert_eq!(Algorithm::from_header(algorithm.header()), Some(algorithm));
            assert_eq!(Algorithm::from_name(algorithm.name()), Ok(algorithm));
            assert!(algorithm.allows(algorithm.default_type()));
        }
        assert!(Algorithm::from_name("MD5").is_err());
        assert!(!Algorithm::Sha256.allows(ChecksumType::FullObject));
        assert!(!Algorithm::Crc64Nvme.allows(ChecksumType::Composite));
        for kind in [ChecksumType::Composite, ChecksumType::FullObject] {
            assert_eq!(ChecksumType::parse(kind.as_str()), Some(kind));
        }
    }

    #[test]
    fn the_checksum_of_an_object_is_taken_as_it_stands() {
        let mut headers = Headers::new();
        headers.append("x-amz-checksum-type", "COMPOSITE").unwrap();
        assert_eq!(of_object(&headers).unwrap(), None);
        headers
            .append("x-amz-checksum-crc32", "AAAAAA==-3")
            .unwrap();
        let found = of_object(&headers).unwrap();
        assert_eq!(found, Some((Algorithm::Crc32, "AAAAAA==-3".to_owned())));
        assert!(in_headers(&headers).is_err());
        headers.append("x-amz-checksum-sha1", "").unwrap();
        assert!(of_object(&headers).is_err());
        for malformed in ["", "x-3", "AAAAAA-3", "-3"] {
            let mut headers = Headers::new();
            headers.append("x-amz-checksum-crc32", malformed).unwrap();
            let error = of_object(&headers).unwrap_err();
            assert_eq!(error.code(), Code::InvalidRequest, "{malformed}");
            let message = "Value for x-amz-checksum-crc32 header is invalid.";
            assert_eq!(error.message(), message);
        }
    }
}
