//! The limits of the configuration, at the node that reads a request from its client.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prism_config::{Config, LimitBy, RequestLimit};
use prism_http::RequestHead;
use prism_limits::{Charge, Holds, Rate, Usage, key_of};
use prism_proto::facts::Facts;
use prism_rules::{AmbiguousPath, RequestPath};
use prism_service::{Fault, Remote, Service};

use crate::audience::Audience;
use crate::gateway::Gateway;
use crate::usage_reports::COUNTED_AFTER_MOVE;

/// The limits of a configuration.
pub(crate) struct Limits(Vec<CompiledLimit>);

/// A limit that is ready for requests.
struct CompiledLimit {
    name: String,
    audience: Audience,
    by: LimitBy,
    rate: Option<Rate>,
    at_once: Option<u32>,
}

/// A limit that a request falls under.
struct Applied<'l> {
    limit: &'l CompiledLimit,
    /// The key of what is counted; `None` for that of the caller, who is not known yet.
    key: Option<u64>,
}

/// The use of limits at all nodes, as this process knows it.
pub(crate) struct LimitUse {
    begun: Instant,
    pub(crate) usage: Usage,
    /// Requests that were refused, by the name of the limit.
    refused: Mutex<BTreeMap<String, u64>>,
    /// Whether a thread has the task that reports to other nodes.
    is_reported: AtomicBool,
}

/// A request that is admitted under all limits.
pub(crate) struct Understood<M> {
    pub(crate) meaning: M,
    pub(crate) holds: Holds,
}

impl Limits {
    pub(crate) fn of(config: &Config) -> Self {
        let limits = config.service.limit.iter();
        Self(limits.map(CompiledLimit::new).collect())
    }

    /// The limits that a client's request falls under.
    fn of_request(
        &self,
        head: &RequestHead,
        client: &Remote,
    ) -> Result<Vec<Applied<'_>>, AmbiguousPath> {
        let path = RequestPath::of(head);
        let mut applied = Vec::new();
        for limit in &self.0 {
            if limit.audience.fit(head, &path, client)?.is_some() {
                applied.extend(limit.apply(head, client));
            }
        }
        Ok(applied)
    }
}

impl CompiledLimit {
    fn new(settings: &RequestLimit) -> Self {
        let rate = settings.rate.map(|rate| {
            let period = Duration::from_secs(rate.period.seconds().into());
            let burst = settings.burst_of(rate);
            Rate::new(rate.requests, period.as_nanos() as u64, burst)
        });
        Self {
            name: settings.name.clone(),
            audience: Audience::of_limit(settings),
            by: settings.by.clone(),
            rate,
            at_once: settings.at_once,
        }
    }

    /// The limit for a request; `None` if the request lacks what is counted.
    fn apply(&self, head: &RequestHead, client: &Remote) -> Option<Applied<'_>> {
        let key = match &self.by {
            LimitBy::Client => Some(self.key_of_client(client.address.ip())),
            LimitBy::Key => None,
            LimitBy::Header(name) => Some(key_of(&self.name, head.headers().get(name)?)),
            LimitBy::All => Some(key_of(&self.name, b"")),
        };
        Some(Applied { limit: self, key })
    }

    /// A client of IPv6 usually has a whole network of 64 bits.
    fn key_of_client(&self, address: IpAddr) -> u64 {
        match address.to_canonical() {
            IpAddr::V4(v4) => key_of(&self.name, &v4.octets()),
            IpAddr::V6(v6) => {
                let [a, b, c, d, ..] = v6.segments().map(u16::to_be_bytes);
                key_of(&self.name, [a, b, c, d].as_flattened())
            }
        }
    }
}

impl Applied<'_> {
    fn charge(&self, access_key: Option<&str>) -> Option<Charge> {
        let limit = self.limit;
        let of_caller = || access_key.map(|key| key_of(&limit.name, key.as_bytes()));
        Some(Charge {
            key: self.key.or_else(of_caller)?,
            rate: limit.rate,
            at_once: limit.at_once,
        })
    }
}

impl Default for LimitUse {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            usage: Usage::default(),
            refused: Mutex::default(),
            is_reported: false.into(),
        }
    }
}

