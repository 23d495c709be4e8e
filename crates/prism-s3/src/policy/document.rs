//! The text of policies.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::actions::Actions;
use super::condition::Written;
use super::{Effect, OneOrMany, Principals, Statement};
use crate::{BucketName, Code, S3Error};

const RESOURCE: &str = "arn:aws:s3:::";
const USER: &str = "arn:aws:iam:::user/";
/// Longest access key, as in the files of users.
const MAX_KEY_CHARS: usize = 128;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub(super) struct Document {
    version: Option<String>,
    #[serde(rename = "Id")]
    _id: Option<String>,
    statement: OneOrMany<Rule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct Rule {
    #[serde(rename = "Sid")]
    _sid: Option<String>,
    effect: Effect,
    principal: Principal,
    action: OneOrMany<String>,
    resource: OneOrMany<String>,
    #[serde(default)]
    condition: Written,
}

#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Principal {
    Text(String),
    Named {
        #[serde(rename = "AWS")]
        aws: OneOrMany<String>,
    },
}

impl Document {
    pub(super) fn statements(self, bucket: &BucketName) -> Result<Vec<Statement>, S3Error> {
        match self.version.as_deref() {
            None | Some("2012-10-17" | "2008-10-17") => {}
            Some(_) => {
                return Err(
                    Code::MalformedPolicy.with_message("The policy's version is not known.")
                );
            }
        }
        let rules = self.statement.into_vec()?.into_iter();
        rules.map(|rule| rule.statement(bucket)).collect()
    }
}

impl Rule {
    fn statement(self, bucket: &BucketName) -> Result<Statement, S3Error> {
        let resources = self.resource.into_vec()?.into_iter();
        let resources = resources.map(|arn| resource(bucket, &arn));
        Ok(Statement {
            effect: self.effect,
            principals: self.principal.principals()?,
            actions: actions(&self.action.into_vec()?)?,
            resources: resources.collect::<Result<_, _>>()?,
            conditions: self.condition.read()?,
        })
    }
}

impl Principal {
    fn principals(self) -> Result<Principals, S3Error> {
        let names = match self {
            Self::Text(text) if text == "*" => return Ok(Principals::Everybody),
            Self::Text(text) => return Err(unknown_principal(&text)),
            Self::Named { aws } => aws.into_vec()?,
        };
        let mut keys = BTreeSet::new();
        for name in names {
            if name == "*" {
                return Ok(Principals::Everybody);
            }
            let key = name.strip_prefix(USER).unwrap_or(&name);
            let is_key = (1..=MAX_KEY_CHARS).contains(&key.len())
                && key.bytes().all(|byte| byte.is_ascii_graphic());
            if !is_key || key.starts_with("arn:") || key.contains('*') {
                return Err(unknown_principal(&name));
            }
            keys.insert(key.to_owned());
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

fn actions(names: &[String]) -> Result<Actions, S3Error> {
    let mut actions = Actions::default();
    for name in names {
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
fn resource(bucket: &BucketName, arn: &str) -> Result<String, S3Error> {
    let name = arn.strip_prefix(RESOURCE);
    let rest = name.and_then(|name| name.strip_prefix(bucket.as_str()));
    match rest {
        Some(rest) if rest.is_empty() || rest.starts_with(['/', '*']) => Ok(rest.to_owned()),
        _ => {
            Err(Code::MalformedPolicy.with_message("The policy has a resource of another bucket."))
        }
    }
}
