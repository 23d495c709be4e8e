//! Requests that wait for their lines.

use std::time::SystemTime;

use crate::observe::{About, Answered};

/// Most bytes of the requests of a thread that wait: some 6,000 of them.
const MAX_BYTES: usize = 2 << 20;
/// Access key, bucket, key, version, frontend, backend.
const TEXTS: usize = 6;
/// The length of a text that is not there.
const NONE: u32 = u32::MAX;

/// Requests that wait.
#[derive(Debug, Default)]
pub(super) struct Batch {
    requests: Vec<Waiting>,
    /// The texts of all requests, one after the other.
    texts: String,
}

/// A request without its texts.
#[derive(Debug)]
struct Waiting {
    ended: SystemTime,
    facts: Answered<'static>,
    /// The lengths of its texts, in bytes.
    lengths: [u32; TEXTS],
}

impl Batch {
    pub(super) const fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.requests.len() * size_of::<Waiting>() + self.texts.len() >= MAX_BYTES
    }

    /// Adds a request that ends now.
    pub(super) fn add(&mut self, answered: &Answered<'_>) {
        let about = &answered.about;
        let texts = [
            about.access_key,
            about.bucket,
            about.key,
            about.version,
            Some(answered.frontend),
            Some(answered.backend),
        ];
        let lengths = texts.map(|text| {
            let length = u32::try_from(text?.len()).ok()?;
            self.texts.push_str(text?);
            Some(length)
        });
        self.requests.push(Waiting {
            ended: SystemTime::now(),
            facts: with_texts(answered, [None; TEXTS]),
            lengths: lengths.map(|length| length.unwrap_or(NONE)),
        });
    }

    /// Takes all requests out, with the times at which they ended.
    pub(super) fn drain(&mut self, mut take: impl FnMut(&Answered<'_>, SystemTime)) {
        let mut rest = self.texts.as_str();
        for request in &self.requests {
            let texts = request.lengths.map(|length| {
                let (text, behind) = rest.split_at_checked(usize::try_from(length).ok()?)?;
                rest = behind;
                Some(text)
            });
            take(&with_texts(&request.facts, texts), request.ended);
        }
        self.requests.clear();
        self.texts.clear();
    }
}

/// The same facts with other texts.
fn with_texts<'t>(facts: &Answered<'_>, texts: [Option<&'t str>; TEXTS]) -> Answered<'t> {
    let [access_key, bucket, key, version, frontend, backend] = texts;
    Answered {
        about: About {
            is_administrative: facts.about.is_administrative,
            operation: facts.about.operation,
            access_key,
            bucket,
            key,
            version,
        },
        id: facts.id,
        trace_id: facts.trace_id,
        client: facts.client,
        status: facts.status,
        error: facts.error,
        bytes_in: facts.bytes_in,
        bytes_out: facts.bytes_out,
        first_byte: facts.first_byte,
        total: facts.total,
        frontend: frontend.unwrap_or_default(),
        backend: backend.unwrap_or_default(),
        is_relayed: facts.is_relayed,
        hand_offs: facts.hand_offs,
        is_tls: facts.is_tls,
    }
}
