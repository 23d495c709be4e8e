//! Checks of `[[service.rule]]`.

use prism_rules::Variable;

use crate::check_request::{check_conditions, check_headers, is_short};
use crate::model::Config;
use crate::problem::Problems;
use crate::rule::{MAX_RULES, Rule};

/// Most bytes of the text of an answer. Each node keeps it in memory.
const MAX_ANSWER_BYTES: usize = 64 << 10;
const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];

impl Config {
    pub(crate) fn check_rules(&self, found: &mut Problems) {
        let rules = &self.service.rule;
        let fault = format!("has more than {MAX_RULES} rules");
        let fix = "remove some, or join those with the same answer";
        found.check(rules.len() <= MAX_RULES, "service.rule", fault, fix);
        for (index, rule) in rules.iter().enumerate() {
            let field = |leaf: &str| format!("service.rule[{index}].{leaf}");
            check_conditions(&rule.conditions(), &field, found);
            check_answer(rule, &field, found);
        }
    }
}

fn check_answer(rule: &Rule, field: &dyn Fn(&str) -> String, found: &mut Problems) {
    let url_fault = rule.redirect_template().and_then(|url| url.url_fault());
    if let Some((fault, fix)) = url_fault {
        found.check(false, &field("redirect"), fault, fix);
    }
    check_variables(rule, field, found);
    let is_redirect = rule.redirect.is_some();
    let url = rule.redirect.as_deref().unwrap_or("/");
    let is_url = is_short(url) && url.bytes().all(|byte| byte.is_ascii_graphic());
    let fix = "use printable ASCII without spaces, and at most 1,024 bytes";
    found.check(
        is_url,
        &field("redirect"),
        "cannot stand in a header field",
        fix,
    );
    match rule.status {
        None => {
            let fault = "is missing, and there is no `redirect`";
            let fix = "give the status of the answer, such as 403, or a `redirect`";
            found.check(is_redirect, &field("status"), fault, fix);
        }
        Some(status) if is_redirect => {
            let fault = format!("{status} is no redirect");
            let fix = "use 301, 302, 303, 307 or 308";
            found.check(REDIRECTS.contains(&status), &field("status"), fault, fix);
        }
        Some(status) => {
            let is_final = (200..=599).contains(&status);
            let needs_more = [204, 205, 206, 304].contains(&status);
            let fault = format!("{status} is not the status of an answer with a text");
            let is_fine = is_final && (!needs_more || status == 204 && rule.answer.is_empty());
            let fix = "use 200 to 599, but not 205, 206 or 304, and 204 only without `answer`";
            found.check(is_fine, &field("status"), fault, fix);
        }
    }
    let is_alone = !is_redirect || rule.answer.is_empty();
    let fault = "is there beside `redirect`";
    found.check(is_alone, &field("answer"), fault, "remove one of them");
    let has_room = rule.answer.len() <= MAX_ANSWER_BYTES;
    let fault = format!("has more than {MAX_ANSWER_BYTES} bytes");
    let fix = "let a server answer with it";
    found.check(has_room, &field("answer"), fault, fix);
    check_headers(&rule.answer_headers, &field("answer_headers"), found);
}

/// Checks that the parts of a path exist that a redirect uses.
fn check_variables(rule: &Rule, field: &dyn Fn(&str) -> String, found: &mut Problems) {
    let Some(url) = rule.redirect_template() else {
        return;
    };
    let all = |start: char| {
        let mut paths = rule.paths.iter();
        !rule.paths.is_empty() && paths.all(|path| path.starts_with(start))
    };
    let fault = "has {rest}, but not every one of `paths` is the beginning of a path";
    let fix = "give `paths` that begin with /, or use {path}";
    let uses_rest = url.uses(|variable| variable == Variable::Rest);
    found.check(!uses_rest || all('/'), &field("redirect"), fault, fix);
    let fault = "has a group, but not every one of `paths` is a regular expression";
    let fix = "give `paths` that begin with ~, or use {path}";
    let uses_group = url.uses(|variable| matches!(variable, Variable::Group(_)));
    found.check(!uses_group || all('~'), &field("redirect"), fault, fix);
}
