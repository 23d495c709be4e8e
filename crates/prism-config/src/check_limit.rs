//! Checks of `[[service.limit]]`.

use std::collections::BTreeSet;

use crate::check_request::{check_conditions, is_field_name, is_short};
use crate::limit::{LimitBy, MAX_LIMITS, MAX_LIMITS_AT_ONCE, RequestLimit};
use crate::model::Config;
use crate::problem::Problems;

impl Config {
    pub(crate) fn check_request_limits(&self, found: &mut Problems) {
        let limits = &self.service.limit;
        let fault = format!("has more than {MAX_LIMITS} limits");
        let fix = "remove some, or join those with the same bounds";
        found.check(limits.len() <= MAX_LIMITS, "service.limit", fault, fix);
        let at_once = limits.iter().filter(|limit| limit.at_once.is_some());
        let fault = format!("has more than {MAX_LIMITS_AT_ONCE} limits with `at_once`");
        let has_room = at_once.count() <= MAX_LIMITS_AT_ONCE;
        found.check(has_room, "service.limit", fault, fix);
        let mut names = BTreeSet::new();
        for (index, limit) in limits.iter().enumerate() {
            let field = |leaf: &str| format!("service.limit[{index}].{leaf}");
            check_conditions(&limit.conditions(), &field, found);
            self.check_limit(limit, &field, found);
            let fault = format!("{:?} is the name of another limit too", limit.name);
            let is_new = names.insert(limit.name.as_str());
            found.check(is_new, &field("name"), fault, "give it another one");
        }
    }

    fn check_limit(
        &self,
        limit: &RequestLimit,
        field: &dyn Fn(&str) -> String,
        found: &mut Problems,
    ) {
        let name = limit.name.as_str();
        let is_name = is_short(name) && name.bytes().all(|byte| byte.is_ascii_graphic());
        let fix = "give it one of printable ASCII without spaces, such as \"logins\"";
        let fault = "is missing, or cannot stand in logs and metrics";
        found.check(is_name && !name.is_empty(), &field("name"), fault, fix);
        match &limit.by {
            LimitBy::Header(name) => {
                let fault = format!("{name:?} is not the name of a header field");
                let is_field = is_short(name) && is_field_name(name);
                let fix = "write it as in \"header:X-Api-Key\"";
                found.check(is_field, &field("by"), fault, fix);
            }
            LimitBy::Key => {
                let fault = "is the access key of the object store, and the service has none";
                let fix = "use \"client\", or a header field as in \"header:X-Api-Key\"";
                found.check(self.service.keeps_objects(), &field("by"), fault, fix);
            }
            LimitBy::Client | LimitBy::All => {}
        }
        let is_bounded = limit.rate.is_some() || limit.at_once.is_some();
        let fault = "has neither `rate` nor `at_once`, so it bounds nothing";
        found.check(is_bounded, &field("rate"), fault, "give one of them");
        let has_rate = limit.rate.is_some() || limit.burst.is_none();
        let fault = "is there without `rate`";
        found.check(
            has_rate,
            &field("burst"),
            fault,
            "give a `rate`, or remove it",
        );
        for (leaf, bound) in [("burst", limit.burst), ("at_once", limit.at_once)] {
            let fix = "use at least 1; a [[service.rule]] with a `status` refuses all requests";
            found.check(bound != Some(0), &field(leaf), "is 0", fix);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde::Deserialize;

    use super::*;
    use crate::upstream::Upstream;

    #[derive(Deserialize)]
    struct File {
        limit: Vec<RequestLimit>,
    }

    fn faults(table: &str) -> String {
        let file = toml::from_str::<File>(&format!("[[limit]]\n{table}\n"));
        let file = match file {
            Ok(file) => file,
            Err(error) => return error.message().to_owned(),
        };
        let mut config: Config = Config::default();
        config.service.upstream = Some(vec![Upstream::default()].into());
        config.service.limit = file.limit;
        let mut found = Problems::default();
        config.check_request_limits(&mut found);
        let shown = found
            .0
            .iter()
            .map(|one| format!("{} {}", one.field, one.fault));
        shown.collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn faults_of_limits_are_named() {
        for (table, expected) in [
            ("name = \"a\"\nrate = \"1/s\"", ""),
            ("name = \"a\"\nat_once = 1\nby = \"header:X-Key\"", ""),
            ("rate = \"1/s\"", "name is missing, or cannot stand in logs"),
            ("name = \"a b\"\nrate = \"1/s\"", "cannot stand in logs"),
            ("name = \"a\"", "neither `rate` nor `at_once`"),
            (
                "name = \"a\"\nat_once = 1\nburst = 2",
                "burst is there without `rate`",
            ),
            ("name = \"a\"\nat_once = 0", "at_once is 0"),
            ("name = \"a\"\nrate = \"1/s\"\nburst = 0", "burst is 0"),
            (
                "name = \"a\"\nrate = \"1/s\"\nby = \"key\"",
                "the service has none",
            ),
            (
                "name = \"a\"\nrate = \"1/s\"\nby = \"header:a b\"",
                "not the name of a header",
            ),
            (
                "name = \"a\"\nrate = \"1/s\"\npaths = [\"x\"]",
                "service.limit[0].paths",
            ),
            ("name = \"a\"\nrate = \"1\"", "is not a rate"),
            (
                "name = \"a\"\nrate = \"1/s\"\n[[limit]]\nname = \"a\"\nat_once = 1",
                "the name of another limit",
            ),
        ] {
            let found = faults(table);
            assert_eq!(found.is_empty(), expected.is_empty(), "{table}: {found}");
            assert!(found.contains(expected), "{table}: {found}");
        }
    }
}
