//! Patterns with `*` and `?`.

/// Whether a text matches a pattern: `*` stands for any text, `?` for one character. At worst it
/// takes time in proportion to the product of both lengths.
pub(crate) fn fits<P, T>(mut pattern: P, mut text: T) -> bool
where
    P: Iterator<Item = char> + Clone,
    T: Iterator<Item = char> + Clone,
{
    // The pattern behind the last star, and the text that the star leaves for it.
    let mut retry: Option<(P, T)> = None;
    loop {
        let wanted = pattern.next();
        if wanted == Some('*') {
            if pattern.clone().next().is_none() {
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
                pattern = behind.clone();
                text = left.clone();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(pattern: &str, text: &str) -> bool {
        fits(pattern.chars(), text.chars())
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
            assert_eq!(fit(pattern, text), expected, "{pattern} {text}");
        }
        let long = "a".repeat(1024);
        assert!(!fit(&format!("{}b", "*a".repeat(200)), &long));
    }
}
