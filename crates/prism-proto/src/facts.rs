//! The facts that travel with a request between nodes (docs/protocol.md, section 2.7): as the
//! context of a hand-off, and in the preamble of a relayed request. The node that reads a client's
//! request verifies it, decides whether it is allowed, and chooses who answers; nobody else does so
//! again.
//!
//! The form is a list of entries (type, length, value), so that a release can add one. The former
//! release has a fixed layout without the last of them; it is spoken to nodes of that release.
//!
//! Not here: how a request is verified, and what the caller may do (`prism-s3`).

use std::net::SocketAddr;

use crate::entries::{put_entry, put_sized, read_entries};
use crate::wire::{DecodeError, Put, Reader};

mod draft;

pub(crate) use self::draft::Draft;

/// Version of the list of entries.
pub const VERSION: u8 = 4;
/// Version of the fixed layout.
pub const FORMER_VERSION: u8 = 3;
/// Most bytes of an access key, and of an upstream's name.
pub const MAX_NAME_BYTES: usize = 255;
/// Most limits that count a request while it is under way.
pub const MAX_LIMITS: usize = 16;
/// Most bytes of the header fields that an internal redirect gives the answer.
pub const MAX_FIELDS_BYTES: usize = 2 << 10;

/// Types of entries, which come in ascending order. A receiver refuses an unknown one below 128,
/// and skips one above those that it knows.
mod kind {
    pub(super) const REQUEST: u8 = 1;
    pub(super) const TRACE: u8 = 2;
    pub(super) const CALLER: u8 = 3;
    pub(super) const SHA256: u8 = 4;
    pub(super) const CHUNKS: u8 = 5;
    pub(super) const PROGRESS: u8 = 6;
    pub(super) const UPSTREAM: u8 = 7;
    pub(super) const CLIENT: u8 = 8;
    pub(super) const LINEAGE: u8 = 128;
    pub(super) const RETRIES: u8 = 129;
    pub(super) const HIDES_MISSING: u8 = 130;
    pub(super) const REDIRECT: u8 = 131;
    pub(super) const LIMITS: u8 = 132;
}

const NOT_TRACED: u8 = 0;
const TRACED: u8 = 1;

const CALLER_ANONYMOUS: u8 = 1;
const CALLER_ACCESS_KEY: u8 = 2;

const BODY_UNSAID: u8 = 0;
const BODY_SHA256: u8 = 1;
const BODY_CHUNKS: u8 = 2;
const BODY_SIGNED_CHUNKS: u8 = 3;
/// The former layout has progress in the place of a body.
const BODY_OF_ANSWER_WAITS: u8 = 4;
const BODY_OF_MOVED_ON: u8 = 5;

/// The form of what travels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// The list of entries.
    #[default]
    Entries,
    /// The fixed layout of the former release. It leaves out the upstream, the client, the lineage,
    /// the retries, whether a missing object is hidden, redirects and limits.
    Former,
}

/// The facts of one request. A request without them was not verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The request's identifier, for the client and for logs.
    pub request_id: u64,
    /// The trace that the request belongs to; `None` if it is not traced. The identifier of the
    /// span above is [`Self::request_id`].
    pub trace: Option<TraceId>,
    /// The request's caller.
    pub caller: Caller,
    /// The caller's declaration of the body.
    pub body: Body,
    /// The way of the request so far.
    pub progress: Progress,
    /// The name of the upstream that answers, at most 255 bytes; `None` if there is none, or the
    /// former release did not say it.
    pub upstream: Option<String>,
    /// The client's connection; `None` if the former release did not say it.
    pub client: Option<ClientFacts>,
    /// The last change of the cluster's contents in etcd that the sender noted at least 1 s before;
    /// `None` without etcd, and from a former release.
    pub lineage: Option<LineageFacts>,
    /// How often a server has got the request and has given no answer; 0 from a former release.
    pub retries: u8,
    /// Whether a missing object is hidden from the caller; false from a former release.
    pub hides_missing: bool,
    /// The internal redirects that have led to the request; `None` for one that a client has sent.
    pub redirect: Option<RedirectFacts>,
    /// The keys of limits that count the request while it is under way, as in a report of their
    /// use: at most [`MAX_LIMITS`].
    pub limits: Vec<u64>,
}

