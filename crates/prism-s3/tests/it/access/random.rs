//! Random policies, callers and requests: the decision is that of a plain reference.

use std::net::IpAddr;

use fastrand::Rng;
use prism_s3::access::{Caller, Rights, decide};

use super::{TABLE, circumstances, operation, parse, rights};

/// Decisions compared.
const DECISIONS: u64 = 40_000;

const KEYS: [&str; 3] = ["a", "b", "c"];
const PRINCIPALS: [&str; 4] = ["*", "a", "arn:aws:iam:::user/b", "c"];
const ACTIONS: [&str; 10] = [
    "s3:*",
    "*",
    "s3:Get*",
    "s3:*Object",
    "s3:List*",
    "s3:GetObject",
    "s3:PutObject*",
    "s3:?etBucketPolicy",
    "s3:*Version*",
    "s3:DeleteObject",
];
const RESOURCES: [&str; 7] = [
    "arn:aws:s3:::bkt",
    "arn:aws:s3:::bkt/*",
    "arn:aws:s3:::bkt*",
    "arn:aws:s3:::bkt/k",
    "arn:aws:s3:::bkt/?",
    "arn:aws:s3:::bkt/a*",
    "arn:aws:s3:::bkt/*/k",
];
const NETWORKS: [&str; 5] = [
    "10.0.0.0/8",
    "10.1.0.0/16",
    "10.1.2.3",
    "2001:db8::/32",
    "::1/128",
];
const ADDRESSES: [&str; 5] = ["10.1.2.3", "10.2.0.1", "192.0.2.1", "2001:db8::7", "::1"];
const PREFIXES: [&str; 5] = ["", "a", "ab", "a/b", "x"];
const PATTERNS: [&str; 5] = ["", "a*", "?b", "*", "x"];

/// A statement as plain texts.
struct Statement {
    denies: bool,
    principals: Vec<&'static str>,
    actions: Vec<&'static str>,
    resources: Vec<&'static str>,
    /// Operator and values.
    conditions: Vec<(&'static str, Vec<&'static str>)>,
}

