//! The findings of the demo, as checks and as text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use super::client::DemoAnswer;
use super::trace::quantile;
use super::{AccessWay, Scheme};

/// Requests that the report shows one by one.
const SHOWN: usize = 15;
/// The most bytes over the frontend's link, in percent of the bytes of files. Hand-offs carry
/// requests and TCP state; a proxy would be above 200.
const MAX_FRONTEND_PERCENT: f64 = 3.0;

/// Bytes that TLS adds to a small answer, by records of its own for the head, the body and the
/// end. To a large answer it adds less than a hundredth (22 bytes to each 16 KiB, or to what a
/// sender had at hand).
const RECORD_SHARE: u64 = 100;
const RECORD_BYTES: u64 = 3 * 29;

/// The findings.
pub(super) struct Findings {
    pub(super) service: SocketAddr,
    pub(super) way: AccessWay,
    /// The answers in curl's order.
    pub(super) answers: Vec<DemoAnswer>,
    /// The places where the bytes of each answer entered the switch.
    pub(super) answered_by: Vec<Vec<(String, u64)>>,
    pub(super) resets: usize,
    /// Addresses that the client should not have seen.
    pub(super) strangers: BTreeSet<IpAddr>,
    /// Bytes in both directions, with headers and hand-offs.
    pub(super) frontend_bytes: u64,
    /// Times in microseconds, sorted.
    pub(super) hand_offs: Vec<f64>,
    pub(super) backends: usize,
}

/// Something that has to hold.
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) value: String,
    pub(super) holds: bool,
}

/// Names of the checks that fail.
pub(super) fn failed(checks: impl IntoIterator<Item = Check>) -> Vec<&'static str> {
    let failed = checks.into_iter().filter(|check| !check.holds);
    failed.map(|check| check.name).collect()
}

impl Findings {
    pub(super) fn checks(&self) -> Vec<Check> {
        let sources = self.requests_by_source();
        let are_direct = self.are_direct();
        let backends = sources.keys().filter(|host| host.starts_with("be")).count();
        let shares: Vec<_> = sources
            .iter()
            .map(|(host, n)| format!("{host} {n}"))
            .collect();
        let strangers: Vec<_> = self.strangers.iter().map(IpAddr::to_string).collect();
        let is_service = |answer: &DemoAnswer| answer.remote == self.service.ip();
        let check = |name, value, holds| Check { name, value, holds };
        let [connections, compared] = answer_checks(&self.answers);
        vec![
            connections,
            compared,
            check(
                "answered by",
                format!("{} requests", shares.join(", ")),
                backends == self.backends && are_direct,
            ),
            check(
                "resets at client",
                self.resets.to_string(),
                self.resets == 0,
            ),
            check(
                "client talked to",
                [vec![self.service.ip().to_string()], strangers]
                    .concat()
                    .join(", "),
                self.strangers.is_empty() && self.answers.iter().all(is_service),
            ),
            check(
                "through frontend",
                format!(
                    "{} bytes for {} bytes of files ({:.2} %)",
                    grouped(self.frontend_bytes),
                    grouped(self.object_bytes()),
                    self.frontend_percent()
                ),
                self.frontend_percent() < MAX_FRONTEND_PERCENT,
            ),
            check(
                "time of hand-off",
                self.latency_text(),
                !self.hand_offs.is_empty(),
            ),
        ]
    }

    /// Each answer came from one server, and no byte is unaccounted for.
    fn are_direct(&self) -> bool {
        let mut pairs = self.answers.iter().zip(&self.answered_by);
        pairs.all(|(answer, sources)| match sources.as_slice() {
            [(_, bytes)] => self.expected_bytes(answer).contains(bytes),
            _ => false,
        })
    }

    /// The most bytes of an answer in the connection's stream.
    fn expected_bytes(&self, answer: &DemoAnswer) -> RangeInclusive<u64> {
        let bytes = answer.wire_bytes;
        match self.way.scheme {
            Scheme::Http => bytes..=bytes,
            Scheme::Https => bytes + 1..=bytes + bytes / RECORD_SHARE + RECORD_BYTES,
        }
    }

    fn requests_by_source(&self) -> BTreeMap<String, usize> {
        let mut sources = BTreeMap::new();
        for answer in &self.answered_by {
            *sources.entry(source_text(answer)).or_insert(0) += 1;
        }
        sources
    }

    fn object_bytes(&self) -> u64 {
        self.answers.iter().map(|answer| answer.body_bytes).sum()
    }

    fn frontend_percent(&self) -> f64 {
        100.0 * self.frontend_bytes as f64 / self.object_bytes().max(1) as f64
    }

    fn latency_text(&self) -> String {
        let quantile = |part| quantile(&self.hand_offs, part).unwrap_or(f64::NAN);
        format!(
            "p50 {:.0} us, p99 {:.0} us ({} hand-offs)",
            quantile(0.50),
            quantile(0.99),
            self.hand_offs.len()
        )
    }
}

/// All answers came over one connection, and are right.
pub(super) fn answer_checks(answers: &[DemoAnswer]) -> [Check; 2] {
    let right = answers.iter().filter(|answer| answer.is_right).count();
    let ports: BTreeSet<_> = answers.iter().map(|answer| answer.local_port).collect();
    let ports_text: Vec<_> = ports.iter().map(u16::to_string).collect();
    [
        Check {
            name: "client connections",
            value: format!("{}, from local port {}", ports.len(), ports_text.join(", ")),
            holds: ports.len() == 1,
        },
        Check {
            name: "answers compared",
            value: format!("{right} of {} are the file, byte for byte", answers.len()),
            holds: right == answers.len(),
        },
    ]
}