/// Internal redirects of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedirectFacts {
    /// Their number.
    pub steps: u8,
    /// The header fields that the client gets in the place of the resource's own, as lines that end
    /// with CRLF: at most [`MAX_FIELDS_BYTES`].
    pub fields: Vec<u8>,
}

/// A change of the cluster's contents in etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineageFacts {
    /// The number of changes up to this one.
    pub count: u64,
    /// Its random number.
    pub id: u64,
}

/// The way of a request so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// It goes to the node that answers it.
    #[default]
    First,
    /// The connection has moved twice for it, and stays.
    MovedOn,
    /// It was carried out already, and its answer waits at the node that gets this.
    AnswerWaits,
}

/// The client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientFacts {
    /// The client's address.
    pub address: SocketAddr,
    /// The address that the client has connected to.
    pub service: SocketAddr,
    /// Whether the connection has TLS.
    pub is_tls: bool,
}

impl ClientFacts {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.put_socket_addr(self.address);
        out.put_socket_addr(self.service);
        out.put(&[u8::from(self.is_tls)]);
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            address: r.socket_addr("address of the client")?,
            service: r.socket_addr("address of the service")?,
            is_tls: r.bool("TLS of the client")?,
        })
    }
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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
}

/// The start of the chain of chunk signatures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed {
    /// The request's signature.
    pub signature: [u8; 32],
    /// When the request was signed, in seconds since 1970.
    pub time_s: u64,
}

impl Facts {
    /// The facts of a request that nobody has signed or declared anything about.
    #[must_use]
    pub const fn of_anonymous(request_id: u64) -> Self {
        Self {
            request_id,
            trace: None,
            caller: Caller::Anonymous,
            body: Body::Unsaid,
            progress: Progress::First,
            upstream: None,
            client: None,
            lineage: None,
            retries: 0,
            hides_missing: false,
            redirect: None,
            limits: Vec::new(),
        }
    }

