//! The text of policies.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::actions::Actions;
use super::condition::Written;
use super::json::{OneOrMany, Single, present};
use super::pattern::TextCheck;
use super::{Effect, Principals, Statement};
use crate::{BucketName, Code, S3Error};

const RESOURCE: &str = "arn:aws:s3:::";
const USER: &str = "arn:aws:iam:::user/";
/// Longest access key, as in the files of users.
const MAX_KEY_CHARS: usize = 128;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub(super) struct Document {
    #[serde(default, deserialize_with = "present")]
    version: Option<String>,
    #[serde(rename = "Id", default, deserialize_with = "present")]
    _id: Option<String>,
    statement: OneOrMany<Rule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct Rule {
    #[serde(rename = "Sid", default, deserialize_with = "present")]
    _sid: Option<String>,
    effect: String,
    principal: Principal,
    action: OneOrMany<String>,
    resource: OneOrMany<String>,
    #[serde(default)]
    condition: Single<Written>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "a principal has to be \"*\" or {\"AWS\": ..}, with a text or a list of texts"
)]
enum Principal {
    Text(String),
    Named(Single<Named>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    #[serde(rename = "AWS")]
    aws: OneOrMany<String>,
}

impl Document {
    pub(super) fn statements(self, bucket: &BucketName) -> Result<Vec<Statement>, S3Error> {
        match self.version.as_deref() {
            None | Some("2012-10-17" | "2008-10-17") => {}
            Some(_) => {
                return Err(Code::MalformedPolicy.with_message(
                    "The policy's version is not known. Use 2012-10-17, or leave it out.",
                ));
            }
        }
        let mut check = TextCheck::default();
        let OneOrMany(rules) = self.statement;
        let statements = rules.into_iter();
        let statements = statements.map(|rule| rule.statement(bucket, &mut check));
        statements.collect()
    }
}

impl Rule {
    fn statement(self, bucket: &BucketName, check: &mut TextCheck) -> Result<Statement, S3Error> {
        let effect = match self.effect.as_str() {
            "Allow" => Effect::Allow,
            "Deny" => Effect::Deny,
            _ => {
                return Err(
                    Code::MalformedPolicy.with_message("An Effect has to be Allow or Deny.")
                );
            }
        };
        let OneOrMany(resources) = &self.resource;
        let resources = resources.iter().map(|arn| resource(bucket, arn, check));
        Ok(Statement {
            effect,
            resources: resources.collect::<Result<_, _>>()?,
            principals: self.principal.principals()?,
            actions: actions(&self.action.0, check)?,
            conditions: self.condition.0.read(check)?,
        })
    }
}

impl Principal {
    fn principals(self) -> Result<Principals, S3Error> {
        let names = match self {
            Self::Text(text) if text == "*" => return Ok(Principals::Everybody),
            Self::Text(text) => return Err(unknown_principal(&text)),
            Self::Named(Single(Named { aws })) => aws.0,
        };
        let mut keys = BTreeSet::new();
        let mut is_everybody = false;
        for name in names {
            if name == "*" {
                is_everybody = true;
                continue;
            }
            let key = name.strip_prefix(USER).unwrap_or(&name);
            let is_key = (1..=MAX_KEY_CHARS).contains(&key.len())
                && key.bytes().all(|byte| byte.is_ascii_graphic());
            if !is_key || key.starts_with("arn:") || key.contains('*') {
                return Err(unknown_principal(&name));
            }
            keys.insert(key.to_owned());
        }
        if is_everybody {
            return Ok(Principals::Everybody);
        }
        Ok(Principals::AccessKeys(keys))
    }
}

fn unknown_principal(name: &str) -> S3Error {
    Code::NotImplemented.with_message(format!(
        "The principal {name:.128} is not implemented. A principal is \"*\", or {{\"AWS\": ..}} with \
         \"*\", access keys, or {USER}ACCESSKEY."
    ))
}

fn actions(names: &[String], check: &mut TextCheck) -> Result<Actions, S3Error> {
    let mut actions = Actions::default();
    for name in names {
        check.pattern(name)?;
        let named = Actions::named(name);
        if named.is_empty() {
            return Err(Code::NotImplemented.with_message(format!(
                "The action {name:.64} of a policy is not implemented."
            )));
        }
        actions |= named;
    }
    Ok(actions)
}

/// The pattern of what follows the bucket's name.
fn resource(bucket: &BucketName, arn: &str, check: &mut TextCheck) -> Result<String, S3Error> {
    check.pattern(arn)?;
    let name = arn.strip_prefix(RESOURCE);
    let rest = name.and_then(|name| name.strip_prefix(bucket.as_str()));
    match rest {
        Some(rest) if rest.is_empty() || rest.starts_with(['/', '*']) => Ok(rest.to_owned()),
        _ => {
            Err(Code::MalformedPolicy.with_message("The policy has a resource of another bucket."))
        }
    }
}
