//! Bucket policies that let everybody read.
//!
//! A policy with other callers, other operations, denials or conditions is refused. A policy that
//! is accepted has its full effect.

use std::str::Chars;

use serde::Deserialize;

use crate::{BucketName, Code, ObjectKey, Operation, S3Error};

/// The permissions of everybody on a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    bucket: BucketName,
    statements: Vec<Statement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Statement {
    /// Actions of [`READS`].
    actions: Vec<String>,
    /// Patterns of keys; none stands for the bucket itself. A policy names its own bucket only.
    resources: Vec<Option<String>>,
}

/// The actions that a policy may allow to everybody.
const READS: [&str; 5] = [
    "s3:GetObject",
    "s3:GetObjectAttributes",
    "s3:GetObjectTagging",
    "s3:GetBucketLocation",
    "s3:ListBucket",
];
const ARN: &str = "arn:aws:s3:::";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct Document {
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
    effect: String,
    principal: Principal,
    action: OneOrMany<String>,
    resource: OneOrMany<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
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

impl Policy {
    /// The longest policy, in bytes, as in S3.
    pub const MAX_BYTES: usize = 20 * 1024;

    /// Reads a policy of this bucket.
    ///
    /// # Errors
    /// `MalformedPolicy`; `NotImplemented` for a policy with more than reading by everybody.
    pub fn parse(bucket: &BucketName, body: &[u8]) -> Result<Self, S3Error> {
        let malformed = |why: String| Code::MalformedPolicy.with_message(why);
        if body.len() > Self::MAX_BYTES {
            return Err(malformed("The policy is longer than 20 KiB.".to_owned()));
        }
        let document: Document = serde_json::from_slice(body)
            .map_err(|error| malformed(format!("The policy is not understood: {error}.")))?;
        match document.version.as_deref() {
            None | Some("2012-10-17" | "2008-10-17") => {}
            Some(_) => return Err(malformed("The policy's version is not known.".to_owned())),
        }
        let rules = document.statement.into_vec().into_iter();
        let statements = rules.map(|rule| Statement::from_rule(bucket, rule));
        Ok(Self {
            bucket: bucket.clone(),
            statements: statements.collect::<Result<_, _>>()?,
        })
    }

    /// Whether everybody may do this operation.
    pub fn allows(&self, operation: &Operation) -> bool {
        let Some(actions) = operation.actions_for_everybody() else {
            return false;
        };
        let key = operation.object().map(|object| &object.key);
        operation.bucket() == Some(&self.bucket)
            && actions.iter().all(|action| self.allows_action(action, key))
    }

    fn allows_action(&self, action: &str, key: Option<&ObjectKey>) -> bool {
        let covers = |resource: &Option<String>| match (resource, key) {
            (None, None) => true,
            (Some(pattern), Some(key)) => fits(pattern, key.as_str()),
            _ => false,
        };
        self.statements.iter().any(|statement| {
            statement.actions.iter().any(|of| of == action)
                && statement.resources.iter().any(covers)
        })
    }
}

impl Statement {
    fn from_rule(bucket: &BucketName, rule: Rule) -> Result<Self, S3Error> {
        let refused = |what: &str| {
            Code::NotImplemented.with_message(format!("A policy with {what} is not implemented."))
        };
        if rule.effect != "Allow" {
            return Err(refused("an effect other than Allow"));
        }
        let everybody = match rule.principal {
            Principal::Text(text) => text == "*",
            Principal::Named { aws } => aws.into_vec() == ["*"],
        };
        if !everybody {
            return Err(refused("a principal other than *"));
        }
        let actions = rule.action.into_vec();
        if !actions
            .iter()
            .all(|action| READS.contains(&action.as_str()))
        {
            return Err(refused("actions other than named ones that read"));
        }
        let mut resources = Vec::new();
        for arn in rule.resource.into_vec() {
            let resource = arn.strip_prefix(ARN).unwrap_or_default();
            let (of, keys) = match resource.split_once('/') {
                Some((of, keys)) => (of, Some(keys.to_owned())),
                None => (resource, None),
            };
            if of != bucket.as_str() {
                return Err(Code::MalformedPolicy
                    .with_message("The policy has a resource of another bucket."));
            }
            resources.push(keys);
        }
        Ok(Self { actions, resources })
    }
}

/// Whether a text matches a pattern: `*` stands for any text, `?` for one character. At worst it
/// takes time in proportion to the product of both lengths.
fn fits(pattern: &str, text: &str) -> bool {
    let (mut pattern, mut text) = (pattern.chars(), text.chars());
    // The pattern behind the last star, and the text that the star leaves for it.
    let mut retry: Option<(Chars<'_>, Chars<'_>)> = None;
    loop {
        let wanted = pattern.next();
        if wanted == Some('*') {
            if pattern.as_str().is_empty() {
                return true;
            }
            retry = Some((pattern.clone(), text.clone()));
            continue;
        }
        match (wanted, text.next()) {
            (None, None) => return true,
            (Some(_), None) => return false,
            (Some(wanted), Some(found)) if wanted == '?' || wanted == found => {}
            _ => {
                // The star takes one character more.
                let Some((behind, left)) = &mut retry else {
                    return false;
                };
                left.next();
                (pattern, text) = (behind.clone(), left.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::op::ReadObject;
    use crate::{BucketOperation, ObjectOperation, ObjectRef};

    fn parse(statement: &str) -> Result<Policy, S3Error> {
        let bucket = BucketName::parse("bkt").unwrap();
        let body = format!("{{\"Version\":\"2012-10-17\",\"Statement\":[{statement}]}}");
        Policy::parse(&bucket, body.as_bytes())
    }

    fn rule(principal: &str, action: &str, resource: &str) -> String {
        format!(
            "{{\"Effect\":\"Allow\",\"Principal\":{principal},\"Action\":{action},\
             \"Resource\":{resource}}}"
        )
    }

    fn get(key: &str) -> Operation {
        let object = ObjectRef {
            bucket: BucketName::parse("bkt").unwrap(),
            key: ObjectKey::parse(key).unwrap(),
        };
        Operation::Object(object, ObjectOperation::Get(ReadObject::default()))
    }

    #[test]
    fn everybody_reads_what_the_policy_names_and_nothing_else() {
        let text = rule("\"*\"", "\"s3:GetObject\"", "\"arn:aws:s3:::bkt/public/*\"");
        let policy = parse(&text).unwrap();
        assert!(policy.allows(&get("public/a")));
        assert!(policy.allows(&get("public/")));
        assert!(!policy.allows(&get("private/a")));
        let bucket = BucketName::parse("bkt").unwrap();
        let delete = Operation::Bucket(bucket.clone(), BucketOperation::Delete);
        assert!(!policy.allows(&delete));
        let head = Operation::Bucket(bucket, BucketOperation::Head);
        assert!(!policy.allows(&head));
        let principal = "{\"AWS\":[\"*\"]}";
        let list = rule(principal, "[\"s3:ListBucket\"]", "[\"arn:aws:s3:::bkt\"]");
        assert!(parse(&list).unwrap().allows(&head));
    }

    #[test]
    fn a_policy_that_says_more_is_refused() {
        let all = "\"arn:aws:s3:::bkt/*\"";
        let get = "\"s3:GetObject\"";
        let code = |text: String| parse(&text).unwrap_err().code();
        for text in [
            rule("\"arn:aws:iam::1:root\"", get, all),
            rule("\"*\"", "\"s3:*\"", all),
            rule("\"*\"", "[\"s3:GetObject\",\"s3:PutObject\"]", all),
            rule("\"*\"", get, all).replace("Allow", "Deny"),
        ] {
            assert_eq!(code(text.clone()), Code::NotImplemented, "{text}");
        }
        for text in [
            rule("\"*\"", get, "\"arn:aws:s3:::other/*\""),
            rule("\"*\"", get, "\"*\""),
            rule("\"*\"", get, all).replace("\"Effect\"", "\"Condition\":{},\"Effect\""),
            "1".to_owned(),
        ] {
            assert_eq!(code(text.clone()), Code::MalformedPolicy, "{text}");
        }
    }

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("a*c", "abbc", true),
            ("a*c", "ac", true),
            ("a*c", "acd", false),
            ("*a*b*", "xxaxxbxx", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("", "", true),
            ("*", "", true),
            ("a", "", false),
            ("***b", "aab", true),
            ("*a?", "ab\u{e9}a\u{e9}", true),
            ("?", "\u{e9}", true),
            ("\u{e9}*?", "\u{e9}", false),
            ("a*?*c", "abc", true),
            ("a*?*c", "ac", false),
            ("*ab", "aab", true),
            ("*ab", "aba", false),
            ("b*", "ab", false),
            ("a*b*", "ac", false),
        ] {
            assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
        }
        let long = "a".repeat(1024);
        assert!(!fits(&format!("{}b", "*a".repeat(200)), &long));
    }
}
