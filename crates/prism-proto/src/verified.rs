//! The outcome of a request's verification, for the node that answers it (docs/protocol.md,
//! section 2.7). It travels with a hand-off as the context, and with a relayed request in its
//! preamble. The node that reads a client's request decides whether it is allowed, and a denied
//! request goes to no other node.
//!
//! Not here: how a request is verified, and what the caller may do (`prism-s3`).

use crate::wire::{DecodeError, Put, Reader};

/// Version of the layout.
pub const VERSION: u8 = 3;

const NOT_TRACED: u8 = 0;
const TRACED: u8 = 1;

const CALLER_ANONYMOUS: u8 = 1;
const CALLER_ACCESS_KEY: u8 = 2;

const BODY_UNSAID: u8 = 0;
const BODY_SHA256: u8 = 1;
const BODY_CHUNKS: u8 = 2;
const BODY_SIGNED_CHUNKS: u8 = 3;
const BODY_SPENT: u8 = 4;
const BODY_MOVED_ON: u8 = 5;

/// The outcome of one request's verification. A request without it was not verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The request's identifier, for the client and for logs.
    pub request_id: u64,
    /// The trace that the request belongs to; `None` if it is not traced. The identifier of the
    /// span above is [`Self::request_id`].
    pub trace: Option<TraceId>,
    /// The request's caller.
    pub caller: Caller,
    /// The caller's declaration of the body.
    pub body: Body,
}

/// The identifier of a trace, by W3C Trace Context. It is not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId([u8; 16]);

impl TraceId {
    /// The identifier with these bytes; `None` if all are zero.
    #[must_use]
    pub fn new(bytes: [u8; 16]) -> Option<Self> {
        (bytes != [0; 16]).then_some(Self(bytes))
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }
}

/// The caller of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// The holder of this access key: 1 to 255 bytes.
    AccessKey(String),
    /// The request is not signed.
    Anonymous,
}

/// The caller's declaration of the body's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Nothing.
    Unsaid,
    /// The body has this SHA-256.
    Sha256([u8; 32]),
    /// The body comes in chunks.
    Chunks {
        /// Whether a trailer follows the last one.
        trailer: bool,
        /// Present if the chunks are signed: the first chunk's signature covers it.
        seed: Option<Seed>,
    },
    /// Nothing. The request was carried out already, and its answer waits at the node that gets
    /// this.
    Spent,
    /// Nothing. The connection has moved twice for this request, and stays.
    MovedOn,
}

/// The start of the chain of chunk signatures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed {
    /// The request's signature.
    pub signature: [u8; 32],
    /// When the request was signed, in seconds since 1970.
    pub time_s: u64,
}

impl Verified {
    /// The bytes that [`Verified::decode`] reads.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        self.put(&mut out);
        out
    }

    /// Reads the context of a hand-off.
    ///
    /// # Errors
    /// [`DecodeError`] if `bytes` are not the encoding of one.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes);
        let verified = Self::read(&mut r)?;
        r.finish()?;
        Ok(verified)
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.put(&[VERSION]);
        out.put(&self.request_id.to_be_bytes());
        match self.trace {
            None => out.put(&[NOT_TRACED]),
            Some(trace) => {
                out.put(&[TRACED]);
                out.put(&trace.bytes());
            }
        }
        match &self.caller {
            Caller::Anonymous => out.put(&[CALLER_ANONYMOUS]),
            Caller::AccessKey(key) => {
                out.put(&[CALLER_ACCESS_KEY]);
                out.put_short_str(key);
            }
        }
        match &self.body {
            Body::Unsaid => out.put(&[BODY_UNSAID]),
            Body::Spent => out.put(&[BODY_SPENT]),
            Body::MovedOn => out.put(&[BODY_MOVED_ON]),
            Body::Sha256(hash) => {
                out.put(&[BODY_SHA256]);
                out.put(hash);
            }
            Body::Chunks {
                trailer,
                seed: None,
            } => out.put(&[BODY_CHUNKS, u8::from(*trailer)]),
            Body::Chunks {
                trailer,
                seed: Some(seed),
            } => {
                out.put(&[BODY_SIGNED_CHUNKS, u8::from(*trailer)]);
                out.put(&seed.signature);
                out.put(&seed.time_s.to_be_bytes());
            }
        }
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        r.version(VERSION, "version of what was verified")?;
        let request_id = r.u64("identifier of the request")?;
        let trace = match r.u8("trace")? {
            NOT_TRACED => None,
            TRACED => {
                let trace = TraceId::new(r.array("identifier of the trace")?);
                Some(trace.ok_or(DecodeError::Invalid("identifier of the trace"))?)
            }
            _ => return Err(DecodeError::Invalid("trace")),
        };
        let caller = match r.u8("caller")? {
            CALLER_ANONYMOUS => Caller::Anonymous,
            CALLER_ACCESS_KEY => match r.short_str("access key")? {
                "" => return Err(DecodeError::Invalid("access key")),
                key => Caller::AccessKey(key.to_owned()),
            },
            _ => return Err(DecodeError::Invalid("caller")),
        };
        let body = match r.u8("body")? {
            BODY_UNSAID => Body::Unsaid,
            BODY_SPENT => Body::Spent,
            BODY_MOVED_ON => Body::MovedOn,
            BODY_SHA256 => Body::Sha256(r.array("SHA-256")?),
            BODY_CHUNKS => Body::Chunks {
                trailer: r.bool("trailer")?,
                seed: None,
            },
            BODY_SIGNED_CHUNKS => Body::Chunks {
                trailer: r.bool("trailer")?,
                seed: Some(Seed {
                    signature: r.array("signature")?,
                    time_s: r.u64("time of the signature")?,
                }),
            },
            _ => return Err(DecodeError::Invalid("body")),
        };
        Ok(Self {
            request_id,
            trace,
            caller,
            body,
        })
    }
}

#[cfg(test)]
pub(crate) mod verified_tests;
