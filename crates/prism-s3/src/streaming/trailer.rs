//! The trailers behind the last chunk.

use super::chain::Chain;
use crate::checksum::Algorithm;
use crate::fields::parse_hex;
use crate::{Code, S3Error};

const SIGNATURE: &str = "x-amz-trailer-signature";

/// The trailers that a body must have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trailers {
    pub(super) announced: Option<Algorithm>,
    pub(super) signed: bool,
}

impl Trailers {
    /// Reads the bytes between the last chunk and the end of the HTTP body. Some clients put
    /// empty lines between the trailers and their signature; these do no harm, as the body's end
    /// delimits the trailers. Each trailer may be present once, the signature last.
    pub(super) fn finish(
        self,
        tail: &[u8],
        chain: Option<Box<Chain>>,
    ) -> Result<Option<(Algorithm, Vec<u8>)>, S3Error> {
        if !tail.ends_with(b"\r\n") {
            return Err(Code::IncompleteBody.into());
        }
        let text = std::str::from_utf8(tail).map_err(|_| malformed("no text"))?;
        let mut checksum = None;
        let mut signature = None;
        let mut signed = String::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let (name, value) = line
                .split_once(':')
                .ok_or_else(|| malformed("a line has no colon"))?;
            let name = name.to_ascii_lowercase();
            let value = value.trim_matches([' ', '\t']);
            if signature.is_some() {
                return Err(malformed("the signature is not the last"));
            }
            if self.signed && name == SIGNATURE {
                let parsed = parse_hex(value);
                signature = Some(parsed.ok_or_else(|| malformed("the signature"))?);
                continue;
            }
            let algorithm = self.announced.filter(|a| a.header() == name);
            let algorithm = algorithm.ok_or_else(|| malformed("one was not announced"))?;
            let value_bytes = algorithm.decode(value);
            let value_bytes = value_bytes.map_err(|_| malformed("the value is no checksum"))?;
            if checksum.replace((algorithm, value_bytes)).is_some() {
                return Err(malformed("one is there twice"));
            }
            signed = format!("{name}:{value}\n");
        }
        if checksum.is_none() && self.announced.is_some() {
            return Err(malformed("the announced checksum is missing"));
        }
        if self.signed
            && let Some(mut chain) = chain
        {
            let claimed = signature.ok_or_else(|| malformed("the signature is missing"))?;
            chain.check_trailers(&signed, claimed)?;
        }
        Ok(checksum)
    }
}

pub(super) fn malformed(what: &str) -> S3Error {
    Code::MalformedTrailerError.with_message(format!(
        "The trailers behind the body are malformed: {what}."
    ))
}
