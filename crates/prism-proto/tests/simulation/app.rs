//! The application protocol of the simulation: numbered requests that say who
//! is to serve them and how, answers that follow from the request alone.

/// The identity of one connection, for the checks: its client, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Incarnation {
    pub(crate) client: usize,
    pub(crate) number: u32,
}

const HEAD_BYTES: usize = 6;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) id: u16,
    /// The host that is to answer.
    pub(crate) target: u8,
    /// By way of the frontend.
    pub(crate) by_return: bool,
    pub(crate) answer_bytes: u8,
    pub(crate) padding_bytes: u8,
}

impl Request {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let [high, low] = self.id.to_be_bytes();
        let (mode, answer) = (u8::from(self.by_return), self.answer_bytes);
        let mut out = vec![high, low, self.target, mode, answer, self.padding_bytes];
        out.extend((0..self.padding_bytes).map(|i| low ^ i));
        out
    }

    /// The first request of `input` and its length, if it is complete.
    pub(crate) fn parse(input: &[u8]) -> Result<Option<(Self, usize)>, String> {
        let Some((head, rest)) = input.split_first_chunk::<HEAD_BYTES>() else {
            return Ok(None);
        };
        let [high, low, target, mode, answer_bytes, padding_bytes] = *head;
        let len = HEAD_BYTES + usize::from(padding_bytes);
        let padding = &rest[..rest.len().min(usize::from(padding_bytes))];
        if mode > 1 || (0..).zip(padding).any(|(i, b)| *b != low ^ i) {
            return Err("I2: the request stream is damaged".into());
        }
        let request = Self {
            id: u16::from_be_bytes([high, low]),
            target,
            by_return: mode == 1,
            answer_bytes,
            padding_bytes,
        };
        Ok((input.len() >= len).then_some((request, len)))
    }

    /// The expected answer.
    pub(crate) fn answer(&self, of: Incarnation) -> Vec<u8> {
        let [high, low] = self.id.to_be_bytes();
        let seed = (of.client as u8).wrapping_mul(31) ^ (of.number as u8).wrapping_mul(7);
        let mut out = vec![high, low, self.answer_bytes];
        out.extend((0..self.answer_bytes).map(|i| i.wrapping_mul(13) ^ seed ^ low));
        out
    }
}

/// The plan of a host for the first request of a connection that it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Look at the request.
    Decide,
    /// Answer it, even if another host was meant to.
    Serve,
    /// Give it to that host.
    HandOn(u8),
}

/// The application's context in a hand-off.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    pub(crate) plan: Plan,
    pub(crate) next_request: u16,
    pub(crate) incarnation: Incarnation,
}

impl Context {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (tag, target) = match self.plan {
            Plan::Decide => (0, 0),
            Plan::Serve => (1, 0),
            Plan::HandOn(target) => (2, target),
        };
        let mut out = vec![tag, target, self.incarnation.client as u8];
        out.extend(self.next_request.to_be_bytes());
        out.extend(self.incarnation.number.to_be_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let [tag, target, client, h, l, a, b, c, d] = *bytes else {
            return None;
        };
        let plan = match tag {
            0 => Plan::Decide,
            1 => Plan::Serve,
            _ => Plan::HandOn(target),
        };
        let number = u32::from_be_bytes([a, b, c, d]);
        let client = usize::from(client);
        Some(Self {
            plan,
            next_request: u16::from_be_bytes([h, l]),
            incarnation: Incarnation { client, number },
        })
    }
}