fn some(random: &mut Rng, of: &[&'static str]) -> Vec<&'static str> {
    (0..random.usize(1..3))
        .map(|_| of[random.usize(..of.len())])
        .collect()
}

impl Statement {
    fn random(random: &mut Rng) -> Self {
        let mut conditions = Vec::new();
        for (operator, values) in [
            ("IpAddress", &NETWORKS[..]),
            ("NotIpAddress", &NETWORKS),
            ("StringEquals", &PREFIXES),
            ("StringNotEquals", &PREFIXES),
            ("StringLike", &PATTERNS),
            ("StringNotLike", &PATTERNS),
            ("Bool", &["true", "false"]),
        ] {
            if random.u8(..8) == 0 {
                let values = match operator {
                    "Bool" => vec![values[random.usize(..2)]],
                    _ => some(random, values),
                };
                conditions.push((operator, values));
            }
        }
        Self {
            denies: random.u8(..3) == 0,
            principals: some(random, &PRINCIPALS),
            actions: some(random, &ACTIONS),
            resources: some(random, &RESOURCES),
            conditions,
        }
    }

    fn json(&self) -> String {
        let list = |texts: &[&str]| format!("{texts:?}");
        let effect = if self.denies { "Deny" } else { "Allow" };
        let conditions = self.conditions.iter().map(|(operator, values)| {
            let key = match *operator {
                "Bool" => "aws:SecureTransport",
                operator if operator.contains("Ip") => "aws:SourceIp",
                _ => "s3:prefix",
            };
            format!("\"{operator}\":{{\"{key}\":{}}}", list(values))
        });
        let conditions: Vec<_> = conditions.collect();
        format!(
            "{{\"Effect\":\"{effect}\",\"Principal\":{{\"AWS\":{}}},\"Action\":{},\"Resource\":{},\
             \"Condition\":{{{}}}}}",
            list(&self.principals),
            list(&self.actions),
            list(&self.resources),
            conditions.join(",")
        )
    }

    /// Whether it is about this action of this question.
    fn fits(&self, asked: &Asked, action: &str) -> bool {
        let is_principal = |of: &&str| *of == "*" || of.rsplit('/').next() == asked.key;
        let action = format!("s3:{action}").to_lowercase();
        self.principals.iter().any(is_principal)
            && self
                .actions
                .iter()
                .any(|of| like(&of.to_lowercase(), &action))
            && self.resources.iter().any(|of| like(of, &asked.resource))
            && self.conditions.iter().all(|(operator, values)| {
                let any = |test: &dyn Fn(&str) -> bool| values.iter().any(|value| test(value));
                let prefix = |test: &dyn Fn(&str, &str) -> bool| {
                    asked
                        .prefix
                        .is_some_and(|prefix| any(&|value| test(value, prefix)))
                };
                match *operator {
                    "IpAddress" => any(&|value| is_within(asked.address, value)),
                    "NotIpAddress" => !any(&|value| is_within(asked.address, value)),
                    "StringEquals" => prefix(&|value, prefix| value == prefix),
                    "StringNotEquals" => !prefix(&|value, prefix| value == prefix),
                    "StringLike" => prefix(&like),
                    "StringNotLike" => !prefix(&like),
                    _ => any(&|value| (value == "true") == asked.is_tls),
                }
            })
    }
}

struct Asked {
    key: Option<&'static str>,
    resource: String,
    prefix: Option<&'static str>,
    address: &'static str,
    is_tls: bool,
}

fn like(pattern: &str, text: &str) -> bool {
    let rest = |text: &str, n: usize| text.chars().skip(n).collect::<String>();
    match (pattern.chars().next(), text.chars().next()) {
        (None, None) => true,
        (Some('*'), None) => like(&rest(pattern, 1), text),
        (Some('*'), Some(_)) => like(&rest(pattern, 1), text) || like(pattern, &rest(text, 1)),
        (Some(wanted), Some(found)) if wanted == '?' || wanted == found => {
            like(&rest(pattern, 1), &rest(text, 1))
        }
        _ => false,
    }
}

/// The bits of an address as a text.
fn bits(address: &str) -> String {
    let octets = match address.parse().unwrap() {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    octets.iter().map(|octet| format!("{octet:08b}")).collect()
}

fn is_within(address: &str, network: &str) -> bool {
    let (start, length) = network.split_once('/').unwrap_or((network, "999"));
    let (address, start) = (bits(address), bits(start));
    let length = length.parse::<usize>().unwrap().min(start.len());
    address.len() == start.len() && address[..length] == start[..length]
}

/// A request of the table for some key or prefix, and its resource.
fn request(random: &mut Rng, row: &str) -> (String, String, Option<&'static str>) {
    let (method, target) = row.split_once(' ').unwrap();
    if let Some(rest) = target.strip_prefix("/bkt/k") {
        let key = ["k", "a", "ab", "x/k", "/k"][random.usize(..5)];
        return (
            format!("{method} /bkt/{key}{rest}"),
            format!("arn:aws:s3:::bkt/{key}"),
            None,
        );
    }
    let lists = [
        "GET /bkt",
        "GET /bkt?list-type=2",
        "GET /bkt?versions",
        "GET /bkt?uploads",
    ];
    let bucket = "arn:aws:s3:::bkt".to_owned();
    if !lists.contains(&row) {
        return (row.to_owned(), bucket, None);
    }
    let prefix = PREFIXES[random.usize(..PREFIXES.len())];
    let mark = if row.contains('?') { '&' } else { '?' };
    (format!("{row}{mark}prefix={prefix}"), bucket, Some(prefix))
}

/// The decision by the plain rules.
fn expected(
    statements: &[Statement],
    asked: &Asked,
    row: &(&str, Rights, &[&str]),
    own: Rights,
) -> bool {
    let (request, rights, actions) = row;
    let is_said = |denies: bool, action: &str| {
        let mut of = statements
            .iter()
            .filter(|statement| statement.denies == denies);
        of.any(|statement| statement.fits(asked, action))
    };
    if request.ends_with("?policy") && own.contains(Rights::OWNER) {
        return true;
    }
    !actions.iter().any(|action| is_said(true, action))
        && (own.intersects(*rights) || actions.iter().all(|action| is_said(false, action)))
}

#[test]
fn decisions_are_those_of_the_plain_rules() {
    let (mut allowed, mut denied) = (0, 0);
    for seed in 0..DECISIONS {
        let mut random = Rng::with_seed(seed);
        let count = random.usize(0..5);
        let statements: Vec<_> = (0..count).map(|_| Statement::random(&mut random)).collect();
        let json: Vec<_> = statements.iter().map(Statement::json).collect();
        let policy = (count > 0).then(|| parse(&json.join(",")).unwrap());
        let row = &TABLE[random.usize(..TABLE.len())];
        let (request, resource, prefix) = request(&mut random, row.0);
        let own: Rights = Rights::all()
            .into_iter()
            .filter(|_| random.u8(..4) == 0)
            .collect();
        let asked = Asked {
            key: (random.u8(..4) > 0).then(|| KEYS[random.usize(..3)]),
            resource,
            prefix,
            address: ADDRESSES[random.usize(..5)],
            is_tls: random.bool(),
        };
        let key_rights = rights(&[("bkt", own), ("other", Rights::all())]);
        let caller = match asked.key {
            None => Caller::Anonymous { rights: own },
            Some(access_key) => Caller::Key {
                access_key,
                rights: &key_rights,
            },
        };
        let from = circumstances(asked.address, asked.is_tls);
        let decision = decide(&operation(&request), &caller, policy.as_ref(), &from).is_ok();
        let wanted = expected(&statements, &asked, row, own);
        assert_eq!(decision, wanted, "seed {seed}: {request} {own:?} {json:?}");
        *(if decision { &mut allowed } else { &mut denied }) += 1;
    }
    // Both outcomes are common.
    assert!(
        allowed > DECISIONS / 5 && denied > DECISIONS / 5,
        "{allowed} {denied}"
    );
}
