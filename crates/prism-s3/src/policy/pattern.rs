//! Patterns with `*` and `?`, and the bound on those of one policy.

use crate::{Code, S3Error};

/// Whether a text matches a pattern, both given as the bytes of their UTF-8: `*` stands for any
/// text, `?` for one character. At worst it takes one step for each byte of the pattern up to the
/// first `*`, and for each pair of a byte of the text and one of the pattern behind that `*`.
pub(crate) fn fits<P, T>(mut pattern: P, mut text: T) -> bool
where
    P: Iterator<Item = u8> + Clone,
    T: Iterator<Item = u8> + Clone,
{
    // The pattern behind the last star, and the text that the star leaves for it.
    let mut retry: Option<(P, T)> = None;
    loop {
        let wanted = pattern.next();
        if wanted == Some(b'*') {
            if pattern.clone().next().is_none() {
                return true;
            }
            retry = Some((pattern.clone(), text.clone()));
            continue;
        }
        match (wanted, text.next()) {
            (None, None) => return true,
            (Some(_), None) => return false,
            (Some(wanted), Some(found)) if wanted == found => {}
            (Some(b'?'), Some(found)) if !continues_character(found) => {
                while text.clone().next().is_some_and(continues_character) {
                    text.next();
                }
            }
            _ => {
                // The star takes one byte more.
                let Some((behind, left)) = &mut retry else {
                    return false;
                };
                left.next();
                pattern = behind.clone();
                text = left.clone();
            }
        }
    }
}

/// Whether a byte of UTF-8 is not the first of its character.
fn continues_character(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

/// Checks the texts of one policy while it is read.
#[derive(Debug, Default)]
pub(super) struct TextCheck {
    /// The bytes behind the first `*` of each pattern so far.
    behind_stars: usize,
}

impl TextCheck {
    /// The most bytes behind the first `*` of each pattern of a policy, together. A key has at
    /// most 1,024 bytes, so a decision takes about 1,024 x 1,024 steps.
    pub(super) const MAX_BEHIND_STARS: usize = 1024;

    /// Checks a text that stands for itself.
    pub(super) fn literal(text: &str) -> Result<(), S3Error> {
        if text.contains("${") {
            return Err(Code::MalformedPolicy.with_message(format!(
                "{text:.128} has a policy variable. Variables such as ${{aws:username}} are not \
                 implemented: name each access key in a statement of its own."
            )));
        }
        Ok(())
    }

    /// Checks a pattern, and counts it.
    pub(super) fn pattern(&mut self, text: &str) -> Result<(), S3Error> {
        Self::literal(text)?;
        let behind = text.split_once('*').map_or("", |(_, behind)| behind);
        self.behind_stars += behind.len();
        if self.behind_stars > Self::MAX_BEHIND_STARS {
            return Err(Code::MalformedPolicy.with_message(format!(
                "The patterns of a policy have at most {} bytes behind their first *, \
                 together. Use fewer patterns, or end them with their first *.",
                Self::MAX_BEHIND_STARS
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;

    use super::*;
    use crate::ObjectKey;

    fn fit(pattern: &str, text: &str) -> bool {
        fits(pattern.bytes(), text.bytes())
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
            ("*?", "\u{e9}\u{20ac}", true),
            ("\u{e9}??", "\u{e9}\u{20ac}\u{1f600}", true),
            ("?", "\u{e9}a", false),
            ("*??", "\u{20ac}", false),
            ("*?\u{a9}", "\u{e9}", false),
            ("a*?*c", "abc", true),
            ("a*?*c", "ac", false),
            ("*ab", "aab", true),
            ("*ab", "aba", false),
            ("b*", "ab", false),
            ("a*b*", "ac", false),
        ] {
            assert_eq!(fit(pattern, text), expected, "{pattern} {text}");
        }
        let long = "a".repeat(1024);
        assert!(!fit(&format!("{}b", "*a".repeat(200)), &long));
    }

    /// The steps of a comparison with the longest key: the bytes of the pattern that are read.
    fn steps(pattern: &str) -> usize {
        let steps = Cell::new(0);
        let counted = pattern.bytes().inspect(|_| steps.set(steps.get() + 1));
        let key = "a".repeat(ObjectKey::MAX_BYTES);
        assert!(!fits(counted, key.bytes()), "{pattern}");
        steps.get()
    }

    #[test]
    fn a_decision_by_the_costliest_policy_has_a_million_steps() {
        const MAX: usize = TextCheck::MAX_BEHIND_STARS;
        for times in [1, 2, 4, 16, 128] {
            let len = MAX / times;
            for pattern in [
                format!("*{}b", "a".repeat(len - 1)),
                format!("*{}b", "a".repeat(len / 2 - 1)),
                format!("*{}b", "a*".repeat(len / 2 - 1)),
                format!("*{}b", "?*".repeat(len / 2 - 1)),
                format!("*{}b", "?".repeat(len - 1)),
                format!("*{}b*", "?".repeat(len - 2)),
            ] {
                let mut check = TextCheck::default();
                for _ in 0..times {
                    check.pattern(&pattern).unwrap();
                }
                let all = times * steps(&pattern);
                // Each `*` is read once more to see whether it is the last byte.
                let most = (MAX + 2 * times) * (ObjectKey::MAX_BYTES + 2);
                assert!(all <= most, "{all} {pattern}");
            }
        }
    }

    #[test]
    fn the_patterns_of_a_policy_have_a_bound_together() {
        const MAX: usize = TextCheck::MAX_BEHIND_STARS;
        let mut check = TextCheck::default();
        let free = "a".repeat(4 * MAX);
        for pattern in [&free, &format!("{free}*"), &format!("{}*", "?".repeat(MAX))] {
            check.pattern(pattern).unwrap();
        }
        check
            .pattern(&format!("a*{}b", "\u{e9}".repeat(MAX / 2 - 1)))
            .unwrap();
        check.pattern("*b").unwrap();
        let error = check.pattern("*b").unwrap_err();
        assert_eq!(error.code(), Code::MalformedPolicy);
        assert!(error.message().contains("1024"), "{error}");
    }

    #[test]
    fn variables_are_refused() {
        for text in ["home/${aws:username}/*", "${*}", "a${"] {
            assert!(TextCheck::default().pattern(text).is_err(), "{text}");
            assert!(TextCheck::literal(text).is_err(), "{text}");
        }
        assert!(TextCheck::literal("a$b{c}").is_ok());
    }
}