/// The findings as text.
pub(super) fn render(findings: &Findings) -> String {
    let mut text = format!(
        "\nThe connection over {}, request by request:\n\n",
        findings.way
    );
    let width = findings
        .answers
        .iter()
        .take(SHOWN)
        .map(|a| a.key.len())
        .max();
    let width = width.unwrap_or(0).max("file".len());
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "  {:>3}  {:<width$}  {:>9}  {:<9}  came into the switch from",
        "", "file", "bytes", "answer"
    );
    let rows = findings.answers.iter().zip(&findings.answered_by);
    for (number, (answer, sources)) in (1..).zip(rows).take(SHOWN) {
        let _ = writeln!(
            text,
            "  {number:>3}  {:<width$}  {:>9}  {:<9}  {}",
            answer.key,
            grouped(answer.body_bytes),
            answer.verdict(),
            source_text(sources)
        );
    }
    let others = findings.answers.len().saturating_sub(SHOWN);
    if others > 0 {
        let _ = writeln!(text, "       ... and {others} more");
    }
    text.push_str("\nAll of it:\n\n");
    text + &render_checks(&findings.checks())
}

/// The findings in short, with the beginning of their title.
pub(super) fn render_short(findings: &Findings, title: &str) -> String {
    format!("\n{title} over {}:\n\n", findings.way) + &render_checks(&findings.checks())
}

/// The checks of the time in which a server was away.
pub(super) fn render_outage(checks: &[Check]) -> String {
    "\nWhile a server was away:\n\n".to_owned() + &render_checks(checks)
}

fn render_checks(checks: &[Check]) -> String {
    let line = |check: &Check| {
        let verdict = if check.holds { "ok  " } else { "FAIL" };
        format!("  {verdict}  {:<18}  {}\n", check.name, check.value)
    };
    checks.iter().map(line).collect()
}

impl DemoAnswer {
    fn verdict(&self) -> String {
        let verdict = if self.is_right { "right" } else { "WRONG" };
        format!("{} {verdict}", self.status)
    }
}

/// `be0`, or the names of all servers of the answer.
fn source_text(sources: &[(String, u64)]) -> String {
    if sources.is_empty() {
        return "nowhere".into();
    }
    let hosts: Vec<_> = sources.iter().map(|(host, _)| host.as_str()).collect();
    hosts.join("+")
}

/// As in 1,048,576.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing, reason = "test code")]
    use super::*;
    use std::net::Ipv4Addr;

    fn answer(port: u16, is_right: bool) -> DemoAnswer {
        DemoAnswer {
            key: "k".into(),
            local_port: port,
            remote: Ipv4Addr::LOCALHOST.into(),
            status: 200,
            wire_bytes: 1_000,
            body_bytes: 900,
            is_right,
        }
    }

    fn findings() -> Findings {
        Findings {
            service: (Ipv4Addr::LOCALHOST, 80).into(),
            way: AccessWay::PLAIN,
            answers: vec![answer(7, true), answer(7, true)],
            answered_by: vec![vec![("be0".into(), 1_000)], vec![("be1".into(), 1_000)]],
            resets: 0,
            strangers: BTreeSet::new(),
            frontend_bytes: 10,
            hand_offs: vec![50.0],
            backends: 2,
        }
    }

    #[test]
    fn what_holds_is_said_to_hold() {
        assert!(failed(findings().checks()).is_empty());
        assert!(!render(&findings()).contains("FAIL"));
        assert_eq!(grouped(1_048_576), "1,048,576");
        assert_eq!(grouped(12), "12");
    }

    #[test]
    fn over_https_answers_are_larger_by_their_records() {
        let mut findings = findings();
        findings.way.scheme = Scheme::Https;
        assert_eq!(failed(findings.checks()), ["answered by"], "not encrypted");
        for sources in &mut findings.answered_by {
            sources[0].1 += 44;
        }
        assert!(failed(findings.checks()).is_empty());
        findings.answered_by[1][0].1 += 1_000;
        assert_eq!(failed(findings.checks()), ["answered by"]);
    }

    #[test]
    fn each_fault_fails_its_check() {
        let fault = |change: fn(&mut Findings)| {
            let mut findings = findings();
            change(&mut findings);
            failed(findings.checks())
        };
        assert_eq!(
            fault(|f| f.answers.push(answer(8, true)))[0],
            "client connections"
        );
        assert_eq!(
            fault(|f| f.answers = vec![answer(7, false)]),
            ["answers compared"]
        );
        assert_eq!(fault(|f| f.backends = 3), ["answered by"]);
        let one_byte_short = |f: &mut Findings| f.answered_by[0][0].1 -= 1;
        assert_eq!(fault(one_byte_short), ["answered by"]);
        assert_eq!(fault(|f| f.resets = 1), ["resets at client"]);
        let stranger = |f: &mut Findings| f.strangers = [Ipv4Addr::BROADCAST.into()].into();
        assert_eq!(fault(stranger), ["client talked to"]);
        assert_eq!(fault(|f| f.frontend_bytes = 54), ["through frontend"]);
        assert_eq!(fault(|f| f.hand_offs.clear()), ["time of hand-off"]);
    }
}
