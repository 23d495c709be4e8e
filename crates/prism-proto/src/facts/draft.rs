//! Reads the entries of facts, one after the other.

use super::{
    Body, Caller, ClientFacts, Facts, LineageFacts, MAX_FIELDS_BYTES, MAX_LIMITS, MAX_NAME_BYTES,
    Progress, RedirectFacts, TraceId, kind, read_seed, read_trace,
};
use crate::wire::{DecodeError, Reader};

/// Facts of which some entries were read.
#[derive(Default)]
pub(crate) struct Draft {
    request_id: Option<u64>,
    trace: Option<TraceId>,
    caller: Option<Caller>,
    body: Option<Body>,
    progress: Progress,
    upstream: Option<String>,
    client: Option<ClientFacts>,
    lineage: Option<LineageFacts>,
    retries: u8,
    hides_missing: bool,
    redirect: Option<RedirectFacts>,
    limits: Vec<u64>,
}

impl Draft {
    /// Takes an entry. An entry that nobody knows is refused, unless it may be skipped.
    pub(crate) fn take(&mut self, kind: u8, value: &[u8]) -> Result<(), DecodeError> {
        if kind > kind::LIMITS {
            return Ok(());
        }
        let mut r = Reader::new(value);
        self.read(kind, &mut r)?;
        r.finish()
    }

    fn read(&mut self, kind: u8, r: &mut Reader<'_>) -> Result<(), DecodeError> {
        match kind {
            kind::REQUEST => self.request_id = Some(r.u64("identifier of the request")?),
            kind::TRACE => self.trace = Some(read_trace(r)?),
            kind::CALLER => {
                self.caller = Some(match read_name(r, "access key")? {
                    "" => Caller::Anonymous,
                    key => Caller::AccessKey(key.to_owned()),
                });
            }
            kind::SHA256 => self.body = Some(Body::Sha256(r.array("SHA-256")?)),
            kind::CHUNKS if self.body.is_none() => {
                self.body = Some(Body::Chunks {
                    trailer: r.bool("trailer")?,
                    seed: match r.remaining() {
                        0 => None,
                        _ => Some(read_seed(r)?),
                    },
                });
            }
            kind::PROGRESS => {
                self.progress = match r.u8("progress")? {
                    1 => Progress::MovedOn,
                    2 => Progress::AnswerWaits,
                    _ => return Err(DecodeError::Invalid("progress")),
                };
            }
            kind::UPSTREAM => match read_name(r, "name of the upstream")? {
                "" => return Err(DecodeError::Invalid("name of the upstream")),
                name => self.upstream = Some(name.to_owned()),
            },
            kind::CLIENT => self.client = Some(ClientFacts::read(r)?),
            kind::LINEAGE => {
                self.lineage = Some(LineageFacts {
                    count: r.u64("number of changes")?,
                    id: r.u64("identifier of a change")?,
                });
            }
            kind::RETRIES => self.retries = r.u8("retries")?,
            kind::HIDES_MISSING => self.hides_missing = true,
            kind::REDIRECT => {
                let steps = r.u8("number of redirects")?;
                let len = r.remaining();
                if len > MAX_FIELDS_BYTES {
                    return Err(DecodeError::TooLong("fields of a redirect"));
                }
                let fields = r.bytes(len, "fields of a redirect")?.to_vec();
                self.redirect = Some(RedirectFacts { steps, fields });
            }
            kind::LIMITS => {
                if r.remaining() > MAX_LIMITS * size_of::<u64>() {
                    return Err(DecodeError::TooLong("limits"));
                }
                while r.remaining() > 0 {
                    self.limits.push(r.u64("key of a limit")?);
                }
            }
            _ => return Err(DecodeError::Invalid("type of an entry")),
        }
        Ok(())
    }

    /// The facts.
    pub(crate) fn facts(self) -> Result<Facts, DecodeError> {
        let missing = DecodeError::Truncated;
        Ok(Facts {
            request_id: self
                .request_id
                .ok_or(missing("identifier of the request"))?,
            trace: self.trace,
            caller: self.caller.ok_or(missing("caller"))?,
            body: self.body.unwrap_or(Body::Unsaid),
            progress: self.progress,
            upstream: self.upstream,
            client: self.client,
            lineage: self.lineage,
            retries: self.retries,
            hides_missing: self.hides_missing,
            redirect: self.redirect,
            limits: self.limits,
        })
    }
}

/// Takes the rest as a text of at most 255 bytes.
fn read_name<'r>(r: &mut Reader<'r>, field: &'static str) -> Result<&'r str, DecodeError> {
    let len = r.remaining();
    if len > MAX_NAME_BYTES {
        return Err(DecodeError::TooLong(field));
    }
    std::str::from_utf8(r.bytes(len, field)?).map_err(|_| DecodeError::Invalid(field))
}
