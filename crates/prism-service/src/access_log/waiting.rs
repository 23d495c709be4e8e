//! Requests that wait for their lines.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::EndedBy;
use crate::observe::Answered;

/// Most bytes of the requests of a thread that wait: some 10,000 of them.
const MAX_BYTES: usize = 2 << 20;
/// The number of [`Texts`].
const TEXTS: usize = 13;
/// The length of a text that is not there.
const NONE: u32 = u32::MAX;

/// Requests that wait.
#[derive(Debug, Default)]
pub(super) struct Batch {
    requests: Vec<Facts>,
    /// The texts of all requests, one after the other.
    texts: String,
}

/// The facts about a request but its own texts. It is small, as the processor writes and reads
/// one for each request.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) id: u64,
    /// The end of the request, in milliseconds since 1970.
    pub(super) ended_ms: u64,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) first_byte_us: Option<u64>,
    pub(super) total_us: u64,
    pub(super) operation: &'static str,
    pub(super) error: Option<&'static str>,
    pub(super) ended_by: Option<EndedBy>,
    pub(super) http_version: &'static str,
    pub(super) path: &'static str,
    pub(super) client: SocketAddr,
    pub(super) server: Option<SocketAddr>,
    pub(super) status: u16,
    pub(super) retries: u8,
    pub(super) redirects: u8,
    pub(super) hand_offs: u8,
    pub(super) is_tls: bool,
    pub(super) trace_id: Option<[u8; 16]>,
    /// The lengths of its texts, in bytes.
    lengths: [u32; TEXTS],
}

/// The texts of a request; `None` for one that does not apply.
#[derive(Debug)]
pub(super) struct Texts<'t> {
    pub(super) method: Option<&'t str>,
    pub(super) target: Option<&'t str>,
    pub(super) host: Option<&'t str>,
    pub(super) user_agent: Option<&'t str>,
    pub(super) referer: Option<&'t str>,
    pub(super) proxy_request_id: Option<&'t str>,
    pub(super) access_key: Option<&'t str>,
    pub(super) bucket: Option<&'t str>,
    pub(super) key: Option<&'t str>,
    pub(super) version: Option<&'t str>,
    pub(super) upstream: Option<&'t str>,
    pub(super) frontend: Option<&'t str>,
    pub(super) backend: Option<&'t str>,
}

impl Batch {
    pub(super) const fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.requests.len() * size_of::<Facts>() + self.texts.len() >= MAX_BYTES
    }

    /// Adds a request.
    pub(super) fn add(&mut self, answered: &Answered<'_>, ended: SystemTime) {
        let about = &answered.about;
        let head = &answered.head;
        let texts = [
            Some(head.method),
            Some(head.target),
            head.host,
            head.user_agent,
            head.referer,
            head.request_id,
            about.access_key,
            about.bucket,
            about.key,
            about.version,
            about.upstream,
            Some(answered.frontend),
            Some(answered.backend),
        ];
        let lengths = texts.map(|text| {
            let length = u32::try_from(text?.len()).ok()?;
            self.texts.push_str(text?);
            Some(length)
        });
        let ended = ended.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.requests.push(Facts {
            id: answered.id,
            ended_ms: u64::try_from(ended.as_millis()).unwrap_or(u64::MAX),
            bytes_in: answered.bytes_in,
            bytes_out: answered.bytes_out,
            first_byte_us: answered.first_byte.map(as_us),
            total_us: as_us(answered.total),
            operation: about.operation,
            error: answered.error,
            ended_by: answered.ended_by,
            http_version: head.version,
            path: answered.path(),
            client: answered.client,
            server: answered.server,
            status: answered.status,
            retries: answered.retries,
            redirects: answered.redirects,
            hand_offs: answered.hand_offs,
            is_tls: answered.is_tls,
            trace_id: answered.trace_id,
            lengths: lengths.map(|length| length.unwrap_or(NONE)),
        });
    }

    /// Takes all requests out.
    pub(super) fn drain(&mut self, mut take: impl FnMut(&Facts, &Texts<'_>)) {
        let mut rest = self.texts.as_str();
        for facts in &self.requests {
            let mut next = facts.lengths.iter().map(|length| {
                let (text, behind) = rest.split_at_checked(usize::try_from(*length).ok()?)?;
                rest = behind;
                Some(text)
            });
            let mut next = || next.next().flatten();
            // In the order in which they were added.
            let texts = Texts {
                method: next(),
                target: next(),
                host: next(),
                user_agent: next(),
                referer: next(),
                proxy_request_id: next(),
                access_key: next(),
                bucket: next(),
                key: next(),
                version: next(),
                upstream: next(),
                frontend: next(),
                backend: next(),
            };
            take(facts, &texts);
        }
        self.requests.clear();
        self.texts.clear();
    }
}

fn as_us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