impl LimitUse {
    /// The time in ns since this process counts.
    pub(crate) fn now_ns(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Whether the caller is the first one, who has to report to other nodes.
    pub(crate) fn is_first(&self) -> bool {
        !self.is_reported.swap(true, Ordering::Relaxed)
    }

    /// Requests that were refused, by the name of the limit.
    pub(crate) fn refused(&self) -> BTreeMap<String, u64> {
        self.refused.lock().clone()
    }

    /// Admits a request that falls under these limits.
    ///
    /// # Errors
    /// The time in seconds after which it may be admitted, at least 1.
    fn admit(&self, applied: &[Applied<'_>], access_key: Option<&str>) -> Result<Holds, u32> {
        let charged = applied
            .iter()
            .filter_map(|one| Some((one.limit, one.charge(access_key)?)));
        let (limits, charges): (Vec<_>, Vec<_>) = charged.unzip();
        let refusal = match self.usage.admit(&charges, self.now_ns()) {
            Ok(holds) => return Ok(holds),
            Err(refusal) => refusal,
        };
        if let Some(limit) = limits.get(refusal.place) {
            tracing::debug!(limit = limit.name, "a request is above a limit");
            let mut refused = self.refused.lock();
            match refused.get_mut(&limit.name) {
                Some(count) => *count += 1,
                None => {
                    refused.insert(limit.name.clone(), 1);
                }
            }
        }
        let wait = Duration::from_nanos(refusal.wait_ns).as_secs_f64().ceil();
        Err((wait as u32).max(1))
    }
}

impl<S: Service> Gateway<S> {
    /// Understands a request, and admits it under the limits that it falls under, unless another
    /// node has.
    ///
    /// # Errors
    /// It is malformed, not signed well, or above a limit. It is counted then.
    pub(crate) fn understand(
        &self,
        head: &mut RequestHead,
        verified: Option<Facts>,
        client: &Remote,
    ) -> Result<Understood<S::Meaning>, S::Error> {
        let policy = self.policy().filter(|_| verified.is_none());
        let limits = policy.as_deref().map(|policy| &policy.limits);
        let limits = limits.filter(|limits| !limits.0.is_empty());
        let keys = verified.as_ref().map(|facts| facts.limits.as_slice());
        let holds = self.shared.limits.usage.resume(keys.unwrap_or_default());
        let Some(limits) = limits else {
            let meaning = self.service.understand(head, verified);
            let meaning = meaning.inspect_err(|error| self.count_fault(error))?;
            return Ok(Understood { meaning, holds });
        };
        let applied = limits
            .of_request(head, client)
            .map_err(|AmbiguousPath| self.service.error_for(Fault::AmbiguousPath, None))
            .inspect_err(|error| self.count_fault(error))?;
        let understood = self.service.understand(head, None);
        let meaning = understood.as_ref().ok();
        let access_key = meaning.and_then(|meaning| self.service.about(meaning).access_key);
        // One with a bad signature counts too.
        let holds = match self.shared.limits.admit(&applied, access_key) {
            Ok(holds) => holds,
            Err(wait_s) => return Err(self.service.error_for(Fault::TooMany(wait_s), meaning)),
        };
        let meaning = understood.inspect_err(|error| self.count_fault(error))?;
        Ok(Understood { meaning, holds })
    }

    fn count_fault(&self, error: &S::Error) {
        let count = match self.service.status_of(error) {
            (403, _) => &self.shared.counters.unauthenticated,
            _ => &self.shared.counters.malformed,
        };
        count.add_one();
    }

    /// Counts a request for a while after its connection has moved, until the other node has
    /// reported it.
    pub(crate) fn count_moved(&self, holds: Holds) {
        if holds.keys().is_empty() {
            return;
        }
        tokio::task::spawn_local(async move {
            tokio::time::sleep(COUNTED_AFTER_MOVE).await;
            drop(holds);
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use prism_http::Limits as HeadLimits;

    use super::*;

    fn limits(limit: Vec<RequestLimit>) -> Limits {
        let mut config: Config = Config::default();
        config.service.limit = limit;
        Limits::of(&config)
    }

    fn admit(counts: &LimitUse, limits: &Limits, client: &str, fields: &str) -> Result<Holds, u32> {
        let text = format!("GET /login HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let parsed = RequestHead::parse(text.as_bytes(), &HeadLimits::DEFAULT);
        let client = Remote {
            address: client.parse().unwrap(),
            service: "192.0.2.1:80".parse().unwrap(),
            is_tls: false,
            has_companion: false,
            is_proxied: false,
        };
        let (head, _) = parsed.unwrap().unwrap();
        let applied = limits.of_request(&head, &client).unwrap();
        counts.admit(&applied, Some("AKIA"))
    }

    /// A client, header fields of its request, and whether it is admitted.
    type Case<'c> = (&'c str, &'c str, bool);

    #[test]
    fn a_limit_counts_what_it_says_and_only_the_requests_that_fit() {
        let one = |name: &str, by: &str| RequestLimit {
            name: name.into(),
            by: by.parse().unwrap(),
            rate: Some("1/h".parse().unwrap()),
            ..RequestLimit::default()
        };
        const A: &str = "198.51.100.7:9";
        const SAME: &str = "[::ffff:198.51.100.7]:8";
        const B: &str = "198.51.100.8:9";
        const V6: &str = "[2001:db8:1:2::3]:1";
        const NEAR: &str = "[2001:db8:1:2:ffff::9]:2";
        const FAR: &str = "[2001:db8:1:3::3]:1";
        let token = "X-Token: 1\r\n";
        let cases: [(&str, &[Case<'_>]); 4] = [
            (
                "client",
                &[
                    (A, "", true),
                    (SAME, "", false),
                    (B, "", true),
                    (V6, "", true),
                    (NEAR, "", false),
                    (FAR, "", true),
                ],
            ),
            (
                "header:x-token",
                &[
                    (A, "", true),
                    (A, "", true),
                    (A, token, true),
                    (B, token, false),
                    (B, "X-Token: 2\r\n", true),
                ],
            ),
            ("key", &[(A, "", true), (B, "", false)]),
            ("all", &[(A, "", true), (FAR, token, false)]),
        ];
        for (by, requests) in cases {
            let counts = LimitUse::default();
            let limits = limits(vec![one("one", by)]);
            for (client, fields, expected) in requests {
                let admitted = admit(&counts, &limits, client, fields);
                assert_eq!(admitted.is_ok(), *expected, "{by}: {client} {fields}");
                if let Err(wait_s) = admitted {
                    assert!((3_599..=3_600).contains(&wait_s), "{wait_s}");
                }
            }
        }
        let counts = LimitUse::default();
        let elsewhere = RequestLimit {
            paths: vec!["/other".into()],
            ..one("other", "all")
        };
        let limits = limits(vec![elsewhere, one("one", "all")]);
        assert!(admit(&counts, &limits, A, "").is_ok());
        assert!(admit(&counts, &limits, A, "").is_err());
        assert_eq!(counts.refused(), [("one".to_owned(), 1)].into());
    }
}
