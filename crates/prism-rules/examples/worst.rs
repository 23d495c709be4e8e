//! The time that the worst regular expressions of a rule take for the longest path.
//!
//!     cargo run --release -p prism-rules --example worst
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::time::{Duration, Instant};

use prism_http::{Limits, RequestHead};
use prism_rules::{Conditions, Matcher, RequestPath};

/// Expressions that take exponential time in an engine that goes back, and expressions that use all
/// states of one that does not. Each is as long as the bounds allow, or close to that.
const EXPRESSIONS: [&str; 7] = [
    "~^/.*\\.php$",
    "~(a+)+$",
    "~(a|a)*b",
    "~(a|aa)+$",
    "~(.*a){8}x",
    "~a.{16}[b-y]{16}z",
    "~[a-y]*[a-z]*[a-y]*[a-z]*[a-y]*[b-z]*x{4,8}$",
];
const ROUNDS: u32 = 200;

fn main() {
    println!(
        "{:<50} {:>10} {:>12}",
        "expression", "path bytes", "median in us"
    );
    for expression in EXPRESSIONS {
        for len in [64, 1_024, Limits::DEFAULT.target_bytes] {
            let median = median_of(expression, len);
            let shown = median.map_or("refused".into(), |time| {
                format!("{:.1}", time.as_secs_f64() * 1e6)
            });
            println!("{expression:<50} {len:>10} {shown:>12}");
        }
    }
}

/// The time of one request; `None` if the configuration refuses the expression.
fn median_of(expression: &str, len: usize) -> Option<Duration> {
    prism_rules::PathPattern::parse(expression).ok()?;
    let paths = [expression.to_owned()];
    let conditions = Conditions {
        paths: &paths,
        ..Conditions::default()
    };
    let matcher = Matcher::new(&conditions, false);
    let path = format!("/{}", "a".repeat(len.saturating_sub(1)));
    let text = format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
    let (head, _) = RequestHead::parse(text.as_bytes(), &Limits::DEFAULT).unwrap()?;
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let begun = Instant::now();
            let path = RequestPath::of(&head);
            let fit = matcher.fit(&head, &path);
            std::hint::black_box(fit.is_ok());
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}