    /// The bytes that [`Facts::decode`] reads.
    #[must_use]
    pub fn encode(&self, form: Form) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        match form {
            Form::Former => self.put_former(&mut out),
            Form::Entries => {
                out.put(&[VERSION]);
                put_sized(&mut out, |entries| self.put_entries(entries, |_| {}));
            }
        }
        out
    }

    /// Reads the context of a hand-off in either form.
    ///
    /// # Errors
    /// [`DecodeError`] if `bytes` are not the encoding of one.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes);
        if bytes.first() == Some(&FORMER_VERSION) {
            let facts = Self::read_former(&mut r)?;
            r.finish()?;
            return Ok(facts);
        }
        r.version(VERSION, "version of what travels with a request")?;
        let mut draft = Draft::default();
        read_entries(&mut r, |kind, value| draft.take(kind, value))?;
        r.finish()?;
        draft.facts()
    }

    /// Appends the entries. `put_others` appends those of the caller, whose types are between.
    pub(crate) fn put_entries(&self, out: &mut Vec<u8>, put_others: impl FnOnce(&mut Vec<u8>)) {
        put_entry(out, kind::REQUEST, |out| {
            out.put(&self.request_id.to_be_bytes())
        });
        if let Some(trace) = self.trace {
            put_entry(out, kind::TRACE, |out| out.put(&trace.bytes()));
        }
        put_entry(out, kind::CALLER, |out| match &self.caller {
            Caller::Anonymous => {}
            Caller::AccessKey(key) => out.put(key.as_bytes()),
        });
        match &self.body {
            Body::Unsaid => {}
            Body::Sha256(hash) => put_entry(out, kind::SHA256, |out| out.put(hash)),
            Body::Chunks { trailer, seed } => put_entry(out, kind::CHUNKS, |out| {
                out.put(&[u8::from(*trailer)]);
                if let Some(seed) = seed {
                    out.put(&seed.signature);
                    out.put(&seed.time_s.to_be_bytes());
                }
            }),
        }
        match self.progress {
            Progress::First => {}
            Progress::MovedOn => put_entry(out, kind::PROGRESS, |out| out.put(&[1])),
            Progress::AnswerWaits => put_entry(out, kind::PROGRESS, |out| out.put(&[2])),
        }
        if let Some(name) = &self.upstream {
            put_entry(out, kind::UPSTREAM, |out| out.put(name.as_bytes()));
        }
        if let Some(client) = &self.client {
            put_entry(out, kind::CLIENT, |out| client.put(out));
        }
        put_others(out);
        if let Some(lineage) = &self.lineage {
            put_entry(out, kind::LINEAGE, |out| {
                out.put(&lineage.count.to_be_bytes());
                out.put(&lineage.id.to_be_bytes());
            });
        }
        if self.retries > 0 {
            put_entry(out, kind::RETRIES, |out| out.put(&[self.retries]));
        }
        if self.hides_missing {
            put_entry(out, kind::HIDES_MISSING, |_| {});
        }
        if let Some(redirect) = &self.redirect {
            put_entry(out, kind::REDIRECT, |out| {
                out.put(&[redirect.steps]);
                out.put(&redirect.fields);
            });
        }
        if !self.limits.is_empty() {
            put_entry(out, kind::LIMITS, |out| {
                for key in self.limits.iter().take(MAX_LIMITS) {
                    out.put(&key.to_be_bytes());
                }
            });
        }
    }

    pub(crate) fn put_former(&self, out: &mut Vec<u8>) {
        out.put(&[FORMER_VERSION]);
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
        match (self.progress, &self.body) {
            (Progress::AnswerWaits, _) => out.put(&[BODY_OF_ANSWER_WAITS]),
            (Progress::MovedOn, _) => out.put(&[BODY_OF_MOVED_ON]),
            (Progress::First, Body::Unsaid) => out.put(&[BODY_UNSAID]),
            (Progress::First, Body::Sha256(hash)) => {
                out.put(&[BODY_SHA256]);
                out.put(hash);
            }
            (Progress::First, Body::Chunks { trailer, seed }) => match seed {
                None => out.put(&[BODY_CHUNKS, u8::from(*trailer)]),
                Some(seed) => {
                    out.put(&[BODY_SIGNED_CHUNKS, u8::from(*trailer)]);
                    out.put(&seed.signature);
                    out.put(&seed.time_s.to_be_bytes());
                }
            },
        }
    }

    pub(crate) fn read_former(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        r.version(FORMER_VERSION, "version of what was verified")?;
        let mut facts = Self::of_anonymous(r.u64("identifier of the request")?);
        facts.trace = match r.u8("trace")? {
            NOT_TRACED => None,
            TRACED => Some(read_trace(r)?),
            _ => return Err(DecodeError::Invalid("trace")),
        };
        facts.caller = match r.u8("caller")? {
            CALLER_ANONYMOUS => Caller::Anonymous,
            CALLER_ACCESS_KEY => match r.short_str("access key")? {
                "" => return Err(DecodeError::Invalid("access key")),
                key => Caller::AccessKey(key.to_owned()),
            },
            _ => return Err(DecodeError::Invalid("caller")),
        };
        match r.u8("body")? {
            BODY_UNSAID => {}
            BODY_OF_ANSWER_WAITS => facts.progress = Progress::AnswerWaits,
            BODY_OF_MOVED_ON => facts.progress = Progress::MovedOn,
            BODY_SHA256 => facts.body = Body::Sha256(r.array("SHA-256")?),
            BODY_CHUNKS => {
                facts.body = Body::Chunks {
                    trailer: r.bool("trailer")?,
                    seed: None,
                };
            }
            BODY_SIGNED_CHUNKS => {
                facts.body = Body::Chunks {
                    trailer: r.bool("trailer")?,
                    seed: Some(read_seed(r)?),
                };
            }
            _ => return Err(DecodeError::Invalid("body")),
        }
        Ok(facts)
    }
}

fn read_trace(r: &mut Reader<'_>) -> Result<TraceId, DecodeError> {
    let trace = TraceId::new(r.array("identifier of the trace")?);
    trace.ok_or(DecodeError::Invalid("identifier of the trace"))
}

fn read_seed(r: &mut Reader<'_>) -> Result<Seed, DecodeError> {
    Ok(Seed {
        signature: r.array("signature")?,
        time_s: r.u64("time of the signature")?,
    })
}

#[cfg(test)]
#[path = "facts_tests.rs"]
pub(crate) mod facts_tests;
